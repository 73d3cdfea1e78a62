"""Questions to private data that have one public list of answers, and how one is drawn: charged first, then once."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from hushsum.canonical import real, real_text
from hushsum.choosing.utilities import UNIT, contribution_sum, usable_records
from hushsum.entropy import Entropy
from hushsum.errors import CanonicalError, PlanError
from hushsum.plan import Plan
from hushsum.privacy import noisy_max
from hushsum.privacy.calibration import noise_of
from hushsum.privacy.events import CHOICE, Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import CENTRAL, factor_text
from hushsum.privacy.ledger import Ledger
from hushsum.privacy.relations import Cost
from hushsum.privacy.statement import told

CANDIDATES_MAX: Final = 64
ROWS: Final = "rows"
BANDWIDTH: Final = "bandwidth"
SIGNAL: Final = 10  # standard errors of the noise that a kernel sum should have


@dataclass(frozen=True)
class Question:
    """What a choice would be made of: not private, never to be shown.

    Attributes:
        plan: The plan that asks.
        key: ``rows`` or ``bandwidth``.
        plans: One a candidate.
        utilities: Integers, one a candidate; larger is better.
        sensitivity: By how much one unit of the plan moves each utility at most.
        epsilon: What the choice spends.
    """

    plan: Plan
    key: str
    plans: tuple[Plan, ...]
    utilities: tuple[int, ...] = field(repr=False)
    sensitivity: int
    epsilon: Fraction

    @property
    def spend(self) -> Spend:
        """What the ledger is charged."""
        guarantee = self.plan.guarantee
        return Spend(
            population=self.plan.privacy.population,
            plan_id=self.plan.hex_id,
            kind=CHOICE,
            window=None,
            unit=guarantee.unit,
            relation=guarantee.relation,
            mode=guarantee.mode,
            events=(noisy_max.event(len(self.plans), sensitivity=self.sensitivity, epsilon=self.epsilon),),
        )


@dataclass(frozen=True)
class Choice:
    """What was chosen: differentially private, so it may be shown to anybody.

    Attributes:
        key: ``rows`` or ``bandwidth``.
        plan: The plan with the value that was chosen. Its budget is the old one's: the ledger knows what is spent.
        candidates: How many there were.
        epsilon: ε of the choice; its δ is 0.
        spend: What the ledger was charged.
    """

    key: str
    plan: Plan
    candidates: int
    epsilon: Fraction
    spend: Spend

    @property
    def value(self) -> Fraction:
        """What was chosen, of the key."""
        return real(self.plan.family.to_fields()[self.key])

    def statement(self) -> str:
        """What was chosen and what that tells about one unit, in plain words."""
        whose, unit, relation = "one record", self.spend.unit, self.spend.relation
        if self.plan.privacy.records_per_client is not None:
            whose = f"one client (only its first {self.plan.privacy.records_per_client} records were used)"
        return (
            f"{self.key} = {real_text(self.value)} was chosen from {self.candidates} public candidates with "
            f"access to the data, by report noisy max. ε = {numeral(self.epsilon, up=True)}, δ = 0, unit {unit}, "
            f"{relation}: {whose} changes the probability of any choice by a factor of at most "
            f"{factor_text(self.epsilon)}. {told(Cost(self.epsilon, Fraction(0)), unit=unit, relation=relation)} It "
            "was charged to the ledger of its population before it was drawn; releases are charged separately."
        )


def rows_question(
    records: Any, queries: Any, candidates: Iterable[int], plan: Plan, *, share: object, clients: Any = None
) -> Question:
    """What :func:`hushsum.choosing.choose_rows` draws from, with the same arguments."""
    if plan.family.name != "hashed":
        raise PlanError("sketch.family", plan.family.name, "'hashed'")
    if plan.privacy.delta:
        expected = "0: with δ > 0 noise does not grow with the rows, so the largest number of rows is best"
        raise PlanError("privacy.delta", real_text(plan.privacy.delta), expected)
    epsilon, plans = _epsilon(plan, share), _plans(plan, ROWS, candidates)
    # √2·b in units of a contribution, rounded down.
    targets = [math.isqrt(math.floor(2 * (each.privacy.mechanism.scale * UNIT) ** 2)) for each in plans]
    found = contribution_sum(plan.family, usable_records(plan, records, clients), queries, root=True)
    return _question(plan, ROWS, plans, [found] * len(plans), targets, epsilon)


def bandwidth_question(
    records: Any,
    queries: Any,
    candidates: Iterable[object],
    plan: Plan,
    *,
    share: object,
    clients: Any = None,
    mass: object = None,
) -> Question:
    """What :func:`hushsum.choosing.choose_bandwidth` draws from, with the same arguments."""
    if BANDWIDTH not in plan.family.to_fields():
        raise PlanError("sketch.family", plan.family.name, "a sketch with one bandwidth")
    epsilon, plans = _epsilon(plan, share), _plans(plan, BANDWIDTH, candidates)
    masses = [_real("mass", mass)] * len(plans) if mass is not None else [_signal(each) for each in plans]
    usable = usable_records(plan, records, clients)
    found = [contribution_sum(each.family, usable, queries, root=False) for each in plans]
    return _question(plan, BANDWIDTH, plans, found, [round(each * UNIT) for each in masses], epsilon)


def draw(question: Question, ledger: Ledger, entropy: Entropy) -> Choice:
    """Charges the ledger, then draws the winner, once.

    Raises:
        BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
    """
    spend = question.spend
    ledger.charge(spend, question.plan.limits)
    winner = noisy_max.report_noisy_max(
        question.utilities, sensitivity=question.sensitivity, epsilon=question.epsilon, entropy=entropy
    )
    return Choice(question.key, question.plans[winner], len(question.plans), question.epsilon, spend)


def _question(
    plan: Plan, key: str, plans: Sequence[Plan], sums: Sequence[int], targets: Sequence[int], epsilon: Fraction
) -> Question:
    utilities = tuple(-abs(found - target) for found, target in zip(sums, targets, strict=True))
    records = plan.privacy.records_per_client or 1
    return Question(plan, key, tuple(plans), utilities, records * UNIT, epsilon)


def _signal(plan: Plan) -> Fraction:
    """10 standard errors that noise alone gives an answer of this plan, in records."""
    variance = plan.family.answer_variance(noise_of(plan.privacy.mechanism, plan.privacy.claim))
    return SIGNAL * Fraction(math.sqrt(variance))


def _epsilon(plan: Plan, share: object) -> Fraction:
    """The share of the total, exactly; what is left must pay for a release, or the choice would be for nothing."""
    if plan.privacy.mode != CENTRAL:
        raise PlanError("privacy.mode", plan.privacy.mode, "'central': a choice needs exact records in one place")
    total, most = plan.privacy.total_epsilon, 1 - plan.privacy.epsilon / plan.privacy.total_epsilon
    part = _real("share", share)
    if most <= 0:
        came, least = real_text(total), real_text(plan.privacy.epsilon)
        raise PlanError("privacy.total_epsilon", came, f"more than {least}: it pays for a choice and a release")
    if part > most:
        expected = f"at most {real_text(most)}: total_epsilon must also pay for a release"
        raise PlanError("share", real_text(part), expected)
    try:
        return real(part * total)
    except CanonicalError as error:
        raise PlanError("share", real_text(part), f"a number with fewer digits ({error})") from error


def _real(key: str, value: object) -> Fraction:
    try:
        number = real(value)
    except CanonicalError as error:
        raise PlanError(key, value, f"an exact number above 0 ({error})") from error
    if number <= 0:
        raise PlanError(key, value, "an exact number above 0")
    return number


def _plans(plan: Plan, key: str, candidates: Iterable[object]) -> list[Plan]:
    """The plan with each candidate for a key of ``[sketch]``, all else the same.

    Noise is calibrated anew where the candidates change how far a record reaches: the number of rows.
    """
    values = [_real("candidates", value) for value in candidates]
    if not 2 <= len(values) <= CANDIDATES_MAX or len(set(values)) < len(values):
        expected = f"2 to {CANDIDATES_MAX} different numbers"
        raise PlanError("candidates", ", ".join(map(real_text, values[:8])), expected)
    return [_replaced(plan, key, value) for value in values]


def _replaced(plan: Plan, key: str, value: Fraction) -> Plan:
    fields = plan.to_fields()
    del fields["format"]
    privacy = dict(plan.privacy.to_fields())
    written: object = real_text(value)
    if key == ROWS:
        del privacy["mechanism"]
        if plan.privacy.keeps_gaussian(privacy):
            privacy["noise"] = "gaussian"
        written = value.numerator if value.denominator == 1 else real_text(value)
    sketch = {"family": plan.family.name, **plan.family.to_fields(), key: written}
    return Plan.from_fields({**fields, "sketch": sketch, "privacy": privacy}, plan.parameters)
