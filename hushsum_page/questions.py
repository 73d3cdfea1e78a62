"""Questions at a point: what a form or an address says, and the figure with its error and its interval."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from hushsum.canonical import real_text
from hushsum.errors import HushsumError
from hushsum.families import Answer, SetRecords
from hushsum.plan import Plan
from hushsum.query import Queryable

#: More columns have one field together.
FIELDS_MAX: Final = 12
_IDS_MAX: Final = 1000
_TEXT_MAX: Final = 4000
_CONFIDENCE: Final = 0.95


class QuestionError(HushsumError):
    """A question that cannot be understood: what was expected."""


class Field(NamedTuple):
    """One field of the form.

    Attributes:
        name: Of its parameter.
        label: For people.
        hint: What it takes.
        low: The lower bound of a number; empty for a text.
        high: The upper bound.
    """

    name: str
    label: str
    hint: str
    low: str = ""
    high: str = ""


class Figure(NamedTuple):
    """One number with its error.

    Attributes:
        name: What it is.
        value: The estimate.
        error: Its standard error; "unknown" where a sketch has one row.
        low: The lower end of the 95 % interval.
        high: Its upper end.
    """

    name: str
    value: str
    error: str
    low: str
    high: str


@dataclass(frozen=True)
class Reply:
    """The answer to a question.

    Attributes:
        at: Where it was asked, in words.
        figures: The answers.
    """

    at: str
    figures: tuple[Figure, ...]


def fields_of(plan: Plan) -> tuple[Field, ...]:
    """The fields of a question to releases of a plan."""
    if isinstance(plan.record, SetRecords):
        return (Field("at", "ids of one set", f"integers from 0 to {plan.record.universe - 1:,}, such as 3, 17, 29"),)
    dim = plan.family.query_dim
    names = [_name(plan, column) for column in range(dim)]
    if plan.family.name == "paired":
        names = [f"coefficient of {name}" for name in names]
        if dim <= FIELDS_MAX:
            return tuple(Field(f"c{number}", name, "a number") for number, name in enumerate(names))
    if dim > FIELDS_MAX:
        shown = ", ".join(names[:3])
        return (Field("at", f"{dim} numbers", f"{shown}, …: separated by commas"),)
    units = plan.collection.units
    bounds = [
        (real_text(low), real_text(high)) for low, high in zip(plan.vectors.lower, plan.vectors.upper, strict=True)
    ]
    return tuple(
        Field(
            f"c{number}",
            f"{name} ({units[number]})" if units and units[number] else name,
            f"{bounds[number][0]} to {bounds[number][1]}",
            *bounds[number],
        )
        for number, name in enumerate(names)
    )


def _name(plan: Plan, column: int) -> str:
    return plan.collection.names[column] if plan.collection.names else f"x{column}"


def is_asked(plan: Plan, parameters: Mapping[str, str]) -> bool:
    """Whether an address asks something, wrong or right."""
    return any(parameters.get(field.name, "").strip() for field in fields_of(plan))


def point_of(plan: Plan, parameters: Mapping[str, str]) -> list[float] | list[int]:
    """The point, or the ids of the set, that parameters ask for.

    Raises:
        QuestionError: A field is missing, or is no number.
    """
    fields = fields_of(plan)
    if isinstance(plan.record, SetRecords):
        return _ids(plan.record, parameters.get("at", ""))
    if fields[0].name == "at":
        texts = parameters.get("at", "")[:_TEXT_MAX].split(",")
        if len(texts) != plan.family.query_dim:
            raise QuestionError(f"expected {plan.family.query_dim} numbers separated by commas, got {len(texts)}")
        return [_number(text, f"number {at}") for at, text in enumerate(texts, 1)]
    return [_number(parameters.get(field.name, ""), field.label) for field in fields]


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise QuestionError(f"{what}: expected a number, got {text.strip()[:40]!r}")
    return number


def _ids(record: SetRecords, text: str) -> list[int]:
    try:
        ids = sorted({int(each) for each in text[:_TEXT_MAX].split(",")})
    except ValueError as error:
        raise QuestionError("expected the ids of one set, separated by commas, such as 3, 17, 29") from error
    if len(ids) > _IDS_MAX or ids[0] < 0 or ids[-1] >= record.universe:
        raise QuestionError(f"expected at most {_IDS_MAX} ids from 0 to {record.universe - 1:,}")
    return ids


def label_of(plan: Plan, text: str) -> str | None:
    """The class that a question is about; None: all.

    Raises:
        QuestionError: The plan has no such class.
    """
    if text and text not in plan.classes:
        raise QuestionError("class: expected one of the plan's classes")
    return text or None


def ask(release: Queryable, parameters: Mapping[str, str]) -> Reply:
    """Answers a question.

    Raises:
        QuestionError: It cannot be understood.
    """
    plan = release.plan
    point, label = point_of(plan, parameters), label_of(plan, parameters.get("label", ""))
    asked: Any = [np.array(point, np.int64)] if isinstance(plan.record, SetRecords) else np.array([point], np.float64)
    total, mean = "kernel sum (roughly, records near the point)", "density (mean kernel)"
    if plan.family.name == "paired":
        total, mean = "total loss of the model", "mean loss"
    elif plan.family.name == "partition":
        total, mean = "records in the cell", "share of the records"
    figures = (
        _figure(total, release.kernel_sum(asked, label=label), "{:,.1f}"),
        _figure(mean, release.density(asked, label=label), "{:.4g}"),
    )
    return Reply(_place(plan, point, label), figures)


def _figure(name: str, answer: Answer, form: str) -> Figure:
    low, high = (float(end[0]) for end in answer.interval(_CONFIDENCE))
    numbers = (float(answer.value[0]), float(answer.std_error[0]), low, high)
    return Figure(name, *("unknown" if math.isnan(number) else form.format(number) for number in numbers))


def _place(plan: Plan, point: Iterable[float], label: str | None) -> str:
    texts = [f"{number:g}" for number in point]
    if not isinstance(plan.record, SetRecords) and plan.family.name != "paired" and len(texts) <= FIELDS_MAX:
        texts = [f"{_name(plan, column)} = {text}" for column, text in enumerate(texts)]
    shown = ", ".join(texts[:FIELDS_MAX]) + (" …" if len(texts) > FIELDS_MAX else "")
    return shown if label is None else f"{shown}, class {label}"
