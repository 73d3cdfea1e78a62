"""The engine in NumPy alone: codes, buckets and counters of a block of records at a time, in bounded memory.

Each definition of codes has a coder here (:func:`coder`); everything else is shared by all: blocks, placement into
buckets, increments, reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Bools, Float32, Float64, Int64, Points, UInt32
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.fastfood import Fastfood, rotated, spread
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.codes.one_permutation import OnePermutation
from hushsum.families.lsh.codes.projection import Projection, Signs
from hushsum.families.lsh.placement import OUTSIDE, HashedRows, NumpyCoder
from hushsum.families.sets import Sets

_BLOCK_RECORDS: Final = 4096
_BLOCK_CODES: Final = 1 << 17  # a block's float32 products and int64 codes stay in a core's cache
_FLAGGED_NUMBERS: Final = 1 << 17  # coordinates of flagged records at once
_BLOCK_IDS: Final = 1 << 17
_KEPT_BLOCKS: Final = 2


def add(rows: HashedRows, counters: Int64, records: Points, which: slice | None = None) -> None:
    """Adds records within the bounds to the counters (k, W) int64 of these rows, or all, in place."""
    _add_chunk(_Blocks(rows, within=True), which or slice(0, len(rows)), counters, records)


def encode(rows: HashedRows, records: Points, which: slice | None = None) -> tuple[Int64, Int64]:
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
    rows: HashedRows, counters: Int64, less: Float64, queries: Points, which: slice | None = None
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
    rows: HashedRows, counters: Int64, less: Float64, queries: Points, sets: Sequence[slice]
) -> list[tuple[Float64, Float64, Float64]]:
    """The same for each of several sets of rows."""
    return [sums(rows, counters, less, queries, which) for which in sets]


class _Blocks:
    """Buckets of one block of records at a time, a chunk of rows at a time, in memory that the coder uses again."""

    def __init__(self, rows: HashedRows, *, within: bool) -> None:
        self._rows, self._within = rows, within
        self._coder = coder(rows.code)
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


class _Filtered(NamedTuple):
    """A block of records (n, d), and for each part where its filter flags, (k,)."""

    records: Float32
    limits: Float32


class NumpyProjection:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._products: Float32 = np.empty(0, np.float32)
        self._rounded: Float32 = np.empty(0, np.float32)
        self._flags: Bools = np.empty(0, np.bool_)
        self._codes: Int64 = np.empty(0, np.int64)

    def prepare(self, records: Float32) -> _Filtered:
        """The limits that hold for every record of the block."""
        projection = self._projection
        reach = projection.slopes * projection.norms(records).max()
        return _Filtered(records, projection.limit + reach if projection.signs else projection.limit - reach)

    def codes(self, parts: slice, prepared: _Filtered) -> Int64:
        """(k, n) int64."""
        projection, (block, limits) = self._projection, prepared
        shape = (parts.stop - parts.start, len(block))
        size = shape[0] * shape[1]
        self._grow(size)
        t, g = self._products[:size].reshape(shape), self._rounded[:size].reshape(shape)
        flags, codes = self._flags[:size].reshape(shape), self._codes[:size].reshape(shape)
        np.dot(projection.directions[parts], block.T, out=t)
        if projection.signs:
            np.greater_equal(t, 0.0, out=codes, casting="unsafe")
            np.abs(t, out=t)
            np.greater(t, limits[parts, None], out=flags)
            np.logical_not(flags, out=flags)  # a NaN is flagged
        else:
            t += projection.shifts[parts, None]
            np.rint(t, out=g)
            t -= g
            np.abs(t, out=t)
            np.greater(t, limits[parts, None], out=flags)
            np.copyto(codes, g, casting="unsafe")
        flagged = np.flatnonzero(flags)
        few = max(1, _FLAGGED_NUMBERS // block.shape[1])
        for start in range(0, len(flagged), few):
            some = flagged[start : start + few]
            part, record = np.divmod(some, shape[1])
            codes.reshape(-1)[some] = projection.exact_codes(part + parts.start, block[record])
        return codes

    def _grow(self, size: int) -> None:
        if size > len(self._products):
            self._products, self._rounded = np.empty(size, np.float32), np.empty(size, np.float32)
            self._flags, self._codes = np.empty(size, np.bool_), np.empty(size, np.int64)


class NumpyBins:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

    def __init__(self, bins: Bins) -> None:
        self._bins = bins

    def prepare(self, records: Float32) -> Float64:
        """(d, n) float64."""
        return np.ascontiguousarray(records.T, np.float64)

    def codes(self, parts: slice, prepared: Float64) -> Int64:
        """(k·d, n) int64 of whole parts."""
        d = len(prepared)
        some = slice(parts.start // d, parts.stop // d)
        codes = self._bins.inverses[some, :, None].astype(np.float64) * prepared
        codes += self._bins.offsets[some, :, None]
        np.floor(codes, out=codes)
        return np.asarray(codes.reshape(-1, prepared.shape[1]), np.int64)


class NumpyMinHash:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

    def __init__(self, minhash: MinHash) -> None:
        self._order = minhash.order

    def prepare(self, records: Sets) -> Sets:
        """The same sets."""
        return records

    def codes(self, parts: slice, prepared: Sets) -> Int64:
        """(k, n) int64: a run of sets with so many ids at a time, and one part after the other."""
        order, codes = self._order, np.empty((parts.stop - parts.start, len(prepared)), np.int64)
        for some in prepared.runs(_BLOCK_IDS):
            run = prepared[some]
            mixed = order.mixed(run.ids)
            for row, part in enumerate(range(parts.start, parts.stop)):
                least = np.minimum.reduceat(order.images(part, mixed), run.starts[:-1])
                codes[row, some] = order.ids(part, least)
        return codes


class KeptCodes:
    """All codes of the last blocks of sets: engines ask for the same block again with every chunk of rows.

    Args:
        compute: The codes (R·p, n) of n sets.
        most: Blocks that are kept.
    """

    def __init__(self, compute: Callable[[Sets], UInt32], most: int) -> None:
        self._compute, self._most = compute, most
        self._kept: dict[tuple[int, int, int], tuple[Sets, UInt32]] = {}

    def __call__(self, sets: Sets) -> UInt32:
        """(R·p, n) uint32. The sets are kept with their codes, so that no other ones can take their place in memory."""
        key = (sets.ids.ctypes.data, len(sets.ids), len(sets))
        if key not in self._kept:
            if len(self._kept) >= self._most:
                self._kept.clear()
            self._kept[key] = (sets, self._compute(sets))
        return self._kept[key][1]


class NumpyOnePermutation:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

    def __init__(self, bins: OnePermutation) -> None:
        self._bins, self.prepare = bins, KeptCodes(self._all, _KEPT_BLOCKS)

    def _all(self, records: Sets) -> UInt32:
        power = len(self._bins.order)
        codes = np.empty((self._bins.bins, power, len(records)), np.uint32)
        for number in range(len(records)):
            ids = records.ids[records.starts[number] : records.starts[number + 1]]
            for part in range(power):
                codes[:, part, number] = self._part(part, ids)
        return codes.reshape(-1, len(records))

    def codes(self, parts: slice, prepared: UInt32) -> Int64:
        """(k, n) int64."""
        return prepared[parts].astype(np.int64)

    def _part(self, part: int, ids: UInt32) -> UInt32:
        bins, order = self._bins.bins, self._bins.order
        images = np.sort(order.images(part, order.mixed(ids)))
        places = ((images.astype(np.uint64) * np.uint64(bins)) >> np.uint64(32)).astype(np.int64)
        first = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))  # of each bin that has ids
        found = order.ids(part, images[first])
        if len(first) == 1:
            return np.full(bins, found[0], np.uint32)
        codes, filled = np.zeros(bins, np.uint32), np.zeros(bins, np.bool_)
        codes[places[first]], filled[places[first]] = found, True
        self._borrow(codes, filled)
        return codes

    def _borrow(self, codes: UInt32, filled: Bools) -> None:
        sources, empty = np.flatnonzero(filled), np.flatnonzero(~filled)
        tried = self._bins.tries[empty]
        met = filled[tried]
        found = met.any(axis=1)
        codes[empty[found]] = codes[tried[found, met[found].argmax(axis=1)]]
        waiting, step, count = empty[~found], 1, max(1, 4 * len(codes) // len(sources))
        while len(waiting):
            claimed = self._bins.claims(step, count, sources).reshape(-1)[::-1]
            takers = np.full(len(codes), len(claimed), np.int64)
            takers[claimed] = np.arange(len(claimed))[::-1]  # of equal ones the last is kept: the first claim
            served = takers[waiting] < len(claimed)
            codes[waiting[served]] = codes[sources[takers[waiting[served]] % len(sources)]]
            waiting, step = waiting[~served], step + count


class NumpyFastfood:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

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
                codes[rows.start - first : rows.stop - first, part] = _fastfood_codes(fastfood, block, which)
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


def _fastfood_codes(fastfood: Fastfood, block: Float32, which: Int64) -> Int64:
    if fastfood.signs:
        return np.asarray(block >= 0, np.int64)
    sums = block.astype(np.float64)
    sums *= fastfood.scales[which, None]
    sums += fastfood.offsets[which, None]
    np.floor(sums, out=sums)
    return np.asarray(sums, np.int64)


class JoinedCoders:
    """What both engines do for joined codes: each group's coder takes its columns and fills its parts of a row."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._starts = np.concatenate([[0], np.cumsum(joined.powers)]).tolist()

    def prepared(self, coders: list[Any], records: Float32) -> list[Any]:
        """A block a group."""
        pairs = zip(coders, self._joined.columns, strict=True)
        return [one.prepare(np.ascontiguousarray(records[:, some])) for one, some in pairs]

    def codes(self, coders: list[Any], parts: slice, blocks: list[Any], dtype: type[Any]) -> npt.NDArray[Any]:
        """(k, n): the codes of parts, of whole rows."""
        first, last, out = parts.start // self._joined.power, parts.stop // self._joined.power, None
        for index, (one, p) in enumerate(zip(coders, self._joined.powers, strict=True)):
            codes = one.codes(slice(first * p, last * p), blocks[index])
            if out is None:
                out = np.empty((last - first, self._joined.power, codes.shape[1]), dtype)
            out[:, self._starts[index] : self._starts[index + 1]] = codes.reshape(last - first, p, -1)
        assert out is not None
        return out.reshape(-1, out.shape[2])


class NumpyJoined:
    """See :class:`~hushsum.families.lsh.placement.NumpyCoder`."""

    def __init__(self, joined: Joined) -> None:
        self._joined, self._coders = JoinedCoders(joined), [coder(code) for code in joined.codes]

    def prepare(self, records: Float32) -> list[Any]:
        """A block a group."""
        return self._joined.prepared(self._coders, records)

    def codes(self, parts: slice, prepared: list[Any]) -> Int64:
        """(k, n)."""
        return self._joined.codes(self._coders, parts, prepared, np.int64)


_CODERS: Final[Mapping[type[Code], Callable[[Any], NumpyCoder]]] = {
    Projection: NumpyProjection,
    Signs: NumpyProjection,
    Bins: NumpyBins,
    MinHash: NumpyMinHash,
    OnePermutation: NumpyOnePermutation,
    Fastfood: NumpyFastfood,
    Joined: NumpyJoined,
}


def coder(code: Code) -> NumpyCoder:
    """What computes these codes in NumPy: with memory that is used again, so each call of the engine has its own."""
    return _CODERS[type(code)](code)
