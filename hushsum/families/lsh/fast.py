"""The engine with compiled loops: the same bytes as :mod:`hushsum.families.lsh.plain`, several times faster.

A block of records times a chunk of rows is small enough for a core's second-level cache, with the chunk's counters
beside it. The coder computes codes, and buckets take their place in the same memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from hushsum.families.lsh import placing, tallies
from hushsum.families.lsh.arrays import Float64, Int32, Int64, Points, UInt64
from hushsum.families.lsh.placement import Rehash
from hushsum.families.lsh.projection import Projection, Signs
from hushsum.families.lsh.projection_fast import FastProjection
from hushsum.families.lsh.rows import Rows

_SPAN_BLOCKS: Final = 64  # what is prepared once for all chunks of rows
_DENSE_COUNTERS: Final = 1 << 18


def add(rows: Rows, counters: Int64, records: Points, which: slice | None = None) -> None:
    """Adds records within the bounds to the counters (k, W) int64 of these rows, or all, in place."""
    Engine(rows).add(which or slice(0, len(rows)), counters, records)


def encode(rows: Rows, records: Points, which: slice | None = None) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    engine, width, n, which = Engine(rows), rows.buckets, len(records), which or slice(0, len(rows))
    k = which.stop - which.start
    most = k * min(n, width) + 1  # what compacting looks at last is written, and not kept
    indices, values, count = np.empty(most, np.int64), np.zeros(most, np.int64), 0
    if 2 * n >= width:
        size = max(tallies.ABREAST, _DENSE_COUNTERS // width)
        dense = np.zeros((min(size, k), width), np.int64)
        for chunk in _chunks(which, size):
            counters = dense[: chunk.stop - chunk.start]
            engine.add(chunk, counters, records)
            count += tallies.compact(counters, chunk.start * width, indices[count:], values[count:])
    elif n:
        for chunk, buckets in engine.all_rows(engine.block(records), which, n):
            buckets.sort(axis=1)
            count += tallies.runs(buckets, chunk.start * width, width, indices[count:], values[count:])
    return indices[:count].copy(), values[:count].copy()


def sums(
    rows: Rows, counters: Int64, less: Float64, queries: Points, which: slice | None = None
) -> tuple[Float64, Float64, Float64]:
    """What the rows read at accepted queries: see :func:`hushsum.families.lsh.plain.sums`."""
    return sums_of_sets(rows, counters, less, queries, [which or slice(0, len(rows))])[0]


def sums_of_sets(
    rows: Rows, counters: Int64, less: Float64, queries: Points, sets: Sequence[slice]
) -> list[tuple[Float64, Float64, Float64]]:
    """The same for each of several sets of rows; queries are prepared once."""
    found = [(np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))) for _ in sets]
    engine = Engine(rows)
    lines = np.empty(2 * engine.block_records, np.int64)
    for some in _chunks(slice(0, len(queries)), engine.block_records):
        block, n = engine.block(queries[some]), some.stop - some.start
        for which, (first, total, squares) in zip(sets, found, strict=True):
            for chunk, buckets in engine.all_rows(block, which, n):
                widths = engine.widths[chunk]
                if chunk.start == which.start:
                    inside = buckets[0].view(np.uint32) < widths[0]
                    read = counters[chunk.start, np.where(inside, buckets[0], 0)]
                    first[some] = np.where(inside, read, 0) - less[chunk.start]
                moments = (first[some], lines[: 2 * n].reshape(2, n), total[some], squares[some])
                tallies.gather(buckets, widths, counters[chunk], less[chunk], *moments)
    return found


class Engine:
    """Buckets of blocks of records, a chunk of rows at a time, in reused memory.

    Args:
        rows: Their parameters.

    Attributes:
        widths: (R,) uint32: of each row, how many buckets, or codes where these are the buckets. A query outside the
            bounds may have one that is not below, as unsigned.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        lowest = np.zeros(len(rows.coder), np.int32)
        if not isinstance(rows.placement, Rehash):
            lowest = rows.placement.lowest.astype(np.int32).reshape(-1)
        self._coder = rows.coder.fast(lowest)
        self._hashes: UInt64 = np.empty(0, np.uint64)
        self.widths = np.full(len(rows), rows.buckets, np.uint32)
        if not isinstance(rows.placement, Rehash) and rows.power == 1:
            self.widths = rows.placement.spans[:, 0].astype(np.uint32)

    @property
    def block_records(self) -> int:
        """Records of a block."""
        return self._coder.block_records

    @property
    def codes(self) -> int:
        """How many codes were computed so far."""
        return self._coder.computed

    @property
    def flagged(self) -> int:
        """How many of them were flagged by a filter, and so computed by the definition."""
        return self._coder.flagged

    def add(self, rows: slice, counters: Int64, records: Points) -> None:
        """Adds to the counters of ``rows``. Rows are the outer loop, so that a chunk's counters stay in the cache."""
        size = self.block_records
        for span in _chunks(slice(0, len(records)), _SPAN_BLOCKS * size):
            blocks = [(some.stop - some.start, self.block(records[some])) for some in _chunks(span, size)]
            for chunk in self._row_chunks(rows, blocks[0][0]):
                target = counters[chunk.start - rows.start : chunk.stop - rows.start]
                for buckets in self._buckets(chunk, (block for _, block in blocks)):
                    tallies.scatter(buckets, target)

    def all_rows(self, block: Points, rows: slice | None = None, n: int | None = None) -> Iterator[tuple[slice, Int32]]:
        """(chunk of rows, their buckets (chunk, n) int32), in memory that the next one overwrites."""
        for chunk in self._row_chunks(rows or slice(0, len(self._rows)), n or self.block_records):
            for buckets in self._buckets(chunk, [block]):
                yield chunk, buckets

    def block(self, records: Points) -> Points:
        """What every chunk of rows needs of some records, at least one."""
        return self._coder.prepare(records)

    def _row_chunks(self, rows: slice, n: int) -> Iterator[slice]:
        """For blocks of at most n records, in multiples of what the scatter loop takes at once."""
        size = self._coder.rows_at_once(n, self._rows.power) // tallies.ABREAST * tallies.ABREAST
        return _aligned(rows, max(tallies.ABREAST, size))

    def _buckets(self, chunk: slice, blocks: Iterable[Points]) -> Iterator[Int32]:
        power, placement = self._rows.power, self._rows.placement
        parts = slice(chunk.start * power, chunk.stop * power)
        for block in blocks:
            fused: Int32 | None = None
            if isinstance(placement, Rehash):
                fused = self._coder.rehashed(chunk, block, placement)
            elif power > 1 and isinstance(self._coder, FastProjection):
                fused = self._coder.placed(chunk, block, placement, self._rows.buckets)
            yield self._place(chunk, self._coder.codes(parts, block)) if fused is None else fused

    def _place(self, chunk: slice, codes: Int32) -> Int32:
        placement = self._rows.placement
        if isinstance(placement, Rehash):
            if codes.shape[1] > len(self._hashes):
                self._hashes = np.empty(codes.shape[1], np.uint64)
            h, multipliers = self._hashes[: codes.shape[1]], placement.multipliers[chunk]
            placing.hash_codes(codes, multipliers, placement.bits, placement.buckets, h)
        elif self._rows.power > 1:
            placing.place_codes(codes, placement.spans[chunk], placement.strides[chunk])
        return codes[: chunk.stop - chunk.start]


def _chunks(span: slice, size: int) -> Iterator[slice]:
    for first in range(span.start, span.stop, size):
        yield slice(first, min(first + size, span.stop))


def _aligned(span: slice, size: int) -> Iterator[slice]:
    """Chunks that end at multiples of ``size``: a coder may make so many rows at once."""
    first = span.start
    while first < span.stop:
        last = min((first // size + 1) * size, span.stop)
        yield slice(first, last)
        first = last


def _with_signs(small: Iterable[tuple[Rows, Points]]) -> Iterator[tuple[Rows, Points]]:
    """Rows of signs in place of those that round a projection."""
    for rows, records in small:
        if isinstance(rows.coder, Projection):
            placement = rows.placement
            if not isinstance(placement, Rehash):
                placement = replace(placement, spans=placement.spans + 1)
            yield replace(rows, coder=Signs.of(rows.coder.directions, rows.coder.sizes), placement=placement), records


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before: seconds the first time, then a fraction of one."""
    from hushsum.families.lsh.warming import set_rows, vector_rows

    small: Iterator[tuple[Rows, Points]] = chain(vector_rows(), _with_signs(vector_rows()), set_rows())
    for rows, records in small:
        counters = np.zeros((len(rows), rows.buckets), np.int64)
        for n in (1, len(records)):
            encode(rows, records[:n])
        add(rows, counters, records)
        sums(rows, counters, np.zeros(len(rows)), records)
