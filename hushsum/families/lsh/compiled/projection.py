"""Codes of a projection in compiled loops, and buckets where its signs are added up as they are made.

The block's products come from BLAS, or from a loop of our own where d is small; codes take their place in the same
memory. The definition of a code, the filter and what a flag is: :mod:`hushsum.families.lsh.codes.projection`.

Nothing is checked in the loops: indices are trusted. Every loop over records runs over contiguous memory and does the
same to each record, so that the compiler may use vectors; no operation changes its order.

Arguments are flat and indices of tiles unsigned for a reason: slices and tuples of arrays cost reference counts in the
inner loops, and a signed index of unknown sign costs a test for wrap-around that keeps the compiler from using vectors.

Where a row's codes are signs, a code of a part adds one of two numbers to the bucket: (code − least)·stride, or what
leads out of all buckets.
"""

from typing import Final, NamedTuple

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Bytes, Float32, Float64, Int32, UInt64
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.lsh.placement import Direct, Placement, Rehash

#: The largest d with which the loop of our own beats BLAS.
NARROW: Final = 8
_WIDE: Final = 64
_BLOCK_RECORDS: Final = 1024
_BLOCK_CODES: Final = 1 << 17
_NONE: Final[UInt64] = np.empty((0, 2), np.uint64)

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
def wide_codes(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
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
def codes_of_one(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    products: Float32,
    norm: np.float32,
    limit: np.float32,
    slopes: Float32,
    shifts: Float32,
    least: Int32,
    signs: bool,  # noqa: FBT001 -- compiled loops take no keywords
    directions: Float32,
    offsets: Float64,
    records: Float32,
    flags: Int32,
    multipliers: UInt64,
    bits: int,
    out: Int32,
) -> int:
    """The same of one record, from products (k,): here the vectors are of parts, and ``out`` is (k, 1)."""
    total, count, down = 0, 0, np.uint64(64 - bits)
    terms, codes = np.zeros((ABREAST, directions.shape[1]), np.float64), out[:, 0]
    for k in range(len(products)):
        product, reach = products[k], slopes[k] * norm  # codes may take the memory of the products
        if signs:
            code = np.int32(product >= np.float32(0.0)) - least[k]
            flagged = not np.abs(product) > limit + reach
        else:
            shifted = product + shifts[k]
            g = np.rint(shifted)
            code = np.int32(g) - least[k]
            flagged = np.abs(shifted - g) > limit - reach
        codes[k] = _bucket(multipliers[k, 0], multipliers[k, 1], code, down) if len(multipliers) else code
        if flagged:
            flags[0, count], flags[1, count] = k, 0
            count += 1
            if count == flags.shape[1]:
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


@inlined
def _add(t: Float32, start: int, stop: int, reach: np.float32, low: np.int32, high: np.int32, line: Int32) -> bool:
    """Adds what the signs of a tile's products put into buckets; whether any is flagged."""
    flagged = False
    for i in range(start, stop):
        product = t[np.uint64(i)]
        line[np.uint64(i)] += high if product >= np.float32(0.0) else low
        flagged = flagged | (not np.abs(product) > reach)
    return flagged


@inlined
def _take_back(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    k: int,
    product: np.float32,
    i: int,
    reach: np.float32,
    low: np.int32,
    high: np.int32,
    line: Int32,
    flags: Int32,
    count: int,
) -> int:
    """If a product is flagged, takes back what its sign added, and adds (k, i) to ``count`` flags."""
    if np.abs(product) > reach:
        return count
    line[i] -= high if product >= np.float32(0.0) else low
    flags[0, count], flags[1, count] = k, i
    return count + 1


@inlined
def _define_signs(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    directions: Float32, records: Float32, lows: Int32, highs: Int32, power: int, flags: Int32, count: int, out: Int32
) -> None:
    """Adds what ``count`` flagged signs (k, i) put into buckets, by the definition."""
    for f in range(count):
        k, i = flags[0, f], flags[1, f]
        a, x, s = directions[k], records[i], 0.0
        for j in range(len(a)):
            s += np.float64(a[j]) * np.float64(x[j])
        out[k // power, i] += highs[k] if s >= 0.0 else lows[k]


@compiled
def wide_sign_buckets(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    products: Float32,
    norms: Float32,
    limit: np.float32,
    slopes: Float32,
    lows: Int32,
    highs: Int32,
    directions: Float32,
    records: Float32,
    line: Int32,
    flags: Int32,
    out: Int32,
) -> int:
    """Buckets (k, n) from products (k·p, n) of BLAS, whose memory they may take; how many signs were flagged.

    A code of 0 adds ``lows`` (k·p,) to a bucket, one of 1 ``highs`` (k·p,). ``norms``, ``slopes``, directions and
    records are as in :func:`wide_codes`. Scratch: ``line`` (n,) and ``flags`` (2, n·p or more).
    """
    total, n, power = 0, out.shape[1], len(products) // len(out)
    for row in range(len(out)):
        count = 0
        line[:] = np.int32(0)
        for k in range(row * power, (row + 1) * power):
            t, low, high = products[k], lows[k], highs[k]
            for tile in range(len(norms)):
                start, reach = tile * TILE, limit + slopes[k] * norms[tile]
                stop = min(start + TILE, n)
                if _add(t, start, stop, reach, low, high, line):
                    for i in range(start, stop):
                        count = _take_back(k, t[i], i, reach, low, high, line, flags, count)
        out[row] = line
        _define_signs(directions, records, lows, highs, power, flags, count, out)
        total += count
    return total


@inlined
def _add_narrow(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    a0: np.float32,
    a1: np.float32,
    a2: np.float32,
    a3: np.float32,
    x0: Float32,
    x1: Float32,
    x2: Float32,
    x3: Float32,
    start: int,
    stop: int,
    reach: np.float32,
    low: np.int32,
    high: np.int32,
    line: Int32,
) -> bool:
    """The same with products of four coordinates made on the way."""
    flagged = False
    for i in range(start, stop):
        j = np.uint64(i)
        product = ((a0 * x0[j] + a1 * x1[j]) + a2 * x2[j]) + a3 * x3[j]
        line[j] += high if product >= np.float32(0.0) else low
        flagged = flagged | (not np.abs(product) > reach)
    return flagged


@compiled
def narrow_sign_buckets(  # noqa: PLR0913, PLR0917 -- flat: see the top of the file
    padded: Float32,
    columns: Float32,
    norms: Float32,
    limit: np.float32,
    slopes: Float32,
    lows: Int32,
    highs: Int32,
    directions: Float32,
    records: Float32,
    flags: Int32,
    out: Int32,
) -> int:
    """The same where d is at most 4: from directions (k·p, 4) and columns (4, n), padded with zeroes."""
    total, n, power = 0, out.shape[1], len(padded) // len(out)
    x0, x1, x2, x3 = columns[0], columns[1], columns[2], columns[3]
    for row in range(len(out)):
        count, line = 0, out[row]
        line[:] = np.int32(0)
        for k in range(row * power, (row + 1) * power):
            a0, a1, a2, a3 = padded[k, 0], padded[k, 1], padded[k, 2], padded[k, 3]
            low, high = lows[k], highs[k]
            for tile in range(len(norms)):
                start, reach = tile * TILE, limit + slopes[k] * norms[tile]
                stop = min(start + TILE, n)
                if _add_narrow(a0, a1, a2, a3, x0, x1, x2, x3, start, stop, reach, low, high, line):
                    for i in range(start, stop):
                        product = ((a0 * x0[i] + a1 * x1[i]) + a2 * x2[i]) + a3 * x3[i]
                        count = _take_back(k, product, i, reach, low, high, line, flags, count)
        _define_signs(directions, records, lows, highs, power, flags, count, out)
        total += count
    return total


class ProjectionBlock(NamedTuple):
    """n records with what every chunk of rows needs of them.

    Attributes:
        records: (n, d).
        columns: (d', n) where d is small: the records' coordinates, padded.
        norms: Of the filter: the largest of each tile of records.
    """

    records: Float32
    columns: Float32 | None
    norms: Float32


class CompiledProjection:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

    block_records = _BLOCK_RECORDS

    def __init__(self, projection: Projection, lowest: Int32) -> None:
        self.computed, self.flagged = 0, 0
        self._projection, self._lowest = projection, lowest
        self._padded = _padded(projection.directions) if projection.directions.shape[1] <= NARROW else None
        self._products: Float32 = np.empty(0, np.float32)
        self._terms: tuple[Int32, ...] = ()
        self._line: Float32 = np.empty(0, np.float32)
        self._flags: Int32 = np.empty((2, 0), np.int32)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches: a block's codes in the second level."""
        # BLAS gains from more rows at once where d is large, more than the cache loses.
        codes = _BLOCK_CODES * (2 if len(self._projection.sizes) > _WIDE else 1)
        return codes // (n * power)

    def prepare(self, records: Float32) -> ProjectionBlock:
        """What every chunk of rows needs of some records, at least one."""
        norms = self._projection.norms(records)
        if len(records) == 1:
            return ProjectionBlock(records, None, norms)
        tiles: Float32 = np.maximum.reduceat(norms, np.arange(0, len(norms), TILE))
        return ProjectionBlock(
            records, None if self._padded is None else np.ascontiguousarray(_padded(records).T), tiles
        )

    def codes(self, parts: slice, block: ProjectionBlock) -> Int32:
        """(k, n) less the least code of each part."""
        return self._loops(parts, block, _NONE, 0)

    def buckets(self, rows: slice, block: ProjectionBlock, placement: Placement, width: int) -> Int32 | None:
        """(rows, n): of a rehash where a row has one code and W is a power of two; direct where codes are signs."""
        if not isinstance(placement, Rehash):
            return self._sign_buckets(rows, block, placement, width)
        if placement.multipliers.shape[1] > 2 or not placement.bits:
            return None
        return self._loops(rows, block, placement.multipliers[rows], placement.bits)

    def _sign_buckets(self, rows: slice, block: ProjectionBlock, direct: Direct, width: int) -> Int32 | None:
        """Direct buckets of several signs a row; W or more where one is outside."""
        projection, (records, columns, norms) = self._projection, block
        power, n = direct.strides.shape[1], len(records)
        if power == 1 or not projection.signs or (columns is not None and len(columns) > GROUP):
            return None
        if not self._terms and (power + 1) * width < 2**31:
            self._terms = tuple(_terms(direct, width, code) for code in (0, 1))
        if not self._terms:
            return None
        parts = slice(rows.start * power, rows.stop * power)
        count = parts.stop - parts.start
        self._grow(count * n, n * power)
        directions, (lows, highs) = projection.directions[parts], (terms[parts] for terms in self._terms)
        fixed = (norms, projection.limit, projection.slopes[parts], lows, highs, directions, records)
        memory = self._products[: count * n].reshape(count, n)
        out = memory[: count // power].view(np.int32)
        if columns is None or self._padded is None:
            np.dot(directions, records.T, out=memory)
            flagged = wide_sign_buckets(memory, *fixed, self._line[:n].view(np.int32), self._flags, out)
        else:
            flagged = narrow_sign_buckets(self._padded[parts], columns, *fixed, self._flags, out)
        self.computed, self.flagged = self.computed + count * n, self.flagged + flagged
        return out

    def _loops(self, parts: slice, block: ProjectionBlock, multipliers: UInt64, bits: int) -> Int32:
        projection, (records, columns, norms) = self._projection, block
        count, n = parts.stop - parts.start, len(records)
        self._grow(count * n, n)
        directions, products = projection.directions[parts], self._products[: count * n].reshape(count, n)
        out, line, flags = products.view(np.int32), self._line[:n], self._flags
        fixed = (projection.limit, projection.slopes[parts], projection.shifts[parts], self._lowest[parts])
        rehash = (multipliers, bits)
        definition = (projection.signs, directions, projection.offsets[parts])
        if n == 1:
            np.dot(directions, records.T, out=products)
            flagged = codes_of_one(products[:, 0], norms[0], *fixed, *definition, records, flags, *rehash, out)
        elif columns is None or self._padded is None:
            np.dot(directions, records.T, out=products)
            flagged = wide_codes(
                products, norms, *fixed, *definition, records, line.view(np.int32), flags, *rehash, out
            )
        else:
            padded = self._padded[parts]
            flagged = narrow_codes(padded, columns, norms, *fixed, *definition, records, line, flags, *rehash, out)
        self.computed, self.flagged = self.computed + out.size, self.flagged + flagged
        return out

    def _grow(self, products: int, n: int) -> None:
        if products > len(self._products):
            self._products = np.empty(products, np.float32)
        if n > len(self._line):
            self._line = np.empty(n, np.float32)
        if n >= self._flags.shape[1]:  # (2, more than n) for parts and records
            self._flags = np.empty((2, n + 1024), np.int32)


def _padded(matrix: Float32) -> Float32:
    """The same columns, and zeroes up to a multiple of the loops' group: they add nothing to a product."""
    n, d = matrix.shape
    padded = np.zeros((n, -(-d // GROUP) * GROUP), np.float32)
    padded[:, :d] = matrix
    return padded


def _terms(direct: Direct, width: int, code: int) -> Int32:
    """What this code of each part adds to a bucket: W where it is outside, so that nothing brings the sum back."""
    above = code - direct.lowest
    inside = (above >= 0) & (above < direct.spans)
    return np.where(inside, above * direct.strides, width).astype(np.int32).reshape(-1)
