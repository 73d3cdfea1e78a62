"""The engine with compiled loops: the same bytes as :mod:`hushsum.families.lsh.plain`, several times faster.

A block of records times a chunk of rows is small enough for a core's second-level cache, with the chunk's counters
beside it. The block's products come from BLAS, or from a loop of our own where d is small; codes and then buckets take
their place in the same memory.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from hushsum.families.lsh import loops, tallies
from hushsum.families.lsh.placement import Direct, Rehash, UInt64
from hushsum.families.lsh.projection import Float32, Float64, Int64, Projection
from hushsum.families.lsh.rows import Rows

_SPAN_RECORDS: Final = 1 << 16  # what is prepared once for all chunks of rows
_BLOCK_RECORDS: Final = 1024
_BLOCK_CODES: Final = 1 << 17
_DENSE_COUNTERS: Final = 1 << 18
_NARROW: Final = 8  # the largest d with which the loop of our own beats BLAS
_WIDE: Final = 64


def add(rows: Rows, counters: Int64, records: Float32) -> None:
    """Adds records within the bounds to counters (R, W) int64 in place."""
    Engine(rows).add(slice(0, len(rows)), counters, records)


def encode(rows: Rows, records: Float32) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    engine, width, n = Engine(rows), rows.buckets, len(records)
    most = len(rows) * min(n, width) + 1  # what compacting looks at last is written, and not kept
    indices, values, count = np.empty(most, np.int64), np.zeros(most, np.int64), 0
    if 2 * n >= width:
        size = max(tallies.ABREAST, _DENSE_COUNTERS // width)
        dense = np.zeros((min(size, len(rows)), width), np.int64)
        for chunk in _chunks(0, len(rows), size):
            counters = dense[: chunk.stop - chunk.start]
            engine.add(chunk, counters, records)
            count += tallies.compact(counters, chunk.start * width, indices[count:], values[count:])
    elif n:
        for chunk, buckets in engine.all_rows(engine.block(records)):
            buckets.sort(axis=1)
            count += tallies.runs(buckets, chunk.start * width, width, indices[count:], values[count:])
    return indices[:count].copy(), values[:count].copy()


def sums(rows: Rows, counters: Int64, less: Float64, queries: Float32) -> tuple[Float64, Float64, Float64]:
    """What the rows read at centred queries: see :func:`hushsum.families.lsh.plain.sums`."""
    first, total, squares = np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))
    engine, line = Engine(rows, anywhere=True), np.empty(_BLOCK_RECORDS, np.int64)
    for some in _chunks(0, len(queries), _BLOCK_RECORDS):
        for chunk, buckets in engine.all_rows(engine.block(queries[some])):
            if chunk.start == 0:
                first[some] = np.where(buckets[0] < 0, 0, counters[0, np.maximum(buckets[0], 0)]) - less[0]
            reads = line[: buckets.shape[1]]
            tallies.gather(buckets, counters[chunk], less[chunk], first[some], reads, total[some], squares[some])
    return first, total, squares


def within(records: Float32, lower: Float32, upper: Float32) -> bool:
    """Whether all records lie within the bounds; NaN does not."""
    return bool(loops.within(records, lower, upper))


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before: seconds the first time, then a fraction of one."""
    for dim, power in product((1, _NARROW + 1), (1, 2)):
        count, records = tallies.ABREAST * power, np.zeros((9, dim), np.float32)
        lines = Projection(np.zeros((count, dim), np.float32), np.full(count, 0.5), np.ones(dim, np.float32))
        zeroes = np.zeros((4, power), np.int64)
        for placement in (Direct(zeroes, zeroes + 1, zeroes + 1), Rehash(np.zeros((4, power + 1), np.uint64), 64)):
            rows, counters = Rows(lines, placement, power, 64), np.zeros((4, 64), np.int64)
            for n in (1, len(records)):
                encode(rows, records[:n])
            add(rows, counters, records)
            sums(rows, counters, np.zeros(4), records)
            within(records, records[0], records[0])


class Block(NamedTuple):
    """n records with what every chunk of rows needs of them.

    Attributes:
        records: (n, d).
        columns: (d', n) where d is small: the records' coordinates, padded.
        norms: Of the filter: the largest of each tile of records.
    """

    records: Float32
    columns: Float32 | None
    norms: Float32


class Engine:
    """Buckets of blocks of records, a chunk of rows at a time, in reused memory.

    Args:
        rows: Their parameters.
        anywhere: Whether the blocks hold queries, which may lie outside the bounds.

    Attributes:
        codes: How many codes were computed so far.
        flagged: How many of them were flagged by the filter, and so computed by the definition.
    """

    def __init__(self, rows: Rows, *, anywhere: bool = False) -> None:
        projection, placement = rows.projection, rows.placement
        self.codes, self.flagged = 0, 0
        self._rows, self._anywhere = rows, anywhere
        self._padded = _padded(projection.directions) if projection.directions.shape[1] <= _NARROW else None
        self._least = np.zeros(len(projection.offsets), np.int32)
        if not isinstance(placement, Rehash):
            self._least = placement.lowest.astype(np.int32).reshape(-1)
        self._memory = _Memory()

    def add(self, rows: slice, counters: Int64, records: Float32) -> None:
        """Adds to the counters of ``rows``. Rows are the outer loop, so that a chunk's counters stay in the cache."""
        for span in _chunks(0, len(records), _SPAN_RECORDS):
            blocks = [self.block(records[some]) for some in _chunks(span.start, span.stop, _BLOCK_RECORDS)]
            for chunk in self._row_chunks(rows, len(blocks[0].records)):
                target = counters[chunk.start - rows.start : chunk.stop - rows.start]
                for buckets in self._buckets(chunk, blocks):
                    tallies.scatter(buckets, target)

    def all_rows(self, block: Block) -> Iterator[tuple[slice, loops.Int32]]:
        """(chunk of rows, their buckets (chunk, n) int32), in memory that the next one overwrites."""
        for chunk in self._row_chunks(slice(0, len(self._rows)), len(block.records)):
            for buckets in self._buckets(chunk, [block]):
                yield chunk, buckets

    def block(self, records: Float32) -> Block:
        """What every chunk of rows needs of some records, at least one."""
        norms = self._rows.projection.norms(records)
        tiles: Float32 = np.maximum.reduceat(norms, np.arange(0, len(norms), loops.TILE))
        return Block(records, None if self._padded is None else np.ascontiguousarray(_padded(records).T), tiles)

    def _row_chunks(self, rows: slice, n: int) -> Iterator[slice]:
        """For blocks of at most n records, in multiples of what the scatter loop takes at once."""
        # BLAS gains from more rows at once where d is large, more than the cache loses.
        codes = _BLOCK_CODES * (2 if len(self._rows.projection.sizes) > _WIDE else 1)
        size = codes // (n * self._rows.power) // tallies.ABREAST * tallies.ABREAST
        return _chunks(rows.start, rows.stop, max(tallies.ABREAST, size))

    def _buckets(self, chunk: slice, blocks: Iterable[Block]) -> Iterator[loops.Int32]:
        projection, memory, power = self._rows.projection, self._memory, self._rows.power
        parts = slice(chunk.start * power, chunk.stop * power)
        count, directions = parts.stop - parts.start, projection.directions[parts]
        fixed = (projection.limit, projection.slopes[parts], projection.shifts[parts], self._least[parts])
        definition = (directions, projection.offsets[parts])
        for block in blocks:
            records, columns, norms = block
            n = len(records)
            products = memory.products(count * n).reshape(count, n)
            out, flags = products.view(np.int32), memory.flags(n)
            if columns is None or self._padded is None:
                np.dot(directions, records.T, out=products)
                line = memory.line(n).view(np.int32)
                flagged = loops.codes(products, norms, *fixed, *definition, records, line, flags, out)
            else:
                padded, scratch = self._padded[parts], memory.line(n)
                flagged = loops.narrow_codes(padded, columns, norms, *fixed, *definition, records, scratch, flags, out)
            self.codes, self.flagged = self.codes + out.size, self.flagged + flagged
            yield self._place(chunk, out)

    def _place(self, chunk: slice, codes: loops.Int32) -> loops.Int32:
        placement = self._rows.placement
        if isinstance(placement, Rehash):
            h, multipliers = self._memory.hashes(codes.shape[1]), placement.multipliers[chunk]
            loops.hash_codes(codes, multipliers, placement.bits, placement.buckets, h)
        elif self._rows.power > 1 or self._anywhere:
            loops.place_codes(codes, placement.spans[chunk], placement.strides[chunk])
        return codes[: chunk.stop - chunk.start]


class _Memory:
    """Memory that grows and is used again."""

    def __init__(self) -> None:
        self._products: Float32 = np.empty(0, np.float32)
        self._line: Float32 = np.empty(0, np.float32)
        self._hashes: UInt64 = np.empty(0, np.uint64)
        self._flags: loops.Int32 = np.empty((2, 0), np.int32)

    def products(self, size: int) -> Float32:
        """(size,) for products, and for codes and buckets in their place."""
        if size > len(self._products):
            self._products = np.empty(size, np.float32)
        return self._products[:size]

    def line(self, n: int) -> Float32:
        """(n,) for products or codes of one part."""
        if n > len(self._line):
            self._line = np.empty(n, np.float32)
        return self._line[:n]

    def hashes(self, n: int) -> UInt64:
        """(n,) for hashes of one row."""
        if n > len(self._hashes):
            self._hashes = np.empty(n, np.uint64)
        return self._hashes[:n]

    def flags(self, n: int) -> loops.Int32:
        """(2, more than n) for parts and records."""
        if n >= self._flags.shape[1]:
            self._flags = np.empty((2, n + 1024), np.int32)
        return self._flags


def _padded(matrix: Float32) -> Float32:
    """The same columns, and zeroes up to a multiple of the loops' group: they add nothing to a product."""
    n, d = matrix.shape
    padded = np.zeros((n, -(-d // loops.GROUP) * loops.GROUP), np.float32)
    padded[:, :d] = matrix
    return padded


def _chunks(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
