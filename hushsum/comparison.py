"""Two releases compared: what differs between them by more than noise explains, at no cost in privacy.

Both have the same rows: the same hash functions, drawn once. The difference of two answers from rows is the answer of
the difference of their counters, and its standard error the spread of that over the rows: what a row has wrong about
both releases alike cancels, and what is left of the hashing error is that of the difference alone. Where answers have
no hashing error (cells, moments), or each record has chosen its row (reports), variances add; for reports that
overstates the error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.errors import PlanError
from hushsum.families import Answer, SetRecords
from hushsum.plan import Plan
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN
from hushsum.privacy.relations import CLIENT
from hushsum.query import Queryable
from hushsum.student_t import student_t_tails
from hushsum.tables import read_queries

Counters = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LINE_PLACES: Final = 256
_PLANE_PLACES: Final = 32  # along each side
_SPACE_PLACES: Final = 1024
_WEIGHTED_MAX: Final = 2.0**60  # of a row's sum, which stays inside int64
_PRECISION: Final = 2.0**20  # of the ratio of two numbers of records
_DEGREES_MIN: Final = 7
_COUNT_ERRORS: Final = 5.0  # of its own, above which a number of records is one to divide by
_POOLED_ERRORS: Final = 3.0
_PARTS: Final = (0.3, 0.5, 0.7, 0.85, 0.95)
_FRACTIONS: Final = (*(part / 20 for part in range(1, 20)), 0.97, 0.99, 1.0)


@dataclass(frozen=True, eq=False)
class Differences:
    """The places at which two releases differ, the most significant first.

    Attributes:
        at: (k,) int64: their numbers among the queries.
        places: The k places: (k, d), or k sets.
        difference: Of the densities there, first minus second, with standard errors: (k,).
        p_value: (k,), at most the level, adjusted for all places that were asked about (Holm).
        asked: At how many places.
    """

    at: npt.NDArray[np.int64]
    places: Any
    difference: Answer
    p_value: Floats
    asked: int

    def __len__(self) -> int:
        return len(self.p_value)

    def __repr__(self) -> str:
        return f"Differences({len(self)} of {self.asked} places)"


@dataclass(frozen=True, eq=False)
class _Side:
    """What a test needs of one release.

    Attributes:
        release: That release.
        values: (m,) kernel sums.
        errors: (m,) their standard errors.
        spread: Of :class:`hushsum.families.Answer`.
        total: The number of records.
        total_error: Its standard error.
        draws: How many draws of the mechanism a counter holds: of all classes that are added up, and of all clients.
    """

    release: Queryable
    values: Floats
    errors: Floats
    spread: str
    total: float
    total_error: float
    draws: float

    @classmethod
    def of(cls, release: Queryable, places: Any, label: str | None) -> "_Side":
        plan = release.plan
        found, (total, error) = release.kernel_sum(places, label=label), _count(release, label)
        draws = 0.0
        if plan.privacy.reports is None:
            classes = query.classes_of(plan, label)
            draws = (classes.stop - classes.start) * query.noise_variance(plan, draws=release.draws)
            draws /= plan.privacy.mechanism.noise_variance
        return cls(release, found.value, found.std_error, found.spread, total, error, draws)

    @property
    def least_variance(self) -> float:
        """What noise alone brings into its density."""
        if not self.draws:
            return 0.0
        noise = self.draws * self.release.plan.privacy.mechanism.noise_variance
        return self.release.plan.family.answer_variance(noise) / self.total**2

    def noise(self, pooled: Floats) -> "_Noise":
        """That of its density, if that is ``pooled``: of the kernel sum, and of the number of records times it."""
        mechanism = self.release.plan.privacy.mechanism
        deviation = np.sqrt(np.square(self.errors) + np.square(pooled * self.total_error)) / self.total
        of_count = np.abs(pooled) / mechanism.count_scale if mechanism.count_scale else 0.0
        most = np.maximum(self.release.plan.family.answer_weight_max, of_count) / self.total
        weight = np.minimum(deviation / math.sqrt(mechanism.noise_variance * self.draws), most)
        return _Noise(deviation, weight, mechanism.noise_variance, mechanism.name == DISCRETE_GAUSSIAN)

    def sample(self, high: Floats) -> "_Sample":
        """That of its density, if that is at most ``high`` in the population."""
        plan = self.release.plan
        windows = min(self.release.windows, plan.window.windows_per_client or self.release.windows)
        most = (plan.privacy.records_per_client or 1) * (windows if plan.privacy.unit == CLIENT else 1)
        clients = max(self.total - 2.0 * self.total_error, 1.0) / most
        return _Sample(high, clients, plan.family.kernel_min < 0.0)


@dataclass(frozen=True, eq=False)
class _Noise:
    """A weighted sum of independent draws of a mechanism.

    Attributes:
        deviation: (m,) its standard deviation.
        weight: (m,) the most of a draw.
        variance: Of a draw.
        is_gaussian: Whether they are discrete Gaussian, which are no more far-reaching than Gaussian ones; or Laplace.
    """

    deviation: Floats
    weight: Floats
    variance: float
    is_gaussian: bool

    @property
    def reach(self) -> Floats:
        """(m,) the t from which on E[e^{tX}] may be infinite."""
        if self.is_gaussian:
            return np.full(len(self.deviation), np.inf)
        with np.errstate(divide="ignore"):
            return math.acosh(1.0 + 1.0 / self.variance) / self.weight

    def log_moment(self, t: Floats) -> Floats:
        """(m,) the most that ln E[e^{tX}] is.

        Of one draw of discrete Laplace noise of variance v it is h(t) = −ln(1 − v(cosh t − 1)). h(√y) is convex in y
        and 0 at 0, so that Σ h(wᵢt) ≤ Σ wᵢ²/w² · h(wt) for weights wᵢ ≤ w.
        """
        if self.is_gaussian:
            return 0.5 * np.square(t * self.deviation)
        draws = np.square(self.deviation) / (self.variance * np.square(self.weight))
        return -draws * np.log1p(-self.variance * (np.cosh(t * self.weight) - 1.0))


def _joined(opposed: float, one: _Noise, other: _Noise) -> list[_Noise]:
    """The difference of two that share draws with opposite signs: a sum of draws, each with the weights of both."""
    deviation = np.sqrt(_variance(opposed, one.deviation, other.deviation))
    return [_Noise(deviation, one.weight + other.weight, one.variance, one.is_gaussian)]


@dataclass(frozen=True, eq=False)
class _Sample:
    """The mean kernel of independent clients, less its expectation.

    Attributes:
        high: (m,) the most that the expectation is, in [0, 1].
        clients: How many.
        is_signed: Whether kernels are from −1 to 1; otherwise from 0 to 1.
    """

    high: Floats
    clients: float
    is_signed: bool

    @property
    def reach(self) -> Floats:
        return np.full(len(self.high), np.inf)

    @property
    def deviation(self) -> Floats:
        return np.sqrt((1.0 if self.is_signed else self.high) / self.clients * np.ones(len(self.high)))

    def log_moment(self, t: Floats) -> Floats:
        """(m,) the most that ln E[e^{t(X − E X)}] is, either sign of t (Hoeffding; Bennett, for kernels from 0 on)."""
        if self.is_signed:
            return 0.5 * np.square(t) / self.clients
        return self.clients * self.high * (np.expm1(t / self.clients) - t / self.clients)


def _chernoff(parts: "Sequence[_Noise | _Sample]", distance: Floats) -> Floats:
    """(m,) the most that P(ΣX ≥ distance) is: the least of e^{−t·distance}·E[e^{tΣX}] over some t."""
    distance = np.maximum(distance, 0.0)
    most = np.minimum.reduce([each.reach for each in parts])
    variance = np.add.reduce([np.square(each.deviation) for each in parts])
    tail = np.ones(len(distance))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        usual = np.where(variance > 0, distance / variance, 0.0)
        for part in _FRACTIONS:
            for t in (part * usual, part * most):
                inside = (t < most) & np.isfinite(t)
                at = np.where(inside, t, 0.0)
                moment = np.add.reduce([each.log_moment(at) for each in parts])
                tail = np.fmin(tail, np.where(inside, np.exp(moment - at * distance), 1.0))
    return tail


def _rows_tail(sides: Sequence[_Side], pooled: Floats, found: Answer, opposed: float) -> Callable[[Floats], Floats]:
    """P(error ≥ distance) of a difference of means of rows, by Student's t, where densities are ``pooled``."""
    # Rows that agree by chance have less spread than their noise has.
    least = _variance(opposed, *(math.sqrt(each.least_variance) for each in sides))
    of_totals = _variance(opposed, *(pooled * each.total_error / each.total for each in sides))
    root = np.sqrt(np.maximum(np.square(found.std_error), least) + of_totals)

    def tail(distance: Floats) -> Floats:
        ratio = np.divide(distance, root, out=np.where(distance > 0, np.inf, 0.0), where=root > 0)
        return student_t_tails(np.maximum(ratio, 0.0), found.degrees)

    return tail


def _variance(opposed: float, one: Any, other: Any) -> Any:
    """The most of the variance of a difference with these standard deviations, whose correlation is −``opposed``."""
    return np.square(one) + np.square(other) + 2.0 * opposed * np.abs(one * other)


@dataclass(frozen=True, eq=False)
class Comparison:
    """A release against another one with the same sketch: made by :meth:`hushsum.Release.compare`.

    Attributes:
        first: What differences are positive for.
        second: What is subtracted.

    Raises:
        PlanError: Their sketches, records or classes differ.
    """

    first: Queryable
    second: Queryable

    def __post_init__(self) -> None:
        one, other = self.first.plan, self.second.plan
        for key, a, b in (
            ("sketch", one.family, other.family),
            ("record", one.collection, other.collection),
            ("privacy.mode", one.privacy.reports is None, other.privacy.reports is None),
        ):
            if a != b:
                expected = f"that of {one.name!r}: releases are compared by counters of the same rows and columns"
                raise PlanError(key, f"another one in {other.name!r}", expected)

    def count(self, *, label: str | None = None) -> Answer:
        """The difference of the numbers of records, (1,), with its standard error."""
        found = [_count(release, label) for release in (self.first, self.second)]
        value = found[0][0] - found[1][0]
        std_error = math.sqrt(_variance(self._opposed, found[0][1], found[1][1]))
        return Answer(np.array([value]), np.array([std_error]), "noise")

    def kernel_sum(self, queries: Any, *, label: str | None = None) -> Answer:
        """Differences of :meth:`hushsum.Release.kernel_sum` at m queries, in records.

        Raises:
            RecordError: The queries cannot be used, or there is no such class.
        """
        first, second = (each.kernel_sum(queries, label=label) for each in (self.first, self.second))
        return self._differences(first, second, queries, label, (1.0, 1.0))

    def density(self, queries: Any, *, label: str | None = None) -> Answer:
        """Differences of :meth:`hushsum.Release.density`, the mean kernel, at m queries.

        Releases of different numbers of records are comparable so. The error of both numbers is counted.

        Raises:
            RecordError: As :meth:`kernel_sum`.
        """
        return self._densities(queries, label)[0]

    def regions(
        self, queries: Any = None, *, label: str | None = None, level: float = 0.05, sampling: bool = False
    ) -> Differences:
        """The places whose densities differ by more than noise and hashing explain.

        The probability that any place is named at which nothing differs is at most ``level``, whatever the number of
        places and however they depend on each other (Holm 1979). Noise alone is bounded by its moment generating
        function (Chernoff); the mean of rows or sets is taken to have the tail of Student's t, and never less spread
        than its noise. No place is named where a release may have few records: a number of records below five of its
        standard errors.

        Args:
            queries: Where to look; places that were not chosen by looking at the two releases. None: evenly within the
                plan's bounds, on a line, a grid of 32 × 32, or at 1,024 places of a Sobol sequence.
            label: Of this class alone.
            level: The family-wise error rate, in (0, 1).
            sampling: Whether the records of each release are a sample, and differences of samples of one population
                count as explained: see :meth:`p_value`. Without, any difference between the records counts.

        Raises:
            PlanError: The plan's answers are no densities, or it collects sets and there are no queries.
            RecordError: The queries cannot be used, or there is no such class.
            ValueError: The level is out of range, or the sketch has fewer than 8 rows or sets of rows: too few for a
                tail.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level: got {level!r}, expected a number between 0 and 1")
        places, answer, alone = self._tested(queries, label, sampling=sampling)
        order = np.argsort(alone, kind="stable")
        left = len(alone) - np.arange(len(alone))
        adjusted = np.minimum(np.maximum.accumulate(alone[order] * left), 1.0)
        chosen = order[adjusted <= level]
        found = Answer(
            answer.value[chosen],
            answer.std_error[chosen],
            answer.spread,
            answer.degrees,
            None if answer.bias is None else answer.bias[chosen],
        )
        some = places[chosen] if isinstance(places, np.ndarray) else [places[at] for at in chosen.tolist()]
        return Differences(chosen, some, found, adjusted[: len(chosen)], len(alone))

    def p_value(self, queries: Any = None, *, label: str | None = None) -> float:
        """The p-value of a two-sample test: are both releases samples of one population?

        The smallest p-value of all places times their number (Bonferroni). A mean of n kernels between 0 and 1 with
        mean f has the tail of a Poisson number of mean n·f over n at most (Bennett), and else (given frequencies) that
        of Hoeffding; where one client has up to m records, n/m of them count. Arguments and errors are those of
        :meth:`regions`.
        """
        _, _, alone = self._tested(queries, label, sampling=True)
        return min(1.0, float(alone.min()) * len(alone))

    def __repr__(self) -> str:
        return f"Comparison({self.first!r}, {self.second!r})"

    @cached_property
    def _opposed(self) -> float:
        """Minus the correlation of the noise of both, where it is below 0: of spans of one cumulative sequence."""
        if not (draws := query.opposed_draws(self.first, self.second)):
            return 0.0
        return draws / math.sqrt((self.first.draws or 1.0) * (self.second.draws or 1.0))

    @property
    def _of_reports(self) -> bool:
        return self.first.plan.privacy.reports is not None

    def _differences(
        self, first: Answer, second: Answer, queries: Any, label: str | None, totals: tuple[float, float]
    ) -> Answer:
        """First minus second, answers over their totals; with errors from these, or from their counters."""
        if first.spread == "noise" or self._of_reports:
            bias = None if first.bias is None or second.bias is None else first.bias + second.bias
            std_error = np.sqrt(_variance(self._opposed, first.std_error, second.std_error))
            return Answer(first.value - second.value, std_error, first.spread, first.degrees, bias)
        plan = self.first.plan
        chosen = query.classes_of(plan, label)
        weights, scale, weighted = self._weighted(chosen, totals)
        deviations = (
            weight * math.sqrt((chosen.stop - chosen.start) * query.noise_variance(each.plan, draws=each.draws))
            for weight, each in zip(weights, (self.first, self.second), strict=True)
        )
        variance = float(_variance(self._opposed, *deviations))
        found = plan.family.answer(weighted, read_queries(plan, queries), noise_variance=variance).over(scale)
        # The mean is linear: weights are rounded, and this is not.
        return Answer(first.value - second.value, found.std_error, found.spread, found.degrees)

    def _weighted(self, classes: slice, totals: tuple[float, float]) -> tuple[tuple[int, int], float, Counters]:
        """The weights of both releases' counters, their scale (:func:`_weights`), and the weighted difference."""
        key = classes.start, classes.stop, totals
        known = self._weights_kept.get(key)  # each part of a figure has the same
        if known is None:
            counters = [query.class_sum(each.counters, classes) for each in (self.first, self.second)]
            weights, scale = _weights(counters, totals)
            weighted = weights[0] * counters[0]
            weighted -= weights[1] * counters[1]
            weighted.flags.writeable = False
            self._weights_kept.clear()
            known = self._weights_kept[key] = weights, scale, weighted
        return known

    @cached_property
    def _weights_kept(self) -> dict[object, tuple[tuple[int, int], float, Counters]]:
        """The newest value of :meth:`_weighted`, by its arguments."""
        return {}

    def _densities(self, queries: Any, label: str | None) -> tuple[Answer, Answer]:
        """:meth:`density`; and for answers from rows the same without the errors of the numbers of records."""
        if not isinstance(queries, np.ndarray):
            return self._densities_at(queries, label)
        key = queries.shape, queries.dtype.str, queries.tobytes(), label
        if key not in self._newest:  # a figure asks for the differences at its places, and then tests them there
            found = self._densities_at(queries, label)
            self._newest.clear()
            self._newest[key] = found
        return self._newest[key]

    @cached_property
    def _newest(self) -> dict[object, tuple[Answer, Answer]]:
        """The newest answer of :meth:`_densities`, by its places."""
        return {}

    def _densities_at(self, queries: Any, label: str | None) -> tuple[Answer, Answer]:
        first, second = (each.density(queries, label=label) for each in (self.first, self.second))
        (n_first, of_first), (n_second, of_second) = (_count(each, label) for each in (self.first, self.second))
        totals = max(n_first, 1.0), max(n_second, 1.0)
        found = self._differences(first, second, queries, label, totals)
        if found.spread == "noise" or self._of_reports:  # the errors of both counts are in both answers
            return found, found
        of_counts = _variance(self._opposed, first.value * of_first / totals[0], second.value * of_second / totals[1])
        std_error = np.sqrt(np.square(found.std_error) + of_counts)
        return Answer(found.value, std_error, found.spread, found.degrees), found

    def _tested(self, queries: Any, label: str | None, *, sampling: bool) -> tuple[Any, Answer, Floats]:
        """Places, the differences there, and the p-value of each alone."""
        plan = self.first.plan
        if plan.family.name == "paired":
            raise PlanError("sketch.family", "paired", "a family with densities: this one answers with losses")
        places = self._places if queries is None else queries
        answer, of_rows = self._densities(places, label)
        if answer.spread != "noise" and not self._of_reports and (answer.degrees or 0) < _DEGREES_MIN:
            number = (answer.degrees or 0) + 1
            raise ValueError(
                f"the sketch has {number} rows or sets of rows, expected {_DEGREES_MIN + 1} or more to test"
            )
        sides = [_Side.of(each, places, label) for each in (self.first, self.second)]
        if any(each.total < max(1.0, _COUNT_ERRORS * each.total_error) for each in sides):
            return places, answer, np.ones(len(answer.value))
        total = sides[0].total + sides[1].total
        pooled = (sides[0].values + sides[1].values) / total  # of both alike, if nothing differs
        distance = np.abs(answer.value) - (0.0 if answer.bias is None else answer.bias)
        samples = []
        if sampling:
            high = np.maximum(pooled, 0.0) + _POOLED_ERRORS * (sides[0].errors + sides[1].errors) / total
            high *= 1.0 + _POOLED_ERRORS * (sides[0].total_error + sides[1].total_error) / total
            samples = [each.sample(np.clip(high, 0.0, 1.0)) for each in sides]
        if all(each.spread == "noise" for each in sides):
            noises = [each.noise(pooled) for each in sides]
            alone = _chernoff([*(_joined(self._opposed, *noises) if self._opposed else noises), *samples], distance)
        else:
            tail = _rows_tail(sides, pooled, of_rows, self._opposed)
            alone = tail(distance) if not sampling else np.ones(len(distance))
            for part in _PARTS if sampling else ():  # what part of the distance hashing has, samples have the rest of
                alone = np.minimum(alone, tail(part * distance) + _chernoff(samples, (1.0 - part) * distance))
        return places, answer, np.minimum(2.0 * alone, 1.0)

    @cached_property
    def _places(self) -> Floats:
        """(m, d): evenly within the plan's bounds."""
        return places_within(self.first.plan)


def places_within(plan: Plan) -> Floats:
    """(m, d): places that lie evenly within a plan's public bounds, the same each time.

    Raises:
        PlanError: It collects sets.
    """
    if isinstance(plan.record, SetRecords):
        raise PlanError("record.kind", "set", "'vector', or queries: sets have no bounds to look within")
    lower = np.array([float(bound) for bound in plan.vectors.lower])
    upper = np.array([float(bound) for bound in plan.vectors.upper])
    if len(lower) <= 2:
        side = _LINE_PLACES if len(lower) == 1 else _PLANE_PLACES
        axis = (np.arange(side) + 0.5) / side
        unit = np.stack(np.meshgrid(*[axis] * len(lower), indexing="ij"), axis=-1).reshape(-1, len(lower))
    else:
        from hushsum.sobol import MAX_DIMS, sequence

        levels = _SPACE_PLACES.bit_length() - 1
        if len(lower) > MAX_DIMS:
            raise PlanError("record.dim", len(lower), f"at most {MAX_DIMS}, or queries")
        unit = (sequence(levels, len(lower)).T + 0.5) / _SPACE_PLACES
    return np.asarray(lower + unit * (upper - lower), np.float64)


def _count(release: Queryable, label: str | None) -> tuple[float, float]:
    """The number of records of a release, or of one class, and its standard error."""
    value = release.count if label is None else release.count_of(label)
    plan, draws = release.plan, release.draws
    return value, query.count_std_error(plan, label=label, draws=draws, counters=release.counters)


def _weights(counters: list[npt.NDArray[np.int64]], totals: tuple[float, float]) -> tuple[tuple[int, int], float]:
    """Integers w and a scale s, with w/s = 1/total for each, to a relative 2⁻²⁰ where counters leave room for it."""
    if totals == (1.0, 1.0):
        return (1, 1), 1.0
    largest = [max(1.0, float(np.abs(each).sum(axis=-1, dtype=np.float64).max())) for each in counters]
    room = min(total * _WEIGHTED_MAX / most for total, most in zip(totals, largest, strict=True))
    scale = min(_PRECISION * max(totals), room)
    first, second = (max(1, round(scale / total)) for total in totals)
    return (first, second), scale
