"""Units and neighbouring relations; what a spend loses in them, how losses add up, and what one implies in another."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from hushsum.noise.exp_thresholds import exp_upper
from hushsum.privacy.zcdp import epsilon_of

RECORD: Final = "record"
CLIENT: Final = "client"
UNITS: Final = (RECORD, CLIENT)

ADD_REMOVE: Final = "add/remove"
ZERO_OUT: Final = "zero-out"
REPLACE: Final = "replace"
RELATIONS: Final = (ADD_REMOVE, ZERO_OUT, REPLACE)

_ZERO: Final = Fraction(0)
#: Of a total δ, what is kept for failures of a protocol where zCDP is converted beside them.
FAILURE_SHARE: Final = Fraction(1, 8)


class Cost(NamedTuple):
    """An (ε, δ), exact."""

    epsilon: Fraction
    delta: Fraction

    def minus(self, other: "Cost") -> "Cost":
        """What is left without ``other``."""
        return Cost(self.epsilon - other.epsilon, self.delta - other.delta)


FREE: Final = Cost(_ZERO, _ZERO)


@dataclass(frozen=True)
class Loss:
    """What mechanisms lose together, in the terms in which each is exact. Every component is at least 0.

    Args:
        epsilon: Σ ε of those that promise a pure ε, or (ε, δ).
        rho: Σ ρ of those that promise zero-concentrated differential privacy (zCDP).
        half_squares: Σ ½ε² of the first: the zCDP that they imply (Bun and Steinke 2016, Proposition 1.4).
        delta: Σ δ.
        failure: Σ of the probabilities that a protocol failed, each of an event that no data decides: what holds but
            for that event holds with as much more of δ.
    """

    epsilon: Fraction = _ZERO
    rho: Fraction = _ZERO
    half_squares: Fraction = _ZERO
    delta: Fraction = _ZERO
    failure: Fraction = _ZERO

    @classmethod
    def of_pure(cls, epsilon: Fraction, delta: Fraction = _ZERO, failure: Fraction = _ZERO) -> "Loss":
        """That of one mechanism which promises (ε, δ), but for a probability of failure."""
        return cls(epsilon=epsilon, half_squares=epsilon**2 / 2, delta=delta, failure=failure)

    def plus(self, other: "Loss") -> "Loss":
        """Both, on the same data."""
        return Loss(
            self.epsilon + other.epsilon,
            self.rho + other.rho,
            self.half_squares + other.half_squares,
            self.delta + other.delta,
            self.failure + other.failure,
        )

    def minus(self, other: "Loss") -> "Loss":
        """What is left without ``other``, which is a part of it."""
        return Loss(
            self.epsilon - other.epsilon,
            self.rho - other.rho,
            self.half_squares - other.half_squares,
            self.delta - other.delta,
            self.failure - other.failure,
        )

    def times(self, count: int) -> "Loss":
        """The same, so many times on the same data."""
        return Loss(
            self.epsilon * count,
            self.rho * count,
            self.half_squares * count,
            self.delta * count,
            self.failure * count,
        )

    def worst(self, other: "Loss") -> "Loss":
        """The larger of each component: parallel composition, where one unit's data is in one of the two alone."""
        return Loss(
            max(self.epsilon, other.epsilon),
            max(self.rho, other.rho),
            max(self.half_squares, other.half_squares),
            max(self.delta, other.delta),
            max(self.failure, other.failure),
        )

    def cost(self, delta: Fraction) -> Cost | None:
        """The least ε that is proven at a δ, with the part of δ that its proof uses.

        zCDP for all of them, in which a pure ε counts ½ε²; where all are pure, also the sum of their ε, which needs no
        δ: whichever says less. Both hold however each mechanism is chosen from what the ones before it showed (Rogers
        et al. 2016, Whitehouse et al. 2023). The sum of some ε and the zCDP of the rest is not offered: who trades one
        for the other by what was shown could pass it. For the same reason zCDP beside failures is converted at what an
        eighth of δ leaves, however much of that eighth the failures take.

        Args:
            delta: The δ at which zCDP is converted, from 0 to below 1.

        Returns:
            (ε, δ), or None: no ε at this δ.
        """
        return min(self._bounds(delta), default=None)

    def within(self, limit: Cost) -> bool:
        """Whether it is proven to stay within an (ε, δ); in most cases without a conversion of zCDP."""
        return any(bound.epsilon <= limit.epsilon and bound.delta <= limit.delta for bound in self._bounds(limit.delta))

    def _bounds(self, delta: Fraction) -> Iterator[Cost]:
        if not self.rho:
            yield Cost(self.epsilon, self.delta + self.failure)
        kept = FAILURE_SHARE * delta if self.failure else _ZERO
        left = delta - self.delta - kept
        if left <= 0 or self.failure > kept:
            return
        # Of two bounds for what may be chosen from earlier outputs, only one may spend a delta.
        if self.rho or (self.half_squares and not self.delta and not self.failure):
            yield Cost(epsilon_of(self.rho + self.half_squares, left), delta)


NO_LOSS: Final = Loss()


def is_positive(value: object) -> bool:
    """Whether it is an exact number above 0."""
    return isinstance(value, Fraction) and value > 0


def is_delta(value: object) -> bool:
    """Whether it is an exact number from 0 to below 1."""
    return isinstance(value, Fraction) and 0 <= value < 1


def implied(loss: Loss, *, unit: str, relation: str, for_unit: str, for_relation: str) -> Loss | None:
    """What a loss in (unit, relation) is worth in another, or None where it implies nothing.

    The loss is counted once for each step that the mechanism's own neighbours need between those of the other relation.
    One step: the same unit and relation; and one replaced record, which replaces the content of its client. Two steps:
    every replacement (out, and in again), and a record less of a client (the client out, and in again without it: its
    other records may be counted otherwise then, for the contribution bound refuses whole batches). Two steps are worth
    2ε, 4ρ (Bun and Steinke 2016, Proposition 1.9), (1 + e^ε)δ. A failure is one event, whatever the data: it counts
    once.

    Records imply nothing for clients, replace nothing for the other relations, and add/remove and zero-out nothing for
    each other.
    """
    if (unit, for_unit) == (RECORD, CLIENT) or for_relation not in (relation, REPLACE):
        return None
    if relation == REPLACE or (unit, relation) == (for_unit, for_relation):
        return loss
    delta = loss.delta
    if delta:
        # e^ε is irrational: rounded up, against us. δ above 1 says no more than 1 does.
        delta = min(Fraction(1), (1 + exp_upper(loss.epsilon)) * delta)
    return Loss(2 * loss.epsilon, 4 * loss.rho, 4 * loss.half_squares, delta, loss.failure)
