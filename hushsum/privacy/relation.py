"""Units and neighbouring relations, and what a guarantee in one of them implies in another."""

from fractions import Fraction
from typing import Final, NamedTuple

from hushsum.noise.thresholds import exp_upper

RECORD: Final = "record"
CLIENT: Final = "client"
UNITS: Final = (RECORD, CLIENT)

ADD_REMOVE: Final = "add/remove"
ZERO_OUT: Final = "zero-out"
REPLACE: Final = "replace"
RELATIONS: Final = (ADD_REMOVE, ZERO_OUT, REPLACE)


class Cost(NamedTuple):
    """An (ε, δ), exact."""

    epsilon: Fraction
    delta: Fraction

    def plus(self, other: "Cost") -> "Cost":
        """Both: basic composition."""
        return Cost(self.epsilon + other.epsilon, self.delta + other.delta)

    def minus(self, other: "Cost") -> "Cost":
        """What is left without ``other``."""
        return Cost(self.epsilon - other.epsilon, self.delta - other.delta)

    def worst(self, other: "Cost") -> "Cost":
        """The larger ε and the larger δ: parallel composition."""
        return Cost(max(self.epsilon, other.epsilon), max(self.delta, other.delta))


FREE: Final = Cost(Fraction(0), Fraction(0))


def is_positive(value: object) -> bool:
    """Whether it is an exact number above 0."""
    return isinstance(value, Fraction) and value > 0


def is_delta(value: object) -> bool:
    """Whether it is an exact number from 0 to below 1."""
    return isinstance(value, Fraction) and 0 <= value < 1


def implied(cost: Cost, *, unit: str, relation: str, for_unit: str, for_relation: str) -> Cost | None:
    """What a guarantee of this cost in (unit, relation) is worth in another, or None where it implies nothing.

    A guarantee for clients holds for records in full, never the other way. Add/remove and zero-out imply replace, at
    (2ε, (1 + e^ε)δ), for a replacement is one removal and one addition; replace implies neither. Between add/remove and
    zero-out nothing is claimed.
    """
    if unit == RECORD and for_unit == CLIENT:
        return None
    if relation == for_relation:
        return cost
    if for_relation != REPLACE:
        return None
    if cost.delta == 0:
        return Cost(2 * cost.epsilon, Fraction(0))
    # e^ε is irrational: rounded up, against us. δ above 1 says no more than 1 does.
    return Cost(2 * cost.epsilon, min(Fraction(1), (1 + exp_upper(cost.epsilon)) * cost.delta))
