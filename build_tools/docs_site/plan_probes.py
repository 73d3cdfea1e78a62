"""What a plan accepts under each key, as the code says it: a wrong value is refused with what was expected.

Each :class:`Sample` is a small plan. For each of its keys the refusal of a wrong value says the type and the range, and
the plan without the key says the default. So the reference of plans cannot differ from the code.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import Missing, PlanError
from hushsum.learned_hashes import given_hash
from hushsum.parameters import NO_PARAMETERS, Parameters, digest
from hushsum.plan import Plan
from hushsum.plan_keys import KEYS

REQUIRED: Final = "required"
STATED: Final = "stated in KEYS"
_INTEGER: Final = re.compile(r"an integer from (\d+) to \d+")
_DIM: Final = 3
_MATRIX: Final[npt.NDArray[np.float32]] = np.array([[1, 0.5, 0], [0, -1, 2]], np.float32)
_HASH: Final = given_hash(_MATRIX, rows=8, bandwidth=40, seed=3)
_FREQUENCIES: Final = np.ones((8, _DIM), np.float32)

_RECORD: Final[dict[str, object]] = {"dim": _DIM, "lower": [0] * _DIM, "upper": [10] * _DIM}
_PRIVACY: Final[dict[str, object]] = {"epsilon": 1, "total_epsilon": 100}
_SETS: Final[dict[str, object]] = {"kind": "set"}
_HASHED: Final[dict[str, object]] = {
    "family": "hashed",
    "kernel": "euclidean",
    "bandwidth": 2,
    "rows": 8,
    "buckets": 64,
}
_FOURIER: Final[dict[str, object]] = {"family": "fourier", "kernel": "gaussian", "bandwidth": 2, "rows": 8}
_HERMITE: Final[dict[str, object]] = {"family": "hermite", "kernel": "gaussian", "bandwidth": 5}
_PARTITION: Final[dict[str, object]] = {"family": "partition", "bandwidth": 5, "rows": 3, "buckets": 64}
_PAIRED: Final[dict[str, object]] = {"family": "paired", "rows": 8, "radius": 2}
_GROUPS: Final[dict[str, object]] = {
    "family": "hashed",
    "rows": 8,
    "buckets": 64,
    "groups": [{"columns": [0, 2], "kernel": "euclidean", "bandwidth": 2}],
}
_LATE: Final[dict[str, object]] = {"lateness": "5m"}


@dataclass(frozen=True)
class Sample:
    """A small plan, by what is particular in it."""

    label: str
    fields: Mapping[str, Any]
    parameters: Parameters = NO_PARAMETERS

    def plan(self, fields: Mapping[str, Any] | None = None) -> Plan:
        """The plan of the sample, or of other fields with its arrays."""
        return Plan.from_fields(self.fields if fields is None else fields, self.parameters)

    def with_value(self, table: str, key: str, value: object) -> dict[str, Any]:
        """The fields with another value under a key; ``...`` leaves it out. Of a list of tables the first has it."""
        fields = deepcopy(dict(self.fields))
        holder: Any = holder_of(fields, table)
        if value is ...:
            holder.pop(key, None)
        else:
            holder[key] = value
        return fields

    def has(self, table: str) -> bool:
        """Whether it has a table."""
        try:
            holder_of(self.fields, table)
        except KeyError:
            return False
        return True


def _sample(label: str, sketch: Mapping[str, object], *arrays: npt.NDArray[Any], **tables: object) -> Sample:
    fields = {"name": "sample", "record": _RECORD, "sketch": sketch, "privacy": _PRIVACY, "window": {}, **tables}
    return Sample(label, fields, Parameters.of(arrays))


def _compiled(label: str, sample: Sample) -> Sample:
    """The plan of a sample with its mechanism written, as ``hushsum plan make`` writes it."""
    fields = sample.plan().to_fields()
    del fields["format"]
    return Sample(label, fields)


def _transformed(kind: str, *arrays: npt.NDArray[Any], **keys: object) -> Sample:
    return _sample(f"`transforms`, kind `{kind}`", _HASHED | {"transforms": [{"kind": kind, **keys}]}, *arrays)


_CLIENTS: Final = _sample(
    "unit `client`",
    _HASHED,
    privacy=_PRIVACY | {"unit": "client", "records_per_client": 3},
    window={"min_clients": 5},
)
_SEQUENCE: Final[dict[str, object]] = {"release": "cumulative", "horizon": 100}
_CUMULATIVE: Final = _sample("cumulative", _HASHED, window=_SEQUENCE)
_CUMULATIVE_OF_CLIENTS: Final = _sample(
    "cumulative, unit `client`",
    _HASHED,
    privacy=_PRIVACY | {"unit": "client", "records_per_client": 3, "delta": "0.000001", "total_delta": "0.000001"},
    window=_SEQUENCE | {"windows_per_client": 2},
)
_SECURE: Final = _sample(
    "mode `secure`",
    _HASHED,
    privacy=_PRIVACY | {"mode": "secure", "total_delta": "0.000001", "secure": {}},
    window=_LATE,
)
_POOL: Final = {"cohort": 100, "pool": 1000, "corrupt_clients": 50}
SAMPLES: Final = (
    _sample("`hashed`", _HASHED),
    _sample("`hashed`, draws `sobol`", _HASHED | {"draws": "sobol"}),
    _sample(
        "`hashed`, draws `given`",
        {"family": "hashed", "kernel": "euclidean", "draws": "given", "parameters": digest(_HASH)}
        | {"rows": 8, "buckets": 64},
        _HASH,
    ),
    _sample("`hashed`, kernel `angular`", {"family": "hashed", "kernel": "angular", "rows": 8, "buckets": 64}),
    _sample("`hashed`, sets", {"family": "hashed", "kernel": "jaccard", "rows": 8, "buckets": 64}, record=_SETS),
    _sample("`hashed`, groups", _GROUPS),
    _transformed("scale", factor=[1] * _DIM),
    _transformed("clip", lower=[0] * _DIM, upper=[5] * _DIM),
    _transformed("linear", _MATRIX, matrix=digest(_MATRIX)),
    _sample("`fourier`", _FOURIER),
    _sample("`fourier`, draws `sobol`", _FOURIER | {"draws": "sobol"}),
    _sample("`fourier`, `exponential-p`", _FOURIER | {"kernel": "exponential-p", "exponent": "1.5"}),
    _sample("`hermite`", _HERMITE),
    _sample("`partition`, cells `grid`", _PARTITION),
    _sample("`partition`, cells `lsh`", _PARTITION | {"cells": "lsh"}),
    _sample("`paired`", _PAIRED, record=_RECORD | {"lower": [-2] * _DIM, "upper": [2] * _DIM}),
    _CLIENTS,
    _SECURE,
    _sample(
        "mode `secure`, with a pool",
        _HASHED,
        privacy=_PRIVACY | {"mode": "secure", "total_delta": "0.000001", "secure": _POOL},
    ),
    _sample("mode `local`, reports", _HASHED, privacy=_PRIVACY | {"mode": "local", "local": {}}),
    _sample("mode `local`, reports of `fourier`", _FOURIER, privacy=_PRIVACY | {"mode": "local", "local": {}}),
    _sample("mode `local`, silo", _HASHED, privacy=_PRIVACY | {"mode": "local", "local": {"form": "silo"}}),
    _compiled("compiled", _CLIENTS),
    _compiled("compiled, mode `secure`", _SECURE),
    _CUMULATIVE,
    _CUMULATIVE_OF_CLIENTS,
    _compiled("compiled, cumulative", _CUMULATIVE),
    _compiled("compiled, cumulative, unit `client`", _CUMULATIVE_OF_CLIENTS),
)


@dataclass(frozen=True)
class Accepted:
    """What a sample accepts under a key: as its refusal of a wrong value says it, and what stands there by default."""

    sample: Sample
    expected: str
    default: object


@cache
def accepted(table: str, key: str) -> tuple[Accepted, ...]:
    """For each sample that has a key: what it accepts there."""
    return tuple(
        Accepted(sample, expected, _default(sample, table, key))
        for sample in SAMPLES
        if sample.has(table) and (expected := _expected(sample, table, key))
    )


def _expected(sample: Sample, table: str, key: str) -> str:
    """What a refusal says; empty where the sample refuses the key itself."""
    text = refusal(sample, table, key, object())
    if text == "a string":
        text = refusal(sample, table, key, "?") or text
    elif (low := _INTEGER.fullmatch(text)) and (closer := refusal(sample, table, key, int(low[1]))):
        text = closer
    return "" if text.startswith(("a known key", "no value", "nothing")) else text


def refusal(sample: Sample, table: str, key: str, value: object) -> str:
    """What is expected under a key instead of a value, without the reason; empty where it is not refused."""
    try:
        sample.plan(sample.with_value(table, key, value))
    except PlanError as error:
        if error.key.split(".")[-1].partition("[")[0] == key:
            return re.split(r" \(|: ", error.expected)[0]
    return ""


def _default(sample: Sample, table: str, key: str) -> object:
    """The canonical value of a key that is left out; None where a sample without it is no plan for another reason."""
    try:
        fields = sample.plan(sample.with_value(table, key, ...)).to_fields()
    except PlanError as error:
        return REQUIRED if error.came is Missing.MISSING and error.key.endswith(key) else None
    if KEYS[table][key].default:
        return STATED
    try:
        return holder_of(fields, table)[key]
    except KeyError:
        return None


def holder_of(fields: Mapping[str, Any], table: str) -> Any:
    """The table of this full name; of a list of tables the first.

    Raises:
        KeyError: There is none.
    """
    holder: Any = fields
    for part in table.split(".") if table else ():
        holder = holder[part]
        if isinstance(holder, list | tuple):
            if not holder:
                raise KeyError(part)
            holder = holder[0]
    return holder
