"""Compiled loops from codes to buckets, in place; :mod:`hushsum.families.lsh.fast` alone calls them.

Nothing here is checked: see :mod:`hushsum.families.lsh.loops`.
"""

import numpy as np

from hushsum.acceleration import compiled
from hushsum.families.lsh.arrays import Int32, Int64, UInt64
from hushsum.families.lsh.placement import OUTSIDE


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
