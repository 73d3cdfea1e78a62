"""Two releases compared: what differs between them by more than noise explains, at no cost in privacy.

Both have the same rows: the same hash functions, drawn once. The difference of two answers from rows is the answer of
the difference of their counters, and its standard error the spread of that over the rows: what a row has wrong about
both releases alike cancels, and what is left of the hashing error is that of the difference alone. Where answers have
no hashing error (cells, moments), or each record has chosen its row (reports), variances add; for reports that
overstates the error.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.errors import PlanError
from hushsum.families import Answer, SetRecords
from hushsum.plan import Plan
from hushsum.query import Queryable
from hushsum.student_t import student_t_tail
from hushsum.tables import read_queries

Floats = npt.NDArray[np.float64]

_LINE_PLACES: Final = 256
_PLANE_PLACES: Final = 32  # along each side
_SPACE_PLACES: Final = 1024
_WEIGHTED_MAX: Final = 2.0**60  # of a counter: sums of a few stay inside int64
_PRECISION: Final = 2.0**20  # of the ratio of two numbers of records


@dataclass(frozen=True, eq=False)
class Differences:
    """The places at which two releases differ, the most significant first.

    Attributes:
        at: (k,) int64: their numbers among the queries.
        places: The k places: (k, d), or k sets.
        difference: Of the densities there, first minus second, with standard errors: (k,).
        p_value: (k,) in (0, level], adjusted for all places that were asked about (Holm).
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
        value, std_error = found[0][0] - found[1][0], math.hypot(found[0][1], found[1][1])
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
        first, second = (each.density(queries, label=label) for each in (self.first, self.second))
        (n_first, of_first), (n_second, of_second) = (_count(each, label) for each in (self.first, self.second))
        totals = max(n_first, 1.0), max(n_second, 1.0)
        answer = self._differences(first, second, queries, label, totals)
        if answer.spread == "noise" or self._of_reports:  # the errors of both counts are in both answers
            return answer
        of_counts = np.hypot(first.value * of_first / totals[0], second.value * of_second / totals[1])
        return Answer(answer.value, np.hypot(answer.std_error, of_counts), answer.spread, answer.degrees)

    def regions(
        self, queries: Any = None, *, label: str | None = None, level: float = 0.05, sampling: bool = False
    ) -> Differences:
        """The places whose densities differ by more than noise and hashing explain.

        The probability that any place is named at which nothing differs is at most ``level``, whatever the number of
        places and however they depend on each other (Holm 1979), as far as errors are those of Student's t.

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
            ValueError: The level is out of range, or the sketch has one row and so no standard error.
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

        The smallest p-value of all places times their number (Bonferroni). The variance of a mean kernel f over n
        records is at most f(1 − f)/n, where a kernel is between 0 and 1, and else (given frequencies) (1 − f²)/n; where
        one client has up to m records, m times that. Arguments and errors are those of :meth:`regions`.
        """
        _, _, alone = self._tested(queries, label, sampling=True)
        return min(1.0, float(alone.min()) * len(alone))

    def __repr__(self) -> str:
        return f"Comparison({self.first!r}, {self.second!r})"

    @property
    def _of_reports(self) -> bool:
        return self.first.plan.privacy.reports is not None

    def _differences(
        self, first: Answer, second: Answer, queries: Any, label: str | None, totals: tuple[float, float]
    ) -> Answer:
        """First over its total minus second over its own, from these answers or from their counters."""
        if first.spread == "noise" or self._of_reports:
            bias = None if first.bias is None or second.bias is None else first.bias + second.bias
            std_error = np.hypot(first.std_error, second.std_error)
            return Answer(first.value - second.value, std_error, first.spread, first.degrees, bias)
        plan = self.first.plan
        chosen = query.classes_of(plan, label)
        counters = [each.counters[chosen].sum(axis=0) for each in (self.first, self.second)]
        weights, scale = _weights(counters, totals)
        variance = sum(
            weight**2 * (chosen.stop - chosen.start) * query.noise_variance(each.plan, each.submissions)
            for weight, each in zip(weights, (self.first, self.second), strict=True)
        )
        weighted = weights[0] * counters[0] - weights[1] * counters[1]
        return plan.family.answer(weighted, read_queries(plan, queries), noise_variance=variance).over(scale)

    def _tested(self, queries: Any, label: str | None, *, sampling: bool) -> tuple[Any, Answer, Floats]:
        """Places, the differences there, and the p-value of each alone."""
        plan = self.first.plan
        if plan.family.name == "paired":
            raise PlanError("sketch.family", "paired", "a family with densities: this one answers with losses")
        places = self._places if queries is None else queries
        answer = self.density(places, label=label)
        variance = np.square(answer.std_error)
        if sampling:
            variance += self._sampling_variance(places, label)
        if not np.all(np.isfinite(variance)):
            raise ValueError("the sketch has one row, and so no standard error: expected 2 rows or more")
        bias = 0.0 if answer.bias is None else answer.bias
        distance = np.maximum(np.abs(answer.value) - bias, 0.0)
        ratio = np.divide(distance, np.sqrt(variance), out=np.zeros_like(distance), where=distance > 0)
        alone = np.array([2.0 * student_t_tail(each, answer.degrees) for each in ratio.tolist()])
        return places, answer, alone

    def _sampling_variance(self, places: Any, label: str | None) -> Floats:
        """The most that samples of one population bring: f from both, one standard error higher."""
        totals, values, variances = [], [], []
        for each in (self.first, self.second):
            found = each.density(places, label=label)
            totals.append(max(_count(each, label)[0], 1.0))
            values.append(found.value)
            variances.append(np.square(found.std_error))
        plan, shares = self.first.plan, np.array(totals) / sum(totals)
        pooled = shares[0] * values[0] + shares[1] * values[1]
        error = np.sqrt(shares[0] ** 2 * variances[0] + shares[1] ** 2 * variances[1])
        if plan.family.name == "fourier" and plan.family.to_fields().get("draws") == "given":
            least = np.clip(np.abs(pooled) - error, 0.0, 1.0)
            most = 1.0 - np.square(least)
        else:
            nearest = np.clip(0.5, pooled - error, pooled + error).clip(0.0, 1.0)
            most = nearest * (1.0 - nearest)
        clients = (each.plan.privacy.records_per_client or 1 for each in (self.first, self.second))
        return np.asarray(most * sum(m / total for m, total in zip(clients, totals, strict=True)), np.float64)

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
    plan, submissions = release.plan, release.submissions
    return value, query.count_std_error(plan, label=label, submissions=submissions, counters=release.counters)


def _weights(counters: list[npt.NDArray[np.int64]], totals: tuple[float, float]) -> tuple[tuple[int, int], float]:
    """Integers w and a scale s, with w/s = 1/total for each, to a relative 2⁻²⁰ where counters leave room for it."""
    if totals == (1.0, 1.0):
        return (1, 1), 1.0
    largest = [max(1.0, float(np.abs(each).max())) for each in counters]
    room = min(total * _WEIGHTED_MAX / most for total, most in zip(totals, largest, strict=True))
    scale = min(_PRECISION * max(totals), room)
    first, second = (max(1, round(scale / total)) for total in totals)
    return (first, second), scale
