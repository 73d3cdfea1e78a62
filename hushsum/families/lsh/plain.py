"""The engine in NumPy alone: codes, buckets and counters of a block of records at a time, in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from hushsum.families.lsh.arrays import Float64, Int64, Points
from hushsum.families.lsh.placement import OUTSIDE
from hushsum.families.lsh.rows import Rows

_BLOCK_RECORDS: Final = 4096
_BLOCK_CODES: Final = 1 << 17  # a block's float32 products and int64 codes stay in a core's cache


def add(rows: Rows, counters: Int64, records: Points, which: slice | None = None) -> None:
    """Adds records within the bounds to the counters (k, W) int64 of these rows, or all, in place."""
    _add_chunk(_Blocks(rows, within=True), which or slice(0, len(rows)), counters, records)


def encode(rows: Rows, records: Points, which: slice | None = None) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    indices, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    blocks, width, which = _Blocks(rows, within=True), rows.buckets, which or slice(0, len(rows))
    if 4 * len(records) >= width:
        for chunk in _chunks(which, max(1, _BLOCK_CODES // width)):
            counts = np.zeros((chunk.stop - chunk.start, width), np.int64)
            _add_chunk(blocks, chunk, counts, records)
            found = np.flatnonzero(counts)
            indices.append(found + chunk.start * width)
            values.append(counts.reshape(-1)[found])
    elif len(records):
        for chunk, flat in blocks.flat_buckets(which, records, whole=True):
            flat.sort(axis=1)
            line = flat.reshape(-1)
            starts = np.flatnonzero(np.concatenate([[True], line[1:] != line[:-1]]))
            indices.append(line[starts] + chunk.start * width)
            values.append(np.diff(np.append(starts, len(line))).astype(np.int64))
    return np.concatenate(indices), np.concatenate(values)


def sums(
    rows: Rows, counters: Int64, less: Float64, queries: Points, which: slice | None = None
) -> tuple[Float64, Float64, Float64]:
    """What these rows, or all, read at accepted queries, each an (m,) float64.

    With y_r = counters[r, bucket of q] − less[r]: y of the first row, Σ(y_r − y_first) and Σ(y_r − y_first)², in the
    order of the rows. Counters and ``less`` are those of all rows.
    """
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    blocks, which = _Blocks(rows, within=False), which or slice(0, len(rows))
    for some, chunk, buckets in blocks.buckets(which, queries):
        read = np.take_along_axis(counters[chunk], np.maximum(buckets, 0), axis=1).astype(np.float64)
        read[buckets == OUTSIDE] = 0.0
        read -= less[chunk, None]
        if chunk.start == which.start:
            first[some] = read[0]
        read -= first[some]
        square = read * read
        read[0] += total[some]
        square[0] += squares[some]
        total[some] = np.add.accumulate(read, axis=0)[-1]  # every partial sum, hence in the order of the rows
        squares[some] = np.add.accumulate(square, axis=0)[-1]
    return first, total, squares


def sums_of_sets(
    rows: Rows, counters: Int64, less: Float64, queries: Points, sets: Sequence[slice]
) -> list[tuple[Float64, Float64, Float64]]:
    """The same for each of several sets of rows."""
    return [sums(rows, counters, less, queries, which) for which in sets]


class _Blocks:
    """Buckets of one block of records at a time, a chunk of rows at a time, in memory that the coder uses again."""

    def __init__(self, rows: Rows, *, within: bool) -> None:
        self._rows, self._within = rows, within
        self._coder = rows.coder.plain()
        self._size = max(1, min(_BLOCK_RECORDS, 4 * _BLOCK_CODES // rows.power))

    def buckets(self, rows: slice, records: Points, *, whole: bool = False) -> Iterator[tuple[slice, slice, Int64]]:
        """(some of the records, chunk of these rows, buckets (chunk, n) int64); the next chunk overwrites them."""
        power = self._rows.power
        place = self._rows.placement.place_within if self._within else self._rows.placement.place
        for some in _chunks(slice(0, len(records)), len(records) if whole else self._size):
            block, n = self._coder.prepare(records[some]), some.stop - some.start
            for chunk in _chunks(rows, max(1, _BLOCK_CODES // max(1, n * power))):
                codes = self._coder.codes(slice(chunk.start * power, chunk.stop * power), block)
                yield some, chunk, place(chunk, codes.reshape(-1, power, n))

    def flat_buckets(self, rows: slice, records: Points, *, whole: bool = False) -> Iterator[tuple[slice, Int64]]:
        """The same as flat indices within the chunk: row·W + bucket."""
        for _, chunk, buckets in self.buckets(rows, records, whole=whole):
            np.add(buckets, np.arange(len(buckets))[:, None] * self._rows.buckets, out=buckets)
            yield chunk, buckets


def _add_chunk(blocks: _Blocks, rows: slice, counters: Int64, records: Points) -> None:
    for chunk, flat in blocks.flat_buckets(rows, records):
        _increment(counters[chunk.start - rows.start : chunk.stop - rows.start].reshape(-1), flat.reshape(-1))


def _increment(counters: Int64, flat: Int64) -> None:
    if len(counters) <= 8 * len(flat):
        counters += np.bincount(flat, minlength=len(counters))
    else:
        np.add.at(counters, flat, 1)


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))
