"""Units and neighbouring relations; what a spend loses in them, how losses add up, and what one implies in another."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
COUNTED_MAX: Final = 10**9  # further nobody counts how many more windows can be paid for


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
        pure_rho: Σ ρ of the zCDP that the first imply: ½ε² each (Bun and Steinke 2016, Proposition 1.4), or less where
            their parameters prove less.
        delta: Σ δ.
        failure: Σ of the probabilities that a protocol failed, each of an event that no data decides: what holds but
            for that event holds with as much more of δ.
        reserved: What part of ``failure`` is of plans that keep an eighth of the total δ for it.
    """

    epsilon: Fraction = _ZERO
    rho: Fraction = _ZERO
    pure_rho: Fraction = _ZERO
    delta: Fraction = _ZERO
    failure: Fraction = _ZERO
    reserved: Fraction = _ZERO

    @classmethod
    def of_pure(
        cls,
        epsilon: Fraction,
        delta: Fraction = _ZERO,
        *,
        rho: Fraction | None = None,
    ) -> "Loss":
        """That of one mechanism which promises (ε, δ).

        Args:
            epsilon: At least 0.
            delta: At least 0.
            rho: What its parameters prove in zCDP; counted where it is below ½ε². None: ½ε².
        """
        implied_rho = epsilon**2 / 2
        return cls(
            epsilon=epsilon,
            pure_rho=implied_rho if rho is None else min(rho, implied_rho),
            delta=delta,
        )

    def failing(self, failure: Fraction, *, reserved: bool = False) -> "Loss":
        """The same of a protocol that may fail; ``reserved``: its plan keeps an eighth of the total δ for that."""
        return replace(self, failure=failure, reserved=failure if reserved else _ZERO)

    def plus(self, other: "Loss") -> "Loss":
        """Both, on the same data."""
        return Loss(
            self.epsilon + other.epsilon,
            self.rho + other.rho,
            self.pure_rho + other.pure_rho,
            self.delta + other.delta,
            self.failure + other.failure,
            self.reserved + other.reserved,
        )

    def minus(self, other: "Loss") -> "Loss":
        """What is left without ``other``, which is a part of it."""
        return Loss(
            self.epsilon - other.epsilon,
            self.rho - other.rho,
            self.pure_rho - other.pure_rho,
            self.delta - other.delta,
            self.failure - other.failure,
            self.reserved - other.reserved,
        )

    def times(self, count: int) -> "Loss":
        """The same, so many times on the same data."""
        return Loss(
            self.epsilon * count,
            self.rho * count,
            self.pure_rho * count,
            self.delta * count,
            self.failure * count,
            self.reserved * count,
        )

    def worst(self, other: "Loss") -> "Loss":
        """The larger of each component: parallel composition, where one unit's data is in one of the two alone."""
        return Loss(
            max(self.epsilon, other.epsilon),
            max(self.rho, other.rho),
            max(self.pure_rho, other.pure_rho),
            max(self.delta, other.delta),
            max(self.failure, other.failure),
            max(self.reserved, other.reserved),
        )

    def cost(self, delta: Fraction) -> Cost | None:
        """The least ε that is proven at a δ, with the part of δ that its proof uses.

        zCDP for all of them, in which a pure one counts the ρ that it implies; where all are pure, also the sum of
        their ε, which needs no δ: whichever says less. Both hold however each mechanism is chosen from what the ones
        before it showed (Rogers et al. 2016, Whitehouse et al. 2023). The sum of some ε and the zCDP of the rest is
        not offered: who trades one for the other by what was shown could pass it. For the same reason zCDP beside
        failures is converted at what an eighth of δ leaves, however much of that eighth the failures take.

        Args:
            delta: The δ at which zCDP is converted, from 0 to below 1.

        Returns:
            (ε, δ), or None: no ε at this δ.
        """
        return min(self._bounds(delta), default=None)

    def within(self, limit: Cost) -> bool:
        """Whether it is proven to stay within an (ε, δ); in most cases without a conversion of zCDP."""
        return any(bound.epsilon <= limit.epsilon and bound.delta <= limit.delta for bound in self._bounds(limit.delta))

    def times_within(self, growth: "Loss", limit: Cost) -> int:
        """How many losses stay within an (ε, δ), where the first is this one and each further one adds ``growth``.

        Returns:
            From 0 to 10⁹; 10⁹ too where nothing grows.
        """
        if not self.within(limit):
            return 0
        low, high = 1, 2
        while high <= COUNTED_MAX and self.plus(growth.times(high - 1)).within(limit):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.plus(growth.times(middle - 1)).within(limit)
            low, high = (middle, high) if fits else (low, middle)
        return min(low, COUNTED_MAX)

    @property
    def keeps(self) -> bool:
        """Whether an eighth of δ is kept for failures: beside zCDP, or because all plans that may fail say so."""
        return bool(self.failure) and (bool(self.rho) or self.reserved == self.failure)

    def _bounds(self, delta: Fraction) -> Iterator[Cost]:
        kept = FAILURE_SHARE * delta if self.keeps else _ZERO
        if self.keeps and self.failure > kept:
            return
        if not self.rho:
            yield Cost(self.epsilon, self.delta + self.failure)
        left = delta - self.delta - kept
        if left <= 0:
            return
        # Of two bounds for what may be chosen from earlier outputs, only one may spend a delta.
        if self.rho or (self.pure_rho and not self.delta and self.keeps == bool(self.failure)):
            yield Cost(epsilon_of(self.rho + self.pure_rho, left), delta)


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
    return Loss(2 * loss.epsilon, 4 * loss.rho, 4 * loss.pure_rho, delta, loss.failure, loss.reserved)
