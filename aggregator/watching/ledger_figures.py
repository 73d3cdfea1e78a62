"""A population's ledger in numbers that a metric can hold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat

from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import Spend


@dataclass(frozen=True)
class LedgerFigures:
    """A population's ledger as floating-point numbers, rounded against us; NaN where its total reads "none"."""

    population: str
    unit: str
    epsilon_total: float
    epsilon_spent: float
    epsilon_left: float
    delta_total: float
    delta_spent: float
    delta_left: float

    @classmethod
    def of_spends(cls, limits: Limits, alike: Sequence[tuple[bytes, int]]) -> "LedgerFigures":
        """The same of a population's limits, and of one spend of each sort with how many there are of it.

        Raises:
            CanonicalError: Bytes that are no spend.
            PlanError: The same.
            GuaranteeError: The same.
        """
        sorts = [(Spend.from_bytes(fields), times) for fields, times in alike]
        return cls.of(Account(limits).recorded(*chain.from_iterable(repeat(*sort) for sort in sorts)))

    @classmethod
    def of(cls, account: Account) -> "LedgerFigures":
        """What an account says; in a worker thread, for conversions take their time."""
        limits, is_none = account.limits, account.cost is None
        spent = (math.nan, math.nan) if is_none else (_up(account.spent.epsilon), _up(account.spent.delta))
        left = (math.nan, math.nan) if is_none else (_down(account.left.epsilon), _down(account.left.delta))
        return cls(
            limits.population,
            limits.unit,
            epsilon_total=_down(limits.epsilon),
            epsilon_spent=spent[0],
            epsilon_left=left[0],
            delta_total=_down(limits.delta),
            delta_spent=spent[1],
            delta_left=left[1],
        )


def _up(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _down(value: Fraction) -> float:
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)
