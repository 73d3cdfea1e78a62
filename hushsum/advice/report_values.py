"""What advice on randomised reports is made of: frozen values, all of them public."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction

from hushsum.advice.costs import Allowance
from hushsum.advice.guesses import Guesses
from hushsum.advice.values import USEFUL
from hushsum.canonical import real_text
from hushsum.plan import Plan

_NEAR = 1.05  # times the least error: more rows are hardly worth their memory
_AS_GOOD = 1.02  # times the least error: of a projective response, which the fewest buckets then answer quickest


@dataclass(frozen=True)
class ReportSize:
    """One randomiser, number of rows and of buckets: its predicted error, in records, and what it costs.

    Attributes:
        randomiser: ``k-rr``, ``projective`` or ``one-bit``.
        rows: R, or P of the fourier family.
        buckets: W; None of the fourier family.
        outputs: What a randomised value can be.
        report_bytes: Of one record, as it is sent.
        window_bytes: Exact counts of one open window.
        hashing: The standard error of an answer that is due to what reports have in common: the hash functions.
        response: That which is due to each report by itself: its randomiser, and the row that it happened to name.
        exceeds: Which of what is allowed it exceeds, by name.
    """

    randomiser: str
    rows: int
    buckets: int | None
    outputs: int
    report_bytes: int
    window_bytes: float
    hashing: float
    response: float
    exceeds: tuple[str, ...]

    @property
    def error(self) -> float:
        """The standard error of an answer, in records."""
        return math.hypot(self.hashing, self.response)


@dataclass(frozen=True)
class ReportAdvice:
    """How accurate answers of a plan of reports may be expected to be.

    Attributes:
        plan: As it was written.
        guesses: What was guessed; with classes, of one of them, and all are taken to be as many.
        allowance: What a size may cost; of reports, the memory of a window alone.
        own: The plan's own size.
        rows: Other numbers of rows, with the plan's own randomiser and buckets, the fewest first.
        widths: By randomiser, other numbers of buckets with the plan's own rows, the fewest first; none of ``one-bit``.
        ratio: λ, of the randomiser of one report.
        amplified: ε of a unit at the plan's δ, of as many reports as ``shuffle_min``; None where nothing is amplified.
        reached_density: The mean kernel that the made-up records have: near the guessed one.
    """

    plan: Plan
    guesses: Guesses
    allowance: Allowance
    own: ReportSize
    rows: tuple[ReportSize, ...]
    widths: Mapping[str, tuple[ReportSize, ...]]
    ratio: Fraction
    amplified: Fraction | None
    reached_density: float

    @property
    def std_error(self) -> float:
        """Of an answer of the plan as it is written, in records."""
        return self.own.error

    @property
    def best(self) -> dict[str, ReportSize]:
        """For each randomiser the buckets to take, of those that are allowed.

        Of ``k-rr`` those with the least error; a projective response errs hardly more the more there are, so that of it
        the fewest within 2 % are taken.
        """
        found = {}
        for name, sizes in self.widths.items():
            if allowed := [size for size in sizes if not size.exceeds]:
                least = min(size.error for size in allowed)
                slack = 1.0 if name == "k-rr" else _AS_GOOD
                found[name] = next(size for size in allowed if size.error <= slack * least)
        return found

    @property
    def better(self) -> ReportSize:
        """The best randomiser with its best number of buckets; the plan's own of the fourier family."""
        return min(self.best.values(), key=lambda size: size.error, default=self.own)

    @property
    def enough_rows(self) -> ReportSize | None:
        """The fewest rows whose error is at most 5 % above the least of all that are allowed."""
        allowed = [size for size in self.rows if not size.exceeds]
        least = min((size.error for size in allowed), default=0.0)
        return next((size for size in allowed if size.error <= _NEAR * least), None)

    @property
    def useful_records(self) -> int:
        """How many records it takes for randomisation to be a tenth of an answer, at the plan's own size."""
        variance = self.own.response**2 / self.guesses.records
        return math.ceil(variance / (USEFUL * self.guesses.density) ** 2)

    def to_fields(self) -> dict[str, object]:
        """All of it for JSON: numbers, strings, lists and tables."""
        local = self.plan.privacy.local
        return {
            "plan": self.plan.name,
            "id": self.plan.hex_id,
            "guesses": {**asdict(self.guesses), "kernel_sum": self.guesses.kernel_sum},
            "std_error": self.std_error,
            "relative_error": self.std_error / self.guesses.kernel_sum,
            "useful_records": self.useful_records,
            "ratio": real_text(self.ratio),
            "shuffle_min": 0 if local is None else local.shuffle_min,
            "amplified": None if self.amplified is None else real_text(self.amplified),
            "reached_density": self.reached_density,
            "own": _fields(self.own),
            "better": _fields(self.better),
            "enough_rows": None if self.enough_rows is None else self.enough_rows.rows,
            "best": {name: _fields(size) for name, size in self.best.items()},
            "rows": [_fields(size) for size in self.rows],
            "widths": {name: [_fields(size) for size in sizes] for name, sizes in self.widths.items()},
        }


def _fields(size: ReportSize) -> dict[str, object]:
    return {**asdict(size), "exceeds": list(size.exceeds), "std_error": size.error}
