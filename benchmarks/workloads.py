"""What is measured: real records, where the folder ``../shared/data`` is there, and random ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families import Hashed, VectorRecords
from hushsum.schema import Table

ROWS: Final = 1000
BUCKETS: Final = 1024
_DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
_REAL: Final = {"skin": ("skin.parquet", 3, (5,)), "covtype": ("covtype_100k.parquet", 55, (50, 20))}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Workload:
    """Records and the family that sketches them; bounds are those of the records.

    Attributes:
        name: What they are.
        bandwidth: Of the kernel. For covtype 50 gives a mean kernel of 0.012, and codes fit into 1024 buckets; 20 is
            what the RACE paper takes, and needs the rehash.
        values: (n, d).
    """

    name: str
    bandwidth: float
    values: Floats

    @property
    def family(self) -> Hashed:
        """With R = 1000 and W = 1024."""
        lower, upper = self.values.min(axis=0), self.values.max(axis=0)
        upper = np.where(upper > lower, upper, lower + 1)
        bounds = [tuple(Fraction(bound) for bound in side.tolist()) for side in (lower, upper)]
        keys = {"kernel": "euclidean", "bandwidth": self.bandwidth, "rows": ROWS, "buckets": BUCKETS, "seed": 7}
        return Hashed.from_table(Table(keys, "sketch"), VectorRecords(self.values.shape[1], bounds[0], bounds[1]))


def workloads(*, quick: bool) -> Iterator[Workload]:
    """Every workload, one at a time; one line tells of real data that is not there."""
    for name, (file, dim, bandwidths) in _REAL.items():
        values = _read(file, dim)
        if values is None:
            print(f"{name}: skipped, there is no shared/data/{file} beside the project")
            continue
        for bandwidth in bandwidths[:1] if quick else bandwidths:
            yield Workload(name, bandwidth, values)
    rng = np.random.default_rng(1)
    yield Workload("random", 5, rng.uniform(0, 255, (60_000, 3)))
    if not quick:
        yield Workload("random", 2, rng.normal(size=(40_000, 55)))
        yield Workload("random", 2, rng.normal(size=(20_000, 128)))


def _read(file: str, dim: int) -> Floats | None:
    path = _DATA / file
    if not path.exists():
        return None
    from pyarrow import parquet

    table = parquet.read_table(path)
    columns = [table.column(name).to_numpy() for name in table.column_names[:dim]]
    return np.stack(columns, axis=1).astype(np.float64)
