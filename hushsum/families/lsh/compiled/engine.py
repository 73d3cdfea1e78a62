"""The engine with compiled loops: the same bytes as :mod:`hushsum.families.lsh.numpy_engine`, several times faster.

A block of records times a chunk of rows is small enough for a core's second-level cache, with the chunk's counters
beside it. The coder of a definition (:func:`coder`) computes codes, and buckets take their place in the same memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any, Final

import numpy as np

from hushsum.families.lsh.arrays import Float32, Float64, Int32, Int64, Points, UInt64
from hushsum.families.lsh.codes import minhash, one_permutation
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.fastfood import Fastfood, Rotated
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.codes.one_permutation import OnePermutation
from hushsum.families.lsh.codes.projection import Projection, Signs
from hushsum.families.lsh.compiled import buckets as bucket_loops
from hushsum.families.lsh.compiled.bins import CompiledBins
from hushsum.families.lsh.compiled.fastfood import CompiledFastfood
from hushsum.families.lsh.compiled.minhash import LANES, CompiledMinHash
from hushsum.families.lsh.compiled.one_permutation import CompiledOnePermutation
from hushsum.families.lsh.compiled.projection import NARROW, CompiledProjection
from hushsum.families.lsh.numpy_engine import JoinedCoders
from hushsum.families.lsh.placement import CompiledCoder, Direct, HashedRows, Placement, Rehash
from hushsum.families.sets import Sets
from hushsum.public_random import PublicSeed

_SPAN_BLOCKS: Final = 64  # what is prepared once for all chunks of rows
_DENSE_COUNTERS: Final = 1 << 18
_JOINED_CODES: Final = 1 << 17
_SMALL_ROWS: Final = 4  # with which each loop is compiled
_SMALL_BUCKETS: Final = 64


def add(rows: HashedRows, counters: Int64, records: Points, which: slice | None = None) -> None:
    """Adds records within the bounds to the counters (k, W) int64 of these rows, or all, in place."""
    BucketEngine(rows).add(which or slice(0, len(rows)), counters, records)


def encode(rows: HashedRows, records: Points, which: slice | None = None) -> tuple[Int64, Int64]:
    """Flat indices, strictly increasing, and counts of what :func:`add` does to zeroes."""
    engine, width, n, which = BucketEngine(rows), rows.buckets, len(records), which or slice(0, len(rows))
    k = which.stop - which.start
    most = k * min(n, width) + 1  # what compacting looks at last is written, and not kept
    indices, values, count = np.empty(most, np.int64), np.zeros(most, np.int64), 0
    if 2 * n >= width:
        size = max(bucket_loops.ABREAST, _DENSE_COUNTERS // width)
        dense = np.zeros((min(size, k), width), np.int64)
        for chunk in _chunks(which, size):
            counters = dense[: chunk.stop - chunk.start]
            engine.add(chunk, counters, records)
            count += bucket_loops.compact(counters, chunk.start * width, indices[count:], values[count:])
    elif n:
        for chunk, buckets in engine.all_rows(engine.block(records), which, n):
            buckets.sort(axis=1)
            count += bucket_loops.runs(buckets, chunk.start * width, width, indices[count:], values[count:])
    return indices[:count].copy(), values[:count].copy()


def sums(
    rows: HashedRows, counters: Int64, less: Float64, queries: Points, which: slice | None = None
) -> tuple[Float64, Float64, Float64]:
    """What the rows read at accepted queries: see :func:`hushsum.families.lsh.numpy_engine.sums`."""
    return sums_of_sets(rows, counters, less, queries, [which or slice(0, len(rows))])[0]


def sums_of_sets(
    rows: HashedRows, counters: Int64, less: Float64, queries: Points, sets: Sequence[slice]
) -> list[tuple[Float64, Float64, Float64]]:
    """The same for each of several sets of rows; queries are prepared once."""
    found = [(np.zeros(len(queries)), np.zeros(len(queries)), np.zeros(len(queries))) for _ in sets]
    engine = _kept(rows)
    lines = np.empty(2 * engine.block_records, np.int64)
    for some in _chunks(slice(0, len(queries)), engine.block_records):
        block, n = engine.block(queries[some]), some.stop - some.start
        for which, (first, total, squares) in zip(sets, found, strict=True):
            for chunk, buckets in engine.all_rows(block, which, n):
                begins, two_lines = chunk.start == which.start, lines[: 2 * n].reshape(2, n)
                moments = (begins, first[some], two_lines, total[some], squares[some])
                bucket_loops.gather(buckets, engine.widths[chunk], counters[chunk], less[chunk], *moments)
    return found


def _kept(rows: HashedRows) -> "BucketEngine":
    """One engine of these rows in each thread: to make one takes as long as to read a single query."""
    if not isinstance(rows.scratch.engine, BucketEngine):
        rows.scratch.engine = BucketEngine(rows)
    return rows.scratch.engine


class BucketEngine:
    """Buckets of blocks of records, a chunk of rows at a time, in reused memory.

    Args:
        rows: Their parameters.

    Attributes:
        widths: (R,) uint32: of each row, how many buckets, or codes where these are the buckets. A query outside the
            bounds may have one that is not below, as unsigned.
    """

    def __init__(self, rows: HashedRows) -> None:
        self._rows = rows
        lowest = np.zeros(len(rows.code), np.int32)
        if not isinstance(rows.placement, Rehash):
            lowest = rows.placement.lowest.astype(np.int32).reshape(-1)
        self._coder = coder(rows.code, lowest)
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
                    bucket_loops.scatter(buckets, target)

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
        size = self._coder.rows_at_once(n, self._rows.power) // bucket_loops.ABREAST * bucket_loops.ABREAST
        return _aligned(rows, max(bucket_loops.ABREAST, size))

    def _buckets(self, chunk: slice, blocks: Iterable[Points]) -> Iterator[Int32]:
        power, placement, width = self._rows.power, self._rows.placement, self._rows.buckets
        parts = slice(chunk.start * power, chunk.stop * power)
        for block in blocks:
            at_once = self._coder.buckets(chunk, block, placement, width)
            yield self._place(chunk, self._coder.codes(parts, block)) if at_once is None else at_once

    def _place(self, chunk: slice, codes: Int32) -> Int32:
        placement = self._rows.placement
        if isinstance(placement, Rehash):
            if codes.shape[1] > len(self._hashes):
                self._hashes = np.empty(codes.shape[1], np.uint64)
            h, multipliers = self._hashes[: codes.shape[1]], placement.multipliers[chunk]
            bucket_loops.hash_codes(codes, multipliers, placement.bits, placement.buckets, h)
        elif self._rows.power > 1:
            bucket_loops.place_codes(codes, placement.spans[chunk], placement.strides[chunk])
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


class CompiledJoined:
    """See :class:`~hushsum.families.lsh.placement.CompiledCoder`."""

    def __init__(self, joined: Joined, lowest: Int32) -> None:
        each = np.split(lowest.reshape(-1, joined.power), np.cumsum(joined.powers)[:-1], axis=1)
        parts = [np.ascontiguousarray(some).reshape(-1) for some in each]
        self._joined, self._coders = JoinedCoders(joined), list(map(coder, joined.codes, parts))
        self.block_records = min(one.block_records for one in self._coders)

    @property
    def computed(self) -> int:
        """Codes so far."""
        return sum(one.computed for one in self._coders)

    @property
    def flagged(self) -> int:
        """Of them, by the definition."""
        return sum(one.flagged for one in self._coders)

    def rows_at_once(self, n: int, power: int) -> int:
        """How many rows best fit into the caches."""
        return _JOINED_CODES // (n * power)

    def prepare(self, records: Float32) -> list[Any]:
        """A block a group."""
        return self._joined.prepared(self._coders, records)

    def codes(self, parts: slice, block: list[Any]) -> Int32:
        """(k, n) less the least code of each part."""
        return self._joined.codes(self._coders, parts, block, np.int32)

    def buckets(self, rows: slice, block: list[Any], placement: Placement, width: int) -> None:
        """None: the codes are written down first."""
        del rows, block, placement, width


_CODERS: Final[Mapping[type[Code], Callable[[Any, Int32], CompiledCoder]]] = {
    Projection: CompiledProjection,
    Signs: CompiledProjection,
    Bins: CompiledBins,
    MinHash: CompiledMinHash,
    OnePermutation: CompiledOnePermutation,
    Fastfood: CompiledFastfood,
    Joined: CompiledJoined,
}


def coder(code: Code, lowest: Int32) -> CompiledCoder:
    """What computes these codes in compiled loops: with memory that is used again, so each engine has its own.

    Args:
        code: The definition.
        lowest: (R·p,): what is taken off the codes of each part; 0 where they are rehashed.
    """
    return _CODERS[type(code)](code, lowest)


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before: seconds the first time, then a fraction of one."""
    small: Iterator[tuple[HashedRows, Points]] = chain(_vector_rows(), _with_signs(_vector_rows()), _set_rows())
    for rows, records in small:
        counters = np.zeros((len(rows), rows.buckets), np.int64)
        for n in (1, len(records)):
            encode(rows, records[:n])
        add(rows, counters, records)
        sums(rows, counters, np.zeros(len(rows)), records)


def _vector_rows() -> Iterator[tuple[HashedRows, Float32]]:
    """Small rows of every hash of vectors, and records for them."""
    for dim, power in product((1, NARROW + 1), (1, 2)):
        records = np.zeros((9, dim), np.float32)
        lines = Projection(
            np.zeros((_SMALL_ROWS * power, dim), np.float32),
            np.full(_SMALL_ROWS * power, 0.5),
            np.ones_like(records[0]),
        )
        bins = Bins(np.ones((_SMALL_ROWS * power, dim), np.float32), np.full((_SMALL_ROWS * power, dim), 0.5))
        fastfood = Rotated(PublicSeed(0), "", _SMALL_ROWS).floors("", power, dim, 1.0)
        codes: tuple[tuple[Code, int], ...] = ((lines, power), (bins, power * dim), (fastfood, power))
        for code, each in codes:
            zeroes = np.zeros((_SMALL_ROWS, each), np.int64)
            rehash = Rehash(np.zeros((_SMALL_ROWS, each + 1), np.uint64), _SMALL_BUCKETS)
            for placement in (Direct(zeroes, zeroes + 1, zeroes + 1), rehash):
                yield HashedRows(code, placement, each, _SMALL_BUCKETS), records


def _set_rows() -> Iterator[tuple[HashedRows, Sets]]:
    """Small rows of every hash of sets, and records for them."""
    records = Sets(np.array([0, 1, *range(3, 19, 2)]), np.array([0] + [0, 1] * 8, np.uint32))
    for draw, rows in ((minhash.draw, _SMALL_ROWS), (minhash.draw, LANES), (one_permutation.draw, _SMALL_ROWS)):
        code = draw(PublicSeed(0), rows=rows, power=1, universe=2)
        zeroes = np.zeros((rows, 1), np.int64)
        for placement in (
            Direct(zeroes, zeroes + 2, zeroes + 1),
            Rehash(np.zeros((rows, 2), np.uint64), _SMALL_BUCKETS),
        ):
            yield HashedRows(code, placement, 1, _SMALL_BUCKETS), records


def _with_signs(small: Iterable[tuple[HashedRows, Points]]) -> Iterator[tuple[HashedRows, Points]]:
    """Rows of signs in place of those that round a projection."""
    for rows, records in small:
        if isinstance(rows.code, Projection):
            placement = rows.placement
            if not isinstance(placement, Rehash):
                placement = replace(placement, spans=placement.spans + 1)
            yield replace(rows, code=Signs.of(rows.code.directions, rows.code.sizes), placement=placement), records
