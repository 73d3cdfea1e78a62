"""From a plan of randomised reports and public guesses to advice: which randomiser, how many buckets, how many rows.

Of n reports an answer has the variance n·Var(z) + n²·C/R (:mod:`hushsum.local.predicted_error`). Var(z) follows from
the law of the randomiser and from made-up records: of one whose kernel at the query is k it is the mixture of a near
record, with probability k, and a far one, and k(1 − k) for which of the two its row made of it. C is measured as in
other modes, by the spread of the rows of a whole sketch of the made-up records (:mod:`hushsum.advice.forecast`), with
many buckets. Of few rehashed buckets it is more: codes that many records share fall into the query's bucket by chance,
each with all of them. With p their shares of the records, C = C₀ + Σp²/(W − 1), the sum over all codes but the query's,
and Σp² over all is the mean kernel of two records.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.advice.costs import Allowance, Guesses, StandIn, row_unit, rows_of, stand_in
from hushsum.advice.forecast import Hashing
from hushsum.advice.values import USEFUL
from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.local import predicted_error
from hushsum.plan import Plan
from hushsum.privacy.shuffle_amplification import amplified

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


_RECORDS_MAX: Final = 4096  # of the stand-in
_ROWS_MAX: Final = 2**16
_WIDTHS: Final = tuple(2**k for k in range(1, 14))
_MANY_BUCKETS: Final = 2**13
_MANY: Final = 1e12  # records, of which single ones make nothing of the hashing error
_RANDOMISERS: Final = ("k-rr", "projective")
_PAIRED: Final = 1024  # records, of each two of which the kernel is taken
_GAIN: Final = 1.01
_MIB: Final = 2.0**20


class ReportForecast:
    """Predicted errors of plans of reports that differ in ε, rows, buckets and randomiser alone.

    Args:
        plan: One of them.
        density: k̄, the mean kernel at a typical query, above 0 and below 1.
        records: Made-up ones, at most.

    Raises:
        ValueError: No made-up records have such a density.
        GuaranteeError: The plan's devices send no reports.
    """

    def __init__(self, plan: Plan, density: float, records: int = _RECORDS_MAX) -> None:
        predicted_error.setting(plan)  # refuses other plans
        whole = _many_buckets(plan)
        self.population: StandIn = stand_in(whole, density, min(records, _RECORDS_MAX))
        self._hashing = Hashing(whole, self.population)
        kernels = np.maximum(self.population.kernels, 0.0)
        self._mean, self._square = float(kernels.mean()), float(np.square(kernels).mean())
        some = self.population.records[:_PAIRED]
        shared = float(np.maximum(whole.family.kernel(some, some), 0.0).mean())
        unit = row_unit(whole) or rows_of(whole) or 1
        of_query = self._mean**2 + unit * self._hashing.variance(unit, _MANY) / _MANY**2
        self._others = max(0.0, shared - of_query)

    def response(self, plan: Plan, records: int) -> float:
        """The standard error that reports have each by itself, of so many records (of each class)."""
        of, classes = predicted_error.setting(plan), max(1, len(plan.classes))
        if of.square is not None:
            variance = predicted_error.report_variance(of, near=self._square)
        else:
            label = 1 / classes if plan.classes else None
            variance = predicted_error.report_variance(of, near=self._mean / classes, label=label)
            variance += (self._mean - self._square) / classes
        return float(np.sqrt(records * classes * variance))

    def hashing(self, plan: Plan, records: int) -> float:
        """The standard error that they have in common."""
        of, rows = predicted_error.setting(plan), rows_of(plan)
        pairs = self._hashing.variance(rows, _MANY) / _MANY**2
        if of.square is None and of.rehashed:
            pairs += self._others / (of.width - 1) / (rows or 1)
        return float(np.sqrt(pairs)) * records

    def size(self, plan: Plan, records: int, allowance: Allowance) -> ReportSize:
        """Of one plan."""
        local, sizes, fields = plan.privacy.local, plan.report_sizes, plan.family.to_fields()
        assert local is not None, "a plan of reports"
        assert sizes is not None, "a plan of reports"
        assert local.randomiser is not None, "a plan of reports"
        window, buckets = 8.0 * sizes.rows * sizes.outputs, fields.get("buckets")
        return ReportSize(
            randomiser=local.randomiser,
            rows=sizes.rows,
            buckets=buckets if isinstance(buckets, int) else None,
            outputs=sizes.outputs,
            report_bytes=sizes.width,
            window_bytes=window,
            hashing=self.hashing(plan, records),
            response=self.response(plan, records),
            exceeds=("memory_mib",) if window / _MIB > allowance.memory_mib else (),
        )


def advise_reports(
    plan: Plan,
    *,
    records: int,
    density: float,
    clients: int | None = None,
    allowance: Allowance | None = None,
    forecast: ReportForecast | None = None,
) -> ReportAdvice:
    """How accurate the answers of a plan of reports may be expected to be, and what would be better.

    Args:
        plan: Of mode ``local`` and form ``report``. With classes, answers are those of one class, and so are the
            guesses; the other classes are taken to have as many records.
        records: See :func:`hushsum.advice.advise`.
        density: The same.
        clients: From whom they come; it changes nothing but what is shown.
        allowance: What a size may cost: of reports, ``memory_mib`` alone.
        forecast: Of such a plan and this density, made before, where several are asked about.

    Raises:
        ValueError: A guess is out of range, or contradicts the plan.
        GuaranteeError: The plan's devices send no reports.
    """
    guesses = Guesses.checked(plan, records, density, clients)
    allowance = allowance or Allowance()
    forecast = forecast or ReportForecast(plan, density, records)
    local = plan.privacy.local
    assert local is not None, "a plan of reports"
    ratio, epsilon = plan.privacy.mechanism.scale, None
    if local.shuffle_min:
        most = plan.privacy.records_per_client or 1
        epsilon = amplified(ratio, local.shuffle_min, plan.privacy.delta, most)
    own = forecast.size(plan, records, allowance)
    return ReportAdvice(
        plan=plan,
        guesses=guesses,
        allowance=allowance,
        own=own,
        rows=tuple(_ladder(forecast, plan, records, allowance)),
        widths=_widths(forecast, plan, records, allowance),
        ratio=ratio,
        amplified=epsilon,
        reached_density=forecast.population.density,
    )


def report_plan(
    plan: Plan, *, rows: int | None = None, buckets: int | None = None, randomiser: str | None = None
) -> Plan:
    """The plan of reports with other rows, buckets or randomiser, calibrated anew; itself where nothing changes.

    Raises:
        PlanError: No plan can have these.
    """
    changes = {"rows": rows, "buckets": buckets}
    if all(change is None for change in (rows, buckets, randomiser)):
        return plan
    fields = plan.to_fields()
    sketch, privacy = (dict(_table(fields, key)) for key in ("sketch", "privacy"))
    sketch |= {key: value for key, value in changes.items() if value is not None}
    if randomiser is not None:
        privacy["local"] = {**_table(privacy, "local"), "randomiser": randomiser}
    del fields["format"], privacy["mechanism"]
    return Plan.from_fields({**fields, "sketch": sketch, "privacy": privacy}, plan.parameters)


def _many_buckets(plan: Plan) -> Plan:
    """The same sketch in mode ``central``, where no codes meet by chance: what hashing is measured with."""
    fields = {key: value for key, value in plan.to_fields().items() if key in {"name", "record", "sketch"}}
    sketch = dict(_table(fields, "sketch"))
    if "buckets" in sketch:
        fields["sketch"] = sketch | {"buckets": _MANY_BUCKETS}
    return Plan.from_fields({**fields, "privacy": {"epsilon": 1, "total_epsilon": 1}}, plan.parameters)


def _ladder(forecast: ReportForecast, plan: Plan, records: int, allowance: Allowance) -> Iterator[ReportSize]:
    """Rows by powers of two, and the plan's own, up to where more gain nothing or are not allowed."""
    unit, own = row_unit(plan), rows_of(plan)
    if unit is None or own is None:
        yield forecast.size(plan, records, allowance)
        return
    steps = {unit << k for k in range(_ROWS_MAX.bit_length()) if unit << k <= _ROWS_MAX}
    before = None
    for rows in sorted(steps | {own}):
        try:
            size = forecast.size(report_plan(plan, rows=None if rows == own else rows), records, allowance)
        except PlanError:
            return
        yield size
        settled = before is not None and before.error < _GAIN * size.error and rows in steps
        if rows >= own and (settled or size.exceeds):
            return
        before = size if rows in steps else before


def _widths(
    forecast: ReportForecast, plan: Plan, records: int, allowance: Allowance
) -> Mapping[str, tuple[ReportSize, ...]]:
    """For each randomiser of buckets, by powers of two, the plan's own, and the best of k-rr."""
    own = plan.family.to_fields().get("buckets")
    if not isinstance(own, int):
        return {}
    best = predicted_error.best_width(plan.privacy.mechanism.scale, max(1, len(plan.classes)))
    found = {}
    for name in _RANDOMISERS:
        sizes: list[ReportSize] = []
        for width in sorted({own, best if name == "k-rr" else own, *_WIDTHS}):
            try:
                other = report_plan(plan, buckets=width, randomiser=name)
            except PlanError:
                continue
            sizes.append(forecast.size(other, records, allowance))
            if sizes[-1].exceeds:
                break
        found[name] = tuple(sizes)
    return found


def _table(fields: Mapping[str, object], key: str) -> Mapping[str, object]:
    table = fields[key]
    assert isinstance(table, Mapping), "a table of every plan"
    return table
