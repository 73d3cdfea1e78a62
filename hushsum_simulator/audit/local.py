"""Audits of local mode: the exact law of a device's report, and what a silo submits for a window.

The exact audit of reports feeds the device's own code with every word that can decide a report, once each, and counts
what comes out for one record after another, unusable ones and unknown labels among them. The ratios of what was counted
are the promise itself, for every pair of records and every report: no law is taken for granted. The same is done for a
record among others of the same call: its report may follow neither those nor the words that decide theirs.

What a silo submits is compared with what it submits with nothing to tell of.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_client.encoding import counters_of
from hushsum.delta import DeltaId, encode_all
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.local.layout import bit_of, choice_of
from hushsum.plan import Plan
from hushsum.privacy.mechanism import Mechanism
from hushsum_simulator.audit.cases import TARGET, DataSet, Integers, column, contents, plan_of, worst_content
from hushsum_simulator.audit.empirical import audited, fit_check
from hushsum_simulator.audit.exact import Change, changes, epsilon, stated
from hushsum_simulator.audit.pipelines import Vector, sent, streams
from hushsum_simulator.audit.report import ERROR, AuditRow, Check

Law = Mapping[int, Fraction]  # of what was sent; reports that never come are not in it
Floats = npt.NDArray[np.float64]

NONE_SENT: Final = -1
_LABELS: Final = ("yes", "no")
_UNKNOWN: Final = "neither"
_VALUES: Final = (*np.linspace(0.0, 10.0, 11).tolist(), math.nan)
_WORD: Final = 8  # bytes
_ALL: Final = 12  # records, of which each is tried beside others; of more of them
_SOME: Final = 5  # every fifth
_REPORTS_BY_RUNS: Final = 5  # plans: those of unit record
_FOURIER: Final[Mapping[str, object]] = {"family": "fourier", "kernel": "gaussian", "fraction_bits": 4, "buckets": None}


@dataclass(frozen=True)
class Held:
    """One record of a unit, with its label where the plan has classes."""

    value: float
    label: str | None = None


def report_plans() -> Iterator[Plan]:
    """Small plans of each randomiser, of one record and of a client of two, with classes where there can be some.

    Their ratios have few digits, so that all words that decide a report can be tried.
    """
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    for unit, ratio in (({}, "2.7"), (client, "1.6")):
        for randomiser in ("k-rr", "projective"):
            mechanism = {"name": randomiser, "scale": ratio, "count_scale": 1}
            field = {"field": 3} if randomiser == "projective" else {}
            keys: dict[str, Any] = {"local": {"randomiser": randomiser}, "mechanism": {**mechanism, **field}, **unit}
            yield plan_of(mode="local", sketch={"rows": 3, "buckets": 4}, **keys)
            yield plan_of(mode="local", sketch={"rows": 2, "buckets": 3}, record={"classes": [*_LABELS]}, **keys)
        bit = {"name": "one-bit", "scale": ratio, "count_scale": 1}
        yield plan_of(mode="local", sketch={**_FOURIER, "rows": 2}, mechanism=bit, **unit)


def law_of(plan: Plan, record: Held, beside: Held | None = None) -> Law:
    """The exact law of the report of one record, by the running code of a device.

    Args:
        plan: Of reports.
        record: Whose report.
        beside: Stands before, between and behind it in the same call, with words of its own; None: nothing does.

    Returns:
        Nothing where other words are read than honest reports take, or the reports of ``beside`` are not all alike,
        though the same words decide them.
    """
    (_, rows, _), number = plan.counters_shape, integers(plan)
    rows *= 2 if plan.privacy.mechanism.name == "one-bit" else 1  # a cosine or a sine of each
    every = np.arange(rows * number)
    deciding = np.stack([every // number, every % number])
    if beside is None:
        return _report_law(_reports(plan, [record], [0] * len(every), deciding), len(every))
    among = np.zeros((2, 2 * len(every) + 1), dtype=np.int64)
    among[:, 1::2] = deciding
    counted = _reports(plan, [beside, record], np.arange(among.shape[1]) % 2, among)
    (own,) = _reports(plan, [beside], [0], among[:, :1]) or {NONE_SENT: 1}
    counted[own] -= len(every) + 1
    return _report_law(counted, len(every)) if counted[own] >= 0 else {}


def _reports(plan: Plan, held: Sequence[Held], order: npt.ArrayLike, deciding: Integers) -> Counter[int]:
    """How often each report is sent; nothing at all where other words are read than these.

    Args:
        plan: Of reports.
        held: Different records.
        order: (n,) the place of each record of the call among them.
        deciding: (2, n): the word of the row and that of the output of each.
    """
    which = np.asarray(order)
    words = _Words(np.append(deciding.reshape(-1), np.zeros(streams(plan, len(which)), dtype=np.int64)))
    values = np.array([each.value for each in held])[which]
    labels = [held[each].label for each in which] if plan.classes else None
    try:
        reports = sent(plan, column(*values), labels, words)
    except OSError:
        return Counter()
    if len(reports) == len(which) and words.left:
        return Counter()
    found = Counter(reports.tolist())
    if len(reports) < len(which):
        found[NONE_SENT] = len(which) - len(reports)
    return found


def _report_law(counted: Counter[int], runs: int) -> Law:
    return {report: Fraction(count, runs) for report, count in counted.items() if count}


def records_of(plan: Plan) -> list[Held]:
    """Records in every bucket of every class, unusable ones, and such with a label that the plan does not know."""
    labels: tuple[str | None, ...] = (*plan.classes, _UNKNOWN) if plan.classes else (None,)
    return [Held(value, label) for label in labels for value in _VALUES]


def exact_epsilon(plan: Plan) -> float:
    """The least ε between any two contents of one unit: the worst of all reports for all pairs, m of them composed.

    What a record's report tells of another record of its call is added.
    """
    records = records_of(plan)
    own = worst(_different(law_of(plan, record) for record in records))
    others = records if len(records) <= _ALL else [*records[::_SOME], records[-1]]
    told = [
        worst(_different([law_of(plan, record), *(law_of(plan, record, other) for other in others)]))
        for record in (records[0], records[len(_VALUES) // 2], Held(math.nan, records[0].label))
    ]
    return (plan.privacy.records_per_client or 1) * (own + max(told))


def _different(laws: Iterable[Law]) -> list[Law]:
    return [dict(law) for law in {tuple(sorted(law.items())) for law in laws}]


def worst(laws: Sequence[Law]) -> float:
    """ln of the largest ratio of the probabilities of one report, over all of them and all pairs of laws."""
    reports = set().union(*laws)
    if not reports or not all(law.keys() == reports for law in laws):
        return math.inf
    ratio = max(max(law[each] for law in laws) / min(law[each] for law in laws) for each in reports)
    return math.log(ratio.numerator) - math.log(ratio.denominator)


def integers(plan: Plan) -> int:
    """Below which the integer is drawn that decides an output: N·T of a value, or 2·peak·(a + b) of a bit."""
    ratio = plan.privacy.mechanism.scale
    if plan.privacy.mechanism.name == "one-bit":
        return 2 * bit_of(plan).peak * (ratio.numerator + ratio.denominator)
    choice = choice_of(plan)
    likeliest = max(choice.probability(0, output) for output in range(choice.outputs))
    return choice.outputs * int(ratio.numerator / likeliest)


def exact_report_row(plan: Plan) -> AuditRow:
    """What a plan claims of a unit's reports, and what all words show."""
    return replace(_report_row("report, classes" if plan.classes else "report", plan), exact=exact_epsilon(plan))


def run_reports(plan: Plan, first: Held, second: Held, runs: int, what: str = "report") -> AuditRow:
    """The lower limit of ε that so many reports of each of two records prove."""
    likelihood = _Likelihood(plan, first, second)
    seen = [likelihood.rows(_sent(plan, record, runs)) for record in (first, second)]
    bound = audited(seen[0], seen[1], _COLUMNS, error=ERROR)
    row = _report_row(what, plan)
    claimed = row.epsilon / (plan.privacy.records_per_client or 1)
    return replace(row, epsilon=claimed, audited=bound.epsilon, event=bound.event, runs=runs)


_COLUMNS: Final = ("sent", "likelier for the first", "row", "output")


class _Likelihood:
    """Looks at reports as one who knows both records: which of the two makes this report the likelier."""

    def __init__(self, plan: Plan, first: Held, second: Held) -> None:
        self._outputs = plan.counters_shape[2]
        laws = [law_of(plan, record) for record in (first, second)]
        none = Fraction(0)
        self._sides = {
            each: float(
                (laws[0].get(each, none) > laws[1].get(each, none))
                - (laws[0].get(each, none) < laws[1].get(each, none))
            )
            for each in set().union(*laws)
        }

    def rows(self, sent: Sequence[int]) -> Floats:
        """(n, columns)."""
        return np.array(
            [
                [0.0, self._sides.get(each, 0.0), math.nan, math.nan]
                if each == NONE_SENT
                else [1.0, self._sides.get(each, 0.0), *divmod(each, self._outputs)]
                for each in sent
            ],
            dtype=np.float64,
        )


def _sent(plan: Plan, record: Held, runs: int) -> list[int]:
    labels = [record.label] * runs if plan.classes else None
    reports = sent(plan, np.repeat(column(record.value), runs, axis=0), labels, OsEntropy())
    return [*reports.tolist(), *[NONE_SENT] * (runs - len(reports))]


def size_checks() -> Iterator[Check]:
    """The stated laws of plans of usual sizes: chances that sum to 1, of ratios of at most λ ≤ e^ε, in fractions."""
    for promised, buckets, randomiser in ((4, 128, "k-rr"), (2, 64, "projective")):
        local = {"randomiser": randomiser}
        plan = plan_of(mode="local", sketch={"rows": 100, "buckets": buckets}, epsilon=promised, local=local)
        choice = choice_of(plan)
        values = range(-1, choice.inputs)
        yield _size_check(plan, [[choice.probability(v, each) for each in range(choice.outputs)] for v in values])
    plan = plan_of(mode="local", sketch={**_FOURIER, "fraction_bits": 12}, epsilon=2)
    bit = bit_of(plan)
    numbers = range(-bit.peak, bit.peak + 1)
    yield _size_check(plan, [[bit.probability(number, each) for each in (0, 1)] for number in numbers])


def _size_check(plan: Plan, laws: Sequence[Sequence[Fraction]]) -> Check:
    ratio = plan.privacy.mechanism.scale
    most = max(max(each) / min(each) for each in zip(*laws, strict=True))
    holds = most == ratio and all(sum(law) == 1 for law in laws) and math.log(ratio) <= plan.privacy.epsilon
    what = f"{len(laws)} laws of {len(laws[0])} {plan.privacy.mechanism.name} outputs keep to their ratio"
    return Check(what, holds, f"{float(most):.6g} of {float(ratio):.6g}")


def report_rows(runs: int) -> Iterable[AuditRow]:
    """Every plan exactly, and one of each randomiser by runs: against another record, and against an unusable one."""
    for index, plan in enumerate(report_plans()):
        yield exact_report_row(plan)
        if index < _REPORTS_BY_RUNS:
            labels = plan.classes or (None,)
            yield run_reports(plan, Held(0.0, labels[0]), Held(10.0, labels[-1]), runs)
            yield run_reports(plan, Held(0.0, labels[0]), Held(math.nan, labels[0]), runs, "unusable record")


class _Words:
    """Entropy of these words alone."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        self._left = words.astype("<u8")

    def read(self, size: int) -> bytes:
        taken, self._left = self._left[: size // _WORD], self._left[size // _WORD :]
        return taken.tobytes()

    @property
    def left(self) -> int:
        return len(self._left)


def _report_row(what: str, plan: Plan) -> AuditRow:
    promise, privacy = plan.guarantee, plan.privacy
    return AuditRow(
        what, promise.unit, promise.relation, privacy.mechanism.name, float(privacy.epsilon), 0.0, mode="local"
    )


_ID: Final = DeltaId(1, 0)

_SILOS_BY_RUNS: Final = (0, 1)  # which plans: one of either law
_PAIRS_MIN: Final = 400  # submissions, so that pairs that share noise show


def silo_plans() -> Iterator[Plan]:
    """Small plans of both laws, both units, without and with classes."""
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    for unit in ({}, client):
        for noise in ({}, {"delta": "0.05", "epsilon": 2}):
            yield silo_plan_of(**unit, **noise)
    yield silo_plan_of(record={"classes": [*_LABELS]})


def silo_plan_of(**keys: Any) -> Plan:
    """A small plan of form ``silo``."""
    return plan_of(mode="local", local={"form": "silo"}, **keys)


def counted(plan: Plan, data: Sequence[DataSet]) -> list[Vector]:
    """What the target's own device counts before its noise; all 0 where it holds nothing."""
    return [_counted(plan, _held(each)) for each in data]


def exact_silo_row(plan: Plan) -> AuditRow:
    """The ε of one submission over all outcomes, for everything that one unit can hold, against nothing."""
    row = _silo_row("silo", plan)
    return replace(row, exact=epsilon(plan, _changes(plan), row.delta))


def run_silo(plan: Plan, runs: int) -> AuditRow:
    """The lower limit of ε that so many submissions prove, of a device that holds all it may, and of one emptied."""
    mine = worst_content(plan)
    vectors = [_counted(plan, held) for held in (mine, mine[:0])]
    change = _flat(vectors[0]) - _flat(vectors[1])
    seen = []
    for vector in vectors:
        shown = np.stack([_submitted(plan, vector) for _ in range(runs)]).astype(np.float64)
        middle = shown - (_flat(vectors[0]) + _flat(vectors[1])) / 2
        half = np.abs(change) / 2
        clipped = np.clip(middle, -half, half) @ np.sign(change)
        together = [shown[:, first] + sign * shown[:, second] for first, second, sign in _pairs(len(change))]
        seen.append(np.column_stack([shown, *together, middle @ change, clipped]))
    names = [f"counter {index}" for index in range(len(change))]
    names += [f"counter {one} {'+' if sign > 0 else '−'} counter {two}" for one, two, sign in _pairs(len(change))]
    columns = (*names, "counters along the difference", "counters along the difference, clipped")
    row = _silo_row("silo", plan)
    bound = audited(seen[0], seen[1], columns, delta=row.delta, error=ERROR)
    return replace(row, audited=bound.epsilon, event=bound.event, runs=runs)


def noise_check(plan: Plan, submissions: int) -> Check:
    """χ² of every counter and every count counter of submissions of nothing; the worst of all, at 10⁻⁶ together."""
    shown = _of_nothing(plan, submissions)
    chances = _law(plan.privacy.mechanism)
    reach = len(chances) // 2
    what = f"each of {shown.shape[1]} numbers that a silo submits has its own {plan.privacy.mechanism.name} noise"
    found = []
    for drawn in shown.T:
        seen = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(chances))
        found.append(fit_check(what, seen, chances, tests=shown.shape[1]))
    distinct = len({drawn.tobytes() for drawn in shown.T}) == shown.shape[1]
    failed = [check for check in found if not check.holds]
    worst = failed[0] if failed else found[0]
    return replace(worst, holds=worst.holds and distinct)


def pairs_check(plan: Plan, submissions: int) -> Check:
    """χ² of the sums and differences of every two numbers, at 10⁻⁶ together: noise that two share adds up or cancels.

    Two of one submission, and two of one and the next. What three or more share between them, no two of which do, and
    what comes again later is not looked for.
    """
    shown = _of_nothing(plan, max(submissions, _PAIRS_MIN))
    one = np.array(_law(plan.privacy.mechanism))
    reach = len(one) // 2
    chances = np.maximum(np.convolve(one, one), 0.0)  # as well of a difference: the law is symmetric
    size = shown.shape[1]
    within = [(shown[:, one], sign * shown[:, two]) for one, two, sign in _pairs(size)]
    # Of submissions 0 and 1, 2 and 3, and so on: the sums are independent of each other.
    before, after = shown[0 : len(shown) // 2 * 2 : 2], shown[1::2]
    across = [(before[:, one], sign * after[:, two]) for one, two, sign in product(range(size), range(size), (1, -1))]
    what = f"no two of {size} numbers of a silo share {plan.privacy.mechanism.name} noise, nor with the next submission"
    found = []
    for first, second in (*within, *across):
        places = np.clip(first + second, -2 * reach, 2 * reach) + 2 * reach
        seen = np.bincount(places, minlength=len(chances))
        found.append(fit_check(what, seen, chances.tolist(), tests=len(within) + len(across)))
    failed = [check for check in found if not check.holds]
    return failed[0] if failed else replace(found[0], found=f"{len(found)} sums and differences as stated")


@lru_cache(maxsize=8)
def _law(mechanism: Mechanism) -> list[float]:
    """The stated chances of −reach to reach."""
    noise = mechanism.noise()
    reach = max(8, int(40 * noise.std))
    law = stated(mechanism.name, noise.scale, reach)
    return [float(law[k][0]) for k in range(-reach, reach + 1)]


def _pairs(size: int) -> list[tuple[int, int, int]]:
    """Every two of so many numbers, with either sign of the second."""
    return [(first, second, sign) for first, second in combinations(range(size), 2) for sign in (1, -1)]


def silo_rows(runs: int) -> Iterator[AuditRow]:
    """Every plan exactly; the first of either law, and one with classes, by runs too."""
    for index, plan in enumerate(silo_plans()):
        row = exact_silo_row(plan)
        yield replace(run_silo(plan, runs), exact=row.exact) if index in _SILOS_BY_RUNS or plan.classes else row


def silo_checks(submissions: int) -> Iterator[Check]:
    """The noise of two classes, and of the other law."""
    for plan in (silo_plan_of(record={"classes": [*_LABELS]}), silo_plan_of(delta="0.05", epsilon=2)):
        yield noise_check(plan, submissions)
        yield pairs_check(plan, submissions)


def _of_nothing(plan: Plan, submissions: int) -> Integers:
    """(submissions, numbers): noise alone, in the order in which it was submitted."""
    vector = _counted(plan, column())
    return np.stack([_submitted(plan, vector) for _ in range(submissions)])


def _changes(plan: Plan) -> frozenset[Change]:
    if not plan.classes:
        return changes(plan, counted)
    nothing = _flat(_counted(plan, column()))
    held = [_flat(_counted(plan, each, label)) for each in contents(plan) for label in plan.classes]
    return frozenset(tuple(map(int, each - nothing)) for each in held)


def _counted(plan: Plan, records: Floats, label: str | None = None) -> Vector:
    labels = [label or plan.classes[0]] * len(records) if plan.classes else None
    deltas = encode_all(plan, records, window=0, id=_ID, labels=labels)[0]
    counters, counts = counters_of(plan, [delta.pack(plan) for delta in deltas])
    return Vector(counters.reshape(plan.counters_shape), counts)


def _submitted(plan: Plan, vector: Vector) -> Integers:
    data = silo.submission(plan, vector.counters, vector.counts, window=0, id=_ID, entropy=OsEntropy())
    seen = silo.unpack(data, plan)
    return np.append(seen.counters.reshape(-1), seen.counts)


def _held(data: DataSet) -> Floats:
    return next((each.records for each in data if each.client == TARGET), column())


def _flat(vector: Vector) -> Integers:
    return np.append(vector.counters.reshape(-1), vector.counts)


def _silo_row(what: str, plan: Plan) -> AuditRow:
    promise, privacy = plan.guarantee, plan.privacy
    epsilon_, delta = float(privacy.epsilon), float(privacy.delta)
    return AuditRow(what, promise.unit, promise.relation, privacy.mechanism.name, epsilon_, delta, mode=privacy.mode)
