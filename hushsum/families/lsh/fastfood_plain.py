"""Codes of Walsh–Hadamard directions in NumPy."""

from typing import Final

import numpy as np

from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.fastfood import Fastfood

_NUMBERS: Final = 1 << 20


class PlainFastfood:
    """See :class:`~hushsum.families.lsh.coders.PlainCoder`."""

    def __init__(self, fastfood: Fastfood) -> None:
        self._fastfood = fastfood
        self._spread: Float32 = np.empty((0, 0), np.float32)
        self._kept: dict[int, Float32] = {}

    def prepare(self, records: Float32) -> Float32:
        """(D, n): u of the definition."""
        return spread(self._fastfood, records.T)

    def codes(self, parts: slice, prepared: Float32) -> Int64:
        """(k, n) int64."""
        fastfood, power, height = self._fastfood, self._fastfood.power, self._fastfood.height
        first, last = parts.start // power, parts.stop // power
        codes = np.empty((last - first, power, prepared.shape[1]), np.int64)
        for top in range(first // height, -(-last // height)):
            start = top * height
            rows = slice(max(first, start), min(last, start + height))
            for part in range(power):
                block = self._block(top * power + part, prepared)[rows.start - start : rows.stop - start]
                which = np.arange(rows.start, rows.stop) * power + part
                codes[rows.start - first : rows.stop - first, part] = _codes(fastfood, block, which)
        return codes.reshape(-1, prepared.shape[1])

    def _block(self, block: int, prepared: Float32) -> Float32:
        """(E, n) float32: p of the definition, kept for the rows that come next."""
        if prepared is not self._spread:
            self._spread, self._kept = prepared, {}
        if block not in self._kept:
            if len(self._kept) >= self._fastfood.power:  # rows come in order: those of the blocks before are done
                self._kept = {}
            self._kept[block] = rotated(self._fastfood, slice(block, block + 1), prepared)[0]
        return self._kept[block]


def spread(fastfood: Fastfood, columns: Float32) -> Float32:
    """(D, n) float32: u of the definition, for the coordinates (d, n) of records."""
    padded = np.zeros((fastfood.size, columns.shape[1]), np.float32)
    np.multiply(columns, fastfood.flips[: fastfood.dim, None], out=padded[: fastfood.dim])
    _transform(padded[None])
    return padded


def rotated(fastfood: Fastfood, blocks: slice, spread_out: Float32) -> Float32:
    """(blocks, E, n) float32: p of the definition, for u (D, n)."""
    values = spread_out[fastfood.permutations[blocks]]
    values *= fastfood.diagonals[blocks, :, None]
    while values.shape[1] > fastfood.height:  # of the first stages the half that leads to the first rows
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    _transform(values)
    return values


def extremes(fastfood: Fastfood, lower: Float32, upper: Float32) -> tuple[Float64, Float64]:
    """(R·p,) twice: the least and the largest p of records within the bounds, but for rounding."""
    blocks, size = len(fastfood.permutations), fastfood.size
    least, largest = np.zeros((blocks, fastfood.height)), np.zeros((blocks, fastfood.height))
    wide = max(1, min(fastfood.dim, _NUMBERS // size))
    some = max(1, _NUMBERS // (size * wide))
    for start in range(0, fastfood.dim, wide):
        which = range(start, min(start + wide, fastfood.dim))
        units = spread(fastfood, np.eye(fastfood.dim, dtype=np.float32)[:, which.start : which.stop])
        for first in range(0, blocks, some):
            few = slice(first, first + some)
            directions = rotated(fastfood, few, units).astype(np.float64)
            for j in which:
                low, high = directions[:, :, j - start] * float(lower[j]), directions[:, :, j - start] * float(upper[j])
                least[few] += np.minimum(low, high)
                largest[few] += np.maximum(low, high)
    rows = len(fastfood) // fastfood.power
    in_order = [
        ends.reshape(-1, fastfood.power, fastfood.height).transpose(0, 2, 1).reshape(-1, fastfood.power)[:rows]
        for ends in (least, largest)
    ]
    return in_order[0].reshape(-1), in_order[1].reshape(-1)


def _transform(numbers: Float32) -> None:
    """H of (blocks, D, n) along the middle axis, in place."""
    blocks, size, n = numbers.shape
    h = size // 2
    while h:
        pairs = numbers.reshape(blocks, -1, 2, h, n)
        differences = pairs[:, :, 0] - pairs[:, :, 1]
        pairs[:, :, 0] += pairs[:, :, 1]
        pairs[:, :, 1] = differences
        h //= 2


def _codes(fastfood: Fastfood, block: Float32, which: Int64) -> Int64:
    if fastfood.signs:
        return np.asarray(block >= 0, np.int64)
    sums = block.astype(np.float64)
    sums *= fastfood.scales[which, None]
    sums += fastfood.offsets[which, None]
    np.floor(sums, out=sums)
    return np.asarray(sums, np.int64)
