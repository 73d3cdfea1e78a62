"""Of how many shares the noise of a secure sum is made, as a value that a spend keeps."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.privacy.relation import is_delta, is_positive
from hushsum.privacy.shares import rho_of_shares
from hushsum.schema import Table


@dataclass(frozen=True)
class Shares:
    """What the spend of a secure sum needs beside its mechanism: h clients each drew a share of the noise.

    Args:
        honest_survivors: h, at least 1.
        counters: D, the number of all counters, the count counters included; at least 1.
        failure: The probability that the protocol fails, above 0 and below 1: a part of δ.

    Raises:
        PlanError: A field is out of range; it names the field under ``event.shares``.
    """

    honest_survivors: int
    counters: int
    failure: Fraction

    def __post_init__(self) -> None:
        for field in ("honest_survivors", "counters"):
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise PlanError(f"event.shares.{field}", value, "an integer of at least 1")
        if not (is_positive(self.failure) and is_delta(self.failure)):
            raise PlanError("event.shares.failure", self.failure, "an exact number above 0 and below 1")

    def rho(self, scale: Fraction, l2_squared: int) -> Fraction:
        """An upper bound of ρ where h discrete Gaussian shares of σ²/h add up, σ² the scale.

        Args:
            scale: σ².
            l2_squared: How far one unit moves all counters, squared.

        Raises:
            GuaranteeError: σ²/h is below 4.
        """
        return rho_of_shares(scale, self.honest_survivors, l2_squared, self.counters)

    def to_fields(self) -> dict[str, object]:
        """Integers and a string, ready for the canonical encoding."""
        return {
            "honest_survivors": self.honest_survivors,
            "counters": self.counters,
            "failure": real_text(self.failure),
        }

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote.

        Raises:
            PlanError: A field is missing, unknown or out of range.
        """
        shares = cls(
            honest_survivors=table.integer("honest_survivors", low=1),
            counters=table.integer("counters", low=1),
            failure=table.real("failure", expected="an exact number above 0 and below 1"),
        )
        table.finish()
        return shares
