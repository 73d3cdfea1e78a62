"""What releases tell about one unit, what is spent and what is left: in words for everybody, with exact numbers.

A guarantee (ε, δ) says how well anybody can tell two neighbouring data sets apart: whoever gives both the same chance
before is right about which it is with a probability of at most (e^ε + δ)/(1 + e^ε) after (Kairouz, Oh and Viswanath
2015, §2). Numbers that do not fit are rounded against us.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import Final

from hushsum.noise.exp_thresholds import exp_upper
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import CHOICE, CUMULATIVE, TUMBLING, Spend
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.local_mode import RANDOMISERS
from hushsum.privacy.relations import ADD_REMOVE, CLIENT, RECORD, REPLACE, ZERO_OUT, Cost

_EPSILON_MAX: Final = 64  # e^-64 is 10^-28: nobody needs e^ε beyond
_DECIMALS_MAX: Final = 3

_FACTS: Final = {
    (CLIENT, ADD_REMOVE): "one client's records are included",
    (CLIENT, ZERO_OUT): "one client had any records to send",
    (CLIENT, REPLACE): "one client has these records rather than given others",
    (RECORD, ADD_REMOVE): "one record is included",
    (RECORD, ZERO_OUT): "one record existed to be sent",
    (RECORD, REPLACE): "one record has this value rather than a given other",
}

#: Of reports of several windows: a spend does not say whether its plan memoises, so that it is said of all.
_REPEATED: Final = {
    CLIENT: "for records replaced by others that are equal to each other where the originals are",
    RECORD: "for a record replaced at every occurrence by one that its device has nowhere else",
}


def chance_after(cost: Cost) -> Fraction:
    """The most that a chance of ½ that something holds about one unit can become, rounded up: (e^ε + δ)/(1 + e^ε)."""
    if cost.epsilon > _EPSILON_MAX:
        return Fraction(1)
    odds = exp_upper(cost.epsilon) if cost.epsilon else Fraction(1)
    return (odds + cost.delta) / (1 + odds)  # rises with the odds, as long as δ is at most 1


def belief_after(epsilon: Fraction, before: Fraction) -> Fraction:
    """The most that a belief in something about one unit can become, at δ = 0: its odds times e^ε, rounded up.

    Args:
        epsilon: Above 0.
        before: The belief before, between 0 and 1.
    """
    if epsilon > _EPSILON_MAX:
        return Fraction(1)
    odds = before / (1 - before) * exp_upper(epsilon)
    return odds / (1 + odds)


def fact_text(unit: str, relation: str) -> str:
    """What an observer may guess about one unit, such as ``one record is included``."""
    return _FACTS[unit, relation]


def told(cost: Cost, *, unit: str, relation: str) -> str:
    """One sentence: what something of this cost tells anybody about one unit.

    Args:
        cost: Of a release, or of several together.
        unit: ``record`` or ``client``.
        relation: ``add/remove``, ``zero-out`` or ``replace``.
    """
    fact = _FACTS[unit, relation]
    chance = percent_text(chance_after(cost))
    if cost.delta == 0:
        return f"An observer who believes with 50 % that {fact} can afterwards believe it with at most {chance}."
    return f"A guess, from even odds, whether {fact} is correct with a probability of at most {chance}."


def spend_told(spend: Spend, *, delta: Fraction, own_delta: Fraction | None = None) -> str:
    """What one release, or one withheld window, tells about one unit.

    Args:
        spend: Its events.
        delta: The δ at which zCDP is converted: the population's ``total_delta``.
        own_delta: The δ of one release, where that is told beside: the sentence then says why it names another one.
    """
    if not spend.events:
        return "Withheld because of a public number: this reveals nothing about any unit and costs nothing."
    cost = spend.loss.cost(delta)
    if cost is None:
        return f"At δ = {numeral(delta, up=True)} no finite ε holds."
    words = told(cost, unit=spend.unit, relation=spend.relation)
    if own_delta is not None and own_delta != cost.delta == delta:
        epsilon, total = numeral(cost.epsilon, up=True), numeral(delta, up=True)
        return f"{words} That is ε = {epsilon}, at the population's total δ of {total}."
    return f"{words} That is {cost_text(cost)}."


def account_told(account: Account, *, next_spend: Spend | None = None) -> str:
    """What the newest release and all of a population's together tell about one unit, what is spent and what is left.

    Args:
        account: Of the population.
        next_spend: What the next window or release of a plan would spend; by default as much as the newest release.
    """
    limits, whose = account.limits, account.whose
    more = pays_for(account, next_spend or account.newest_release)
    left = " ".join(filter(None, (f"Left: {left_text(account)}.", more)))
    of = f"{whose[:1].upper()}{whose[1:]}: "
    if account.newest is None:
        return f"{of}nothing spent yet. {left}"
    if account.cost is None:
        return f"{of}the spends have no finite total ε at δ = {numeral(limits.delta, up=True)}."
    number = len(account.spends)
    spends = "1 spend" if number == 1 else f"{number} spends"
    unit = f"for unit {limits.unit} under {limits.relation}"
    words = [f"{of}spent {cost_text(account.cost)} in {spends}, {unit}.", *_by_zcdp(account)]
    if number > 1:
        words += ["The newest alone:", spend_told(account.newest, delta=limits.delta), "All together:"]
    words.append(told(account.cost, unit=limits.unit, relation=limits.relation))
    if account.is_passed:
        words.append("This exceeds the limits: they were lowered, or an earlier version counted less.")
    return " ".join((*words, *_repeated(account), left))


def _by_zcdp(account: Account) -> Iterator[str]:
    """Why pure spends total less than the sum of their ε."""
    loss, cost = account.loss, account.cost
    if loss is not None and cost is not None and not loss.rho and cost.epsilon < loss.epsilon:
        yield f"This is by zCDP, at the total δ; the sum of their ε is {numeral(loss.epsilon, up=True)}."


def _repeated(account: Account) -> Iterator[str]:
    """What several windows of reports promise less, if their plan memoises."""
    limits = account.limits
    if limits.relation != REPLACE:  # which reports imply nothing for
        return
    randomised = (spend for spend in account.spends if any(each.mechanism in RANDOMISERS for each in spend.events))
    if next(islice(randomised, 1, None), None) is None:
        return
    yield (
        "If a plan memoises its reports (see `hushsum plan show`), this holds for all its windows together "
        f"{_REPEATED[limits.unit]}; recurrences and changes of a record are visible."
    )


def left_text(account: Account) -> str:
    """What is left of the limits: ε; and δ, which zCDP takes once for all releases."""
    if account.cost is None:
        return "nothing"
    limits, left = account.limits, account.left
    text = f"ε = {numeral(left.epsilon, up=False)} of {numeral(limits.epsilon, up=False)}"
    if not limits.delta:
        return text
    total = numeral(limits.delta, up=False)
    if account.cost.delta < limits.delta:
        return f"{text}, δ = {numeral(left.delta, up=False)} of {total}"
    return f"{text}, at δ = {total} for all releases together"


def pays_for(account: Account, spend: Spend | None) -> str:
    """How many more windows or releases that spend as much the limits pay for; empty without one, and for a choice."""
    if spend is None or spend.kind == CHOICE:
        return ""
    noun = {TUMBLING: "window", CUMULATIVE: "sequence of cumulative releases"}.get(spend.kind, "release")
    more = account.affordable(spend)
    if more is None and spend.kind == CUMULATIVE:
        return "The sequence of this plan is paid for, up to its horizon."
    if more is None:
        return "This suffices for any number of such windows, because each record is in one window."
    return f"This suffices for {'no' if more == 0 else more} more such {noun}{'' if more == 1 else 's'}."


def cost_text(cost: Cost) -> str:
    """Such as ``ε = 0.5, δ = 0``; rounded up where it is not short."""
    return f"ε = {numeral(cost.epsilon, up=True)}, δ = {numeral(cost.delta, up=True)}"


def percent_text(chance: Fraction) -> str:
    """Rounded up, with more decimals where fewer would read 100 %."""
    for decimals in range(1, _DECIMALS_MAX + 1):
        notches = ceil(chance * 100 * 10**decimals)
        if notches < 100 * 10**decimals:
            return f"{numeral(Fraction(notches, 10**decimals), up=True)} %"
    return "100 %"
