"""What a plan claims of one release, as a value that calibration and the verifier share."""

from dataclasses import dataclass
from fractions import Fraction

from hushsum.errors import PlanError
from hushsum.privacy.relation import CLIENT, UNITS, is_delta, is_positive


@dataclass(frozen=True)
class Claim:
    """An (ε, δ) for one unit and one release, and how ε is divided.

    Args:
        epsilon: Above 0, for everything that a release and its window's outcome show.
        delta: From 0 to below 1; all of it is the counters'.
        unit: ``record`` or ``client``.
        records_per_client: m, the most records of one client in a window; for unit ``client`` alone.
        clients_share: The share of ε for the noised test of the number of clients, above 0 and below 1; None: no test.

    Raises:
        PlanError: A field is out of range or contradicts another; it names the key of the plan.
    """

    epsilon: Fraction
    delta: Fraction
    unit: str
    records_per_client: int | None = None
    clients_share: Fraction | None = None

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise PlanError("privacy.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("privacy.delta", self.delta, "an exact number from 0 to below 1")
        if self.unit not in UNITS:
            raise PlanError("privacy.unit", self.unit, " or ".join(map(repr, UNITS)))
        m, key = self.records_per_client, "privacy.records_per_client"
        if self.unit != CLIENT and m is not None:
            raise PlanError(key, m, f"no such key with unit {self.unit!r}")
        if self.unit == CLIENT and (type(m) is not int or m < 1):
            raise PlanError(key, m, "an integer of at least 1 with unit 'client'")
        share = self.clients_share
        if share is not None and not (isinstance(share, Fraction) and 0 < share < 1):
            raise PlanError("privacy.min_clients_share", share, "an exact number above 0 and below 1")

    @property
    def records(self) -> int:
        """How many records of one window a unit may hold: m, or 1."""
        return self.records_per_client or 1

    @property
    def clients_epsilon(self) -> Fraction:
        """The part of ε for the test of the number of clients; 0 without one."""
        return (self.clients_share or 0) * self.epsilon

    @property
    def counters_epsilon(self) -> Fraction:
        """The part of ε for the counters: all the rest."""
        return self.epsilon - self.clients_epsilon
