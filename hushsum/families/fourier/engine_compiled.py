"""The engine with compiled loops: the same bytes as :mod:`hushsum.families.fourier.engine_numpy`, several times faster.

A block of records times a chunk of pairs fits a core's second-level cache. Where d is small, the definition itself is
as fast as anything; else products come from BLAS, and the filter tells nearly all phases from them. Where frequencies
are so high that it would flag many products of float32, those of float64 are cheaper. All three give the same phases.

The compiled loops check nothing: indices are trusted, and only this module calls them. See
:mod:`hushsum.families.fourier.parameters` for the definition of a phase, and
:mod:`hushsum.families.lsh.codes.projection` for the filter. Indices of records are unsigned where it matters, because a
signed index of unknown sign costs a test for wrap-around that keeps the compiler from using vectors; arguments are
flat, because slices and tuples of arrays cost reference counts in the inner loops.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined
from hushsum.families.fourier.parameters import TURN, Pairs, waves
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import Projection

Int32 = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Reals = npt.NDArray[np.floating[Any]]
Real = np.floating[Any]

#: Directions and columns of :func:`narrow_phases` are padded with zeroes to a multiple of this.
GROUP: Final = 4
#: Records between two looks at the flags.
TILE: Final = 64

_MASK: Final = np.int32(TURN - 1)
_TURN: Final = np.float64(TURN)
_HALF: Final = np.int64(32)
_LOWER: Final = np.int64(2**32 - 1)


@inlined
def _wrapped(s: float, offset: float, base: int) -> np.int32:
    """The phase of a sum of the definition. Multiplying by powers of two is exact, so the remainder is."""
    code = np.floor(s + offset)
    code -= np.floor(code * (1.0 / _TURN)) * _TURN
    return (np.int32(code) + np.int32(base)) & _MASK


@compiled
def narrow_phases(
    directions: Float64, offsets: Float64, bases: Int64, columns: Float64, sums: Float64, phases: Int32
) -> None:
    """Phases (k, n) by the definition itself, where d is small: directions (k, d') and columns (d', n) in float64.

    d' is d rounded up to a multiple of :data:`GROUP`, with zeroes, which change no sum. ``sums`` (n,) is scratch.
    """
    n = len(sums)
    for k in range(len(offsets)):
        a, out = directions[k], phases[k]
        for j in range(0, len(a), GROUP):
            a0, a1, a2, a3 = a[j], a[j + 1], a[j + 2], a[j + 3]
            x0, x1, x2, x3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
            if j == 0:
                for i in range(n):
                    sums[i] = ((a0 * x0[i] + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i]
            else:
                for i in range(n):
                    sums[i] = (((sums[i] + a0 * x0[i]) + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i]
        for i in range(n):
            out[np.uint64(i)] = _wrapped(sums[np.uint64(i)], offsets[k], bases[k])


@inlined
def _estimate(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    t: Reals, norms: Reals, start: int, stop: int, shift: Real, limit: Real, slope: Real, base: np.int32, line: Int32
) -> bool:
    """Phases of a tile's products, and whether any is flagged."""
    per_turn, turn = t.dtype.type(1.0 / TURN), t.dtype.type(TURN)
    flagged = False
    for i in range(start, stop):
        shifted = t[np.uint64(i)] + shift
        g = np.rint(shifted)
        flagged = flagged | (not np.abs(shifted - g) <= limit - slope * norms[np.uint64(i)])
        line[np.uint64(i)] = (np.int32(g - np.floor(g * per_turn) * turn) + base) & _MASK
    return flagged


@inlined
def _mark(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    t: Reals, norms: Reals, start: int, stop: int, shift: Real, limit: Real, slope: Real, marks: Bytes
) -> None:
    """The flags of a tile, one byte each."""
    for i in range(start, stop):
        shifted = t[np.uint64(i)] + shift
        apart = np.abs(shifted - np.rint(shifted))
        marks[np.uint64(i - start)] = np.uint8(not apart <= limit - slope * norms[np.uint64(i)])


@inlined
def _define(a: Float64, offset: float, base: int, records: Float64, flags: Int32, count: int, line: Int32) -> None:
    """Phases of ``count`` flagged records by the definition, eight sums side by side: each waits for its last term."""
    for f in range(count, (count + 7) // 8 * 8):
        flags[f] = flags[count - 1]
    for f in range(0, count, 8):
        i0, i1, i2, i3 = flags[f], flags[f + 1], flags[f + 2], flags[f + 3]
        i4, i5, i6, i7 = flags[f + 4], flags[f + 5], flags[f + 6], flags[f + 7]
        x0, x1, x2, x3 = records[i0], records[i1], records[i2], records[i3]
        x4, x5, x6, x7 = records[i4], records[i5], records[i6], records[i7]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(len(a)):
            s0 += a[j] * x0[j]
            s1 += a[j] * x1[j]
            s2 += a[j] * x2[j]
            s3 += a[j] * x3[j]
            s4 += a[j] * x4[j]
            s5 += a[j] * x5[j]
            s6 += a[j] * x6[j]
            s7 += a[j] * x7[j]
        line[i0], line[i1] = _wrapped(s0, offset, base), _wrapped(s1, offset, base)
        line[i2], line[i3] = _wrapped(s2, offset, base), _wrapped(s3, offset, base)
        line[i4], line[i5] = _wrapped(s4, offset, base), _wrapped(s5, offset, base)
        line[i6], line[i7] = _wrapped(s6, offset, base), _wrapped(s7, offset, base)


@compiled
def filtered_phases(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    products: Reals,
    norms: Reals,
    limit: Real,
    slopes: Reals,
    shifts: Reals,
    directions: Float64,
    offsets: Float64,
    bases: Int64,
    records: Float64,
    line: Int32,
    flags: Int32,
    phases: Int32,
) -> int:
    """Phases (k, n) from products (k, n) of BLAS, whose memory they may take; how many were flagged.

    ``norms`` (n,) are those of the filter. Products to ``shifts`` are all float32 or all float64; the definition needs
    directions (k, d), offsets and bases (k,) and records (n, d). Scratch: ``line`` (n,) and ``flags`` (n + 8,).
    """
    total, n, marks = 0, len(line), np.zeros(TILE, np.uint8)
    words = marks.view(np.uint64)
    for k in range(len(offsets)):
        t, shift, slope, base, count = products[k], shifts[k], slopes[k], np.int32(bases[k]), 0
        for start in range(0, n, TILE):
            stop = min(start + TILE, n)
            if _estimate(t, norms, start, stop, shift, limit, slope, base, line):
                _mark(t, norms, start, stop, shift, limit, slope, marks)
                for word in range(TILE // 8):
                    if words[word]:
                        for i in range(8 * word, min(8 * word + 8, stop - start)):
                            flags[count] = start + i
                            count += marks[i]
        _define(directions[k], offsets[k], bases[k], records, flags, count, line)
        out = phases[k]
        for i in range(n):
            out[i] = line[i]
        total += count
    return total


@compiled
def accumulate(phases: Int32, packed: Int64, counters: Int64) -> None:
    """Adds what the phases (k, n) of at most 2¹⁴ records add to counters (k, 2): |ΣA| < 2³¹ then, whatever b ≤ 16."""
    for k in range(len(phases)):
        row, both = phases[k], np.int64(0)
        for i in range(phases.shape[1]):
            both += packed[np.uint32(row[np.uint64(i)])]
        cosines = np.int64(np.int32(both & _LOWER))
        counters[k, 0] += cosines
        counters[k, 1] += (both - cosines) >> _HALF


@compiled
def read_one(phases: Int32, counters: Int64, read: Float64, out: Float64) -> None:
    """What one pair of counters (2,) reads at its phases (n,)."""
    c, s = np.float64(counters[0]), np.float64(counters[1])
    for i in range(len(out)):
        place = np.uint32(phases[i])
        out[i] = c * read[0, place] + s * read[1, place]


@compiled
def gather(phases: Int32, counters: Int64, read: Float64, first: Float64, total: Float64, squares: Float64) -> None:
    """Adds what counters (k, 2) read at phases (k, n), in order: see ``sums`` of the NumPy engine."""
    cosines, sines = read[0], read[1]
    for k in range(len(phases)):
        row, c, s = phases[k], np.float64(counters[k, 0]), np.float64(counters[k, 1])
        for i in range(phases.shape[1]):
            place = np.uint32(row[np.uint64(i)])
            y = (c * cosines[place] + s * sines[place]) - first[np.uint64(i)]
            total[np.uint64(i)] += y
            squares[np.uint64(i)] += y * y


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
            accumulate(phases, pairs.waves.packed, target)


def sums(pairs: Pairs, counters: Int64, queries: Float32, rows: slice) -> tuple[Float64, Float64, Float64]:
    """What a slice of the pairs reads at centred queries: see :func:`hushsum.families.fourier.engine_numpy.sums`."""
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    engine, read = PhaseEngine(pairs), pairs.waves.read
    for some in _chunks(slice(0, len(queries)), _BLOCK_RECORDS):
        for chunk, phases in engine.phases(rows, queries[some]):
            if chunk.start == rows.start:
                read_one(phases[0], counters[chunk.start], read, first[some])
            gather(phases, counters[chunk], read, first[some], total[some], squares[some])
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

    def phases(self, rows: slice, records: Float32) -> Iterator[tuple[slice, Int32]]:
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
            narrow_phases(self._directions[chunk], offsets, bases, columns, sums, out)
            yield chunk, out

    def _filtered(self, chunks: Iterator[slice], records: Float32) -> Iterator[tuple[slice, Int32]]:
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
                self.flagged += filtered_phases(*args)
            else:
                if self._finer.size < out.size:
                    self._finer = np.empty(out.size)
                finer = np.dot(directions, exact.T, out=self._finer[: out.size].reshape(out.shape))
                apart = 0.5 - (0.5 - np.float64(projection.limit)) * _FINER
                scaled, moved = slopes.astype(np.float64) * _FINER, shifts.astype(np.float64)
                norms64 = norms.astype(np.float64)
                args64 = (finer, norms64, apart, scaled, moved, *definition, line, flags, out)
                self.flagged += filtered_phases(*args64)
            yield chunk, out

    def _memory(self, chunk: slice, n: int) -> Float32:
        count = chunk.stop - chunk.start
        if count * n > len(self._products):
            self._products = np.empty(count * n, np.float32)
        return self._products[: count * n].reshape(count, n)


def _padded(matrix: Float32) -> Float64:
    """The same columns as float64, and zeroes up to a multiple of the loops' group."""
    n, d = matrix.shape
    padded = np.zeros((n, -(-d // GROUP) * GROUP))
    padded[:, :d] = matrix
    return padded


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))
