"""The engine of the partition family in compiled loops.

It gives the same bytes as :mod:`hushsum.families.partition.engine_numpy`. Hashes of a tile of records are vectors in
memory that stays in a core's first cache; then one loop touches counters. Indices that the compiler must know to be
positive are unsigned, so that it may use vectors.
"""

from typing import Final

import numpy as np

from hushsum.compiled import compiled, inlined
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.partition.cells import Words
from hushsum.families.partition.signed_hashes import SignedHashes, UInt64, draw

#: Records whose words are made at once: the counters of a row stay in the cache for so many.
BLOCK_RECORDS: Final = 1 << 16
_TILE: Final = 1024


def lsh_words(projection: Projection, parts: slice, columns: Float64) -> Words:
    """(k, n) uint32: see :func:`hushsum.families.partition.engine_numpy.lsh_words`."""
    words = np.empty((parts.stop - parts.start, columns.shape[1]), np.uint32)
    _lsh_words(projection.directions[parts], projection.offsets[parts], columns, words)
    return words


def tokens(hashes: SignedHashes, rows: slice, words: Words) -> Int64:
    """(k, n) int64: see :meth:`SignedHashes.tokens`."""
    out = np.empty((rows.stop - rows.start, words.shape[2]), np.int64)
    _tokens(words, *_parameters(hashes, rows), out)
    return out


def scatter(hashes: SignedHashes, rows: slice, words: Words, counters: Int64) -> None:
    """Adds the signs of n records to counters (k, W) of some rows, in place."""
    _scatter(words, *_parameters(hashes, rows), counters)


def gather(hashes: SignedHashes, rows: slice, words: Words, counters: Int64, sums: Float64) -> None:
    """Adds what some rows (k, W) read: see :func:`hushsum.families.partition.engine_numpy.gather`."""
    _gather(words, *_parameters(hashes, rows), counters, sums)


def warm_up() -> None:
    """Compiles every loop, or loads what was compiled before."""
    from hushsum.public_random import PublicSeed

    projection = Projection(np.zeros((1, 1), np.float32), np.zeros(1), np.ones(1, np.float32))
    words, rows = lsh_words(projection, slice(0, 1), np.zeros((1, 1)))[None], slice(0, 1)
    hashes = draw(PublicSeed(0), 0, rows=1, parts=1, buckets=2, counts=None)
    tokens(hashes, rows, words)
    counters = np.zeros((1, 2), np.int64)
    scatter(hashes, rows, words, counters)
    gather(hashes, rows, words, counters, np.zeros((3, 1)))


def _parameters(hashes: SignedHashes, rows: slice) -> tuple[UInt64, UInt64, np.uint64, np.uint64]:
    return hashes.places[rows], hashes.signs[rows], np.uint64(hashes.shift), np.uint64(hashes.factor)


@compiled
def _lsh_words(directions: Float32, offsets: Float64, columns: Float64, words: Words) -> None:
    sums = np.empty(_TILE)
    for k in range(len(directions)):
        for start in range(0, columns.shape[1], _TILE):
            count = min(_TILE, columns.shape[1] - start)
            for i in range(count):
                sums[np.uint64(i)] = 0.0
            for j in range(len(columns)):
                a, line = np.float64(directions[k, j]), columns[j, start : start + count]
                for i in range(count):
                    sums[np.uint64(i)] += a * line[np.uint64(i)]
            out, offset = words[k, start : start + count], offsets[k]
            for i in range(count):
                out[np.uint64(i)] = np.uint32(np.int64(np.floor(sums[np.uint64(i)] + offset)))


@inlined
def _mix(words: Words, multipliers: UInt64, start: int, count: int, h: UInt64) -> None:
    """h = m₀ + Σ m_k·c_k of a tile."""
    m0, m1, line = multipliers[0], multipliers[1], words[0, start : start + count]
    for i in range(count):
        h[np.uint64(i)] = m0 + m1 * np.uint64(line[np.uint64(i)])
    for part in range(1, len(words)):
        m, line = multipliers[part + 1], words[part, start : start + count]
        for i in range(count):
            h[np.uint64(i)] += m * np.uint64(line[np.uint64(i)])


@inlined
def _place(shift: np.uint64, factor: np.uint64, count: int, h: UInt64) -> None:
    """Buckets in the place of hashes."""
    if factor:
        for i in range(count):
            h[np.uint64(i)] = ((h[np.uint64(i)] >> shift) * factor) >> np.uint64(32)
    else:
        for i in range(count):
            h[np.uint64(i)] >>= shift


@compiled
def _tokens(words: Words, places: UInt64, signs: UInt64, shift: np.uint64, factor: np.uint64, out: Int64) -> None:
    h, s = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for k in range(len(places)):
        own = words[k if len(words) > 1 else 0]
        for start in range(0, words.shape[2], _TILE):
            count = min(_TILE, words.shape[2] - start)
            _mix(own, places[k], start, count, h)
            _place(shift, factor, count, h)
            _mix(own, signs[k], start, count, s)
            line = out[k, start : start + count]
            for i in range(count):
                token = (h[np.uint64(i)] << np.uint64(1)) | (s[np.uint64(i)] >> np.uint64(63))
                line[np.uint64(i)] = np.int64(token)


@compiled
def _scatter(words: Words, places: UInt64, signs: UInt64, shift: np.uint64, factor: np.uint64, counters: Int64) -> None:
    h, s = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for k in range(len(places)):
        own, row = words[k if len(words) > 1 else 0], counters[k]
        for start in range(0, words.shape[2], _TILE):
            count = min(_TILE, words.shape[2] - start)
            _mix(own, places[k], start, count, h)
            _place(shift, factor, count, h)
            _mix(own, signs[k], start, count, s)
            for i in range(count):
                row[h[np.uint64(i)]] += np.int64(1) - np.int64((s[np.uint64(i)] >> np.uint64(62)) & np.uint64(2))


@compiled
def _gather(
    words: Words,
    places: UInt64,
    signs: UInt64,
    shift: np.uint64,
    factor: np.uint64,
    counters: Int64,
    sums: Float64,
) -> None:
    h, s, reads = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64), np.empty(_TILE)
    for k in range(len(places)):
        own, row = words[k if len(words) > 1 else 0], counters[k]
        for start in range(0, words.shape[2], _TILE):
            count = min(_TILE, words.shape[2] - start)
            _mix(own, places[k], start, count, h)
            _place(shift, factor, count, h)
            _mix(own, signs[k], start, count, s)
            first, total, squares = (
                sums[0, start : start + count],
                sums[1, start : start + count],
                sums[2, start : start + count],
            )
            for i in range(count):
                sign = np.int64(1) - np.int64((s[np.uint64(i)] >> np.uint64(62)) & np.uint64(2))
                reads[np.uint64(i)] = np.float64(row[h[np.uint64(i)]] * sign)
            for i in range(count):
                y, before = reads[np.uint64(i)], first[np.uint64(i)]
                before = y if np.isnan(before) else before
                first[np.uint64(i)] = before
                y -= before
                total[np.uint64(i)] += y
                squares[np.uint64(i)] += y * y
