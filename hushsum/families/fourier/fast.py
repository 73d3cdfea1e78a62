"""The engine with compiled loops: the same bytes as :mod:`hushsum.families.fourier.plain`, several times faster.

A block of records times a chunk of pairs fits a core's second-level cache. Where d is small, the definition itself is
as fast as anything; else products come from BLAS, and the filter tells nearly all phases from them. Where frequencies
are so high that it would flag many products of float32, those of float64 are cheaper. All three give the same phases.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hushsum.families.fourier import loops
from hushsum.families.fourier.phases import Pairs
from hushsum.families.fourier.waves import waves
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import Projection

_BLOCK_RECORDS: Final = 1024
_BLOCK_PHASES: Final = 1 << 17
_NARROW: Final = 8  # the largest d with which the definition beats BLAS
_FLAGGED_MAX: Final = 0.05  # share of flagged phases above which products of float64 cost less than the definition
_FINER: Final = (
    2.0**-26
)  # of the filter in float64, whose unit is 2⁻²⁹ times that of float32: 8 for the definition's sum


def add(pairs: Pairs, counters: Int64, records: Float32, rows: slice) -> None:
    """Adds records within the bounds to the counters (k, 2) int64 of a slice of the pairs, in place."""
    engine = PhaseEngine(pairs)
    for block in _chunks(slice(0, len(records)), _BLOCK_RECORDS):
        for chunk, phases in engine.phases(rows, records[block]):
            target = counters[chunk.start - rows.start : chunk.stop - rows.start]
            loops.accumulate(phases, pairs.waves.packed, target)


def sums(pairs: Pairs, counters: Int64, queries: Float32, rows: slice) -> tuple[Float64, Float64, Float64]:
    """What a slice of the pairs reads at centred queries: see :func:`hushsum.families.fourier.plain.sums`."""
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    engine, read = PhaseEngine(pairs), pairs.waves.read
    for some in _chunks(slice(0, len(queries)), _BLOCK_RECORDS):
        for chunk, phases in engine.phases(rows, queries[some]):
            if chunk.start == rows.start:
                loops.read_one(phases[0], counters[chunk.start], read, first[some])
            loops.gather(phases, counters[chunk], read, first[some], total[some], squares[some])
    return first, total, squares


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before: seconds the first time, then a fraction of one."""
    for dim, size in ((1, 1.0), (_NARROW + 1, 1.0), (_NARROW + 1, 1e9)):
        lines = Projection(np.full((2, dim), size, np.float32), np.full(2, 0.5), np.ones(dim, np.float32))
        pairs, counters = Pairs(lines, np.zeros(2, np.int64), waves(4)), np.zeros((2, 2), np.int64)
        for n in (1, 2):
            records = np.ones((n, dim), np.float32)
            add(pairs, counters, records, slice(0, 2))
            sums(pairs, counters, records, slice(0, 2))


class PhaseEngine:
    """Phases of blocks of records, a chunk of pairs at a time, in reused memory: for one call, of one thread.

    Attributes:
        flagged: How many phases were flagged by the filter so far, and so computed by the definition.
    """

    def __init__(self, pairs: Pairs) -> None:
        self.flagged = 0
        self._pairs = pairs
        directions = pairs.projection.directions
        self._narrow = directions.shape[1] <= _NARROW
        self._directions = _padded(directions) if self._narrow else directions.astype(np.float64)
        self._products: Float32 = np.empty(0, np.float32)
        self._finer: Float64 = np.empty(0)

    def phases(self, rows: slice, records: Float32) -> Iterator[tuple[slice, loops.Int32]]:
        """(chunk of these pairs, phases (chunk, n) int32) of 1 to 1,024 records, in memory that is used again."""
        n = len(records)
        chunks = _chunks(rows, max(1, _BLOCK_PHASES // n))
        if not self._narrow:
            yield from self._filtered(chunks, records)
            return
        pairs, columns = self._pairs, np.ascontiguousarray(_padded(records).T)
        sums = np.empty(n, np.float64)
        for chunk in chunks:
            out = self._memory(chunk, n).view(np.int32)
            offsets, bases = pairs.projection.offsets[chunk], pairs.bases[chunk]
            loops.narrow_phases(self._directions[chunk], offsets, bases, columns, sums, out)
            yield chunk, out

    def _filtered(self, chunks: Iterator[slice], records: Float32) -> Iterator[tuple[slice, loops.Int32]]:
        projection, n = self._pairs.projection, len(records)
        norms = projection.norms(records)
        exact, middle = records.astype(np.float64), float(np.median(norms))
        line, flags = np.empty(n, np.int32), np.empty(n + 8, np.int32)
        for chunk in chunks:
            slopes, shifts, directions = projection.slopes[chunk], projection.shifts[chunk], self._directions[chunk]
            memory = self._memory(chunk, n)
            definition = (directions, projection.offsets[chunk], self._pairs.bases[chunk], exact)
            out = memory.view(np.int32)
            if np.minimum(2.0 * middle * slopes, 1.0).mean() <= _FLAGGED_MAX:
                products, limit = np.dot(projection.directions[chunk], records.T, out=memory), projection.limit
                args = (products, norms, limit, slopes, shifts, *definition, line, flags, out)
                self.flagged += loops.filtered_phases(*args)
            else:
                if self._finer.size < out.size:
                    self._finer = np.empty(out.size)
                finer = np.dot(directions, exact.T, out=self._finer[: out.size].reshape(out.shape))
                apart = 0.5 - (0.5 - np.float64(projection.limit)) * _FINER
                scaled, moved = slopes.astype(np.float64) * _FINER, shifts.astype(np.float64)
                norms64 = norms.astype(np.float64)
                args64 = (finer, norms64, apart, scaled, moved, *definition, line, flags, out)
                self.flagged += loops.filtered_phases(*args64)
            yield chunk, out

    def _memory(self, chunk: slice, n: int) -> Float32:
        count = chunk.stop - chunk.start
        if count * n > len(self._products):
            self._products = np.empty(count * n, np.float32)
        return self._products[: count * n].reshape(count, n)


def _padded(matrix: Float32) -> Float64:
    """The same columns as float64, and zeroes up to a multiple of the loops' group."""
    n, d = matrix.shape
    padded = np.zeros((n, -(-d // loops.GROUP) * loops.GROUP))
    padded[:, :d] = matrix
    return padded


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))
