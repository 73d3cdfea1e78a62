"""Compiled loops from records to buckets where a row's codes are signs, each added to the bucket as it is made.

:mod:`hushsum.families.lsh.projection_fast` alone calls them; nothing is checked, and the filter and its flags are those
of :mod:`hushsum.families.lsh.loops`. A code of a part adds one of two numbers to the bucket: (code − least)·stride, or
what leads out of all buckets.
"""

import numpy as np

from hushsum.acceleration import compiled, inlined
from hushsum.families.lsh.arrays import Float32, Int32
from hushsum.families.lsh.loops import TILE


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
def _take_back(  # noqa: PLR0913, PLR0917 -- flat: see :mod:`hushsum.families.lsh.loops`
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
def _define(  # noqa: PLR0913, PLR0917 -- flat: see :mod:`hushsum.families.lsh.loops`
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
def buckets(  # noqa: PLR0913, PLR0917 -- flat: see :mod:`hushsum.families.lsh.loops`
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
    records are as in :func:`hushsum.families.lsh.loops.codes`. Scratch: ``line`` (n,) and ``flags`` (2, n·p or more).
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
        _define(directions, records, lows, highs, power, flags, count, out)
        total += count
    return total


@inlined
def _add_narrow(  # noqa: PLR0913, PLR0917 -- flat: see :mod:`hushsum.families.lsh.loops`
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
def narrow_buckets(  # noqa: PLR0913, PLR0917 -- flat: see :mod:`hushsum.families.lsh.loops`
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
        _define(directions, records, lows, highs, power, flags, count, out)
        total += count
    return total
