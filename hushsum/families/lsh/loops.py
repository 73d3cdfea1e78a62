"""Compiled loops from records to buckets; :mod:`hushsum.families.lsh.fast` alone calls them, with arrays that fit.

Nothing here is checked: indices are trusted. Every loop over records runs over contiguous memory and does the same to
each record, so that the compiler may use vectors; no operation changes its order (see
:mod:`hushsum.families.lsh.projection` for the definition of a code, for the filter and for what a flag is).

Arguments are flat and indices of tiles unsigned for a reason: slices and tuples of arrays cost reference counts in the
inner loops, and a signed index of unknown sign costs a test for wrap-around that keeps the compiler from using vectors.
"""

from typing import Final

import numpy as np

from hushsum.acceleration import compiled, inlined
from hushsum.families.lsh.arrays import Bytes, Float32, Float64, Int32, UInt64

#: Directions and columns of narrow products are padded with zeroes to a multiple of this.
GROUP: Final = 4
#: Sums by the definition side by side.
ABREAST: Final = 8
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
def _sign(t: Float32, start: int, stop: int, reach: np.float32, least: np.int32, out: Int32) -> bool:
    """Codes of a tile's products where a code is a sign, less the least of their part, and whether any is flagged."""
    flagged = False
    for i in range(start, stop):
        product = t[np.uint64(i)]
        out[np.uint64(i)] = np.int32(product >= np.float32(0.0)) - least
        flagged = flagged | (not np.abs(product) > reach)
    return flagged


@inlined
def _mark_signs(t: Float32, start: int, stop: int, reach: np.float32, marks: Bytes) -> None:
    """The flags of a tile of signs, one byte each."""
    for i in range(start, stop):
        marks[np.uint64(i - start)] = np.uint8(not np.abs(t[np.uint64(i)]) > reach)


@inlined
def _filter(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    k: int,
    t: Float32,
    norms: Float32,
    shift: np.float32,
    slope: np.float32,
    limit: np.float32,
    least: np.int32,
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    marks: Bytes,
    words: UInt64,
    flags: Int32,
    count: int,
    out: Int32,
) -> int:
    """Codes (n,) of part k from its products (n,), right but where flagged; adds (k, i) to ``count`` flags."""
    n = len(t)
    for tile in range(len(norms)):
        start = tile * TILE
        stop, reach = min(start + TILE, n), slope * norms[tile]
        if signs:
            flagged = _sign(t, start, stop, limit + reach, least, out)
        else:
            flagged = _round(t, start, stop, shift, limit - reach, least, out)
        if flagged:
            if signs:
                _mark_signs(t, start, stop, limit + reach, marks)
            else:
                _mark(t, start, stop, shift, limit - reach, marks)
            for word in range(TILE // 8):
                if words[word]:
                    for i in range(8 * word, min(8 * word + 8, stop - start)):
                        flags[0, count], flags[1, count] = k, start + i
                        count += marks[i]
    return count


@inlined
def _code(s: float, offset: float, signs: bool) -> np.int32:  # noqa: FBT001 -- compiled loops take no keywords
    """One code by the definition, from the sum."""
    if signs:
        return np.int32(s >= 0.0)
    return np.int32(np.floor(s + offset))


@inlined
def _bucket(m0: np.uint64, m1: np.uint64, code: np.int32, down: np.uint64) -> np.int32:
    """The rehash of one code alone, where W is a power of two."""
    return np.int32((m0 + m1 * np.uint64(np.uint32(code))) >> down)


@inlined
def _define(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    directions: Float32,
    offsets: Float64,
    least: Int32,
    records: Float32,
    flags: Int32,
    count: int,
    terms: Float64,
    multipliers: UInt64,
    down: np.uint64,
    out: Int32,
) -> None:
    """Codes, or buckets where there are multipliers, of ``count`` flags (k, i) by the definition.

    Products first, in vectors, into ``terms`` (8, d); then eight sums side by side: each waits for its own last term.
    """
    d = terms.shape[1]
    for first in range(0, count, ABREAST):
        some = min(ABREAST, count - first)
        for f in range(some):
            k, i, line = np.uint64(flags[0, first + f]), np.uint64(flags[1, first + f]), np.uint64(f)
            for j in range(d):
                at = np.uint64(j)
                terms[line, at] = np.float64(directions[k, at]) * np.float64(records[i, at])
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(d):
            s0 += terms[0, j]
            s1 += terms[1, j]
            s2 += terms[2, j]
            s3 += terms[3, j]
            s4 += terms[4, j]
            s5 += terms[5, j]
            s6 += terms[6, j]
            s7 += terms[7, j]
        sums = (s0, s1, s2, s3, s4, s5, s6, s7)
        for f in range(some):
            k, i = np.uint64(flags[0, first + f]), np.uint64(flags[1, first + f])
            code = _code(sums[f], offsets[k], signs) - least[k]
            if len(multipliers):
                code = _bucket(multipliers[k, 0], multipliers[k, 1], code, down)
            out[k, i] = code


@compiled
def codes(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    products: Float32,
    norms: Float32,
    limit: np.float32,
    slopes: Float32,
    shifts: Float32,
    least: Int32,
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    directions: Float32,
    offsets: Float64,
    records: Float32,
    line: Int32,
    flags: Int32,
    multipliers: UInt64,
    bits: int,
    out: Int32,
) -> int:
    """Codes (k, n), each less the least of its part (k,), from products (k, n) of BLAS; how many were flagged.

    ``norms`` holds the largest norm of each tile of records; ``slopes`` and ``shifts`` are (k,). The definition needs
    directions (k, d), offsets (k,) and records (n, d). Scratch: ``line`` (n,) and ``flags`` (2, more than n). The codes
    may take the memory of the products. With multipliers (k, 2) they are buckets of the rehash, W = 2^bits; without,
    (0, 2), codes.
    """
    total, count, n, marks = 0, 0, out.shape[1], np.zeros(TILE, np.uint8)
    terms = np.zeros((ABREAST, directions.shape[1]), np.float64)
    words, down = marks.view(np.uint64), np.uint64(64 - bits)
    for k in range(len(out)):
        slope, shift, low = slopes[k], shifts[k], least[k]
        count = _filter(k, products[k], norms, shift, slope, limit, low, signs, marks, words, flags, count, line)
        row = out[k]
        if len(multipliers):
            m0, m1 = multipliers[k, 0], multipliers[k, 1]
            for i in range(len(line)):
                row[i] = _bucket(m0, m1, line[i], down)
        else:
            for i in range(len(line)):
                row[i] = line[i]
        if count >= flags.shape[1] - n:
            _define(signs, directions, offsets, least, records, flags, count, terms, multipliers, down, out)
            total, count = total + count, 0
    _define(signs, directions, offsets, least, records, flags, count, terms, multipliers, down, out)
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
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    directions: Float32,
    offsets: Float64,
    records: Float32,
    line: Float32,
    flags: Int32,
    multipliers: UInt64,
    bits: int,
    out: Int32,
) -> int:
    """The same where d is small and BLAS is slow: products of padded directions (k, d') and columns (d', n).

    d' is d rounded up to a multiple of :data:`GROUP`, with zeroes. ``line`` (n,) holds the products of one part.
    """
    total, count, n, marks = 0, 0, out.shape[1], np.zeros(TILE, np.uint8)
    terms = np.zeros((ABREAST, directions.shape[1]), np.float64)
    words, down = marks.view(np.uint64), np.uint64(64 - bits)
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
        slope, shift, low = slopes[k], shifts[k], least[k]
        count = _filter(k, line, norms, shift, slope, limit, low, signs, marks, words, flags, count, out[k])
        if len(multipliers):
            m0, m1, row = multipliers[k, 0], multipliers[k, 1], out[k]
            for i in range(n):
                row[i] = _bucket(m0, m1, row[i], down)
        if count >= flags.shape[1] - n:
            _define(signs, directions, offsets, least, records, flags, count, terms, multipliers, down, out)
            total, count = total + count, 0
    _define(signs, directions, offsets, least, records, flags, count, terms, multipliers, down, out)
    return total + count
