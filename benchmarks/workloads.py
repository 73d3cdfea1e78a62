"""What is measured: real records, or stand-ins where a file of ``../shared/data`` is not there, and random ones."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.data_files import columns, shown
from hushsum.families import FAMILIES, Family, Hashed, RecordSchema, SetRecords, VectorRecords
from hushsum.schema import Table

ROWS: Final = 1000
BUCKETS: Final = 1024
_COLUMNS: Final = {"skin": 3, "covtype": 55, "taxi": 2, "slashdot": 2}
_RANDOM: Final = {3: 60_000, 55: 40_000, 128: 20_000}  # records of each dimension

Floats = npt.NDArray[np.float64]
Keys = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Workload:
    """Records and the family that sketches them; bounds are those of the records.

    Attributes:
        name: What they are.
        keys: ``[sketch]`` of a plan.
        values: (n, d), or a CSR matrix of sets.
    """

    name: str
    keys: Keys
    values: Any

    @cached_property
    def family(self) -> Family:
        """Built from the keys."""
        keys = {key: value for key, value in self.keys.items() if key != "family"}
        return FAMILIES[str(self.keys["family"])].from_table(Table(keys, "sketch"), self._record)

    @property
    def hashed(self) -> Hashed:
        """The family, where it is the hashed one."""
        assert isinstance(self.family, Hashed)
        return self.family

    def vectors(self, most: int) -> npt.NDArray[np.float32]:
        """The first so many records as the family accepts them."""
        records = self.family.accept(self.values[:most])[0]
        assert isinstance(records, np.ndarray)
        return records

    @property
    def about(self) -> dict[str, str | int | float | bool]:
        """The columns that tell one workload from another."""
        sets = isinstance(self._record, SetRecords)
        keys = {"kernel": "kernel", "cells": "cells", "power": "power", "bandwidth": "w"}
        columns = {shown: self.keys[key] for key, shown in keys.items() if key in self.keys}
        return {
            "data": shown(self.name.split()[0]),
            **({} if sets else {"d": self.values.shape[1]}),
            **{key: value if isinstance(value, int | float) else str(value) for key, value in columns.items()},
        }

    @cached_property
    def _record(self) -> RecordSchema:
        if not isinstance(self.values, np.ndarray):
            return SetRecords(self.values.shape[1])
        lower, upper = self.values.min(axis=0), self.values.max(axis=0)
        upper = np.where(upper > lower, upper, lower + 1)
        bounds = [tuple(Fraction(bound) for bound in side.tolist()) for side in (lower, upper)]
        return VectorRecords(self.values.shape[1], bounds[0], bounds[1])


def hashed(kernel: str, **more: object) -> dict[str, object]:
    """``[sketch]`` of the hashed family, with R = 1000 and W = 1024 unless it says otherwise."""
    return {"family": "hashed", "kernel": kernel, "rows": ROWS, "buckets": BUCKETS, "seed": 7, **more}


def workloads(wanted: Iterable[tuple[str, Keys]]) -> Iterator[Workload]:
    """Those whose family this version offers, one at a time; one line tells of another."""
    for name, keys in wanted:
        if keys["family"] not in FAMILIES:
            print(f"{name}: skipped, this version has no family {keys['family']!r}")
            continue
        yield Workload(name, keys, data(name))


@cache
def data(name: str) -> Any:
    """(n, d) records of a set, or a CSR matrix of sets; ``random 55`` is normal records of that dimension."""
    if name.startswith("random"):
        dim = int(name.split()[1])
        rng = np.random.default_rng(1)
        return rng.uniform(0, 255, (_RANDOM[dim], 3)) if dim == 3 else rng.normal(size=(_RANDOM[dim], dim))
    values = columns(name)[:, : _COLUMNS[name]]
    return _neighbours(*values.T.astype(np.int64)) if name == "slashdot" else values


def _neighbours(sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> Any:
    """The out-neighbours of every node that has some."""
    from scipy import sparse

    nodes = int(max(sources.max(), targets.max())) + 1
    matrix = sparse.csr_matrix((np.ones(len(sources), np.int8), (sources, targets)), (nodes, nodes))
    matrix.sort_indices()
    return matrix[np.diff(matrix.indptr) > 0]
