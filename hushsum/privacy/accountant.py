"""What a population has spent and may still spend: the rules of the ledger, without any storage.

Exact fractions, rounded against us where a bound is irrational.

**Failures of secure sums and other spends**: how a population's δ is divided is fixed before any output is seen.

zCDP is converted at a δ, and a failure takes some of the same δ. If outputs could choose how much goes to either, then
both bounds together could pass it. So the first release says for all of the population, for no output chose that one:
no failures ever; or failures beside zCDP, for which a fixed part of δ is kept; or failures and no zCDP at all. Pure
secure sums whose plans keep that part (``failures = "reserved"``) are of the second kind: either of both bounds holds.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Final

from hushsum.errors import BudgetError, PlanError
from hushsum.privacy.events import CHOICE, CUMULATIVE, TUMBLING, Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.relations import (
    FAILURE_SHARE,
    NO_LOSS,
    RECORD,
    RELATIONS,
    UNITS,
    Cost,
    Loss,
    implied,
    is_delta,
    is_positive,
)

_Chain = tuple[Spend, "_Chain"] | None
_Target = tuple[str, str]  # unit and relation of a total
_Group = tuple[str, str, str, _Target]  # plan, unit and relation of windows, and the total that they are in
_Totals = Mapping[_Target, Loss | None]

_NOTHING_SPENT: Final[_Totals] = MappingProxyType(dict.fromkeys(product(UNITS, RELATIONS), NO_LOSS))


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
    # Parallel composition: what the worst window so far is worth in a total.
    _worst: Mapping[_Group, Loss] = field(default_factory=dict, repr=False)
    # Cumulative sequences, each of which is one spend however often a store or a receipt repeats it.
    _sequences: frozenset[Spend] = field(default=frozenset(), repr=False)
    _newest_window: Mapping[str, int] = field(default_factory=dict, repr=False)
    # Newest first, each linked to the one before: sharing the past makes a charge cheap.
    _chain: _Chain = field(default=None, repr=False)

    @property
    def spends(self) -> tuple[Spend, ...]:
        """All spends, oldest first."""
        return tuple(self._backwards())[::-1]

    @property
    def newest(self) -> Spend | None:
        """The last spend; None where there is none."""
        return self._chain[0] if self._chain else None

    @property
    def newest_release(self) -> Spend | None:
        """The last spend that is no choice, nor a window that a public number withheld; None where there is none."""
        return next((spend for spend in self._backwards() if spend.events and spend.kind != CHOICE), None)

    @property
    def whose(self) -> str:
        """The population, as sentences name it."""
        return f"population {self.limits.population!r}" if self.limits.population else "the population"

    @property
    def loss(self) -> Loss | None:
        """All spends together in the unit and relation of the limits; None ("none") where some imply nothing there."""
        return self._totals[self.limits.unit, self.limits.relation]

    @cached_property
    def cost(self) -> Cost | None:
        """The same as the ε at the δ of the limits, and the part of δ that this uses; None where there is no such ε."""
        return None if self.loss is None else self.loss.cost(self.limits.delta)

    @property
    def spent(self) -> Cost:
        """The same as :attr:`cost`.

        Raises:
            BudgetError: It reads "none", which no charge lets happen.
        """
        if self.cost is None:
            raise BudgetError(f"the spends of {self.whose} have no finite total ε at its total_delta")
        return self.cost

    @property
    def left(self) -> Cost:
        """What the limits still allow; nothing where they are passed (:attr:`is_passed`).

        Where zCDP is converted, all of δ counts as spent from the first release on, and more releases take none of it.
        """
        left = self.limits.cost.minus(self.spent)
        return Cost(max(left.epsilon, Fraction(0)), max(left.delta, Fraction(0)))

    @property
    def is_passed(self) -> bool:
        """Whether more is spent than the limits allow: they were lowered since, or a past version counted less."""
        return self.loss is None or not self.loss.within(self.limits.cost)

    def total(self, unit: str, relation: str) -> Cost | None:
        """All spends together in one unit and relation, at the δ of the limits.

        Returns:
            None ("none") where some spends imply nothing for it, or give no ε at this δ.
        """
        loss = self._totals[unit, relation]
        return None if loss is None else loss.cost(self.limits.delta)

    def affordable(self, spend: Spend) -> int | None:
        """How many more spends such as this one the limits allow, of other windows if it has one.

        Returns:
            None where they never add up, for a record is in one window; else a number, at most 10⁹.

        Raises:
            BudgetError: It is of another population, or would make the total read "none".
        """
        self._refuse_foreign(spend.population, spend.unit, spend.relation)
        if spend.kind == CUMULATIVE and spend in self._sequences:
            return None  # it is paid for
        once = self.recorded(spend)
        if spend.kind == CUMULATIVE:
            return 0 if once.is_passed else 1
        twice = once.recorded(spend)
        if once.loss is None or twice.loss is None or once.is_passed:
            return 0
        base, growth = once.loss, twice.loss.minus(once.loss)
        if growth == NO_LOSS:
            return None
        return base.times_within(growth, self.limits.cost)

    def register(self, limits: Limits) -> "Account":
        """The account after one more plan of the population: a plan may lower its limits, never raise them.

        The population's unit and relation stay what its first plan made them.

        Args:
            limits: What the plan declares, with the unit and relation that its spends will have.

        Raises:
            BudgetError: Another population, a higher limit, a δ at which what is spent has no ε, or spends that would
                make the total read "none".
        """
        self._refuse_foreign(limits.population, limits.unit, limits.relation)
        own = self.limits
        for name, asked, fixed in (("epsilon", limits.epsilon, own.epsilon), ("delta", limits.delta, own.delta)):
            if asked > fixed:
                raise BudgetError(
                    f"total_{name} of {self.whose} is {numeral(fixed, up=False)} and cannot be raised, got "
                    f"{numeral(asked, up=True)}: use another population, or at most that"
                )
        lowered = replace(self, limits=replace(own, epsilon=limits.epsilon, delta=limits.delta))
        kept = replace(self, limits=replace(own, epsilon=limits.epsilon))
        if lowered.is_passed and not kept.is_passed and lowered.cost is not None:
            raise BudgetError(
                f"total_delta of {self.whose} cannot be lowered from {numeral(own.delta, up=False)} to "
                f"{numeral(limits.delta, up=True)}: earlier spends would then exceed the total ε, because zCDP is "
                "counted at that δ"
            )
        if lowered.cost is None and self.cost is not None:
            raise BudgetError(
                f"total_delta of {self.whose} cannot be lowered to {numeral(limits.delta, up=True)}: earlier spends "
                "have no finite ε at that δ"
            )
        return lowered

    def charge(self, spend: Spend) -> "Account":
        """The account after a new spend.

        Raises:
            BudgetError: It would pass a limit, is of another population, would make the total read "none", needs a
                total_delta, or its window was charged before. The message says what is asked and what is left.
        """
        self._refuse_foreign(spend.population, spend.unit, spend.relation)
        if any(past.plan_id == spend.plan_id for past in self._sequences) and spend.kind == CUMULATIVE:
            raise BudgetError(f"the cumulative sequence of plan {spend.plan_id[:12]} was already charged")
        if self._holds_window(spend):
            raise BudgetError(f"window {spend.window} of plan {spend.plan_id[:12]} was already charged")
        if spend.loss.delta:  # a delta that is traded for zCDP by what was shown would pass the limit
            raise BudgetError(f"{self.whose} accepts no spend with its own δ: with zCDP one δ covers all releases")
        refuse_mixed(self.whose, self.loss, spend.loss)
        after = self.recorded(spend)
        if not after.is_passed:
            return after
        if after.cost is None:
            if after.loss is not None and after.loss.keeps:
                used, kept = after.loss.failure, FAILURE_SHARE * self.limits.delta
                raise BudgetError(
                    f"failures of secure sums would use δ = {numeral(used, up=True)}, and an eighth of the total δ of "
                    f"{self.whose} is kept for them, {numeral(kept, up=False)}: beyond it there is no finite ε"
                )
            raise BudgetError(
                f"total_delta is required: this release has no finite ε at the total δ of {self.whose}, "
                f"{numeral(self.limits.delta, up=False)}"
            )
        mixed = after.loss is not None and after.loss.rho and after.loss.epsilon
        needed, left, limits = after.spent.minus(self.spent), self.left, self.limits.cost
        told = []
        if needed.epsilon > left.epsilon or needed.delta <= left.delta:
            told.append(_needed("ε", needed.epsilon, left.epsilon, limits.epsilon))
        if needed.delta > left.delta:
            told.append(_needed("δ", needed.delta, left.delta, limits.delta))
        population = f" for {self.whose}" if self.limits.population else ""
        note = (
            " (pure releases combined with approximate ones are counted by the zCDP that they imply)" if mixed else ""
        )
        raise BudgetError(f"Budget exceeded{population}: this needs {' and '.join(told)}{note}")

    def recorded(self, *spends: Spend) -> "Account":
        """The account after spends that were charged elsewhere already, as a store replays them: nothing refuses them.

        Many at once take far less time than one by one. A cumulative sequence that is repeated counts once.
        """
        chain, newest = self._chain, dict(self._newest_window)
        sequences = set(self._sequences)
        alike: dict[object, tuple[Spend, int]] = {}
        for spend in spends:
            if spend.kind == CUMULATIVE:
                if spend in sequences:
                    continue
                sequences.add(spend)
            chain = (spend, chain)
            if spend.window is not None:
                newest[spend.plan_id] = max(spend.window, newest.get(spend.plan_id, spend.window))
            # Spends that were read or made together share their events: the same object, kept alive by the chain.
            key = (spend.plan_id, spend.kind, spend.unit, spend.relation, id(spend.events))
            alike[key] = (spend, alike[key][1] + 1 if key in alike else 1)
        totals, worst = dict(self._totals), dict(self._worst)
        for (spend, times), target in product(alike.values(), totals):
            totals[target] = _added(totals[target], spend, times, target, worst)
        return replace(
            self,
            _totals=totals,
            _worst=worst,
            _sequences=frozenset(sequences),
            _newest_window=newest,
            _chain=chain,
        )

    def _refuse_foreign(self, population: str, unit: str, relation: str) -> None:
        own = self.limits
        if population != own.population:
            other = f"the plan names population {population!r}" if population else "the plan names none"
            raise BudgetError(f"this ledger belongs to {self.whose}, {other}")
        if implied(NO_LOSS, unit=unit, relation=relation, for_unit=own.unit, for_relation=own.relation) is None:
            raise BudgetError(
                f"{self.whose} is accounted for unit {own.unit!r} under {own.relation}: a spend for unit {unit!r} "
                f"under {relation} cannot be converted; use another population"
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


def _added(
    total: Loss | None, spend: Spend, times: int, target: _Target, worst: MutableMapping[_Group, Loss]
) -> Loss | None:
    """A total with a spend, and with others that differ by their window alone; notes in ``worst`` what was largest."""
    unit, relation = target
    loss = implied(spend.loss, unit=spend.unit, relation=spend.relation, for_unit=unit, for_relation=relation)
    if total is None or loss is None:
        return None
    if unit != RECORD or spend.kind != TUMBLING:
        return total.plus(loss if times == 1 else loss.times(times))
    # A record is in one window of its plan: in a total for records these compose in parallel, each by what it implies.
    group = (spend.plan_id, spend.unit, spend.relation, target)
    old = worst.get(group, NO_LOSS)
    worst[group] = old.worst(loss)
    return total if worst[group] == old else total.plus(worst[group].minus(old))


def _needed(symbol: str, needed: Fraction, left: Fraction, limit: Fraction) -> str:
    return f"{symbol} = {numeral(needed, up=True)}, {numeral(left, up=False)} of {numeral(limit, up=False)} is left"


def refuse_mixed(whose: str, spent: Loss | None, asked: Loss) -> None:
    """Refuses a spend that would change how δ is divided.

    Args:
        whose: The population, as sentences name it.
        spent: All its spends together; None where they have no total.
        asked: The new one.

    Raises:
        BudgetError: The first failure after other spends, or zCDP after pure secure sums.
    """
    if spent is None or spent == NO_LOSS:
        return
    if asked.failure and not spent.failure:
        raise BudgetError(
            f"{whose} started without secure sums: the first release fixes how the total δ is divided, and none is "
            "reserved for protocol failures; use another population for secure sums"
        )
    if not spent.failure or spent.rho:
        return
    if spent.keeps and asked.failure and not asked.rho and asked.reserved != asked.failure:
        raise BudgetError(
            f"{whose} started with secure sums that keep an eighth of the total δ for failures: a plan of pure secure "
            'sums needs failures = "reserved" in [privacy.secure] too, or another population'
        )
    if asked.rho and not spent.keeps:
        raise BudgetError(
            f"{whose} started with pure secure sums: the total δ is reserved for protocol failures; use another "
            "population for a release with a larger δ"
        )
