"""Codes of Walsh–Hadamard directions in NumPy."""

from typing import Final

import numpy as np

from hushsum.families.lsh.fastfood import Fastfood
from hushsum.families.lsh.projection import Float32, Int64

_KEPT_MAX: Final = 1 << 24  # numbers of a block of directions that are kept for the next rows


class PlainFastfood:
    """See :class:`~hushsum.families.lsh.coders.PlainCoder`."""

    def __init__(self, fastfood: Fastfood) -> None:
        self._fastfood = fastfood
        self._columns: Float32 = np.empty((0, 0), np.float32)
        self._kept: dict[int, Float32] = {}

    def prepare(self, records: Float32) -> Float32:
        """(d, n): the records' coordinates."""
        return np.ascontiguousarray(records.T)

    def codes(self, parts: slice, prepared: Float32) -> Int64:
        """(k, n) int64."""
        fastfood = self._fastfood
        first, last = parts.start // fastfood.power, parts.stop // fastfood.power
        codes = np.empty((last - first, fastfood.power, prepared.shape[1]), np.int64)
        for top in range(first // fastfood.size, -(-last // fastfood.size)):
            start = top * fastfood.size
            rows = slice(max(first, start), min(last, start + fastfood.size))
            for part in range(fastfood.power):
                block = self._block(top * fastfood.power + part, prepared)[rows.start - start : rows.stop - start]
                which = np.arange(rows.start, rows.stop) * fastfood.power + part
                codes[rows.start - first : rows.stop - first, part] = _codes(fastfood, block, which)
        return codes.reshape(-1, prepared.shape[1])

    def _block(self, block: int, columns: Float32) -> Float32:
        """(D, n) float32: p of the definition, kept for the rows that come next."""
        if columns is not self._columns:
            self._columns, self._kept = columns, {}
        found = self._kept.get(block)
        if found is None:
            found = rotated(self._fastfood, block, columns)
            if len(self._kept) >= self._fastfood.power:  # rows come in order: those of the blocks before are done
                self._kept = {}
            if found.size * self._fastfood.power <= _KEPT_MAX:
                self._kept[block] = found
        return found


def rotated(fastfood: Fastfood, block: int, columns: Float32) -> Float32:
    """(D, n) float32: p of the definition, for the coordinates (d, n) of records."""
    padded = np.zeros((fastfood.size, columns.shape[1]), np.float32)
    np.multiply(columns, fastfood.flips[block, : fastfood.dim, None], out=padded[: fastfood.dim])
    _transform(padded)
    padded = padded[fastfood.permutations[block]]
    padded *= fastfood.diagonals[block, :, None]
    _transform(padded)
    return padded


def _transform(numbers: Float32) -> None:
    """H of each column, in place."""
    size, n = numbers.shape
    h = size // 2
    while h:
        pairs = numbers.reshape(-1, 2, h, n)
        differences = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = differences
        h //= 2


def _codes(fastfood: Fastfood, block: Float32, which: Int64) -> Int64:
    if fastfood.signs:
        return np.asarray(block >= 0, np.int64)
    sums = block.astype(np.float64)
    sums *= fastfood.scales[which, None]
    sums += fastfood.offsets[which, None]
    np.floor(sums, out=sums)
    return np.asarray(sums, np.int64)
