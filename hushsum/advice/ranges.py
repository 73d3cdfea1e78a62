"""The accuracy of a plan where nothing is guessed: over several numbers of records and densities of a query."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hushsum.advice.costs import Guesses, rows_of, stand_in
from hushsum.advice.forecast import Hashing, noise_error
from hushsum.advice.local import ReportForecast
from hushsum.families.paired import Paired
from hushsum.plan import Plan

RECORDS: Final = (1_000, 10_000, 100_000, 1_000_000)
DENSITIES: Final = (0.3, 0.1, 0.03, 0.01, 0.001)
_LOSSES: Final = (1.05, 1.2, 1.35)  # of the loss of a model that fits (regression), or says nothing (margin)
_MADE_UP: Final = 1024  # records

Error = Callable[[int], float]


@dataclass(frozen=True)
class AdviceRange:
    """Predicted standard errors of answers, as a table.

    Attributes:
        plan: As it is written.
        records: n, of each column; with classes, of one class.
        densities: k̄, of each row: the mean kernel at a query. Those that no made-up records have are left out.
        errors: For each density one standard error for each n, in records.
    """

    plan: Plan
    records: tuple[int, ...]
    densities: tuple[float, ...]
    errors: tuple[tuple[float, ...], ...]

    def relative(self, row: int, column: int) -> float:
        """A standard error as a share of its answer, n·k̄."""
        return self.errors[row][column] / (self.records[column] * self.densities[row])

    def to_fields(self) -> dict[str, object]:
        """All of it for JSON."""
        ranged = [
            {"density": density, "records": n, "std_error": error, "relative_error": error / (n * density)}
            for density, errors in zip(self.densities, self.errors, strict=True)
            for n, error in zip(self.records, errors, strict=True)
        ]
        kernel_error = self.plan.family.kernel_error
        return {"plan": self.plan.name, "id": self.plan.hex_id, "kernel_error": kernel_error, "range": ranged}


def advise_range(
    plan: Plan, *, records: Sequence[int] = RECORDS, densities: Sequence[float] | None = None
) -> AdviceRange:
    """How accurate answers may be expected to be, of several numbers of records and at several densities.

    Nothing is read but the plan. Clients are as many as fill their bound, else one a record.

    Args:
        plan: As it is written. With classes, answers are those of one class.
        records: Numbers of records, each at least 1.
        densities: Mean kernels at a query (family ``paired``: mean losses of a model), each above 0 and below 1;
            None: usual ones.

    Raises:
        ValueError: A number is out of range, or no made-up records have any of these densities.
    """
    found: list[tuple[float, tuple[float, ...]]] = []
    refused: ValueError | None = None
    for density in _usual(plan) if densities is None else densities:
        guesses = [Guesses.checked(plan, n, density, None) for n in records]
        try:
            error = _reports(plan, density) if plan.privacy.reports is not None else _sketches(plan, density)
        except ValueError as none:  # too dense or too sparse for what the plan can tell apart
            refused = none
            continue
        found.append((density, tuple(error(each.records) for each in guesses)))
    if not found:
        raise refused or ValueError("densities: got none")
    return AdviceRange(plan, tuple(records), tuple(density for density, _ in found), tuple(row for _, row in found))


def _usual(plan: Plan) -> Sequence[float]:
    if not isinstance(plan.family, Paired):
        return DENSITIES
    loss = 2.0 ** ((plan.family.loss == "regression") - plan.family.power)
    return [round(times * loss, 4) for times in _LOSSES]


def _sketches(plan: Plan, density: float) -> Error:
    hashing, rows = Hashing(plan, stand_in(plan, density, _MADE_UP)), rows_of(plan)

    def error(records: int) -> float:
        noise = noise_error(plan, Guesses.checked(plan, records, density, None), hashing)
        return math.hypot(math.sqrt(hashing.variance(rows, records)), noise)

    return error


def _reports(plan: Plan, density: float) -> Error:
    forecast = ReportForecast(plan, density, _MADE_UP)
    return lambda records: math.hypot(forecast.hashing(plan, records), forecast.response(plan, records))
