"""What advice is made of: frozen values, all of them public."""

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction

from hushsum.advice.costs import Allowance, Costs, Guesses, rows_of
from hushsum.canonical import real_text
from hushsum.plan import Plan
from hushsum.privacy.calibration import CountChoice, count_choices
from hushsum.privacy.mechanisms import DISCRETE_LAPLACE

#: An answer is called useful here where noise is at most this share of it.
USEFUL: float = 0.1


def shown(number: float) -> str:
    """A number of records as people read it: three digits, and whole from 100."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


@dataclass(frozen=True)
class Size:
    """One number of rows: its predicted errors, in records, and its costs.

    Attributes:
        rows: R, or P of the fourier family; None for a family without.
        hashing: The standard error of an answer that is due to hashing.
        noises: That which is due to noise, for each promise; of secure sums with exactly h survivors in each cohort,
            the fewest whose noise the promise counts; of silos with the noise of every client.
        costs: What it costs.
        exceeds: Which of what is allowed it exceeds, by name.
    """

    rows: int | None
    hashing: float
    noises: tuple[float, ...]
    costs: Costs
    exceeds: tuple[str, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """The standard error of an answer, for each promise."""
        return tuple(math.hypot(self.hashing, noise) for noise in self.noises)


@dataclass(frozen=True)
class Promise:
    """One (ε, δ) for the same plan, and the size to take for it.

    Attributes:
        name: ``pure`` or ``zCDP``.
        mechanism: By its name in plans.
        epsilon: ε.
        delta: δ.
        own: Whether the plan makes this promise as it is written.
        best: The rows with the least error of those that are allowed; None where none are, or there are none.
        enough: The fewest rows whose error is at most 5 % above that.
        useful_records: How many records it takes for noise to be a tenth of an answer, at the plan's own size.
        useful_clients: From how many clients they come, each with as many as was guessed.
    """

    name: str
    mechanism: str
    epsilon: Fraction
    delta: Fraction
    own: bool
    best: int | None
    enough: int | None
    useful_records: int
    useful_clients: int


@dataclass(frozen=True)
class Advice:
    """How accurate a plan may be expected to be, at several sizes.

    Attributes:
        plan: As it was written.
        guesses: What was guessed.
        allowance: What a size may cost.
        sizes: From the smallest; among them the plan's own, and the best of each promise.
        promises: Pure ε, then zCDP at the plan's δ (or at 10⁻⁶), where it can be calibrated.
        optimal_rows: R* for pure ε, for the hashed family: the rows with the least predicted error, without limits.
        bound_by: What stops the sizes from growing.
        reached_density: The mean kernel that the made-up records have: near the guessed one.
        kernel_error: For each record, how far the estimated kernel may lie off, which no standard error shows.
        missing: Why zCDP is not among the promises; None where it is.
    """

    plan: Plan
    guesses: Guesses
    allowance: Allowance
    sizes: tuple[Size, ...]
    promises: tuple[Promise, ...]
    optimal_rows: int | None
    bound_by: str
    reached_density: float
    kernel_error: float
    missing: str | None

    @property
    def own(self) -> Size:
        """The plan's own size."""
        return self.at(rows_of(self.plan))

    @property
    def own_promise(self) -> int:
        """Which of the promises the plan makes."""
        return [promise.own for promise in self.promises].index(True)

    @property
    def counts(self) -> tuple[CountChoice, ...]:
        """How well the number of records may be known with Laplace noise: for each multiplier of its counter.

        The larger multiplier costs more ρ of zCDP, so that limits with a δ pay for fewer windows. Of a plan without the
        counter, a multiplier of 0, all others have less noise. Empty for Gaussian noise and for randomised reports.
        """
        privacy = self.plan.privacy
        if privacy.mechanism.name != DISCRETE_LAPLACE:
            return ()
        times = math.sqrt(self.guesses.noised(self.plan))
        family = self.plan.family
        rows = None if self.plan.count_counters else family.record_rows
        choices = count_choices(family.sensitivity, privacy.claim, privacy.budget, rows)
        return tuple(replace(choice, std_error=choice.std_error * times) for choice in choices)

    @property
    def bias(self) -> float:
        """The most by which an answer may lie off beside its standard error, in records: the kernel error of all."""
        return self.kernel_error * self.guesses.records

    @property
    def std_error(self) -> float:
        """Of an answer of the plan as it is written, in records."""
        return self.own.errors[self.own_promise]

    @property
    def more_noise(self) -> float:
        """By which factor noise grows where all clients survive and draw their shares, not exactly h of each cohort."""
        cohort = self.plan.privacy.cohort
        if cohort is None:
            return 1.0
        counted = cohort.honest_survivors * self.guesses.cohorts(cohort)
        return max(1.0, math.sqrt(self.guesses.in_cohorts(cohort) / counted))

    @property
    def std_error_of_all(self) -> float:
        """As :attr:`std_error`, where all clients of a secure sum survive."""
        own = self.own
        return math.hypot(own.hashing, own.noises[self.own_promise] * self.more_noise)

    def at(self, rows: int | None) -> Size:
        """The size of so many rows, which is among :attr:`sizes`."""
        return next(size for size in self.sizes if size.rows == rows)

    def to_fields(self) -> dict[str, object]:
        """All of it for JSON: numbers, strings, lists and tables."""
        return {
            **self._secure_fields(),
            **self._silo_fields(),
            "plan": self.plan.name,
            "id": self.plan.hex_id,
            "guesses": {**asdict(self.guesses), "kernel_sum": self.guesses.kernel_sum},
            "allowance": asdict(self.allowance),
            "rows": self.own.rows,
            "std_error": self.std_error,
            "relative_error": self.std_error / self.guesses.kernel_sum,
            "hashing": self.own.hashing,
            "noise": self.own.noises[self.own_promise],
            "kernel_error": self.kernel_error,
            "bias": self.bias,
            "optimal_rows": self.optimal_rows,
            "bound_by": self.bound_by,
            "reached_density": self.reached_density,
            "missing": self.missing,
            "counts": [
                {
                    "count_scale": count.mechanism.count_scale,
                    "std_error": count.std_error,
                    "windows": count.releases if self.plan.privacy.budget.adds else None,
                    "own": count.mechanism == self.plan.privacy.mechanism,
                }
                for count in self.counts
            ],
            "guarantees": [
                {**asdict(promise), "epsilon": real_text(promise.epsilon), "delta": real_text(promise.delta)}
                for promise in self.promises
            ],
            "sizes": [
                {
                    "rows": size.rows,
                    "hashing": size.hashing,
                    "errors": [
                        {"guarantee": promise.name, "noise": noise, "std_error": error}
                        for promise, noise, error in zip(self.promises, size.noises, size.errors, strict=True)
                    ],
                    "costs": asdict(size.costs),
                    "exceeds": list(size.exceeds),
                }
                for size in self.sizes
            ],
        }

    def _silo_fields(self) -> dict[str, object]:
        if self.plan.privacy.local is None:
            return {}
        one = self.own.noises[self.own_promise] / math.sqrt(self.guesses.clients)
        return {"silo": {"submissions": self.guesses.clients, "noise_of_one": one}}

    def _secure_fields(self) -> dict[str, object]:
        cohort = self.plan.privacy.cohort
        if cohort is None:
            return {}
        secure = {
            "cohorts": self.guesses.cohorts(cohort),
            "clients_in_cohorts": self.guesses.in_cohorts(cohort),
            "corrupt_clients": cohort.fleet_corrupt,
            "pool": cohort.pool,
            "corrupt_of_cohort": cohort.corrupt_clients,
            "survivors_min": cohort.survivors_min,
            "honest_survivors": cohort.honest_survivors,
            "degree": cohort.degree,
            "threshold": cohort.threshold,
            "std_error_of_all": self.std_error_of_all,
        }
        return {"secure": secure}
