"""Audits of randomised reports: the exact law of what a device makes of one record, and what many reports prove.

The exact audit feeds the device's own code with every word that can decide a report, once each, and counts what comes
out for one record after another, unusable ones and unknown labels among them. The ratios of what was counted are the
promise itself, for every pair of records and every report: no law is taken for granted. The same is done for a record
among others of the same call: its report may follow neither those nor the words that decide theirs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import OsEntropy
from hushsum.local.layout import bit_of, choice_of
from hushsum.plan import Plan
from simulator.audits.cases import Integers, column, plan_of
from simulator.audits.confidence import ERROR
from simulator.audits.devices import sent, streams
from simulator.audits.events import audited
from simulator.audits.report import Check, Row

Law = Mapping[int, Fraction]  # of what was sent; reports that never come are not in it
Floats = npt.NDArray[np.float64]

NONE_SENT: Final = -1
_LABELS: Final = ("yes", "no")
_UNKNOWN: Final = "neither"
_VALUES: Final = (*np.linspace(0.0, 10.0, 11).tolist(), math.nan)
_WORD: Final = 8  # bytes
_ALL: Final = 12  # records, of which each is tried beside others; of more of them
_SOME: Final = 5  # every fifth
_BY_RUNS: Final = 5  # plans: those of unit record
_FOURIER: Final[Mapping[str, object]] = {"family": "fourier", "kernel": "gaussian", "fraction_bits": 4, "buckets": None}


@dataclass(frozen=True)
class Held:
    """One record of a unit, with its label where the plan has classes."""

    value: float
    label: str | None = None


def plans() -> Iterator[Plan]:
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
        return _counted(_reports(plan, [record], [0] * len(every), deciding), len(every))
    among = np.zeros((2, 2 * len(every) + 1), dtype=np.int64)
    among[:, 1::2] = deciding
    counted = _reports(plan, [beside, record], np.arange(among.shape[1]) % 2, among)
    (own,) = _reports(plan, [beside], [0], among[:, :1]) or {NONE_SENT: 1}
    counted[own] -= len(every) + 1
    return _counted(counted, len(every)) if counted[own] >= 0 else {}


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


def _counted(counted: Counter[int], runs: int) -> Law:
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


def exact_row(plan: Plan) -> Row:
    """What a plan claims of a unit's reports, and what all words show."""
    return replace(_row("report, classes" if plan.classes else "report", plan), exact=exact_epsilon(plan))


def run(plan: Plan, first: Held, second: Held, runs: int, what: str = "report") -> Row:
    """The lower limit of ε that so many reports of each of two records prove."""
    likelihood = _Likelihood(plan, first, second)
    seen = [likelihood.rows(_sent(plan, record, runs)) for record in (first, second)]
    bound = audited(seen[0], seen[1], _COLUMNS, error=ERROR)
    row = _row(what, plan)
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
    for epsilon, buckets, randomiser in ((4, 128, "k-rr"), (2, 64, "projective")):
        local = {"randomiser": randomiser}
        plan = plan_of(mode="local", sketch={"rows": 100, "buckets": buckets}, epsilon=epsilon, local=local)
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


def rows(runs: int) -> Iterable[Row]:
    """Every plan exactly, and one of each randomiser by runs: against another record, and against an unusable one."""
    for index, plan in enumerate(plans()):
        yield exact_row(plan)
        if index < _BY_RUNS:
            labels = plan.classes or (None,)
            yield run(plan, Held(0.0, labels[0]), Held(10.0, labels[-1]), runs)
            yield run(plan, Held(0.0, labels[0]), Held(math.nan, labels[0]), runs, "unusable record")


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


def _row(what: str, plan: Plan) -> Row:
    promise, privacy = plan.guarantee, plan.privacy
    return Row(what, promise.unit, promise.relation, privacy.mechanism.name, float(privacy.epsilon), 0.0, mode="local")
