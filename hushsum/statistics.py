"""Statistics of a release of grid cells: histograms, ranges, CDFs, quantiles, moments and cross tables, with errors.

All of it is computed from the consistent cells of a release (:mod:`hushsum.families.partition.consistency`) and spends
nothing. Every count is a weighted sum of cells, every mean, share or variance a smooth function of such sums. A
:class:`Statistic` holds the weights of the cells (of functions the gradient: the delta method), so that sums,
differences and quotients of statistics count every covariance, also between classes and columns of one release.
Statistics of different releases are independent.

**Units.** All values are in the units of the plan's bounds; a transform ``scale`` is undone. **Cells.** Records are
known by their cell alone: half open, [low, high), the last of a column closed. What a statistic may be off by for that
is its ``bias``, and intervals are wider by it. **Clipped records** lie in the outermost cells, so that a quantile there
may be anywhere beyond (``Quantiles.at_bound``); means and variances are those of clipped values. **Few records.**
Where the number of records is not 4 standard errors above 0, an average or a share of them is NaN.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.errors import PlanError, RecordError
from hushsum.families.base import Interval
from hushsum.families.partition import Partition
from hushsum.families.partition.consistency import CELLS_MAX, ConsistentCells
from hushsum.notebook import ROWS_MAX, table_html
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN
from hushsum.query import Queryable

Floats = npt.NDArray[np.float64]

_WEIGHTS_MAX: Final = 2**30  # statistics times cells: seconds
_KEPT_MAX: Final = 2**26  # weights of a result: 512 MB
_ERRORS_MIN: Final = 4.0  # of a denominator above 0: then the second order of a quotient is a sixteenth of the first
_CUT_ERRORS: Final = 3.0  # of the records in cells that a range cuts, which bound what it may be off by
_DESCRIBED: Final = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class _Part:
    """What one class of one release has in a statistic.

    Attributes:
        release: A digest of it: a release that is loaded twice has one noise.
        plan: Its id.
        noise_ms: Of the windows whose noise it has, None without: see :attr:`hushsum.query.Queryable.period_ms`.
        index: Of the class.
        cells: Whose variances are those of the class.
        weights: Of the finest cells, broadcast to (m, J₁, …, J_d).
        normal: Whether its noise is Gaussian.
    """

    release: bytes
    plan: bytes
    noise_ms: tuple[int, int] | None
    index: int
    cells: ConsistentCells
    weights: Floats
    normal: bool


@dataclass(frozen=True, eq=False)
class Statistic:
    """m numbers computed from releases, with standard errors; they add, subtract, multiply by numbers and divide.

    ``a + b``, ``a - b`` and ``a / b`` take statistics of m or 1 numbers, of the same release or of others, and numbers.
    A quotient is NaN where its denominator is not 4 standard errors away from 0. Those of different spans that share a
    window, or are of one cumulative sequence, are refused (ValueError): they share noise.

    Attributes:
        value: (m,) float64. Unbiased for weighted sums of cells, to the first order for quotients.
        bias: (m,) float64: how far the mean of ``value`` may lie off because records are known by their cells alone.
        parts: The weights of cells that ``std_error`` is computed from.
    """

    value: Floats
    bias: Floats
    parts: tuple[_Part, ...]

    @cached_property
    def std_error(self) -> Floats:
        """(m,) float64: of the noise, with all covariances."""
        variance, known = np.zeros(len(self.value)), dict[tuple[bytes, int], Floats]()
        for part in self.parts:
            key = part.release, id(part.weights)  # of all classes of a release the variances are the same
            if key not in known:
                known[key] = np.square(part.cells.weighted_blocks(part.weights)[1])
            variance += known[key]
        return np.where(np.isnan(self.value), np.nan, np.sqrt(variance))

    def interval(self, confidence: float = 0.95) -> Interval:
        """The lower and the upper ends, (m,) each, of the intervals at this confidence, in (0, 1).

        Sums of discrete Laplace noise have wider tails than normal ones: their intervals are those of one Laplace
        variable or normal ones, whichever are wider. All are wider by ``bias`` on both sides.
        """
        half = _reach(confidence, normal=all(part.normal for part in self.parts)) * self.std_error + self.bias
        return Interval(self.value - half, self.value + half)

    def columns(self, confidence: float = 0.95) -> dict[str, Floats]:
        """``value``, ``std_error``, ``low``, ``high`` and ``bias``, (m,) each: for a data frame or an Arrow table."""
        low, high = self.interval(confidence)
        return {"value": self.value, "std_error": self.std_error, "low": low, "high": high, "bias": self.bias}

    def __add__(self, other: "Statistic | float") -> "Statistic":
        if not isinstance(other, Statistic):
            return replace(self, value=self.value + other)
        return self._joined(other, self.value + other.value, 1.0, 1.0)

    def __sub__(self, other: "Statistic | float") -> "Statistic":
        if not isinstance(other, Statistic):
            return replace(self, value=self.value - other)
        return self._joined(other, self.value - other.value, 1.0, -1.0)

    def __mul__(self, number: float) -> "Statistic":
        return self._joined(None, self.value * number, number, 0.0)

    def __truediv__(self, other: "Statistic | float") -> "Statistic":
        if not isinstance(other, Statistic):
            return self * (1.0 / other)
        enough = np.abs(other.value) > _ERRORS_MIN * other.std_error
        below = np.where(enough, other.value, 1.0)
        ratio = np.where(enough, self.value / below, np.nan)
        return self._joined(other, ratio, 1.0 / below, -np.where(enough, ratio, 0.0) / below)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> "Statistic":
        return self * -1.0

    def __rsub__(self, number: float) -> "Statistic":
        return -self + number

    def _joined(
        self, other: "Statistic | None", value: Floats, slope: float | Floats, other_slope: float | Floats
    ) -> "Statistic":
        """A function with this value and these derivatives in both, (m,) each."""
        bias = np.abs(slope) * self.bias + (0.0 if other is None else np.abs(other_slope) * other.bias)
        kept: dict[tuple[bytes, int], tuple[_Part, list[tuple[Floats, float | Floats]]]] = {}
        for some, by in ((self, slope), (other, other_slope)):
            for part in () if some is None else some.parts:
                _refuse_shared_noise(part, [other for other, _ in kept.values()])
                terms = kept.setdefault((part.release, part.index), (part, []))[1]
                terms.append((part.weights, by))
        summed: dict[tuple[tuple[int, int], ...], Floats] = {}  # classes that share weights go on sharing them
        parts = []
        for part, terms in kept.values():
            key = tuple((id(weights), id(by)) for weights, by in terms)
            if key not in summed:
                summed[key] = _summed(terms)
            parts.append(replace(part, weights=summed[key]))
        return Statistic(value, np.broadcast_to(bias, value.shape), tuple(parts))

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: int | slice) -> "Statistic":
        """Some of them; one of them is m = 1, too."""
        some = index if isinstance(index, slice) else slice(index, index + 1 or None)
        if not isinstance(index, slice) and not -len(self) <= index < len(self):
            raise IndexError(f"index: got {index}, expected one of {len(self)} statistics")
        kept = {id(part.weights): part.weights if len(part.weights) == 1 else part.weights[some] for part in self.parts}
        parts = tuple(replace(part, weights=kept[id(part.weights)]) for part in self.parts)
        return Statistic(self.value[some], self.bias[some], parts)

    def _repr_html_(self) -> str:
        """The first of them as a table, with their 95 % intervals."""
        columns = self.columns()
        shown = [column[:ROWS_MAX].tolist() for column in columns.values()]
        rows = [[f"{number:,.6g}" for number in row] for row in zip(*shown, strict=True)]
        names = {"low": "95 % low", "high": "95 % high"}
        title = f"{len(self):,} statistic{'' if len(self) == 1 else 's'}"
        return table_html(title, [names.get(name, name) for name in columns], rows, total=len(self))


@dataclass(frozen=True, eq=False)
class Histogram:
    """Records of ranges of one column that follow each other.

    Attributes:
        column: Its name.
        edges: (m + 1,) float64, increasing, from the lower to the upper bound.
        counts: Of m ranges [edge, next edge), the last one closed: unbiased, maybe below 0.
    """

    column: str
    edges: Floats
    counts: Statistic

    def non_negative(self) -> Floats:
        """(m,) float64: counts of at least 0 with the same sum, that err less; all are 0 if the sum is below 0.

        They are the steps of the monotone function that is nearest to the cumulative counts. They are biased: for
        sums of ranges add ``counts``, not these.
        """
        total = np.concatenate([[0.0], np.cumsum(self.counts.value)])
        return np.asarray(np.diff(np.clip(_isotonic(total), 0.0, max(float(total[-1]), 0.0))), np.float64)


@dataclass(frozen=True, eq=False)
class Cdf:
    """Shares of the records that are below points of one column.

    Attributes:
        column: Its name.
        points: (m,) float64.
        shares: Of m points, to the first order unbiased: maybe outside [0, 1], and not monotone.
    """

    column: str
    points: Floats
    shares: Statistic

    def monotone(self) -> Floats:
        """(m,) float64 in [0, 1]: the nearest shares that never decrease with the points (isotonic regression).

        Their sum of squared errors over the points is at most that of ``shares``, for the true shares are monotone.
        NaN where ``shares`` are.
        """
        order = np.argsort(self.points, kind="stable")
        found = np.empty(len(order))
        found[order] = np.clip(_isotonic(self.shares.value[order]), 0.0, 1.0)
        return found


@dataclass(frozen=True, eq=False)
class Quantiles:
    """The least values of one column below or at which given shares of the records are.

    Attributes:
        column: Its name.
        probabilities: (m,) float64 in (0, 1).
        value: (m,) float64: within a cell by a straight line; NaN where there are too few records.
        low: (m,) float64: the lower ends of the intervals.
        high: (m,) float64: the upper ends.
        confidence: Of the intervals.
        at_bound: (m,) bool: the interval reaches an outermost cell, which also holds the records that were clipped to
            the bound: the quantile may lie beyond it.
    """

    column: str
    probabilities: Floats
    value: Floats
    low: Floats
    high: Floats
    confidence: float
    at_bound: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CrossTable:
    """Records by ranges of two columns.

    Attributes:
        columns: Their names.
        edges: Of each column, (b + 1,) float64.
        counts: Of b₁·b₂ pairs of ranges, the second column's the fastest: unbiased, maybe below 0.
    """

    columns: tuple[str, str]
    edges: tuple[Floats, Floats]
    counts: Statistic

    @property
    def shape(self) -> tuple[int, int]:
        """(b₁, b₂), to reshape arrays of ``counts`` to."""
        return len(self.edges[0]) - 1, len(self.edges[1]) - 1

    def non_negative(self) -> Floats:
        """(b₁, b₂) float64: the counts of at least 0 with the same sum that are nearest; 0 if the sum is below 0."""
        return _on_simplex(self.counts.value).reshape(self.shape)


@dataclass(frozen=True)
class Figure:
    """One line of a description.

    Attributes:
        name: ``mean``, ``std``, ``min``, ``25%``, ``50%``, ``75%`` or ``max``, or ``count``.
        value: NaN where there are too few records. ``min`` and ``max`` are the public bounds, not values of records.
        std_error: Of the noise; None for bounds and quantiles.
        low: The lower end of the interval, which counts the width of the cells, too.
        high: The upper end.
        at_bound: See :class:`Quantiles`.
    """

    name: str
    value: float
    std_error: float | None
    low: float
    high: float
    at_bound: bool = False


@dataclass(frozen=True)
class Description:
    """What ``describe`` of a data frame tells, with errors.

    Attributes:
        label: Of the class; None: all records.
        confidence: Of the intervals.
        count: The number of records.
        columns: By the names of the columns, ``mean``, ``std``, ``min``, ``25%``, ``50%``, ``75%`` and ``max``.
        cell_widths: By the names of the columns, the width of a cell.
    """

    label: str | None
    confidence: float
    count: Figure
    columns: Mapping[str, tuple[Figure, ...]]
    cell_widths: Mapping[str, float]

    def _repr_html_(self) -> str:
        """As a table."""
        share = f"{100 * self.confidence:g} %"
        rows = [
            [column, figure.name, *(f"{number:,.6g}" for number in (figure.value, figure.low, figure.high))]
            for column, figures in {"": (self.count,), **self.columns}.items()
            for figure in figures
        ]
        return table_html("Description", ["column", "figure", "value", f"{share} low", f"{share} high"], rows)


class Statistics:
    """The statistics of a release of the partition family, of records or of those of one class.

    Columns are named as in the plan, or by their number from 0. Grids of one or two dimensions are meant; more
    dimensions work while their cells do not share counters.

    Args:
        release: Of a grid a level of which has a counter for each cell: the finest such level is used.
        label: Of the class; None: all records.

    Raises:
        PlanError: Another family, LSH cells, reports, transforms other than ``scale``, a grid all levels of which share
            counters, or one of more than 4,194,304 cells.
        RecordError: The plan has no such class.
    """

    def __init__(self, release: Queryable, *, label: str | None = None) -> None:
        plan = release.plan
        family = _grid(release)
        self.release, self.label = release, label
        self._chosen = query.classes_of(plan, label)
        estimates = query.ClassSums(plan, release.counters, release.counts, release.draws).estimates(self._chosen)
        assert estimates is not None, "the family is partition"
        cells, grid = estimates.direct_cells(), family.tables.grid
        assert grid is not None, "the cells are those of a grid"
        if cells is None:
            raise _no_cells(family)
        self._cells = cells
        self._normal = plan.privacy.mechanism.name == DISCRETE_GAUSSIAN
        # All releases of a cumulative sequence share noise.
        self._noise_ms = release.period_ms if release.steps is None else (0, 2**63)
        digest = sha256(plan.id + repr(release.period_ms).encode())
        for array in (release.counters, release.counts):
            digest.update(np.ascontiguousarray(array).tobytes())
        self._digest = digest.digest()
        self._of_class = replace(cells, noise_variance=cells.noise_variance / (self._chosen.stop - self._chosen.start))
        names = plan.collection.names or tuple(f"x{number}" for number in range(plan.vectors.dim))
        factors = family.transforms.factors(len(names))
        self._axes = tuple(
            _Axis.of(
                name, _corners(grid.lower[j], grid.upper[j], grid.side * 2**cells.first, cells.values[0].shape[j]),
                factors[j], (float(plan.vectors.lower[j]), float(plan.vectors.upper[j])), j,
            )
            for j, name in enumerate(names)
        )  # fmt: skip

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; ``x0``, ``x1``, … where the plan has none."""
        return tuple(axis.name for axis in self._axes)

    def cell_width(self, column: str | int = 0) -> float:
        """The width of a cell of a column."""
        return float(np.diff(self._axis(column).edges).max())

    @cached_property
    def count(self) -> Statistic:
        """The number of records, m = 1."""
        return self._sum(np.ones((1,) * (1 + len(self._axes))))

    def histogram(self, column: str | int = 0, *, bins: int | None = None) -> Histogram:
        """The records of ranges of a column.

        Args:
            column: Its name or number.
            bins: How many ranges, each of about as many cells; None: one for each cell.

        Raises:
            RecordError: There is no such column.
            ValueError: ``bins`` is not from 1 to the number of cells, or there are too many of them.
        """
        axis = self._axis(column)
        ends = axis.ends(bins)
        self._refuse_many("bins", len(ends) - 1, len(axis))
        return Histogram(axis.name, axis.edges[ends], self._sum(self._along(axis, _steps(ends))))

    def cross_table(
        self, rows: str | int = 0, columns: str | int = 1, *, bins: tuple[int | None, int | None] = (10, 10)
    ) -> CrossTable:
        """The records by ranges of two columns.

        Args:
            rows: Name or number of a column.
            columns: Of another.
            bins: How many ranges of each, as for :meth:`histogram`, but at most as many as there are cells.

        Raises:
            RecordError: There is no such column.
            ValueError: Both are the same column, or there are too many ranges.
        """
        axes = self._axis(rows), self._axis(columns)
        if axes[0] is axes[1]:
            raise ValueError(f"columns: got {axes[0].name!r} twice, expected two columns")
        ends = [
            axis.ends(None if wanted is None else min(wanted, len(axis)))
            for axis, wanted in zip(axes, bins, strict=True)
        ]
        self._refuse_many("bins", (len(ends[0]) - 1) * (len(ends[1]) - 1), len(axes[0]) * len(axes[1]))
        first, second = (_steps(each) for each in ends)
        weights = self._along(axes[0], np.repeat(first, len(second), axis=0))
        both = weights * self._along(axes[1], np.tile(second, (len(first), 1)))
        edges = axes[0].edges[ends[0]], axes[1].edges[ends[1]]
        return CrossTable((axes[0].name, axes[1].name), edges, self._sum(both))

    def records_within(self, ranges: Mapping[str | int, tuple[float | None, float | None]]) -> Statistic:
        """The number of records within a range of each of these columns, m = 1.

        Args:
            ranges: By the name or number of a column, [low, high) in its units; None: from or to its bound. A range
                that reaches a bound has the records that were clipped to it. Of a cell that a range cuts the part
                inside counts, as if its records were evenly spread; ``bias`` is how many that may be wrong by: what is
                estimated of these cells and 3 standard errors.

        Raises:
            RecordError: There is no such column.
            ValueError: An end is NaN, or a range ends below its start.
        """
        one = np.ones((1,) * (1 + len(self._axes)))
        inner, part, outer = one, one, one
        for column, (low, high) in ranges.items():
            axis = self._axis(column)
            start, end = axis.edges[0] if low is None else low, axis.edges[-1] if high is None else high
            if not start <= end:
                raise ValueError(f"ranges: column {axis.name!r} has {(low, high)!r}, expected a lower and an upper end")
            shares = (axis.below(np.array([end])) - axis.below(np.array([start])))[0]
            inner, part, outer = (
                weights * self._along(axis, share[None])
                for weights, share in ((inner, shares >= 1.0), (part, shares), (outer, shares > 0.0))
            )
        found, cut = self._sum(part), self._sum(np.asarray(outer - inner, np.float64))
        least, most = (self._value(weights) for weights in (inner, outer))
        off = np.maximum(0.0, np.maximum(found.value - least, most - found.value))
        return replace(found, bias=off + _CUT_ERRORS * cut.std_error)

    def cdf(self, points: npt.ArrayLike | None = None, column: str | int = 0) -> Cdf:
        """The shares of the records below points of a column.

        Args:
            points: (m,); None: all edges of cells. Within a cell a share is on a straight line between its edges;
                ``bias`` is what that may be wrong by. At the upper bound all records are below.
            column: Its name or number.

        Raises:
            RecordError: There is no such column.
            ValueError: A point is NaN, or there are too many.
        """
        axis = self._axis(column)
        at = axis.edges if points is None else np.atleast_1d(np.asarray(points, np.float64))
        if at.ndim != 1 or np.isnan(at).any():
            raise ValueError("points: expected a list of numbers without NaN")
        self._refuse_many("points", len(at), len(axis))
        shares = axis.below(at)
        found = self._sum(self._along(axis, shares)) / self.count
        inside = (shares > 0.0) & (shares < 1.0)  # at most one cell a point
        if inside.any():
            part = np.where(inside, np.maximum(shares, 1.0 - shares), 0.0).max(axis=1)
            cut = self._sum(self._along(axis, inside))
            off = part * (np.maximum(cut.value, 0.0) + _CUT_ERRORS * cut.std_error)
            found = replace(found, bias=off / max(float(self.count.value[0]), 1.0))
        return Cdf(axis.name, at, found)

    def quantiles(
        self, probabilities: npt.ArrayLike = _DESCRIBED, column: str | int = 0, *, confidence: float = 0.95
    ) -> Quantiles:
        """The quantiles of a column.

        An interval holds every cell that a test does not exclude: the quantile is above a cell if significantly fewer
        than the share q of all records are below its upper end, and below it if significantly more than q are below its
        lower end (the test-inversion interval of a quantile: Woodruff, *Confidence intervals for medians and other
        position measures*, 1952). So it covers the quantile of the records at least as often as it says.

        Args:
            probabilities: (m,), in (0, 1).
            column: Its name or number.
            confidence: In (0, 1), of the intervals.

        Raises:
            RecordError: There is no such column.
            ValueError: A probability is not in (0, 1), or the grid has too many cells in several dimensions.
        """
        axis, asked = self._axis(column), np.atleast_1d(np.asarray(probabilities, np.float64))
        if asked.ndim != 1 or not np.all((asked > 0.0) & (asked < 1.0)):
            raise ValueError(f"probabilities: got {probabilities!r}, expected numbers between 0 and 1")
        if len(self._axes) > 1:
            self._refuse_many("cells of a column", len(axis) + 1, len(axis))
        reach = _reach(confidence, normal=self._normal)
        ends = np.array([self._quantile_interval(axis, float(share), reach) for share in asked]).reshape(-1, 2)
        bound = (ends[:, 0] < axis.edges[1]) | (ends[:, 1] > axis.edges[-2])
        value = np.full(len(asked), np.nan)
        if float(self.count.value[0]) > _ERRORS_MIN * float(self.count.std_error[0]):
            below = _isotonic(np.concatenate([[0.0], np.cumsum(self._marginal(axis))]))
            value = np.array([_crossing(axis.edges, below, float(share * self.count.value[0])) for share in asked])
        return Quantiles(axis.name, asked, value, ends[:, 0], ends[:, 1], confidence, bound)

    def mean(self, column: str | int = 0) -> Statistic:
        """The mean of a column, m = 1: with each record in the middle of its cell, off by at most half a cell."""
        axis = self._axis(column)
        found = self._sum(self._along(axis, axis.middles[None])) / self.count
        return replace(found, bias=np.array([axis.half_width]))

    def variance(self, column: str | int = 0) -> Statistic:
        """The variance of a column (divided by n), m = 1; maybe below 0 by noise.

        With each record in the middle of its cell. That changes the standard deviation s by at most half a cell h, so
        the variance by at most 2·s·h + h².
        """
        axis = self._axis(column)
        mean = float(self.mean(column).value[0])
        squares = np.square(axis.middles - (0.0 if math.isnan(mean) else mean))
        found = self._sum(self._along(axis, squares[None])) / self.count  # in which the mean has the derivative 0
        off = 2.0 * axis.half_width * np.sqrt(np.maximum(found.value, 0.0)) + axis.half_width**2
        return replace(found, bias=np.where(np.isnan(off), axis.half_width**2, off))

    def std(self, column: str | int = 0) -> Statistic:
        """The standard deviation of a column, m = 1; NaN where the variance is not above 0. Off by half a cell."""
        variance = self.variance(column)
        positive = variance.value > 0.0
        value = np.sqrt(np.where(positive, variance.value, np.nan))
        slope = np.where(positive, 0.5 / np.where(positive, value, 1.0), 0.0)
        found = variance._joined(None, value, slope, 0.0)  # noqa: SLF001 -- a function of the same class's object
        return replace(found, bias=np.array([self._axis(column).half_width]))

    def describe(self, *, confidence: float = 0.95) -> Description:
        """Number of records, and of each column mean, standard deviation, bounds and quartiles, with intervals.

        Args:
            confidence: In (0, 1), of each interval.
        """
        columns = {}
        for axis in self._axes:
            quartiles = self.quantiles(column=axis.name, confidence=confidence)
            low, high = axis.edges[[0, -1]].tolist()
            columns[axis.name] = (
                _figure("mean", self.mean(axis.name), confidence),
                _figure("std", self.std(axis.name), confidence),
                Figure("min", low, None, low, low),
                *(
                    Figure(
                        f"{100 * quartiles.probabilities[i]:g}%", float(quartiles.value[i]), None,
                        float(quartiles.low[i]), float(quartiles.high[i]), at_bound=bool(quartiles.at_bound[i]),
                    )
                    for i in range(len(quartiles.value))
                ),
                Figure("max", high, None, high, high),
            )  # fmt: skip
        widths = {axis.name: self.cell_width(axis.name) for axis in self._axes}
        return Description(self.label, confidence, _figure("count", self.count, confidence), columns, widths)

    @property
    def _size(self) -> int:
        return self._cells.values[0].size

    def _axis(self, column: str | int) -> "_Axis":
        if isinstance(column, str) and column in self.columns:
            return self._axes[self.columns.index(column)]
        if not isinstance(column, str) and 0 <= column < len(self._axes):
            return self._axes[column]
        raise RecordError(f"column: got {column!r}; the plan's columns are {', '.join(map(repr, self.columns))}")

    def _along(self, axis: "_Axis", weights: npt.ArrayLike) -> Floats:
        """Weights (m, J) of the cells of a column, in increasing order, as they are broadcast to those of the grid."""
        given = np.asarray(weights, np.float64)[:, :: axis.order]
        return np.expand_dims(given, tuple(1 + j for j in range(len(self._axes)) if j != axis.number))

    def _value(self, weights: Floats) -> Floats:
        """Σ weight·records, (m,)."""
        shape, values = weights.shape[1:], self._cells.values[0]
        alike = tuple(j for j, size in enumerate(shape) if size == 1)
        summed = values.sum(axis=alike, keepdims=True)
        return np.asarray(weights.reshape(len(weights), -1) @ summed.reshape(-1), np.float64)

    def _marginal(self, axis: "_Axis") -> Floats:
        """(J,): the records of each cell of a column, in increasing order."""
        others = tuple(j for j in range(len(self._axes)) if j != axis.number)
        return np.asarray(self._cells.values[0].sum(axis=others)[:: axis.order], np.float64)

    def _sum(self, weights: Floats) -> Statistic:
        """Σ weight·records."""
        parts = tuple(
            _Part(self._digest, self.release.plan.id, self._noise_ms, index, self._of_class, weights, self._normal)
            for index in range(self._chosen.start, self._chosen.stop)
        )
        return Statistic(self._value(weights), np.zeros(len(weights)), parts)

    def _refuse_many(self, what: str, number: int, kept: int) -> None:
        """Refuses more statistics than can be weighted, and kept with so many weights each.

        Raises:
            ValueError: There are too many.
        """
        most = min(_WEIGHTS_MAX // self._size, _KEPT_MAX // kept)
        if number > most:
            raise ValueError(f"{what}: got {number:,}, expected at most {most:,} of a grid of {self._size:,} cells")

    def _quantile_interval(self, axis: "_Axis", share: float, reach: float) -> tuple[float, float]:
        if axis.order > 0:
            over, error = self._cells.prefixes(axis.number, share)
        else:  # the first k cells are all but the last J - k
            over, error = self._cells.prefixes(axis.number, 1.0 - share)
            over, error = -over[::-1], error[::-1]
        above = over[1:] + reach * error[1:] < 0.0  # of each cell: whether the quantile is above it
        below = over[:-1] - reach * error[:-1] > 0.0
        kept = np.flatnonzero(~(above | below))
        if not len(kept):  # tests contradict each other: then no cell is excluded
            kept = np.arange(len(axis))
        return float(axis.edges[kept.min()]), float(axis.edges[kept.max() + 1])


@dataclass(frozen=True, eq=False)
class _Axis:
    """The cells of one column.

    Attributes:
        name: Of the column.
        edges: (J + 1,), increasing, in the units of the plan's bounds.
        order: 1, or −1 if the grid has the cells the other way round.
        number: Of the column.
    """

    name: str
    edges: Floats
    order: int
    number: int

    @classmethod
    def of(cls, name: str, corners: Floats, factor: float, bounds: tuple[float, float], number: int) -> "_Axis":
        """Of corners of cells after a product with this factor; the outermost are the plan's bounds themselves."""
        order = 1 if factor > 0 else -1
        edges = np.clip(corners[::order] / factor, *bounds)
        edges[[0, -1]] = bounds
        return cls(name, edges, order, number)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def middles(self) -> Floats:
        """(J,)."""
        return np.asarray((self.edges[:-1] + self.edges[1:]) / 2.0, np.float64)

    @property
    def half_width(self) -> float:
        """Of the widest cell."""
        return float(np.diff(self.edges).max()) / 2.0

    def ends(self, bins: int | None) -> npt.NDArray[np.int64]:
        """(bins + 1,): after which cells ranges of about as many cells each end."""
        if bins is not None and not 1 <= bins <= len(self):
            raise ValueError(f"bins: got {bins}, expected 1 to {len(self):,}, the cells of column {self.name!r}")
        return np.round(np.linspace(0, len(self), 1 + (bins or len(self)))).astype(np.int64)

    def below(self, points: Floats) -> Floats:
        """(m, J): which part of each cell is below each point; all of the last one at the upper bound."""
        low, wide = self.edges[:-1], np.diff(self.edges)
        part = (points[:, None] - low) / np.where(wide > 0.0, wide, 1.0)
        return np.where(points[:, None] >= self.edges[1:], 1.0, np.clip(part, 0.0, 1.0))


def _refuse_shared_noise(part: _Part, others: Iterable[_Part]) -> None:
    """Refuses different spans of one plan that share a window, or a cumulative sequence."""
    for other in others:
        if part.release != other.release and part.plan == other.plan and part.noise_ms and other.noise_ms:
            (start, end), (other_start, other_end) = part.noise_ms, other.noise_ms
            if start < other_end and other_start < end:
                what = "spans that share windows, or of one cumulative sequence,"
                raise ValueError(f"statistics of {what} cannot be combined: they share noise")


def _grid(release: Queryable) -> Partition:
    """The family, where there are statistics of it."""
    plan = release.plan
    family = plan.family
    if not isinstance(family, Partition):
        use = "fitting.fit_regression" if family.name == "paired" else "release.kernel_sum and release.density"
        raise PlanError(
            "sketch.family",
            family.name,
            f"'partition' for statistics of cells; of this release use {use}, "
            "and for another release a plan of the question 'histogram'",
        )
    if plan.privacy.reports is not None:
        raise PlanError("privacy.local.form", "report", "counters with noise for statistics; use release.kernel_sum")
    if family.cells != "grid":
        raise PlanError("sketch.cells", family.cells, "'grid' for statistics; of LSH cells use release.kernel_sum")
    return family


def _no_cells(family: Partition) -> PlanError:
    grid = family.tables.grid
    assert grid is not None, "checked before"
    cells = math.prod(grid.counts.tolist())
    if any(hashes.direct for hashes in family.tables.levels):
        return PlanError("sketch.bandwidth", family.bandwidth, f"at most {CELLS_MAX:,} cells for statistics")
    return PlanError(
        "sketch.buckets",
        family.buckets,
        f"{cells:,}, one for each cell, or levels up to one that has so few cells; of cells that share counters use "
        "release.kernel_sum and hushsum.synthetic.heavy_cells",
    )


def _corners(lower: float, upper: float, side: float, cells: int) -> Floats:
    return np.asarray(np.minimum(lower + np.arange(cells + 1) * side, upper), np.float64)


def _steps(ends: npt.NDArray[np.int64]) -> Floats:
    """(m, J): 1 at the cells between two ends, else 0."""
    cells = np.arange(ends[-1])
    return ((cells >= ends[:-1, None]) & (cells < ends[1:, None])).astype(np.float64)


def _summed(terms: Sequence[tuple[Floats, float | Floats]]) -> Floats:
    """Σ by·weights, of what is broadcast against each other.

    Raises:
        ValueError: There would be too many numbers.
    """
    factors = [_first(by, weights.ndim) for weights, by in terms]
    shape = np.broadcast_shapes(*(weights.shape for weights, _ in terms), *(factor.shape for factor in factors))
    if math.prod(shape) > _KEPT_MAX:
        raise ValueError(f"got {shape[0]:,} statistics of so many cells, expected at most {_KEPT_MAX:,} weights")
    total = np.zeros(shape)
    for (weights, _), factor in zip(terms, factors, strict=True):
        total += factor * weights
    return total


def _first(by: float | Floats, ndim: int) -> Floats:
    """Along the first of so many dimensions."""
    given = np.atleast_1d(np.asarray(by, np.float64))
    return given.reshape(-1, *(1,) * (ndim - 1))


def _reach(confidence: float, *, normal: bool) -> float:
    """How many standard errors an interval reaches to each side."""
    from statistics import NormalDist

    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: got {confidence!r}, expected a number between 0 and 1")
    reach = NormalDist().inv_cdf(0.5 + confidence / 2)
    return reach if normal else max(reach, -math.log(1.0 - confidence) / math.sqrt(2.0))


def _crossing(edges: Floats, below: Floats, wanted: float) -> float:
    """Where so many records are below, of monotone numbers (J + 1,) at edges: on a straight line within a cell."""
    cell = min(max(int(np.searchsorted(below, wanted)) - 1, 0), len(edges) - 2)
    low, high = below[cell], below[cell + 1]
    part = (wanted - low) / (high - low) if high > low else 0.0
    return float(edges[cell] + min(max(part, 0.0), 1.0) * (edges[cell + 1] - edges[cell]))


def _isotonic(values: Floats) -> Floats:
    """The nearest numbers that never decrease, by pooling adjacent violators.

    Barlow, Bartholomew, Bremner and Brunk, *Statistical inference under order restrictions* (1972), section 1.2.
    SciPy's function is the same, but SciPy is no dependency of analysts.
    """
    means: list[float] = []
    sizes: list[int] = []
    for each in values.tolist():
        mean, size = each, 1
        while means and means[-1] >= mean:
            mean = (mean * size + means[-1] * sizes[-1]) / (size + sizes[-1])
            size += sizes.pop()
            means.pop()
        means.append(mean)
        sizes.append(size)
    return np.asarray(np.repeat(means, sizes), np.float64)


def _on_simplex(values: Floats) -> Floats:
    """The nearest numbers of at least 0 with the same sum; 0 where it is not above 0.

    Duchi, Shalev-Shwartz, Singer and Chandra, *Efficient projections onto the l1-ball* (2008), figure 1.
    """
    total = float(values.sum())
    if total <= 0.0:
        return np.zeros(len(values))
    falling = np.sort(values)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.asarray(np.maximum(values - over[np.flatnonzero(falling > over)[-1]], 0.0), np.float64)


def _figure(name: str, found: Statistic, confidence: float) -> Figure:
    low, high = found.interval(confidence)
    return Figure(name, float(found.value[0]), float(found.std_error[0]), float(low[0]), float(high[0]))
