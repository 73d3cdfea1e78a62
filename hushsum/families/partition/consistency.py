"""Consistent counts of the cells of a grid: what noised levels say together, by least squares.

Where all cells of a level fit into W buckets (a *direct* level; all coarser ones then are), a release holds each of
them with independent noise of one variance. A cell's records are those of its children together, and those of the
coarsest cells are all n records, which the count counter tells with another variance. Least squares under these
equations gives the unbiased linear estimates of least variance (Gauss and Markov), in one pass up the levels and one
down: Hay, Rastogi, Miklau and Suciu, *Boosting the accuracy of differentially private histograms through consistency*
(2010), section 4.1, here with a variance for each cell, as grids whose cells are no power of two need it. The proof is
in docs/families.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from hushsum.families.base import Answer
from hushsum.families.lsh.arrays import Float64, Int64
from hushsum.families.partition.count_sketch import PartitionRows

#: Cells of the finest direct level up to which levels are made consistent: each takes 24 bytes, and twice that in 1-D.
CELLS_MAX: Final = 2**22
_BLOCK_WEIGHTS: Final = 1 << 22
_AXES_MAX: Final = 32  # of more columns each has hardly a second cell
_WORTH: Final = 0.95**2  # of a variance: what lowers a standard error by less is not computed


@dataclass(frozen=True, eq=False)
class ConsistentCells:
    """Unbiased estimates of the records of all cells: each cell is the sum of its children, up to the whole domain.

    They may be negative, and are no integers. Their errors are correlated; :meth:`weighted` counts that.

    Attributes:
        first: The level of ``values[0]``: the finest direct one.
        values: Of each level, of the shape of its grid; the last is one cell, the whole domain.
        filtered: Variances of what each cell and those below it say alone, in units of the noise, as ``values``.
        noise_variance: The unit: the variance of the noise on every counter.
    """

    first: int
    values: tuple[Float64, ...]
    filtered: tuple[Float64, ...]
    noise_variance: float

    @classmethod
    def of(
        cls,
        levels: Sequence[Float64],
        variances: Sequence[float],
        *,
        count: tuple[float, float] | None = None,
        first: int = 0,
        noise_variance: float = 1.0,
    ) -> Self:
        """Estimates from independent ones of each level, whose variances may differ.

        Args:
            levels: (J₁, …, J_d) each, the finest first; each axis has half as many cells as below, rounded up.
            variances: Of the cells of each level, above 0, in units of the noise.
            count: A number of records whose noise is independent of the cells', and its variance; None: none.
            first: The level of the finest.
            noise_variance: The unit, at least 0.
        """
        seen, own = [*levels], [*variances]
        while max(seen[-1].shape) > 1:  # coarser levels that nothing was seen of, up to one cell
            seen.append(np.zeros([(cells + 1) // 2 for cells in seen[-1].shape]))
            own.append(math.inf)
        if count is not None:
            both = 1.0 / (1.0 / own[-1] + 1.0 / count[1])
            seen[-1], own[-1] = (seen[-1] / own[-1] + count[0] / count[1]) * both, both
        values, filtered = [np.asarray(seen[0], np.float64)], [np.full(seen[0].shape, own[0])]
        for level, variance in zip(seen[1:], own[1:], strict=True):
            of_children, below = _of_children(values[-1]), _of_children(filtered[-1])
            weight = below / (variance + below)
            values.append(of_children + weight * (level - of_children))
            filtered.append(below * (1.0 - weight))
        for at in range(len(seen) - 2, -1, -1):
            rest = (values[at + 1] - _of_children(values[at])) / _of_children(filtered[at])
            values[at] = values[at] + filtered[at] * _to_children(rest, values[at].shape)
        return cls(first, tuple(values), tuple(filtered), noise_variance)

    @property
    def total(self) -> float:
        """All records."""
        return float(self.values[-1].sum())

    @property
    def total_variance(self) -> float:
        """Of :attr:`total`."""
        return float(self.filtered[-1].sum()) * self.noise_variance

    @cached_property
    def variances(self) -> tuple[Float64, ...]:
        """Of ``values``, of the same shapes."""
        found = [self.filtered[-1]]
        for below, part in zip(self.filtered[-2::-1], self._parts[::-1], strict=True):
            found.append(below * (1.0 - part) + part * part * _to_children(found[-1], below.shape))
        return tuple(level * self.noise_variance for level in found[::-1])

    def weighted(self, weights: npt.ArrayLike) -> tuple[Float64, Float64]:
        """Σ weight·records over the finest cells, and its standard error, (m,) each: a range has weights 0 and 1.

        Args:
            weights: (m, J₁, …, J_d).

        Raises:
            ValueError: Another shape.
        """
        given, shape = np.asarray(weights, np.float64), self.values[0].shape
        if given.shape[1:] != shape or given.ndim != len(shape) + 1:
            raise ValueError(f"weights: got shape {given.shape}, expected (m, {', '.join(map(str, shape))})")
        axes = tuple(range(1, given.ndim))
        value, variance = (given * self.values[0]).sum(axis=axes), np.zeros(len(given))
        for below in self.filtered[:-1]:  # children are independent of their parent but for their shares of it
            whole = _of_children(below)
            variance += (np.square(given) * below).sum(axis=axes)
            given = np.stack([_of_children(one) for one in given * below]) / whole
            variance -= (np.square(given) * whole).sum(axis=axes)
        variance += (np.square(given) * self.filtered[-1]).sum(axis=axes)
        return value, np.sqrt(np.maximum(variance, 0.0) * self.noise_variance)

    def prefixes(self, axis: int, share: float) -> tuple[Float64, Float64]:
        """Records of the first k cells along an axis, less ``share`` of all records, and its standard error.

        Returns:
            (J + 1,) each, of k = 0 to J cells of the axis.
        """
        others = tuple(j for j in range(self.values[0].ndim) if j != axis)
        value = np.concatenate([[0.0], np.cumsum(self.values[0].sum(axis=others))]) - share * self.total
        if not others:
            return value, np.sqrt(np.maximum(self._prefix_variances(share), 0.0) * self.noise_variance)
        cells = np.arange(self.values[0].shape[axis])
        steps = (cells < np.arange(len(value))[:, None]) - share
        return value, self.weighted_blocks(np.expand_dims(steps, tuple(1 + j for j in others)))[1]

    def _prefix_variances(self, share: float) -> Float64:
        """In one dimension, from :meth:`weighted` of weights that differ between two siblings a level alone.

        Left of some cell of each level all weights are 1 − share, right of it −share, and its own is p − share. With
        variances b and b' of it and its sibling, they add b·b'/(b + b') times the square of their difference.
        """
        k = np.arange(len(self.values[0]) + 1)
        variance, at, part = np.zeros(len(k)), np.maximum(k - 1, 0), np.where(k > 0, 1.0, 0.0)
        for below in self.filtered[:-1]:
            padded = np.pad(below, (0, len(below) % 2))
            own, other = padded[at], padded[at ^ 1]
            beside = (at & 1).astype(np.float64)  # the weight of the sibling: 1 on the left, 0 on the right
            variance += own * other / (own + other) * np.square(part - beside)
            part = (own * part + other * beside) / (own + other)
            at = at >> 1
        return np.asarray(variance + np.square(part - share) * self.filtered[-1][0], np.float64)

    def weighted_blocks(self, weights: Float64) -> tuple[Float64, Float64]:
        """As :meth:`weighted`, with weights that are broadcast to (m, J₁, …, J_d), a block of them at a time."""
        shape = self.values[0].shape
        size = max(1, _BLOCK_WEIGHTS // math.prod(shape))
        blocks = (weights[start : start + size] for start in range(0, len(weights), size))
        found = [self.weighted(np.broadcast_to(block, (len(block), *shape))) for block in blocks]
        value, error = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return value, error

    def answer(self, codes: Int64) -> Answer:
        """The records of some of the finest cells (m, d)."""
        at = tuple(codes.T)
        return Answer(self.values[0][at], np.sqrt(self.variances[0][at]), spread="noise")

    def shares(self, codes: Int64) -> Answer:
        """The share of all records in some of the finest cells (m, d): a ratio, to the first order.

        The number of records is taken as at least 1. The covariance of both parts is counted.
        """
        n, at = max(self.total, 1.0), tuple(codes.T)
        share = self.values[0][at] / n
        variance = self.variances[0][at] + share * (share * self.total_variance - 2.0 * self._with_total[at])
        return Answer(share, np.sqrt(np.maximum(variance, 0.0)) / n, spread="noise")

    @cached_property
    def _with_total(self) -> Float64:
        """The covariance of each of the finest cells with the total."""
        share = np.ones(self.filtered[-1].shape)
        for part in self._parts[::-1]:
            share = part * _to_children(share, part.shape)
        return np.asarray(share * self.total_variance, np.float64)

    @property
    def _parts(self) -> list[Float64]:
        """Of each level but the last: how much of what its parent gains a cell gains; of siblings they sum to 1."""
        return [below / _to_children(_of_children(below), below.shape) for below in self.filtered[:-1]]


def consistent(
    rows: PartitionRows, counters: Int64, *, noise_variance: float, count: tuple[float, int] | None = None
) -> ConsistentCells | None:
    """The direct levels of a grid together; None where no standard error would fall by 5 %, or there is no such level.

    A single level gains nothing of that size for its cells, but n̂ may: the sum of a few cells tells it better.

    Args:
        rows: Of the sketch.
        counters: (H·R, W), noised.
        noise_variance: Of the noise on each of them.
        count: n̂, and the factor c by which its noise is smaller than that of a counter; None: cells alone.
    """
    direct = [level for level, hashes in enumerate(rows.levels) if hashes.direct]
    if rows.grid is None or not direct:
        return None
    of_cells = math.prod(rows.grid.level_counts(direct[0]).tolist()) / len(rows)
    alone = math.inf if count is None else 1.0 / count[1] ** 2
    if len(direct) == 1 and (count is None or of_cells / (of_cells + alone) > _WORTH):
        return None
    return direct_cells(rows, counters, noise_variance=noise_variance, count=count)


def direct_cells(
    rows: PartitionRows, counters: Int64, *, noise_variance: float, count: tuple[float, int] | None = None
) -> ConsistentCells | None:
    """As :func:`consistent`, also where it gains little; None without a direct level or with too many cells."""
    direct = [level for level, hashes in enumerate(rows.levels) if hashes.direct]
    if rows.grid is None or not direct:
        return None
    shapes = [tuple(rows.grid.level_counts(level).tolist()) for level in direct]
    if not _are_few(shapes[0]):
        return None
    read = [
        np.concatenate([rows.read(counters, codes, level) for codes in rows.grid.all_codes(level)]).reshape(shape)
        for level, shape in zip(direct, shapes, strict=True)
    ]
    return ConsistentCells.of(
        read,
        [1.0 / len(rows)] * len(read),
        count=None if count is None else (count[0], 1.0 / count[1] ** 2),
        first=direct[0],
        noise_variance=noise_variance,
    )


def total_variance(shapes: Sequence[tuple[int, ...]]) -> float:
    """Of :attr:`ConsistentCells.total` without a count counter, where each cell has noise of variance 1.

    Of too many cells to be made consistent it is that of the sums of the levels, each weighted by how few cells it has.

    Args:
        shapes: Of direct levels, the finest first.
    """
    if not _are_few(shapes[0]):
        return 1.0 / sum(1.0 / math.prod(shape) for shape in shapes)
    variance = np.ones(shapes[0])
    for _ in shapes[1:]:
        below = _of_children(variance)
        variance = below / (1.0 + below)
    return float(variance.sum())


def _are_few(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) <= CELLS_MAX and len(shape) <= _AXES_MAX


def _of_children(level: Float64) -> Float64:
    """The sums of the 2^d children, or as many as there are, of each cell above."""
    for axis, cells in enumerate(level.shape):
        level = np.add.reduceat(level, range(0, cells, 2), axis=axis)
    return level


def _to_children(level: Float64, shape: tuple[int, ...]) -> Float64:
    """Each cell's value at each of its children, which are of this shape."""
    for axis, cells in enumerate(shape):
        level = np.take(level, np.arange(cells) // 2, axis=axis)
    return level
