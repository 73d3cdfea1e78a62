"""The engine in NumPy alone: codes, buckets and counters of a block of records at a time, in bounded memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.placement import OUTSIDE
from hushsum.families.lsh.projection import Float32, Float64, Int64
from hushsum.families.lsh.rows import Rows

_BLOCK_RECORDS: Final = 4096
_BLOCK_CODES: Final = 1 << 17  # a block's float32 products and int64 codes stay in a core's cache


def add(rows: Rows, counters: Int64, records: Float32) -> None:
    """Adds records within the bounds to counters (R, W) int64 in place."""
    _add_chunk(_Blocks(rows, within=True), slice(0, len(rows)), counters, records)


def encode(rows: Rows, records: Float32) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    indices, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    blocks, width = _Blocks(rows, within=True), rows.buckets
    if 4 * len(records) >= width:
        for chunk in _chunks(slice(0, len(rows)), max(1, _BLOCK_CODES // width)):
            counts = np.zeros((chunk.stop - chunk.start, width), np.int64)
            _add_chunk(blocks, chunk, counts, records)
            found = np.flatnonzero(counts)
            indices.append(found + chunk.start * width)
            values.append(counts.reshape(-1)[found])
    elif len(records):
        for chunk, flat in blocks.flat_buckets(slice(0, len(rows)), records):
            flat.sort(axis=1)
            line = flat.reshape(-1)
            starts = np.flatnonzero(np.concatenate([[True], line[1:] != line[:-1]]))
            indices.append(line[starts] + chunk.start * width)
            values.append(np.diff(np.append(starts, len(line))).astype(np.int64))
    return np.concatenate(indices), np.concatenate(values)


def sums(rows: Rows, counters: Int64, less: Float64, queries: Float32) -> tuple[Float64, Float64, Float64]:
    """What the rows read at centred queries, each an (m,) float64.

    With y_r = counters[r, bucket of q] − less[r]: y_0, Σ(y_r − y_0) and Σ(y_r − y_0)², in the order of the rows.
    """
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    blocks = _Blocks(rows, within=False)
    for start in range(0, len(queries), _BLOCK_RECORDS):
        some = slice(start, min(start + _BLOCK_RECORDS, len(queries)))
        for chunk, buckets in blocks.buckets(slice(0, len(rows)), queries[some]):
            read = np.take_along_axis(counters[chunk], np.maximum(buckets, 0), axis=1).astype(np.float64)
            read[buckets == OUTSIDE] = 0.0
            read -= less[chunk, None]
            if chunk.start == 0:
                first[some] = read[0]
            read -= first[some]
            square = read * read
            read[0] += total[some]
            square[0] += squares[some]
            total[some] = np.add.accumulate(read, axis=0)[-1]  # every partial sum, hence in the order of the rows
            squares[some] = np.add.accumulate(square, axis=0)[-1]
    return first, total, squares


def within(records: Float32, lower: Float32, upper: Float32) -> bool:
    """Whether all records lie within the bounds; NaN does not."""
    if not len(records):
        return True
    return bool(np.all(records.min(axis=0) >= lower) and np.all(records.max(axis=0) <= upper))


class _Blocks:
    """Buckets of one block of records at a time, a chunk of rows at a time, in reused buffers."""

    def __init__(self, rows: Rows, *, within: bool) -> None:
        self._rows = rows
        self._within = within
        self._products: Float32 = np.empty(0, np.float32)
        self._rounded: Float32 = np.empty(0, np.float32)
        self._flags: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._codes: Int64 = np.empty(0, np.int64)

    def buckets(self, rows: slice, block: Float32) -> Iterator[tuple[slice, Int64]]:
        """(chunk of these rows, buckets (chunk, n) int64); the buckets are overwritten by the next chunk."""
        power, n = self._rows.power, len(block)
        projection = self._rows.projection
        limits = projection.limit - projection.slopes * projection.norms(block).max()
        place = self._rows.placement.place_within if self._within else self._rows.placement.place
        for chunk in _chunks(rows, max(1, _BLOCK_CODES // max(1, n * power))):
            parts = slice(chunk.start * power, chunk.stop * power)
            codes = self._block_codes(parts, block, limits[parts])
            yield chunk, place(chunk, codes.reshape(-1, power, n))

    def flat_buckets(self, rows: slice, block: Float32) -> Iterator[tuple[slice, Int64]]:
        """The same as flat indices within the chunk: row·W + bucket."""
        for chunk, buckets in self.buckets(rows, block):
            np.add(buckets, np.arange(len(buckets))[:, None] * self._rows.buckets, out=buckets)
            yield chunk, buckets

    def _block_codes(self, parts: slice, block: Float32, limits: Float32) -> Int64:
        projection, shape = self._rows.projection, (parts.stop - parts.start, len(block))
        self._grow(shape[0] * shape[1])
        size = shape[0] * shape[1]
        t, g = self._products[:size].reshape(shape), self._rounded[:size].reshape(shape)
        flags, codes = self._flags[:size].reshape(shape), self._codes[:size].reshape(shape)
        np.dot(projection.directions[parts], block.T, out=t)
        t += projection.shifts[parts, None]
        np.rint(t, out=g)
        t -= g
        np.abs(t, out=t)
        np.greater(t, limits[:, None], out=flags)
        np.copyto(codes, g, casting="unsafe")
        flagged = np.flatnonzero(flags)
        for start in range(0, len(flagged), max(1, _BLOCK_CODES // block.shape[1])):
            some = flagged[start : start + max(1, _BLOCK_CODES // block.shape[1])]
            part, record = np.divmod(some, shape[1])
            codes.reshape(-1)[some] = projection.exact_codes(part + parts.start, block[record])
        return codes

    def _grow(self, size: int) -> None:
        if size > len(self._products):
            self._products, self._rounded = np.empty(size, np.float32), np.empty(size, np.float32)
            self._flags, self._codes = np.empty(size, np.bool_), np.empty(size, np.int64)


def _add_chunk(blocks: _Blocks, rows: slice, counters: Int64, records: Float32) -> None:
    for start in range(0, len(records), _BLOCK_RECORDS):
        for chunk, flat in blocks.flat_buckets(rows, records[start : start + _BLOCK_RECORDS]):
            _increment(counters[chunk.start - rows.start : chunk.stop - rows.start].reshape(-1), flat.reshape(-1))


def _increment(counters: Int64, flat: Int64) -> None:
    if len(counters) <= 8 * len(flat):
        counters += np.bincount(flat, minlength=len(counters))
    else:
        np.add.at(counters, flat, 1)


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))
