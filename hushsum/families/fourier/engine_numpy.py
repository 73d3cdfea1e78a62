"""The engine in NumPy alone: phases of a block of records at a time, in bounded memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hushsum.families.fourier.parameters import TURN, Pairs
from hushsum.families.lsh.arrays import Float32, Float64, Int64

_BLOCK_RECORDS: Final = 4096
_BLOCK_PHASES: Final = 1 << 17


def add(pairs: Pairs, counters: Int64, records: Float32, rows: slice) -> None:
    """Adds records within the bounds to the counters (k, 2) int64 of a slice of the pairs, in place."""
    cosines, sines = pairs.waves.added
    for block in _chunks(slice(0, len(records)), _BLOCK_RECORDS):
        for chunk, phases in _phases(pairs, rows, records[block]):
            target = counters[chunk.start - rows.start : chunk.stop - rows.start]
            target[:, 0] += cosines[phases].sum(axis=1)
            target[:, 1] += sines[phases].sum(axis=1)


def sums(pairs: Pairs, counters: Int64, queries: Float32, rows: slice) -> tuple[Float64, Float64, Float64]:
    """What a slice of the pairs reads at centred queries, each an (m,) float64.

    With y_p = C_p cos + S_p sin at the query's phase: y of the first pair, Σ(y_p − that) and Σ(y_p − that)², in the
    order of the pairs.
    """
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    cosines, sines = pairs.waves.read
    for some in _chunks(slice(0, len(queries)), _BLOCK_RECORDS):
        for chunk, phases in _phases(pairs, rows, queries[some]):
            read = counters[chunk, 0, None].astype(np.float64) * cosines[phases]
            read += counters[chunk, 1, None].astype(np.float64) * sines[phases]
            if chunk.start == rows.start:
                first[some] = read[0]
            read -= first[some]
            square = read * read
            read[0] += total[some]
            square[0] += squares[some]
            total[some] = np.add.accumulate(read, axis=0)[-1]  # every partial sum, hence in the order of the pairs
            squares[some] = np.add.accumulate(square, axis=0)[-1]
    return first, total, squares


def shared(pairs: Pairs, points: Float32, others: Float32) -> Float64:
    """(n, m): the mean over all pairs of the cosine between the phases of n and m centred points."""
    total, cosines = np.zeros((len(points), len(others))), pairs.waves.read[0]
    if not total.size:
        return total
    for chunk in _chunks(slice(0, len(pairs)), max(1, _BLOCK_PHASES // sum(total.shape))):
        both = (np.concatenate([found for _, found in _phases(pairs, chunk, some)]) for some in (points, others))
        for left, right in zip(*both, strict=True):
            total += cosines[(left[:, None] - right) & (TURN - 1)]
    return total / len(pairs)


def _phases(pairs: Pairs, rows: slice, block: Float32) -> Iterator[tuple[slice, Int64]]:
    """(chunk of these pairs, phases (chunk, n) int64) of at least one record."""
    projection = pairs.projection
    limits = projection.limit - projection.slopes * projection.norms(block).max()
    for chunk in _chunks(rows, max(1, _BLOCK_PHASES // len(block))):
        t = np.dot(projection.directions[chunk], block.T)
        t += projection.shifts[chunk, None]
        rounded = np.rint(t)
        t -= rounded
        codes = rounded.astype(np.int64)
        # Not "above the limit": a bound that overflowed is no number, and must flag as well.
        flagged = np.flatnonzero(~(np.abs(t) <= limits[chunk, None]))
        for some in _chunks(slice(0, len(flagged)), max(1, _BLOCK_PHASES // block.shape[1])):
            part, record = np.divmod(flagged[some], len(block))
            codes.reshape(-1)[flagged[some]] = projection.exact_codes(part + chunk.start, block[record])
        codes += pairs.bases[chunk, None]
        codes &= TURN - 1
        yield chunk, codes


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))
