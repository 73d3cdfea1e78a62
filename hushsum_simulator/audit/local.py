"""Audits of local mode: the exact law of a device's report, and the submission of a silo for a window.

The exact audit of reports feeds the device's own code every word that can decide a report, once each, and counts the
reports of each record, unusable ones and unknown labels included. The ratios of these counts are the promise itself,
for every pair of records and every report: no law is assumed. The same is done for a record among others of the same
call: its report may depend neither on those nor on the words that decide theirs.

The submission of a silo is compared with that of a silo without records.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_client.encoding import counters_of
from hushsum.delta import DeltaId, encode_all
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.local.reports import bit_of, choice_of
from hushsum.plan import Plan
from hushsum_simulator.audit.cases import (
    CLIENT,
    TARGET,
    DataSet,
    along_the_difference,
    column,
    contents,
    flat,
    plan_of,
    worst_content,
)
from hushsum_simulator.audit.empirical import chances_of, noise_fit, with_runs
from hushsum_simulator.audit.exact import Change, changes, difference, epsilon
from hushsum_simulator.audit.pipelines import Vector, sent, streams
from hushsum_simulator.audit.report import AuditRow, Check, Floats, Integers, claimed

Law = Mapping[int, Fraction]  # of the report that was sent; impossible reports are not in it

NONE_SENT: Final = -1
_LABELS: Final = ("yes", "no")
_UNKNOWN: Final = "neither"
_VALUES: Final = (*np.linspace(0.0, 10.0, 11).tolist(), math.nan)
_WORD: Final = 8  # bytes
_ALL: Final = 12  # records of which each is tried beside others; of more records
_SOME: Final = 5  # every fifth is
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
    for unit, ratio in (({}, "2.7"), (CLIENT, "1.6")):
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

    ``beside`` is another record before, between and behind it in the same call, with its own words.

    Returns:
        An empty law if other words are read than honest reports take, or if the reports of ``beside`` differ although
        the same words decide them.
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
    """How often each report is sent; empty if other words are read than these.

    ``order`` (n,) is the index in ``held`` of each record of the call, ``deciding`` (2, n) the word of the row and that
    of the output of each.
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
    """Records in every bucket of every class, unusable ones, and records with a label that the plan does not know."""
    labels: tuple[str | None, ...] = (*plan.classes, _UNKNOWN) if plan.classes else (None,)
    return [Held(value, label) for label in labels for value in _VALUES]


def exact_epsilon(plan: Plan) -> float:
    """The least ε between any two contents of one unit: the worst of all reports for all pairs, m of them composed.

    The loss by a record's report about another record of its call is added.
    """
    records = records_of(plan)
    own = worst(_different(law_of(plan, record) for record in records))
    others = records if len(records) <= _ALL else [*records[::_SOME], records[-1]]
    leaked = [
        worst(_different([law_of(plan, record), *(law_of(plan, record, other) for other in others)]))
        for record in (records[0], records[len(_VALUES) // 2], Held(math.nan, records[0].label))
    ]
    return (plan.privacy.records_per_client or 1) * (own + max(leaked))


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
    """The bound of the integer that decides an output: N·T for a value, or 2·peak·(a + b) for a bit."""
    ratio = plan.privacy.mechanism.scale
    if plan.privacy.mechanism.name == "one-bit":
        return 2 * bit_of(plan).peak * (ratio.numerator + ratio.denominator)
    choice = choice_of(plan)
    likeliest = max(choice.probability(0, output) for output in range(choice.outputs))
    return choice.outputs * int(ratio.numerator / likeliest)


def _claimed(what: str, plan: Plan) -> AuditRow:
    """The claim for a report itself: pure ε, since the δ of a shuffled plan is that of the shuffled batch alone."""
    return replace(claimed(what, plan), delta=0.0)


def exact_report_row(plan: Plan) -> AuditRow:
    """The claim for a unit's reports, and ε by all words."""
    return replace(_claimed("report, classes" if plan.classes else "report", plan), exact=exact_epsilon(plan))


def run_reports(plan: Plan, first: Held, second: Held, runs: int, what: str = "report") -> AuditRow:
    """The lower limit of ε that this many reports of each of two records prove.

    The attacker knows both records: of which of them this report is more likely.
    """
    laws = [law_of(plan, record) for record in (first, second)]
    changes_of = ((each, laws[0].get(each, 0) - laws[1].get(each, 0)) for each in set().union(*laws))
    sides = {each: float((change > 0) - (change < 0)) for each, change in changes_of}

    def rows(record: Held) -> Floats:
        columns = [
            [0.0, sides.get(each, 0.0), math.nan, math.nan]
            if each == NONE_SENT
            else [1.0, sides.get(each, 0.0), *divmod(each, plan.counters_shape[2])]
            for each in _sent(plan, record, runs)
        ]
        return np.array(columns, dtype=np.float64)

    row = _claimed(what, plan)
    row = replace(row, epsilon=row.epsilon / (plan.privacy.records_per_client or 1))
    return with_runs(row, [rows(first), rows(second)], ("sent", "likelier for the first", "row", "output"))


def _sent(plan: Plan, record: Held, runs: int) -> list[int]:
    labels = [record.label] * runs if plan.classes else None
    reports = sent(plan, np.repeat(column(record.value), runs, axis=0), labels, OsEntropy())
    return [*reports.tolist(), *[NONE_SENT] * (runs - len(reports))]


def size_checks() -> Iterator[Check]:
    """The stated laws of plans of usual sizes: chances sum to 1, and ratios are at most λ ≤ e^ε, in fractions."""
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
    what = f"{len(laws)} distributions of {len(laws[0])} {plan.privacy.mechanism.name} outputs have the stated ratio"
    return Check(what, holds, f"{float(most):.6g} of {float(ratio):.6g}")


def report_rows(runs: int) -> Iterable[AuditRow]:
    """Every plan exactly, and some of each randomiser by runs: against another record, and against an unusable one."""
    for index, plan in enumerate(report_plans()):
        yield exact_report_row(plan)
        if index < _REPORTS_BY_RUNS:
            labels = plan.classes or (None,)
            yield run_reports(plan, Held(0.0, labels[0]), Held(10.0, labels[-1]), runs)
            yield run_reports(plan, Held(0.0, labels[0]), Held(math.nan, labels[0]), runs, "unusable record")


class _Words:
    """Entropy that consists of these words."""

    def __init__(self, words: npt.NDArray[np.int64]) -> None:
        self._left = words.astype("<u8")

    def read(self, size: int) -> bytes:
        taken, self._left = self._left[: size // _WORD], self._left[size // _WORD :]
        return taken.tobytes()

    @property
    def left(self) -> int:
        return len(self._left)


_ID: Final = DeltaId(1, 0)

_SILOS_BY_RUNS: Final = (0, 1)  # indices of plans: one of either law
_PAIRS_MIN: Final = 400  # submissions, so that pairs that share noise show


def silo_plans() -> Iterator[Plan]:
    """Small plans of both laws, both units, without and with classes."""
    for unit in ({}, CLIENT):
        for noise in ({}, {"delta": "0.05", "epsilon": 2}):
            yield silo_plan_of(**unit, **noise)
    yield silo_plan_of(record={"classes": [*_LABELS]})


def silo_plan_of(**keys: Any) -> Plan:
    """A small plan of form ``silo``."""
    return plan_of(mode="local", local={"form": "silo"}, **keys)


def counted(plan: Plan, data: Sequence[DataSet]) -> list[Vector]:
    """The counters of the target's device before its noise; all 0 if it has no records."""
    return [
        _counted(plan, next((each.records for each in submissions if each.client == TARGET), column()))
        for submissions in data
    ]


def exact_silo_row(plan: Plan) -> AuditRow:
    """ε of one submission over all outcomes, for everything that one unit can hold, against nothing."""
    row = claimed("silo", plan)
    return replace(row, exact=epsilon(plan, _changes(plan), row.delta))


def run_silo(plan: Plan, runs: int) -> AuditRow:
    """The lower limit of ε that this many submissions prove, of a device with all it may hold, and of an empty one."""
    mine = worst_content(plan)
    vectors = [_counted(plan, held) for held in (mine, mine[:0])]
    exact = [flat(vector) for vector in vectors]
    pairs = _pairs(len(exact[0]))
    seen = []
    for vector in vectors:
        shown = np.stack([_submitted(plan, vector) for _ in range(runs)]).astype(np.float64)
        together = [shown[:, first] + sign * shown[:, second] for first, second, sign in pairs]
        seen.append(np.column_stack([shown, *together, *along_the_difference(shown, *exact)]))
    names = [f"counter {index}" for index in range(len(exact[0]))]
    names += [f"counter {one} {'+' if sign > 0 else '−'} counter {two}" for one, two, sign in pairs]
    columns = (*names, "counters along the difference", "counters along the difference, clipped")
    return with_runs(claimed("silo", plan), seen, columns)


def noise_check(plan: Plan, submissions: int) -> Check:
    """χ² of every counter and every count counter of submissions without records."""
    shown = _of_nothing(plan, submissions)
    what = f"each of {shown.shape[1]} numbers that a silo submits has its own {plan.privacy.mechanism.name} noise"
    check = noise_fit(what, shown.T, chances_of(plan.privacy.mechanism))
    are_distinct = len({drawn.tobytes() for drawn in shown.T}) == shown.shape[1]
    return replace(check, holds=check.holds and are_distinct)


def pairs_check(plan: Plan, submissions: int) -> Check:
    """χ² of the sums and differences of every two numbers: noise that two of them share adds up or cancels.

    The two are of one submission, or of two in succession. Noise that three or more share, but no two of them, and
    noise that is repeated later is not found.
    """
    shown = _of_nothing(plan, max(submissions, _PAIRS_MIN))
    one = np.array(chances_of(plan.privacy.mechanism))
    chances = np.maximum(np.convolve(one, one), 0.0)  # of a difference, too: the law is symmetric
    size = shown.shape[1]
    sums = [shown[:, first] + sign * shown[:, second] for first, second, sign in _pairs(size)]
    # Of submissions 0 and 1, 2 and 3, and so on: these sums are independent.
    before, after = shown[0 : len(shown) // 2 * 2 : 2], shown[1::2]
    every_two = product(range(size), range(size), (1, -1))
    sums += [before[:, first] + sign * after[:, second] for first, second, sign in every_two]
    what = f"no two of {size} numbers of a silo share {plan.privacy.mechanism.name} noise, nor with the next submission"
    check = noise_fit(what, sums, chances.tolist())
    return replace(check, found=f"{len(sums)} sums and differences as stated") if check.holds else check


def _pairs(size: int) -> list[tuple[int, int, int]]:
    """Every two of these numbers, with either sign of the second."""
    return [(first, second, sign) for first, second in combinations(range(size), 2) for sign in (1, -1)]


def silo_rows(runs: int) -> Iterator[AuditRow]:
    """Every plan exactly; the first of either law, and one with classes, also by runs."""
    for index, plan in enumerate(silo_plans()):
        row = exact_silo_row(plan)
        yield replace(run_silo(plan, runs), exact=row.exact) if index in _SILOS_BY_RUNS or plan.classes else row


def silo_checks(submissions: int) -> Iterator[Check]:
    """The noise of two classes, and of discrete Gaussian noise."""
    for plan in (silo_plan_of(record={"classes": [*_LABELS]}), silo_plan_of(delta="0.05", epsilon=2)):
        yield noise_check(plan, submissions)
        yield pairs_check(plan, submissions)


def _of_nothing(plan: Plan, submissions: int) -> Integers:
    """(submissions, numbers): noise alone, in the order of submission."""
    vector = _counted(plan, column())
    return np.stack([_submitted(plan, vector) for _ in range(submissions)])


def _changes(plan: Plan) -> frozenset[Change]:
    if not plan.classes:
        return changes(plan, counted)
    nothing = _counted(plan, column())
    held = [_counted(plan, each, label) for each in contents(plan) for label in plan.classes]
    return frozenset(difference(nothing, each) for each in held)


def _counted(plan: Plan, records: Floats, label: str | None = None) -> Vector:
    labels = [label or plan.classes[0]] * len(records) if plan.classes else None
    deltas = encode_all(plan, records, window=0, id=_ID, labels=labels)[0]
    counters, counts = counters_of(plan, [delta.pack(plan) for delta in deltas])
    return Vector(counters.reshape(plan.counters_shape), counts)


def _submitted(plan: Plan, vector: Vector) -> Integers:
    data = silo.submission(plan, vector.counters, vector.counts, window=0, id=_ID, entropy=OsEntropy())
    return flat(silo.unpack(data, plan))
