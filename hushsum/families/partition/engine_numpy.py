"""The engine of the partition family in NumPy alone: words to hashes, hashes to counters and back."""

from typing import Final

import numpy as np

from hushsum.families.lsh.arrays import Float64, Int64
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.partition.cells import Words
from hushsum.families.partition.signed_hashes import SignedHashes

#: Records whose words are made at once.
BLOCK_RECORDS: Final = 1 << 12
_BLOCK_TOKENS: Final = 1 << 17


def lsh_words(projection: Projection, parts: slice, columns: Float64) -> Words:
    """(k, n) uint32: the codes of some parts by their definition, modulo 2³², of points (d, n) float64."""
    directions = projection.directions[parts].astype(np.float64)
    sums = np.zeros((len(directions), columns.shape[1]))
    for j in range(len(columns)):
        sums += directions[:, j, None] * columns[j]
    sums += projection.offsets[parts, None]
    return np.floor(sums, out=sums).astype(np.int64).astype(np.uint32)


def tokens(hashes: SignedHashes, rows: slice, words: Words) -> Int64:
    """See :meth:`SignedHashes.tokens`."""
    return hashes.tokens(rows, words.astype(np.uint64))


def scatter(hashes: SignedHashes, rows: slice, words: Words, counters: Int64) -> None:
    """Adds the signs of n records to counters (k, W) of some rows, in place."""
    k, width = counters.shape
    for some in _chunks(k, max(1, _BLOCK_TOKENS // max(1, words.shape[2]))):
        chosen = tokens(hashes, slice(rows.start + some.start, rows.start + some.stop), _of(words, some))
        target = counters[some]
        chosen += np.arange(len(target))[:, None] * (2 * width)
        if target.size <= 4 * chosen.size:
            counts = np.bincount(chosen.reshape(-1), minlength=2 * target.size).reshape(len(target), width, 2)
            target += counts[:, :, 0]
            target -= counts[:, :, 1]
        else:
            flat = counters.reshape(-1)[some.start * width : some.stop * width]
            np.add.at(flat, chosen.reshape(-1) >> 1, 1 - 2 * (chosen.reshape(-1) & 1))


def gather(hashes: SignedHashes, rows: slice, words: Words, counters: Int64, sums: Float64) -> None:
    """Adds what some rows (k, W) read at n queries to sums (3, n), whose first is what the first row of all read.

    With y_r = sign·counter of row r: y₀, Σ(y_r − y₀) and Σ(y_r − y₀)², in the order of the rows. Before the first row
    y₀ is NaN.
    """
    for some in _chunks(len(counters), max(1, _BLOCK_TOKENS // max(1, words.shape[2]))):
        chosen = tokens(hashes, slice(rows.start + some.start, rows.start + some.stop), _of(words, some))
        read = np.take_along_axis(counters[some], chosen >> 1, axis=1)
        read *= 1 - 2 * (chosen & 1)
        y = read.astype(np.float64)
        np.copyto(sums[0], y[0], where=np.isnan(sums[0]))
        y -= sums[0]
        squares = y * y
        y[0] += sums[1]
        squares[0] += sums[2]
        sums[1] = np.add.accumulate(y, axis=0)[-1]  # every partial sum, hence in the order of the rows
        sums[2] = np.add.accumulate(squares, axis=0)[-1]


def _of(words: Words, rows: slice) -> Words:
    return words if len(words) == 1 else words[rows]


def _chunks(stop: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, stop)) for start in range(0, stop, size)]
