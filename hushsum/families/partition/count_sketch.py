"""A count sketch of cells: records to counters, and counters to estimates with standard errors.

The levels of a grid are the same words shifted to the right; each row of LSH cells has words of its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final

import numpy as np

from hushsum import compiled
from hushsum.families import threads
from hushsum.families.base import Answer
from hushsum.families.estimators import means_of_groups, median_of_means
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.partition.cells import CellGrid, Words
from hushsum.families.partition.signed_hashes import SignedHashes

_BLOCK_WORDS: Final = 1 << 20
_BLOCK_TOKENS: Final = 1 << 17  # a core's cache holds what becomes of them


@dataclass(frozen=True, eq=False)
class PartitionRows:
    """All that the engines know of a sketch.

    Attributes:
        cells: A grid that all rows share, or the LSH of every row.
        levels: The hashes of each level.
        buckets: W.
    """

    cells: CellGrid | Projection
    levels: tuple[SignedHashes, ...]
    buckets: int

    def __len__(self) -> int:
        """R."""
        return len(self.levels[0])

    @property
    def grid(self) -> CellGrid | None:
        """The cells, where they are a grid."""
        return self.cells if isinstance(self.cells, CellGrid) else None

    def add(self, counters: Int64, records: Float32) -> None:
        """Adds records within the bounds to counters (H·R, W) int64 in place, some of the H·R rows on each core."""

        def work(which: slice) -> None:
            for block in self._blocks(records):
                for level in range(len(self.levels)):
                    before = level * len(self)
                    some = slice(max(which.start - before, 0), min(which.stop - before, len(self)))
                    if some.start < some.stop:
                        self._scatter(block, level, some, counters[before : before + len(self)])

        threads.spread(work, threads.shares(len(counters), len(records)), 0)

    def encode(self, records: Float32) -> tuple[Int64, Int64]:
        """Flat indices, strictly increasing, and values, none 0, of what :meth:`add` does to zeroes."""
        indices, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for level in range(len(self.levels) if len(records) else 0):
            few = 2 * len(records) < self.buckets
            for place, value in self._few(records, level) if few else self._many(records, level):
                indices.append(place + level * len(self) * self.buckets)
                values.append(value)
        return np.concatenate(indices), np.concatenate(values)

    def sums(self, counters: Int64, queries: Float32, rows: slice) -> tuple[Float64, Float64, Float64]:
        """What some rows of level 0 of counters (H·R, W) read at m queries, (m,) each.

        With y_r = sign·counter: y₀, Σ(y_r − y₀) and Σ(y_r − y₀)², in the order of the rows.
        """
        pieces = threads.shares(len(queries), len(queries))
        parts = threads.spread(lambda some: self._sums(counters, queries[some], rows), pieces, 0)
        first, total, squares = np.concatenate(parts, axis=1)
        return first, total, squares

    def _sums(self, counters: Int64, queries: Float32, rows: slice) -> Float64:
        parts = [np.empty((3, 0))]
        for block in self._blocks(queries):
            sums = np.zeros((3, block.shape[1]))
            sums[0] = np.nan
            for some, words in self._words(block, 0, rows):
                _engine().gather(self.levels[0], some, words, counters[some], sums)
            parts.append(sums)
        return np.concatenate(parts, axis=1)

    def read(self, counters: Int64, codes: Int64, level: int) -> Float64:
        """(k,): what counters (H·R, W) hold for the cells (k, d) of a level of a grid.

        The median of the rows: a few full cells hardly move it. Their mean where no two cells collide.
        """
        own, words = counters[level * len(self) : (level + 1) * len(self)], np.ascontiguousarray(codes.T, np.uint32)
        if self.levels[level].direct:
            first, total, _ = self._gathered(own, words, level, slice(0, len(self)))
            return np.asarray((len(self) * first + total) / len(self), np.float64)  # the sum is of integers, and exact
        reads = [self._gathered(own[[row]], words, level, slice(row, row + 1))[0] for row in range(len(self))]
        return np.asarray(np.median(reads, axis=0), np.float64)

    def row_sums(self, indices: Int64, values: Int64, level: int) -> Int64 | None:
        """(R,) sums of sparse counters of a direct level, each times the sign of its cell; None: one is of no cell.

        Args:
            indices: (k,) increasing, flat in the level's (R, W).
            values: (k,).
            level: Of a grid.
        """
        assert self.grid is not None, "of a grid"
        counts, hashes = self.grid.level_counts(level), self.levels[level]
        row, cell = np.divmod(indices, self.buckets)
        if len(cell) and int(cell.max()) >= np.prod(counts):
            return None
        sign = hashes.signs[row, 0]
        for part, codes in enumerate(np.unravel_index(cell, counts)):
            sign += hashes.signs[row, part + 1] * codes.astype(np.uint64)
        signed = np.where(sign >> np.uint64(63), -values, values)
        ends = np.searchsorted(indices, np.arange(len(self) + 1) * self.buckets)
        return np.asarray(np.diff(np.concatenate([[0], np.cumsum(signed)])[ends]), np.int64)

    def _gathered(self, own: Int64, words: "Words", level: int, rows: slice) -> Float64:
        sums = np.zeros((3, words.shape[1]))
        sums[0] = np.nan
        _engine().gather(self.levels[level], rows, words[None], own, sums)
        return sums

    def _few(self, records: Float32, level: int) -> Iterator[tuple[Int64, Int64]]:
        """Flat indices within the level, and values, of fewer records than half the buckets."""
        block = self._block(records)
        for some, words in self._words(block, level, slice(0, len(self)), most=_BLOCK_TOKENS):
            yield _tally(_engine().tokens(self.levels[level], some, words), some.start, self.buckets)

    def _many(self, records: Float32, level: int) -> Iterator[tuple[Int64, Int64]]:
        counters = np.zeros((len(self), self.buckets), np.int64)
        for block in self._blocks(records):
            self._scatter(block, level, slice(0, len(self)), counters)
        found = np.flatnonzero(counters)
        yield found, counters.reshape(-1)[found]

    def _scatter(self, block: "Words | Float64", level: int, rows: slice, counters: Int64) -> None:
        """Into some rows of the counters (R, W) of a level."""
        for some, words in self._words(block, level, rows):
            _engine().scatter(self.levels[level], some, words, counters[some])

    def _blocks(self, points: Float32) -> Iterator["Words | Float64"]:
        size = max(1, min(int(_engine().BLOCK_RECORDS), _BLOCK_WORDS // points.shape[1]))
        for start in range(0, len(points), size):
            yield self._block(points[start : start + size])

    def _block(self, points: Float32) -> "Words | Float64":
        """What all rows need of some points, coordinate after coordinate: words of a grid, else float64."""
        if isinstance(self.cells, CellGrid):
            return self.cells.words(points)
        return np.ascontiguousarray(points.T, np.float64)

    def _words(
        self, block: "Words | Float64", level: int, rows: slice, most: int = _BLOCK_WORDS
    ) -> Iterator[tuple[slice, Words]]:
        """(some of the rows, their words (1 or k, p, n)) with at most so many numbers for all of them, or one row."""
        n, engine = block.shape[1], _engine()
        if isinstance(self.cells, CellGrid):
            words = (block.astype(np.uint32, copy=False) >> np.uint32(level))[None]
            yield from ((some, words) for some in _chunks(rows, max(1, most // n)))
            return
        power = len(self.cells.offsets) // len(self)
        for some in _chunks(rows, max(1, min(most, _BLOCK_TOKENS) // (n * power))):
            parts = slice(some.start * power, some.stop * power)
            yield some, engine.lsh_words(self.cells, parts, block).reshape(-1, power, n)


def _tally(tokens: Int64, first_row: int, width: int) -> tuple[Int64, Int64]:
    """Flat indices and sums of the signs of tokens (k, n), where they are not 0."""
    flat = tokens + (np.arange(first_row, first_row + len(tokens)) * (2 * width))[:, None]
    flat.sort(axis=1)
    line = flat.reshape(-1)
    places = line >> 1
    starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
    values = np.add.reduceat(1 - 2 * (line & 1), starts)
    kept = values != 0
    return places[starts][kept], values[kept]


def _chunks(rows: slice, size: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


def _engine() -> ModuleType:
    if compiled.enabled():
        from hushsum.families.partition import engine_compiled as partition_fast

        return partition_fast
    from hushsum.families.partition import engine_numpy as partition_plain

    return partition_plain


def mean(tables: PartitionRows, counters: Int64, points: Float32, noise_variance: float) -> Answer:
    """The mean of the rows of level 0 at points (m, d).

    Where no two cells collide the rows are no draws, and the noise on the counters is the whole error. Else one row has
    NaN as standard error.
    """
    rows = len(tables)
    first, total, squares = tables.sums(counters, points, slice(0, rows))
    value = first + total / rows
    if tables.levels[0].direct:
        return Answer(value, np.full(len(value), math.sqrt(noise_variance / rows)), spread="noise")
    if rows == 1:
        return Answer(value, np.full(len(value), math.nan))
    return Answer(value, _std(total, squares, rows) / math.sqrt(rows), degrees=rows - 1)


def median(tables: PartitionRows, counters: Int64, points: Float32, groups: int) -> Answer:
    """The median of the means of so many groups of rows."""
    rows = len(tables)
    means = means_of_groups(rows, groups, partial(tables.sums, counters, points))
    value, error = median_of_means(means, rows // groups)
    return Answer(value, error, spread="groups", degrees=max(1, groups - 1))


def _std(total: Float64, squares: Float64, n: int) -> Float64:
    """Of n values, from the sums of their differences to one of them and of the squares of these."""
    return np.asarray(np.sqrt(np.maximum(squares - total * total / n, 0.0) / (n - 1)), np.float64)
