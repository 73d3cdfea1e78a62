"""What a population has spent and may still spend: the rules of the ledger, without any storage.

Exact fractions, rounded against us where a bound is irrational.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from types import MappingProxyType
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import BudgetError, PlanError
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.privacy.relation import FREE, RECORD, RELATIONS, UNITS, Cost, implied, is_delta, is_positive

_Chain = tuple[Spend, "_Chain"] | None
_Totals = Mapping[tuple[str, str], Cost | None]

_NOTHING_SPENT: Final[_Totals] = MappingProxyType(dict.fromkeys(product(UNITS, RELATIONS), FREE))


@dataclass(frozen=True)
class Limits:
    """The most that a population may spend in all, in one unit and relation.

    Args:
        population: Whose data it is; empty for the only one of a ledger.
        unit: ``record`` or ``client``.
        relation: ``add/remove``, ``zero-out`` or ``replace``.
        epsilon: Above 0.
        delta: From 0 to below 1.

    Raises:
        PlanError: A field is out of range; it names the key of the plan.
    """

    population: str
    unit: str
    relation: str
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise PlanError("privacy.unit", self.unit, " or ".join(map(repr, UNITS)))
        if self.relation not in RELATIONS:
            raise PlanError("relation", self.relation, " or ".join(map(repr, RELATIONS)))
        if not is_positive(self.epsilon):
            raise PlanError("privacy.total_epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("privacy.total_delta", self.delta, "an exact number from 0 to below 1")

    @property
    def cost(self) -> Cost:
        """The (ε, δ) that the total may reach."""
        return Cost(self.epsilon, self.delta)


@dataclass(frozen=True, eq=False)
class Account:
    """A population's limits and spends. Frozen: a charge gives a new one, in time that does not grow with the spends.

    Args:
        limits: As its first registration fixed them, or lower.
    """

    limits: Limits
    _totals: _Totals = field(default_factory=lambda: _NOTHING_SPENT, repr=False)
    # Parallel composition: the worst window so far, by plan and relation.
    _worst: Mapping[tuple[str, str], Cost] = field(default_factory=dict, repr=False)
    _newest_window: Mapping[str, int] = field(default_factory=dict, repr=False)
    # Newest first, each linked to the one before: sharing the past makes a charge cheap.
    _chain: _Chain = field(default=None, repr=False)

    @property
    def spends(self) -> tuple[Spend, ...]:
        """All spends, oldest first."""
        return tuple(self._backwards())[::-1]

    @property
    def spent(self) -> Cost:
        """The total in the unit and relation of the limits.

        Raises:
            BudgetError: It reads "none", which no charge lets happen.
        """
        total = self.total(self.limits.unit, self.limits.relation)
        if total is None:
            raise BudgetError(f"the spends of {self._name} imply nothing for its unit and relation")
        return total

    @property
    def left(self) -> Cost:
        """What the limits still allow; nothing where they were lowered below what is spent."""
        left = self.limits.cost.minus(self.spent)
        return Cost(max(left.epsilon, Fraction(0)), max(left.delta, Fraction(0)))

    def total(self, unit: str, relation: str) -> Cost | None:
        """All spends together in one unit and relation, or None ("none") where some of them imply nothing for it."""
        return self._totals[unit, relation]

    def register(self, limits: Limits) -> "Account":
        """The account after one more plan of the population: a plan may lower its limits, never raise them.

        The population's unit and relation stay what its first plan made them.

        Args:
            limits: What the plan declares, with the unit and relation that its spends will have.

        Raises:
            BudgetError: Another population, a higher limit, or spends that would make the total read "none".
        """
        self._refuse_foreign(limits.population, limits.unit, limits.relation)
        own = self.limits
        for name, asked, fixed in (("epsilon", limits.epsilon, own.epsilon), ("delta", limits.delta, own.delta)):
            if asked > fixed:
                raise BudgetError(
                    f"total_{name} of {self._name} is {real_text(fixed)}: a plan may lower it, never raise it; "
                    f"got {real_text(asked)}"
                )
        return replace(self, limits=replace(own, epsilon=limits.epsilon, delta=limits.delta))

    def charge(self, spend: Spend) -> "Account":
        """The account after a new spend.

        Raises:
            BudgetError: It would pass a limit, is of another population, would make the total read "none", or its
                window was charged before. The message says what is asked and what is left.
        """
        self._refuse_foreign(spend.population, spend.unit, spend.relation)
        if self._holds_window(spend):
            raise BudgetError(f"window {spend.window} of plan {spend.plan_id[:12]} was charged before")
        after = self.recorded(spend)
        total, limit = after.spent, self.limits.cost
        if total.epsilon > limit.epsilon or total.delta > limit.delta:
            raise BudgetError(
                f"{self._name} cannot pay for this release: it asks {_text(total.minus(self.spent))}, "
                f"and of {_text(limit)} there is left {_text(self.left)}"
            )
        return after

    def recorded(self, spend: Spend) -> "Account":
        """The account after a spend that was charged elsewhere already, as a store replays it: nothing refuses it."""
        worst, old = self._worst, FREE
        new = spend.cost
        if spend.unit == RECORD and spend.kind == TUMBLING:
            # A record is in one window of its plan, so that these windows compose in parallel.
            group = (spend.plan_id, spend.relation)
            old = worst.get(group, FREE)
            new = old.worst(new)
            if new != old:
                worst = {**worst, group: new}
        newest = self._newest_window
        if spend.window is not None:
            newest = {**newest, spend.plan_id: max(spend.window, newest.get(spend.plan_id, spend.window))}
        return replace(
            self,
            _totals={target: _added(total, spend, old, new, target) for target, total in self._totals.items()},
            _worst=worst,
            _newest_window=newest,
            _chain=(spend, self._chain),
        )

    def _refuse_foreign(self, population: str, unit: str, relation: str) -> None:
        own = self.limits
        if population != own.population:
            raise BudgetError(f"this is the ledger of {self._name}, not of population {population!r}")
        if implied(FREE, unit=unit, relation=relation, for_unit=own.unit, for_relation=own.relation) is None:
            raise BudgetError(
                f"{self._name} is accounted for unit {own.unit!r} under {own.relation}; a spend for unit {unit!r} "
                f"under {relation} implies nothing there, and the total would read none"
            )

    def _holds_window(self, spend: Spend) -> bool:
        newest = self._newest_window.get(spend.plan_id)
        if spend.window is None or newest is None or spend.window > newest:
            return False  # the usual case: windows come in order
        key = (spend.plan_id, spend.kind, spend.window)
        return any((past.plan_id, past.kind, past.window) == key for past in self._backwards())

    def _backwards(self) -> Iterator[Spend]:
        chain = self._chain
        while chain is not None:
            spend, chain = chain
            yield spend

    @property
    def _name(self) -> str:
        return f"population {self.limits.population!r}"


def _added(total: Cost | None, spend: Spend, old: Cost, new: Cost, target: tuple[str, str]) -> Cost | None:
    """A total after what it holds of a spend's group grew from ``old`` to ``new``."""
    after, before = (
        implied(cost, unit=spend.unit, relation=spend.relation, for_unit=target[0], for_relation=target[1])
        for cost in (new, old)
    )
    if total is None or after is None or before is None:
        return None
    return total.plus(after.minus(before))


def _text(cost: Cost) -> str:
    return f"epsilon {real_text(cost.epsilon)}, delta {real_text(cost.delta)}"
