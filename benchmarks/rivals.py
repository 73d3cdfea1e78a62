"""What the engines are measured against: the floor of the work, the best vectorised NumPy, and the authors' way."""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from benchmarks.stopwatch import Case
from hushsum.families import Hashed
from hushsum.families.lsh.arrays import Points
from hushsum.families.lsh.compiled.engine import BucketEngine
from hushsum.families.lsh.placement import HashedRows

#: The largest d with a loop of its own for products.
NARROW = 8

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Parameters:
    """The hash parameters of a family in the form that rivals like best.

    Attributes:
        directions: (R·p, d).
        offsets: (R·p,).
        buckets: W.
    """

    directions: Float32
    offsets: Float32
    buckets: int

    @classmethod
    def of(cls, family: Hashed) -> "Parameters":
        """Of a family whose codes are rounded projections, or their signs."""
        projection = rows_of(family).projection
        return cls(projection.directions, projection.offsets.astype(np.float32), family.buckets)


def rows_of(family: Hashed) -> HashedRows:
    """The tables of a family."""
    return family._tables  # noqa: SLF001  rivals start from the same parameters, which nobody else needs


def ready_buckets(family: Hashed, records: Points, rows: slice | None = None) -> UInt32:
    """(R, n): the buckets of records, made beforehand; of some rows."""
    engine = BucketEngine(rows_of(family))
    parts = [buckets.copy() for _, buckets in engine.all_rows(engine.block(records), rows, len(records))]
    return np.concatenate(parts).view(np.uint32)


def recomputed_share(family: Hashed, records: Float32) -> float:
    """The share of codes that the filter flagged."""
    engine = BucketEngine(rows_of(family))
    engine.add(slice(0, family.rows), np.zeros(family.shape, np.int64), records)
    return engine.flagged / engine.codes


@numba.njit(nogil=True, error_model="numpy", cache=True)
def increment(buckets: UInt32, counters: Int64) -> None:
    """The bare loop that increments ready-made buckets."""
    for r in range(buckets.shape[0]):
        row = counters[r]
        for i in range(buckets.shape[1]):
            row[buckets[r, i]] += 1


@numba.njit(nogil=True, error_model="numpy", cache=True)
def read(buckets: UInt32, counters: Int64, sums: Int64) -> None:
    """The bare loop that adds up what ready-made buckets hold."""
    for r in range(buckets.shape[0]):
        row = counters[r]
        for i in range(buckets.shape[1]):
            sums[i] += row[buckets[r, i]]


@numba.njit(nogil=True, error_model="numpy", fastmath=True, cache=True)
def narrow_products(directions: Float32, columns: Float32, out: Float32) -> None:
    """Products (k, n) of directions (k, d) and columns (d, n) by a bare loop: the fastest way where d is small."""
    for k in range(len(directions)):
        row = out[k]
        a, x = directions[k, 0], columns[0]
        for i in range(len(row)):
            row[i] = a * x[i]
        for j in range(1, len(columns)):
            a, x = directions[k, j], columns[j]
            for i in range(len(row)):
                row[i] += a * x[i]


def products(directions: Float32, records: Float32) -> dict[str, Case]:
    """SGEMM in the shapes that are fastest, into memory that is used again: the least of them is the floor's.

    The last one, for d up to 8, is a loop of its own, which is faster there.
    """
    transposed = np.ascontiguousarray(directions.T)

    def rows_first(chunk: int, block: int) -> None:
        out = np.empty(chunk * block, np.float32)
        for row in range(0, len(directions), chunk):
            some = directions[row : row + chunk]
            for start in range(0, len(records), block):
                batch = records[start : start + block]
                np.dot(some, batch.T, out=out[: len(some) * len(batch)].reshape(len(some), len(batch)))

    def records_first(block: int) -> None:
        out = np.empty(len(directions) * block, np.float32)
        for start in range(0, len(records), block):
            batch = records[start : start + block]
            np.dot(batch, transposed, out=out[: len(directions) * len(batch)].reshape(len(batch), -1))

    def narrow(chunk: int, block: int) -> None:
        out = np.empty(chunk * block, np.float32)
        blocks = [np.ascontiguousarray(records[i : i + block].T) for i in range(0, len(records), block)]
        for row in range(0, len(directions), chunk):
            some = directions[row : row + chunk]
            for batch in blocks:
                n = batch.shape[1]
                narrow_products(some, batch, out[: len(some) * n].reshape(len(some), n))

    return {
        "sgemm 128x1024": lambda: rows_first(128, 1024),
        "sgemm 250x512": lambda: rows_first(250, 512),
        "sgemm all x256": lambda: records_first(256),
        "sgemm all x1024": lambda: records_first(1024),
        **({"loop": lambda: narrow(64, 1024)} if records.shape[1] <= NARROW else {}),
    }


def vectorised(parameters: Parameters, records: Float32, batch: int, chunk: int) -> Int64:
    """NumPy's floor, ``%`` and bincount, a batch of records and a chunk of rows at a time."""
    rows, width = len(parameters.directions), parameters.buckets
    counters = np.zeros((rows, width), np.int64)
    for start in range(0, len(records), batch):
        some = records[start : start + batch].T
        for row in range(0, rows, chunk):
            t = parameters.directions[row : row + chunk] @ some
            t += parameters.offsets[row : row + chunk, None]
            codes = np.floor(t, out=t).astype(np.int64)
            codes %= width
            codes += np.arange(len(codes))[:, None] * width
            counted = np.bincount(codes.reshape(-1), minlength=len(codes) * width)
            counters[row : row + chunk] += counted.reshape(-1, width)
    return counters


def add_one_by_one(parameters: Parameters, records: Float32) -> Int64:
    """The authors' way: one record at a time, one Python step a row."""
    counters = np.zeros((len(parameters.directions), parameters.buckets), np.int64)
    for record in records:
        codes = np.floor(parameters.directions @ record + parameters.offsets).astype(np.int64) % parameters.buckets
        for row, bucket in enumerate(codes):
            counters[row, bucket] += 1
    return counters


def answer_one_by_one(parameters: Parameters, counters: Int64, queries: Float32) -> list[float]:
    """The authors' way: one query at a time, one Python step a row."""
    answers = []
    for query in queries:
        codes = np.floor(parameters.directions @ query + parameters.offsets).astype(np.int64) % parameters.buckets
        answers.append(float(np.mean([counters[row, bucket] for row, bucket in enumerate(codes)])))
    return answers
