"""What a plan claims of one release, as a value that calibration and the verifier share."""

from dataclasses import dataclass
from fractions import Fraction

from hushsum.canonical import real_text
from hushsum.errors import Missing, PlanError
from hushsum.privacy.cohort import FAILURE, FAILURE_DRAWN
from hushsum.privacy.local_mode import Reports
from hushsum.privacy.relations import CLIENT, UNITS, is_delta, is_positive
from hushsum.schedule import HORIZON_MAX


@dataclass(frozen=True)
class Claim:
    """An (ε, δ) for one unit and one release, and how ε is divided.

    Args:
        epsilon: Above 0, for everything that a release and its window's outcome show.
        delta: From 0 to below 1; all of it is the counters', but for :attr:`failure`.
        unit: ``record`` or ``client``.
        records_per_client: m, the most records of one client in a window; for unit ``client`` alone.
        clients_share: The share of ε for the noised test of the number of clients, above 0 and below 1; None: no test.
        honest_survivors: h, the least number of honest clients whose shares of noise are in a secure sum; None: one
            party draws all noise.
        counters: D, at least the number of all counters, count counters included; with ``honest_survivors`` alone.
        reports: How each record becomes a report of its own, by local randomisation; None: counters get noise.
        drawn: Whether cohorts are drawn from a pool, so that δ pays for bad draws too; with ``honest_survivors`` alone.
        reserved: Whether a part of the population's total δ is kept for failures; with ``honest_survivors`` alone.
        horizon: How many cumulative releases together it is claimed of; None: of one release of one window.
        windows_per_client: In how many windows of these a client may be; with ``horizon`` and unit ``client`` alone.

    Raises:
        PlanError: A field is out of range or contradicts another; it names the key of the plan.
    """

    epsilon: Fraction
    delta: Fraction
    unit: str
    records_per_client: int | None = None
    clients_share: Fraction | None = None
    honest_survivors: int | None = None
    counters: int | None = None
    reports: Reports | None = None
    drawn: bool = False
    reserved: bool = False
    horizon: int | None = None
    windows_per_client: int | None = None

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise PlanError("privacy.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("privacy.delta", self.delta, "an exact number from 0 to below 1")
        if self.unit not in UNITS:
            raise PlanError("privacy.unit", self.unit, " or ".join(map(repr, UNITS)))
        m, key = self.records_per_client, "privacy.records_per_client"
        if self.unit != CLIENT and m is not None:
            raise PlanError(key, m, f"no value with unit {self.unit!r}")
        if self.unit == CLIENT and (type(m) is not int or m < 1):
            raise PlanError(key, m, "an integer of at least 1 with unit 'client'")
        share = self.clients_share
        if share is not None and not (isinstance(share, Fraction) and 0 < share < 1):
            raise PlanError("privacy.min_clients_share", share, "an exact number above 0 and below 1")
        if self.reports is not None and (self.delta or share is not None or self.honest_survivors is not None):
            raise PlanError("privacy.delta", real_text(self.delta), "0 of one report, and no share or survivors")
        self._check_shares()
        self._check_sequence()

    def _check_sequence(self) -> None:
        horizon, windows = self.horizon, self.windows_per_client
        if horizon is not None:
            if type(horizon) is not int or not 1 <= horizon <= HORIZON_MAX:
                raise PlanError("window.horizon", horizon, f"an integer from 1 to {HORIZON_MAX}")
            if self.clients_share is not None or self.honest_survivors is not None or self.reports is not None:
                raise PlanError("window.horizon", horizon, "no value but in mode 'central' with window.min_clients 0")
        if horizon is None or self.unit != CLIENT:
            if windows is not None:
                expected = "no value but for window.release 'cumulative' with unit 'client'"
                raise PlanError("window.windows_per_client", windows, expected)
        elif type(windows) is not int or not 1 <= windows <= horizon:
            expected = f"an integer from 1 to {horizon} (window.horizon): in how many windows one client may be"
            raise PlanError("window.windows_per_client", Missing.MISSING if windows is None else windows, expected)

    def _check_shares(self) -> None:
        h, counters = self.honest_survivors, self.counters
        if h is None and counters is None and not self.drawn and not self.reserved:
            return
        if type(h) is not int or h < 1 or type(counters) is not int or counters < 1:
            raise PlanError("privacy.secure", (h, counters), "at least 1 honest survivor, and at least 1 counter")
        if self.clients_share is not None:
            raise PlanError("privacy.min_clients_share", self.clients_share, "no value in mode 'secure'")
        if self.delta and self.delta <= self.failure:
            expected = f"0, or above {real_text(self.failure)}: with that probability the protocol fails"
            raise PlanError("privacy.delta", real_text(self.delta), expected)

    @property
    def records(self) -> int:
        """How many records of one window a unit may hold: m, or 1."""
        return self.records_per_client or 1

    @property
    def windows(self) -> int:
        """In how many windows of a cumulative sequence a unit may be: a record is in one."""
        return self.windows_per_client or 1

    @property
    def report_epsilon(self) -> Fraction:
        """What one of a unit's reports may take of ε, all of which compose: ε/m."""
        return self.epsilon / self.records

    @property
    def failure(self) -> Fraction:
        """The probability that a secure sum fails in a window, which δ pays for; 0 where one party draws the noise."""
        if self.honest_survivors is None:
            return Fraction(0)
        return FAILURE_DRAWN if self.drawn else FAILURE

    @property
    def noise_delta(self) -> Fraction:
        """The part of δ that the noise of the counters may use: what failures leave of it."""
        return self.delta - self.failure if self.delta else self.delta

    @property
    def clients_epsilon(self) -> Fraction:
        """The part of ε for the test of the number of clients; 0 without one."""
        return (self.clients_share or 0) * self.epsilon

    @property
    def counters_epsilon(self) -> Fraction:
        """The part of ε for the counters: all the rest."""
        return self.epsilon - self.clients_epsilon
