"""Compiled loops from records to buckets; :mod:`hushsum.families.lsh.fast` alone calls them, with arrays that fit.

Nothing here is checked: indices are trusted. Every loop over records runs over contiguous memory and does the same to
each record, so that the compiler may use vectors; no operation changes its order (see
:mod:`hushsum.families.lsh.projection` for the definition of a code, for the filter and for what a flag is).

Arguments are flat and indices of tiles unsigned for a reason: slices and tuples of arrays cost reference counts in the
inner loops, and a signed index of unknown sign costs a test for wrap-around that keeps the compiler from using vectors.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.acceleration import compiled, inlined
from hushsum.families.lsh.placement import OUTSIDE, UInt64
from hushsum.families.lsh.projection import Float32, Float64, Int64

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]

#: Directions and columns of narrow products are padded with zeroes to a multiple of this.
GROUP: Final = 4
#: Records between two looks at the flags.
TILE: Final = 64


@inlined
def _round(
    t: Float32, start: int, stop: int, shift: np.float32, limit: np.float32, least: np.int32, out: Int32
) -> bool:
    """Codes of a tile's products, less the least of their part, and whether any is flagged."""
    flagged = False
    for i in range(start, stop):
        shifted = t[np.uint64(i)] + shift
        g = np.rint(shifted)
        out[np.uint64(i)] = np.int32(g) - least
        flagged = flagged | (np.abs(shifted - g) > limit)
    return flagged


@inlined
def _mark(t: Float32, start: int, stop: int, shift: np.float32, limit: np.float32, marks: Bytes) -> None:
    """The flags of a tile, one byte each."""
    for i in range(start, stop):
        shifted = t[np.uint64(i)] + shift
        marks[np.uint64(i - start)] = np.uint8(np.abs(shifted - np.rint(shifted)) > limit)


@inlined
def _filter(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    k: int,
    t: Float32,
    norms: Float32,
    shift: np.float32,
    slope: np.float32,
    limit: np.float32,
    least: np.int32,
    marks: Bytes,
    words: UInt64,
    flags: Int32,
    count: int,
    out: Int32,
) -> int:
    """Codes (n,) of part k from its products (n,), right but where flagged; adds (k, i) to ``count`` flags."""
    n = len(t)
    for tile in range(len(norms)):
        start, nearest = tile * TILE, limit - slope * norms[tile]
        stop = min(start + TILE, n)
        if _round(t, start, stop, shift, nearest, least, out):
            _mark(t, start, stop, shift, nearest, marks)
            for word in range(TILE // 8):
                if words[word]:
                    for i in range(8 * word, min(8 * word + 8, stop - start)):
                        flags[0, count], flags[1, count] = k, start + i
                        count += marks[i]
    return count


@inlined
def _define(
    directions: Float32, offsets: Float64, least: Int32, records: Float32, flags: Int32, count: int, out: Int32
) -> None:
    """Codes of ``count`` flags (k, i) by the definition, four sums side by side: each waits for its own last term."""
    last = count - 1
    for first in range(0, count, 4):
        f1, f2, f3 = min(first + 1, last), min(first + 2, last), min(first + 3, last)
        k0, k1, k2, k3 = flags[0, first], flags[0, f1], flags[0, f2], flags[0, f3]
        i0, i1, i2, i3 = flags[1, first], flags[1, f1], flags[1, f2], flags[1, f3]
        a0, a1, a2, a3 = directions[k0], directions[k1], directions[k2], directions[k3]
        x0, x1, x2, x3 = records[i0], records[i1], records[i2], records[i3]
        s0 = s1 = s2 = s3 = 0.0
        for j in range(len(a0)):
            s0 += np.float64(a0[j]) * np.float64(x0[j])
            s1 += np.float64(a1[j]) * np.float64(x1[j])
            s2 += np.float64(a2[j]) * np.float64(x2[j])
            s3 += np.float64(a3[j]) * np.float64(x3[j])
        out[k0, i0] = np.int32(np.floor(s0 + offsets[k0])) - least[k0]
        out[k1, i1] = np.int32(np.floor(s1 + offsets[k1])) - least[k1]
        out[k2, i2] = np.int32(np.floor(s2 + offsets[k2])) - least[k2]
        out[k3, i3] = np.int32(np.floor(s3 + offsets[k3])) - least[k3]


@compiled
def codes(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    products: Float32,
    norms: Float32,
    limit: np.float32,
    slopes: Float32,
    shifts: Float32,
    least: Int32,
    directions: Float32,
    offsets: Float64,
    records: Float32,
    line: Int32,
    flags: Int32,
    out: Int32,
) -> int:
    """Codes (k, n), each less the least of its part (k,), from products (k, n) of BLAS; how many were flagged.

    ``norms`` holds the largest norm of each tile of records; ``slopes`` and ``shifts`` are (k,). The definition needs
    directions (k, d), offsets (k,) and records (n, d). Scratch: ``line`` (n,) and ``flags`` (2, more than n). The codes
    may take the memory of the products.
    """
    total, count, n, marks = 0, 0, out.shape[1], np.zeros(TILE, np.uint8)
    words = marks.view(np.uint64)
    for k in range(len(out)):
        count = _filter(k, products[k], norms, shifts[k], slopes[k], limit, least[k], marks, words, flags, count, line)
        row = out[k]
        for i in range(len(line)):
            row[i] = line[i]
        if count >= flags.shape[1] - n:
            _define(directions, offsets, least, records, flags, count, out)
            total, count = total + count, 0
    _define(directions, offsets, least, records, flags, count, out)
    return total + count


@compiled
def narrow_codes(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    padded: Float32,
    columns: Float32,
    norms: Float32,
    limit: np.float32,
    slopes: Float32,
    shifts: Float32,
    least: Int32,
    directions: Float32,
    offsets: Float64,
    records: Float32,
    line: Float32,
    flags: Int32,
    out: Int32,
) -> int:
    """The same where d is small and BLAS is slow: products of padded directions (k, d') and columns (d', n).

    d' is d rounded up to a multiple of :data:`GROUP`, with zeroes. ``line`` (n,) holds the products of one part.
    """
    total, count, n, marks = 0, 0, out.shape[1], np.zeros(TILE, np.uint8)
    words = marks.view(np.uint64)
    for k in range(len(out)):
        a = padded[k]
        for j in range(0, len(a), GROUP):
            a0, a1, a2, a3 = a[j], a[j + 1], a[j + 2], a[j + 3]
            x0, x1, x2, x3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
            if j == 0:
                for i in range(n):
                    line[i] = ((a0 * x0[i] + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i]
            else:
                for i in range(n):
                    line[i] = (((line[i] + a0 * x0[i]) + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i]
        count = _filter(k, line, norms, shifts[k], slopes[k], limit, least[k], marks, words, flags, count, out[k])
        if count >= flags.shape[1] - n:
            _define(directions, offsets, least, records, flags, count, out)
            total, count = total + count, 0
    _define(directions, offsets, least, records, flags, count, out)
    return total + count


@compiled
def place_codes(codes_: Int32, spans: Int64, strides: Int64) -> None:
    """Turns codes (k·p, n), each less the least of its part, into buckets, in the first k rows, by (k, p) each.

    A bucket is :data:`OUTSIDE` where one of its codes is out of span.
    """
    rows, power = strides.shape
    for k in range(rows):
        out = codes_[k]
        if power > 1:
            out[:] = codes_[k * power]
        stride, span = np.int32(strides[k, 0]), np.uint32(spans[k, 0])
        for i in range(len(out)):
            out[i] = out[i] * stride if np.uint32(out[i]) < span else OUTSIDE
        for part in range(1, power):
            row = codes_[k * power + part]
            stride, span = np.int32(strides[k, part]), np.uint32(spans[k, part])
            for i in range(len(out)):
                inside = (np.uint32(row[i]) < span) & (out[i] != OUTSIDE)
                out[i] = out[i] + row[i] * stride if inside else OUTSIDE


@compiled
def hash_codes(codes_: Int32, multipliers: UInt64, bits: int, width: int, h: UInt64) -> None:
    """Turns codes (k·p, n) into buckets by the rehash with multipliers (k, p + 1), in the first k rows.

    ``bits`` is log₂W, or 0 where W is no power of two; ``width`` is W; ``h`` (n,) is scratch.
    """
    rows, power = multipliers.shape[0], multipliers.shape[1] - 1
    shift, w = np.uint64(64 - bits), np.uint64(width)
    for k in range(rows):
        m0, m1, out = multipliers[k, 0], multipliers[k, 1], codes_[k]
        if power == 1 and bits:
            for i in range(len(out)):
                out[i] = np.int32((m0 + m1 * np.uint64(np.uint32(out[i]))) >> shift)
            continue
        h[:] = m0
        for part in range(power):
            m, row = multipliers[k, part + 1], codes_[k * power + part]
            for i in range(len(h)):
                h[i] += m * np.uint64(np.uint32(row[i]))
        if bits:
            for i in range(len(h)):
                out[i] = np.int32(h[i] >> shift)
        else:
            for i in range(len(h)):
                out[i] = np.int32(((h[i] >> np.uint64(32)) * w) >> np.uint64(32))


@compiled
def within(records: Float32, lower: Float32, upper: Float32) -> bool:
    """Whether all records (n, d) lie within the bounds (d,); NaN does not."""
    inside = True
    for i in range(len(records)):
        for j in range(len(lower)):
            inside = inside & (records[i, j] >= lower[j]) & (records[i, j] <= upper[j])
    return inside
