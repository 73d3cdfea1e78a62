"""The definition of codes and buckets once more, slow and plain: Python's own floats and integers, no NumPy.

Also the records that are hardest on a fast implementation: those on the edges of buckets.
"""

import hashlib
import math
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh import numpy_engine, placement
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.projection import Projection, Signs
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.placement import HashedRows
from hushsum.public_random import PublicSeed

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
ENGINES: dict[str, ModuleType] = {"plain": numpy_engine, "fast": compiled_engine}


def edge_sum(direction: list[float], offset: float, record: list[float]) -> float:
    """s + b of the definition: products in float64, added in the order of the coordinates, and then the offset."""
    s = direction[0] * record[0]
    for a, x in zip(direction[1:], record[1:], strict=True):
        s += a * x
    return s + offset


def codes(code: Code, records: Float32) -> Int64:
    """(k, n): every code by the definition."""
    points = records.tolist()
    if isinstance(code, Bins):
        inverses, offsets = code.inverses.tolist(), code.offsets.tolist()
        found = [
            [math.floor(a * x[j] + b) for x in points]
            for part, bs in zip(inverses, offsets, strict=True)
            for j, (a, b) in enumerate(zip(part, bs, strict=True))
        ]
    elif isinstance(code, Joined):
        rows = len(code) // sum(code.powers)
        each = [
            codes(one, records[:, some]).reshape(rows, power, -1)
            for one, some, power in zip(code.codes, code.columns, code.powers, strict=True)
        ]
        found = np.concatenate(each, axis=1).tolist()
    else:
        assert isinstance(code, Projection)
        found = [
            [one_code(code, a, b, x) for x in points]
            for a, b in zip(code.directions.tolist(), code.offsets.tolist(), strict=True)
        ]
    return np.array(found, np.int64).reshape(len(code), len(points))


def one_code(projection: Projection, direction: list[float], offset: float, record: list[float]) -> int:
    """The floor of s + b, or whether s is at least 0."""
    s = edge_sum(direction, offset, record)
    return int(s >= 0) if isinstance(projection, Signs) else math.floor(s)


def rehash(multipliers: list[int], code: list[int], buckets: int) -> int:
    """The bucket of one code vector, in Python's integers."""
    words = [c % 2**32 for c in code]
    h = (multipliers[0] + sum(m * c for m, c in zip(multipliers[1:], words, strict=True))) % 2**64
    if buckets & (buckets - 1) == 0:
        return h >> (64 - (buckets.bit_length() - 1))
    return ((h >> 32) * buckets) >> 32


def buckets(rows: HashedRows, records: Float32) -> Int64:
    """(R, n): every bucket by the definition."""
    vectors = codes(rows.code, records).reshape(len(rows), rows.power, len(records)).tolist()
    chosen: list[list[int]] = []
    for row, parts in enumerate(vectors):
        each = list(zip(*parts, strict=True))
        if isinstance(rows.placement, placement.Rehash):
            multipliers = rows.placement.multipliers[row].tolist()
            chosen.append([rehash(multipliers, list(code), rows.buckets) for code in each])
        else:
            lowest, spans = rows.placement.lowest[row].tolist(), rows.placement.spans[row].tolist()
            chosen.append([mixed_radix(list(code), lowest, spans) for code in each])
    return np.array(chosen, np.int64).reshape(len(rows), len(records))


def mixed_radix(code: list[int], lowest: list[int], spans: list[int]) -> int:
    """The number whose digits, the first the highest, are the code less the least code."""
    number = 0
    for c, low, span in zip(code, lowest, spans, strict=True):
        number = number * span + (c - low)
    return number


def counters(rows: HashedRows, records: Float32) -> Int64:
    """(R, W): the counters of a sketch of the records."""
    result = np.zeros((len(rows), rows.buckets), np.int64)
    for row, chosen in enumerate(buckets(rows, records)):
        np.add.at(result[row], chosen, 1)
    return result


def rehashed_rows(projection: Code, width: int = 4096, power: int = 1, seed: int = 5) -> HashedRows:
    """Rows of any projection, with buckets that tell neighbouring codes apart."""
    count = len(projection) // power
    return HashedRows(
        projection, placement.rehash(PublicSeed(seed), rows=count, power=power, buckets=width), power, width
    )


def edge_records(projection: Projection, rng: np.random.Generator, size: float, per_part: int = 3) -> Float32:
    """Records on a bucket's edge of some part: s + b is an integer, or the float64 before or after it.

    A random record is moved onto an edge by its coordinates in turn: the first to within float32's grid, and each of
    two more, tiny ones, by what float32 left; the last one's neighbouring values step through the float64 around the
    edge. With one coordinate alone the nearest values that float32 has are taken.
    """
    found: list[list[float]] = []
    d = projection.directions.shape[1]
    for direction, offset in zip(projection.directions.tolist(), projection.offsets.tolist(), strict=True):
        order = np.argsort(-np.abs(direction), kind="stable")
        for _ in range(per_part):
            record = np.asarray(rng.uniform(-size, size, d), np.float32).tolist()
            moved = [int(j) for j in order[:3]]
            for j in moved:
                record[j] = 0.0
            edge = round(edge_sum(direction, offset, record) + rng.integers(-1, 2))
            for j in moved:
                record[j] = float(np.float32((edge - edge_sum(direction, offset, record)) / direction[j]))
            found.extend(_around(direction, offset, record, moved[-1], edge))
    return np.array(found, np.float32).reshape(-1, d)


def _around(direction: list[float], offset: float, record: list[float], j: int, edge: int) -> Iterator[list[float]]:
    """Four records that differ in the j-th coordinate: the two nearest to the edge from below, and from above."""
    value = np.float32(record[j])
    start = abs(edge_sum(direction, offset, record))
    # One float64 of the sum, or one float32 of the coordinate where that is more.
    step = max(float(np.spacing(np.abs(value))), math.ulp(max(start, 1.0)) / abs(direction[j]))
    moves = sorted({float(np.float32(float(value) + k * step)) for k in range(-40, 41)})
    sums = [edge_sum(direction, offset, [*record[:j], x, *record[j + 1 :]]) for x in moves]
    order = sorted(range(len(moves)), key=lambda i: abs(sums[i] - edge))
    below = [i for i in order if sums[i] < edge][:2]
    above = [i for i in order if sums[i] >= edge][:2]
    assert len(below) == len(above) == 2, "no records on both sides of the edge"
    yield from ([*record[:j], moves[i], *record[j + 1 :]] for i in below + above)


def digest(rows: HashedRows, records: Float32, queries: Float32) -> str:
    """Of all that both engines do with records in this process; in every other it is the same."""
    hasher = hashlib.sha256()
    for engine in ENGINES.values():
        total = np.zeros((len(rows), rows.buckets), np.int64)
        engine.add(rows, total, records)
        hasher.update(total.astype("<i8").tobytes())
        for part in engine.encode(rows, records[:50]):
            hasher.update(part.astype("<i8").tobytes())
        for part in engine.sums(rows, total, np.zeros(len(rows)), queries):
            hasher.update(part.astype("<f8").tobytes())
    return hasher.hexdigest()
