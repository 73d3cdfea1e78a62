"""What a plan collects (``[record]``): the schema of a record, what its columns are called, and the classes."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.canonical import real_text
from hushsum.errors import PlanError, RecordError
from hushsum.families import Records, RecordSchema, SetRecords, VectorRecords
from hushsum.schema import Table

_DIM_MAX: Final = 2**16
_UNIVERSE_MAX: Final = 2**32
_UNIVERSE: Final = 2**31
_CLASSES_MAX: Final = 1024
_UNREADABLE: Final = (ValueError, ArithmeticError)  # text that is not UTF-8; times that no datetime holds


@dataclass(frozen=True)
class Collection:
    """The table ``[record]``.

    Attributes:
        schema: Of a record.
        names: What columns are called; empty, or one a column.
        units: What they are measured in; empty, or one a column.
        classes: Labels, one sketch each; empty: one sketch, and records have no labels.
    """

    schema: RecordSchema
    names: tuple[str, ...]
    units: tuple[str, ...]
    classes: tuple[str, ...]

    @classmethod
    def from_table(cls, table: Table) -> "Collection":
        """Reads ``[record]``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        kind = table.choice("kind", built=["vector", "set"], default="vector")
        names: tuple[str, ...] = ()
        units: tuple[str, ...] = ()
        schema: RecordSchema
        if kind == "set":
            schema = SetRecords(table.integer("universe", low=1, high=_UNIVERSE_MAX, default=_UNIVERSE))
        else:
            schema = _vectors(table)
            names = table.texts("names", lengths=(0, schema.dim))
            units = table.texts("units", lengths=(0, schema.dim), distinct=False)
        classes = table.texts("classes")
        if len(classes) == 1 or len(classes) > _CLASSES_MAX:
            raise PlanError(table.name("classes"), list(classes), f"[] (no classes), or 2 to {_CLASSES_MAX} labels")
        if "" in classes:
            raise PlanError(table.name("classes"), list(classes), "labels of at least one character")
        table.finish()
        return cls(schema, names, units, classes)

    def class_indices(self, labels: object, n: int) -> npt.NDArray[np.int64]:
        """(n,) int64: the class of each record from its label; −1 where a label is missing, unknown or neither.

        Such a record is dropped alone, like any other that cannot be used.

        Args:
            labels: n strings, or integers, which stand for their decimal text; None, or NaN, for a missing one. None at
                all, where the plan has no classes.
            n: Number of records.

        Raises:
            RecordError: Labels of another number, or none of them a string or an integer; labels without classes, or
                none with them.
        """
        if not self.classes:
            if labels is not None:
                raise RecordError("labels: not allowed, because this plan has no classes")
            return np.zeros(n, np.int64)
        expected = f"one of {', '.join(map(repr, self.classes[:8]))}{' ...' if len(self.classes) > 8 else ''}"
        if labels is None:
            raise RecordError(f"labels: missing, expected one per record: {expected}")
        given = label_list(labels)
        if len(given) != n:
            raise RecordError(f"labels: got {len(given)} labels for {n} records")
        numbers = {label: index for index, label in enumerate(self.classes)}
        if given and not any(isinstance(label, str) for label in given) and not all(map(_is_missing, given)):
            label = next(label for label in given if not _is_missing(label))
            raise RecordError(f"labels: got {label!r} of type {type(label).__name__}, expected {expected}")
        return np.array([numbers.get(label, -1) if isinstance(label, str) else -1 for label in given], np.int64)

    def to_fields(self) -> dict[str, object]:
        """Every key of the kind, canonical."""
        if isinstance(self.schema, SetRecords):
            return {"kind": "set", "universe": self.schema.universe, "classes": list(self.classes)}
        return {
            "kind": "vector",
            "dim": self.schema.dim,
            "lower": [real_text(bound) for bound in self.schema.lower],
            "upper": [real_text(bound) for bound in self.schema.upper],
            "classes": list(self.classes),
            "names": list(self.names),
            "units": list(self.units),
        }


def by_class(records: Records, classes: npt.NDArray[np.int64]) -> Iterator[tuple[int, Records]]:
    """Each class that has any of the records, rising, and its records in their order.

    Args:
        records: n accepted ones.
        classes: (n,), of each.
    """
    if len(classes) and classes.min() == classes.max():
        yield int(classes[0]), records
        return
    present, sizes = np.unique(classes, return_counts=True)
    order, end = np.argsort(classes, kind="stable"), 0
    for index, size in zip(present.tolist(), sizes.tolist(), strict=True):
        end += size
        yield index, records[order[end - size : end]]


def label_list(labels: object) -> list[object]:
    """Labels as a list of their own; one string or integer is one label.

    Strings of a type of their own become plain ones, integers their decimal text, and None stands for what cannot be
    read.

    Raises:
        RecordError: They have no order.
    """
    if isinstance(labels, str | int | np.integer):
        return [_plain(labels)]
    if hasattr(labels, "to_pylist"):  # pyarrow's, whose items are no strings
        labels = items_of(labels)
    unordered = isinstance(labels, AbstractSet | Mapping | bytes) or getattr(labels, "ndim", 1) != 1
    if unordered or not isinstance(labels, Iterable):
        raise RecordError(f"labels: got {type(labels).__name__}, expected a list of strings, one per record")
    given = labels.tolist() if isinstance(labels, np.ndarray) and labels.dtype.kind in "Uiu" else list(labels)
    return given if all(type(label) is str for label in given) else [_plain(label) for label in given]


def items_of(labels: Any) -> list[object]:
    """The items of an Arrow array; None for one that is no Python value."""
    try:
        return list(labels.to_pylist())
    except _UNREADABLE:
        return [_item(label) for label in labels]


def _item(label: Any) -> object:
    try:
        return label.as_py()
    except _UNREADABLE:
        return None


def _plain(label: object) -> object:
    """A string as its characters, whatever its type compares or hashes by; None of what does not say its type."""
    try:
        if isinstance(label, int | np.integer) and not isinstance(label, bool):
            return int.__repr__(operator.index(label))
        return str.__str__(label) if isinstance(label, str) else label
    except Exception:  # noqa: BLE001 -- a property of a foreign type may raise anything, and costs one record alone
        return None


def _is_missing(label: object) -> bool:
    return label is None or (isinstance(label, float | np.floating) and bool(np.isnan(label)))


def _vectors(table: Table) -> VectorRecords:
    dim = table.integer("dim", low=1, high=_DIM_MAX)
    lower, upper = table.reals("lower", length=dim), table.reals("upper", length=dim)
    for column, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if low >= high:
            expected = f"above record.lower[{column}] = {real_text(low)}"
            raise PlanError(table.name(f"upper[{column}]"), real_text(high), expected)
    return VectorRecords(dim, lower, upper)
