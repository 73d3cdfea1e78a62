"""From a plan and public guesses to advice: predicted errors and costs of many sizes, and which of them to take.

**Hashing error** is measured on synthetic records and scaled to other numbers of rows and records. It is read through
the protocol of families: exact counters of the synthetic records, and the standard errors that answers state for them.
Of n records that lie like the stand-in's, independently, the variance of an answer is C·n² + D·n: C of pairs of records
that rows put together, D of single records. A sketch of all records and those of its quarters tell both.

Over rows it goes as 1/R, but for Sobol rows. Theirs is measured in sets of 1, 2, 4 … rows, as many sets as are
affordable; between these it goes as a power of the rows, and beyond 1,024 rows a set as 1/R, which is more than true.

Records that lie otherwise err otherwise: of those in several clusters 0.8 to 1.0 times as much was seen, of real ones
(colours, places, trees, pay) 1.0 to 1.3 times, with Sobol rows 0.7 to 1.7 times, and of models up to 1.8 times, with
where their records lie.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.advice.costs import (
    Allowance,
    Clock,
    Costing,
    Guesses,
    StandIn,
    concentrated,
    pure,
    row_unit,
    rows_of,
    stand_in,
    with_rows,
)
from hushsum.advice.values import USEFUL, Advice, Promise, Size
from hushsum.errors import GuaranteeError, PlanError
from hushsum.families import Answer, Family
from hushsum.plan import Plan
from hushsum.privacy.calibration import noise_of

_RECORDS_MAX: Final = 4096  # of the stand-in
_ROWS_MAX: Final = 2**20
_STEPS: Final = 8  # an octave, in which the best number of rows is looked for
_ENOUGH: Final = 1.05  # times the least error: more rows are hardly worth their cost


def advise(
    plan: Plan,
    *,
    records: int,
    density: float,
    clients: int | None = None,
    allowance: Allowance | None = None,
    clock: Clock | None = None,
) -> Advice:
    """How accurate the answers of a plan may be expected to be, and which sizes would be better: before any budget.

    Nothing is read but the plan and these guesses, which must be public: from what is known anyway, or from made-up
    data, never from the records that the plan protects.

    Args:
        plan: As it is written. With classes, answers are those of one class, and so are the guesses.
        records: n, expected in a window.
        density: k̄, the mean kernel at a typical query, above 0 and below 1: what a query's kernel sum is of n. Of the
            family ``paired``, the mean loss at a typical model.
        clients: Expected in a window. None: with unit ``client`` as many as fill their bound, else one a record.
        allowance: What a size may cost.
        clock: Seconds, to measure the time of hashing with; None: it is not measured.

    Raises:
        ValueError: A guess is out of range, or contradicts the plan.
        PlanError: The plan cannot be calibrated.
        GuaranteeError: The plan's devices send reports: :func:`hushsum.advice.advise_reports` advises on those.
    """
    if plan.privacy.reports is not None:
        raise GuaranteeError(f"plan {plan.name!r} is of randomised reports, use advise_reports for it")
    guesses = Guesses.checked(plan, records, density, clients)
    allowance = allowance or Allowance()
    population = stand_in(plan, density, min(records, _RECORDS_MAX))
    return _Adviser(plan, guesses, allowance, population, clock).advice()


class _Adviser:
    """One question, with what was measured for it."""

    def __init__(
        self, plan: Plan, guesses: Guesses, allowance: Allowance, population: StandIn, clock: Clock | None
    ) -> None:
        self._plan, self._guesses, self._allowance, self._population = plan, guesses, allowance, population
        self._hashing = Hashing(plan, population)
        self._costing = Costing(plan, population, guesses=guesses, clock=clock)
        self._unit = row_unit(plan)
        delta = concentrated(plan)
        self._missing = delta if isinstance(delta, PlanError) else None
        self._plans = (pure(plan), *(() if isinstance(delta, PlanError) else (delta,)))
        self._noises: dict[tuple[int, int | None], float] = {}

    def advice(self) -> Advice:
        own, theory = rows_of(self._plan), optimal_rows(self._plans[0], self._guesses, self._hashing)
        ladder, end = self._ladder(own, theory)
        best = [self._best(index, ladder) for index in range(len(self._plans))]
        wanted = {size.rows: size for size in ladder}
        for rows in {own, theory, *best} - {None} - wanted.keys():
            if (size := self._size(rows)) is not None:
                wanted[rows] = size
        sizes = tuple(sorted(wanted.values(), key=lambda size: size.rows or 0))
        promises = tuple(self._promise(index, sizes, rows) for index, rows in enumerate(best))
        return Advice(
            plan=self._plan,
            guesses=self._guesses,
            allowance=self._allowance,
            sizes=sizes,
            promises=promises,
            optimal_rows=theory,
            bound_by=end,
            reached_density=self._population.density,
            kernel_error=self._plan.family.kernel_error,
            missing=None if self._missing is None else str(self._missing),
        )

    def _ladder(self, own: int | None, theory: int | None) -> tuple[list[Size], str]:
        """Sizes by powers of two, up to the first that is not allowed, and what forbids it."""
        if self._unit is None:
            only = self._size(own)
            assert only is not None, "the plan itself"
            return [only], "the plan: it can have no other rows"
        ladder: list[Size] = []
        rows, enough = self._unit, 4 * max(own or 1, theory or 1)
        while rows <= _ROWS_MAX:
            size = self._size(rows)
            if size is None:
                return ladder, "the format of plans and deltas"
            ladder.append(size)
            if size.exceeds:
                return ladder, " and ".join(size.exceeds)
            if rows >= enough and self._saturated(ladder):
                return ladder, "more rows gain nothing"
            rows *= 2
        return ladder, "the format of plans and deltas"

    def _saturated(self, ladder: list[Size]) -> bool:
        """Whether the last doubling has gained nothing worth having under any promise."""
        if len(ladder) < 2:
            return False
        before, last = ladder[-2:]
        return all(less < more * 1.01 for less, more in zip(before.errors, last.errors, strict=True))

    def _size(self, rows: int | None) -> Size | None:
        """None where no plan has so many rows."""
        try:
            noises = tuple(self._noise(index, rows) for index in range(len(self._plans)))
            costs = self._costing.of(rows)
        except PlanError:
            if rows == rows_of(self._plan):
                raise
            return None
        hashing = math.sqrt(self._hashing.variance(rows, self._guesses.records))
        return Size(rows, hashing, noises, costs, self._allowance.exceeded(costs))

    def _noise(self, index: int, rows: int | None) -> float:
        """Under promise ``index``; a plan of each number of rows is calibrated once, which takes longest."""
        if (index, rows) not in self._noises:
            plan = with_rows(self._plans[index], rows)
            self._noises[index, rows] = noise_error(plan, self._guesses, self._hashing)
        return self._noises[index, rows]

    def _best(self, index: int, ladder: list[Size]) -> int | None:
        """The rows with the least error, of those that are allowed, between the powers of two as well."""
        allowed = [size for size in ladder if not size.exceeds and size.rows is not None]
        if not allowed or self._unit is None:
            return None
        most = allowed[-1].rows or 0
        near = min(allowed, key=lambda size: size.errors[index]).rows or 0
        between = {self._unit * round(near / self._unit * 2 ** (step / _STEPS)) for step in range(-_STEPS, _STEPS + 1)}
        return min((rows for rows in between if self._unit <= rows <= most), key=lambda rows: self._error(index, rows))

    def _error(self, index: int, rows: int) -> float:
        return math.hypot(math.sqrt(self._hashing.variance(rows, self._guesses.records)), self._noise(index, rows))

    def _promise(self, index: int, sizes: tuple[Size, ...], best: int | None) -> Promise:
        plan, own = self._plans[index], next(size for size in sizes if size.rows == rows_of(self._plan))
        least = None if best is None else _ENOUGH * self._error(index, best)
        good = [size.rows for size in sizes if size.rows and least is not None and size.errors[index] <= least]
        needed = own.noises[index] / (USEFUL * self._guesses.density)
        if self._guesses.noised(plan) > 1:  # the noise grows with the root of the clients that bring the records
            needed = needed**2 / self._guesses.records
        return Promise(
            name="zCDP" if plan.privacy.delta else "pure",
            mechanism=plan.privacy.mechanism.name,
            epsilon=plan.privacy.epsilon,
            delta=plan.privacy.delta,
            own=plan is self._plan,
            best=best,
            enough=min(good, default=best),
            useful_records=math.ceil(needed),
            useful_clients=math.ceil(math.ceil(needed) * self._guesses.clients / self._guesses.records),
        )


def optimal_rows(plan: Plan, guesses: Guesses, hashing: "Hashing") -> int | None:
    """R*: the rows with the least predicted error, whatever they cost; None without pure noise of the hashed family.

    A row answers with the variance V of the records that collide with a query, and R of them with V/R, less for Sobol
    rows. Noise adds N·R. V is at most f̃², of which RACE's R* is made (Corollary 3.5), and usually far less: for
    independent rows R* is √(V/N) here.
    """
    own, unit = rows_of(plan), row_unit(plan)
    if plan.family.name != "hashed" or plan.privacy.delta or own is None or unit is None:
        return None
    noise = noise_error(plan, guesses, hashing) ** 2 / own
    sizes = {unit * max(1, round(2 ** (step / _STEPS) / unit)) for step in range(_STEPS * _ROWS_MAX.bit_length())}
    return min(sizes, key=lambda rows: (hashing.variance(rows, guesses.records) + noise * rows, rows))


def noise_error(plan: Plan, guesses: Guesses, hashing: "Hashing") -> float:
    """The standard error of an answer that is due to noise, in records."""
    cohort, variance = plan.privacy.cohort, noise_of(plan.privacy.mechanism, plan.privacy.claim)
    if cohort is not None:
        variance *= guesses.cohorts(cohort)  # each has the noise of its own h survivors
    variance *= guesses.noised(plan)
    return math.sqrt(variance * hashing.noise_weight(plan.family))


_SEED: Final = 1_618_033
_ROWS: Final = 2048  # that are measured: the error is then known within about 5 %, unless few rows make most of it
_SET_ROWS_MAX: Final = 1024
_SETS: Final = (16, 512)  # of Sobol rows, least and most
_PARTS: Final = 4


@dataclass(frozen=True)
class Spread:
    """The variance of an answer of n records that is due to hashing, C·n² + D·n, averaged over the queries.

    Attributes:
        pairs: C.
        single: D.
    """

    pairs: float
    single: float

    def variance(self, records: float) -> float:
        """In records²."""
        return records * (records * self.pairs + self.single)


class Hashing:
    """The hashing error of a plan's answers at a stand-in's queries, for any number of rows.

    Args:
        plan: Whose rows are changed.
        population: What it is measured on.
    """

    def __init__(self, plan: Plan, population: StandIn) -> None:
        self._plan, self._population = plan, population
        self._unit, self._rows = row_unit(plan), rows_of(plan)
        self._sobol = plan.family.to_fields().get("draws") == "sobol"
        self._of_sets: dict[int, Spread] = {}

    def variance(self, rows: int | None, records: float) -> float:
        """Of an answer of so many records: what hashing adds to it, in records²; 0 where nothing is drawn."""
        if rows is None or not self._drawn:
            return 0.0
        if not self._sobol:
            return self._independent.variance(records) / rows
        each = rows / (self._unit or 1)  # of a set
        known = min(each, float(_SET_ROWS_MAX))
        low = 1 << int(math.log2(known))
        share = math.log2(known / low)
        first = self._sobol_sets(low).variance(records)
        last = self._sobol_sets(2 * low).variance(records) if share else first
        between = first ** (1 - share) * last**share if min(first, last) > 0 else max(first, last)
        return float(between * known / each)

    def noise_weight(self, family: Family) -> float:
        """What noise of variance 1 on every counter adds to an answer's variance, averaged over the queries.

        Args:
            family: The plan's at the number of rows that is asked for.
        """
        if self._rows is not None:
            return family.answer_variance(1.0)
        # Counters without rows are read with weights that differ from query to query: the family states the largest.
        return float(np.square(_answer(family, self._population.queries, 1.0).std_error).mean())

    @cached_property
    def _drawn(self) -> bool:
        """Whether rows differ: else the noise alone is uncertain."""
        several = self._plan if self._unit is None or self._sobol else with_rows(self._plan, _ROWS)
        return _answer(several.family, self._population.queries, 0.0).spread != "noise"

    @cached_property
    def _independent(self) -> Spread:
        """Of one row."""
        rows = self._rows if self._unit is None else _ROWS
        found = self._spread(with_rows(self._plan, rows, seed=_SEED if rows == _ROWS else None).family)
        return Spread(found.pairs * (rows or 1), found.single * (rows or 1))

    def _sobol_sets(self, each: int) -> Spread:
        """Of the plan's number of sets of so many rows each."""
        if each not in self._of_sets:
            least, most = _SETS
            sets = min(most, max(least, _ROWS // each))
            family = with_rows(self._plan, sets * each, sobol_sets=sets, seed=_SEED).family
            found, scale = self._spread(family), sets / (self._unit or 1)
            self._of_sets[each] = Spread(found.pairs * scale, found.single * scale)
        return self._of_sets[each]

    def _spread(self, family: Family) -> Spread:
        """Of C + D/n for all records and those of a quarter, which is C + 4D/n."""
        accepted, _ = family.accept(self._population.records)
        n, total, of_parts = len(accepted), np.zeros(family.shape, np.int64), 0.0
        ends = [n * part // _PARTS for part in range(_PARTS + 1)]
        for start, stop in pairwise(ends):
            counters = np.zeros(family.shape, np.int64)
            family.add(counters, accepted[start:stop])
            of_parts += self._variance(family, counters, stop - start) / _PARTS
            total += counters
        of_all = self._variance(family, total, n)
        single = max(0.0, of_parts - of_all) * n / (_PARTS - 1)
        return Spread(max(0.0, of_all - single / n), single)

    def _variance(self, family: Family, counters: npt.NDArray[np.int64], records: int) -> float:
        """Of an answer over its number of records."""
        answer = _answer(family, self._population.queries, 0.0, counters)
        return float(np.square(answer.std_error / max(1, records)).mean())


def _answer(family: Family, queries: Any, noise: float, counters: npt.NDArray[np.int64] | None = None) -> Answer:
    stored = np.zeros(family.shape, np.int64) if counters is None else counters
    return family.answer(stored, queries, noise_variance=noise)
