"""Compiled loops from codes to buckets, in place, and from buckets to counters and back.

:mod:`hushsum.families.lsh.compiled.engine` alone calls them. Nothing here is checked: indices are trusted.
"""

from typing import Final

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Float64, Int32, Int64, UInt32, UInt64
from hushsum.families.lsh.placement import OUTSIDE

#: Rows whose counters are incremented side by side.
ABREAST: Final = 4
#: Buckets from which on the counters of four rows leave no room for each other in a core's cache.
WIDE: Final = 1 << 16


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
def scatter(buckets: Int32, counters: Int64) -> None:
    """Adds one to counters (k, W) at each of buckets (k, n), four rows at a time.

    Neighbouring records often share a bucket, and increments of one counter wait for each other; those of four rows do
    not. Where a row is wide, one row at a time.
    """
    whole = len(buckets) // ABREAST * ABREAST if counters.shape[1] < WIDE else 0
    for k in range(0, whole, ABREAST):
        c0, c1, c2, c3 = counters[k], counters[k + 1], counters[k + 2], counters[k + 3]
        b0, b1, b2, b3 = buckets[k], buckets[k + 1], buckets[k + 2], buckets[k + 3]
        for i in range(buckets.shape[1]):
            c0[np.uint32(b0[i])] += 1
            c1[np.uint32(b1[i])] += 1
            c2[np.uint32(b2[i])] += 1
            c3[np.uint32(b3[i])] += 1
    for k in range(whole, len(buckets)):
        row = counters[k]
        for i in range(buckets.shape[1]):
            row[np.uint32(buckets[k, i])] += 1


@compiled
def runs(buckets: Int32, first_index: int, width: int, indices: Int64, values: Int64) -> int:
    """Flat indices and counts of buckets (k, n) that are sorted within each row, into zeroed values; how many."""
    count = 0
    for k in range(len(buckets)):
        base, before = first_index + k * width, np.int32(-1)
        for i in range(buckets.shape[1]):
            bucket = buckets[k, i]
            count += bucket != before  # no branch: no processor could foretell it
            before = bucket
            indices[np.uint64(count - 1)] = base + bucket
            values[np.uint64(count - 1)] += 1
    return count


@inlined
def _read(buckets: Int32, width: np.uint32, row: Int64, line: Int64) -> None:
    """What a row (W,) holds at buckets (n,), 0 where one is not below the width."""
    largest = np.uint32(0)
    for i in range(len(line)):
        largest = max(largest, np.uint32(buckets[i]))
    if largest >= width:
        for i in range(len(line)):
            bucket = np.uint32(buckets[i])
            line[i] = row[bucket] if bucket < width else 0
    else:
        for i in range(len(line)):
            line[i] = row[np.uint32(buckets[i])]


@compiled
def gather(  # noqa: PLR0913, PLR0917 -- flat: tuples of arrays cost reference counts in the inner loops
    buckets: Int32,
    widths: UInt32,
    counters: Int64,
    less: Float64,
    begins: bool,  # noqa: FBT001 -- compiled loops take no keywords
    first: Float64,
    lines: Int64,
    total: Float64,
    squares: Float64,
) -> None:
    """Adds what rows (k, W) read at buckets (k, n), row after row, as the NumPy engine's ``sums`` says.

    Where it ``begins``, ``first`` (n,) becomes what the first of the rows reads. A bucket that is not below its row's
    width (k,), both unsigned, reads 0. ``lines`` (2, n) is scratch: reads from here and there first, then arithmetic in
    vectors, of two rows at once: more leave the first level of the cache.
    """
    n, pairs, before, after = len(first), len(buckets) // 2 * 2, lines[0], lines[1]
    if begins:
        _read(buckets[0], widths[0], counters[0], before)
        for i in range(n):
            first[i] = np.float64(before[i]) - less[0]
    for k in range(0, pairs, 2):
        _read(buckets[k], widths[k], counters[k], before)
        _read(buckets[k + 1], widths[k + 1], counters[k + 1], after)
        taken, taken_after = less[k], less[k + 1]
        for i in range(n):
            y, z = (np.float64(before[i]) - taken) - first[i], (np.float64(after[i]) - taken_after) - first[i]
            total[i] = (total[i] + y) + z
            squares[i] = (squares[i] + y * y) + z * z
    if pairs < len(buckets):
        taken = less[pairs]
        _read(buckets[pairs], widths[pairs], counters[pairs], before)
        for i in range(n):
            y = (np.float64(before[i]) - taken) - first[i]
            total[i] += y
            squares[i] += y * y


@compiled
def compact(counters: Int64, first_index: int, indices: Int64, values: Int64) -> int:
    """Flat indices and values of the counters (k, W) that are not 0, which become 0; how many they are."""
    flat, count = counters.reshape(-1), 0
    for i in range(len(flat)):
        indices[count], values[count] = first_index + i, flat[i]
        count += flat[i] != 0
        flat[i] = 0
    return count
