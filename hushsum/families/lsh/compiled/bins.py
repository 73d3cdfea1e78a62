"""Codes of random binning in compiled loops; buckets of a rehash without writing codes down.

Nothing is checked in the loops, and each runs over contiguous memory: see
:mod:`hushsum.families.lsh.compiled.projection`.
"""

from typing import Final

import numpy as np

from hushsum.compiled import compiled
from hushsum.families.lsh.arrays import Float32, Float64, Int32, UInt64
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.placement import Placement, Rehash

_BLOCK_NUMBERS: Final = 1 << 16  # coordinates of a block of records
_BLOCK_CODES: Final = 1 << 17


@compiled
def bin_codes(columns: Float32, inverses: Float32, offsets: Float64, lowest: Int32, out: Int32) -> None:
    """Codes (k·d, n), each less the least of its part, of columns (d, n), with inverses and offsets (k, d)."""
    d = len(columns)
    for k in range(len(inverses)):
        for j in range(d):
            a, b, low = np.float64(inverses[k, j]), offsets[k, j], lowest[k * d + j]
            column, row = columns[j], out[k * d + j]
            for i in range(len(row)):
                row[i] = np.int32(np.floor(a * np.float64(column[i]) + b)) - low


@compiled
def bin_buckets(  # noqa: PLR0913, PLR0917 -- flat: see compiled/projection.py
    columns: Float32,
    inverses: Float32,
    offsets: Float64,
    multipliers: UInt64,
    bits: int,
    width: int,
    h: UInt64,
    out: Int32,
) -> None:
    """Buckets (k, n) by the rehash with multipliers (k, p·d + 1), with inverses and offsets (k·p, d).

    ``bits`` is log₂W, or 0 where W is no power of two; ``width`` is W; ``h`` (n,) is scratch.
    """
    d, power = len(columns), len(inverses) // len(out)
    shift, w = np.uint64(64 - bits), np.uint64(width)
    for k in range(len(out)):
        h[:] = multipliers[k, 0]
        for part in range(power):
            p, first = k * power + part, 1 + part * d
            for j in range(0, d - 1, 2):
                a, b, m = np.float64(inverses[p, j]), offsets[p, j], multipliers[k, first + j]
                a2, b2, m2 = np.float64(inverses[p, j + 1]), offsets[p, j + 1], multipliers[k, first + j + 1]
                column, column2 = columns[j], columns[j + 1]
                for i in range(len(h)):
                    c = np.int32(np.floor(a * np.float64(column[i]) + b))
                    c2 = np.int32(np.floor(a2 * np.float64(column2[i]) + b2))
                    h[i] += m * np.uint64(np.uint32(c)) + m2 * np.uint64(np.uint32(c2))
            if d % 2:
                a, b, m = np.float64(inverses[p, d - 1]), offsets[p, d - 1], multipliers[k, first + d - 1]
                column = columns[d - 1]
                for i in range(len(h)):
                    h[i] += m * np.uint64(np.uint32(np.int32(np.floor(a * np.float64(column[i]) + b))))
        row = out[k]
        if bits:
            for i in range(len(row)):
                row[i] = np.int32(h[i] >> shift)
        else:
            for i in range(len(row)):
                row[i] = np.int32(((h[i] >> np.uint64(32)) * w) >> np.uint64(32))


class CompiledBins:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

    def __init__(self, bins: Bins, lowest: Int32) -> None:
        self.computed, self.flagged = 0, 0
        self._bins, self._lowest = bins, lowest
        self._dim = bins.inverses.shape[1]
        self.block_records = max(64, min(1024, _BLOCK_NUMBERS // self._dim))
        self._hashes: UInt64 = np.empty(0, np.uint64)
        self._out: Int32 = np.empty(0, np.int32)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches: their buckets, or the codes of few where those are written down."""
        return max(1, _BLOCK_CODES // (n * power))

    def prepare(self, records: Float32) -> Float32:
        """(d, n): the records' coordinates."""
        return np.ascontiguousarray(records.T)

    def codes(self, parts: slice, block: Float32) -> Int32:
        """(k·d, n) less the least code of each part."""
        some, out = (
            slice(parts.start // self._dim, parts.stop // self._dim),
            self._memory(parts.stop - parts.start, block),
        )
        bin_codes(block, self._bins.inverses[some], self._bins.offsets[some], self._lowest[parts], out)
        self.computed += out.size
        return out

    def buckets(self, rows: slice, block: Float32, placement: Placement, width: int) -> Int32 | None:
        """(rows, n): of a rehash."""
        del width
        if not isinstance(placement, Rehash):
            return None
        power, n = (placement.multipliers.shape[1] - 1) // self._dim, block.shape[1]
        if n > len(self._hashes):
            self._hashes = np.empty(n, np.uint64)
        parts, out = slice(rows.start * power, rows.stop * power), self._memory(rows.stop - rows.start, block)
        parameters = (self._bins.inverses[parts], self._bins.offsets[parts], placement.multipliers[rows])
        bin_buckets(block, *parameters, placement.bits, placement.buckets, self._hashes[:n], out)
        self.computed += out.size * power * self._dim
        return out

    def _memory(self, count: int, block: Float32) -> Int32:
        n = block.shape[1]
        if count * n > len(self._out):
            self._out = np.empty(count * n, np.int32)
        return self._out[: count * n].reshape(count, n)
