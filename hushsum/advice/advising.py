"""From a plan and public guesses to advice: predicted errors and costs of many sizes, and which of them to take."""

import math
from typing import Final

from hushsum import bounds
from hushsum.advice.costs import Allowance, Clock, Costing
from hushsum.advice.guesses import Guesses
from hushsum.advice.hashing import Hashing
from hushsum.advice.sizes import concentrated, pure, row_unit, rows_of, with_rows
from hushsum.advice.stand_in import StandIn, stand_in
from hushsum.advice.values import USEFUL, Advice, Promise, Size
from hushsum.errors import GuaranteeError, PlanError
from hushsum.plan import Plan

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
        raise GuaranteeError(f"plan {plan.name!r} is of randomised reports, which are advised on by advise_reports")
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

    def advice(self) -> Advice:
        own, theory = rows_of(self._plan), self._optimal_rows()
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
        plan = with_rows(self._plans[index], rows)
        cohort, variance = plan.privacy.cohort, plan.privacy.mechanism.noise().variance
        if cohort is not None:
            variance *= self._guesses.cohorts(cohort)  # each has the noise of its own h survivors
        variance *= self._guesses.noised(plan)
        return math.sqrt(variance * self._hashing.noise_weight(plan.family))

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

    def _optimal_rows(self) -> int | None:
        """RACE's R*, with the ε that pure noise leaves for the rows' counters; up to whole sets of Sobol rows."""
        plan = self._plans[0]
        if plan.family.name != "hashed" or self._unit is None:
            return None
        epsilon = plan.family.sensitivity.l1 / float(plan.privacy.mechanism.scale)
        epsilon /= math.sqrt(self._guesses.noised(plan))
        rows = bounds.optimal_rows(self._guesses.records * self._population.root_density, epsilon)
        return -(-rows // self._unit) * self._unit
