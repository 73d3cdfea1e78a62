"""What a plan promises (``[privacy]``), read key by key, with the mechanism that keeps the promise."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, Missing, PlanError
from hushsum.privacy.account import Limits
from hushsum.privacy.calibration import calibrate, round_up
from hushsum.privacy.claim import Claim
from hushsum.privacy.guarantee import CENTRAL, Guarantee
from hushsum.privacy.mechanism import DISCRETE_GAUSSIAN, Mechanism
from hushsum.privacy.relation import ADD_REMOVE, ZERO_OUT, Cost, Loss
from hushsum.privacy.verifier import rho_of, verify_clients, verify_counters
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

PROTECTED: Final = "protected"
PUBLIC: Final = "public"
PARTICIPATIONS: Final = (PROTECTED, PUBLIC)

_DELTA: Final = "a number from 0 to below 1"
_SHARE: Final = "a number above 0 and below 1"
_SHARE_DEFAULT: Final = "0.05"


@dataclass(frozen=True)
class PrivacySpec:
    """What is promised (``[privacy]``) and the mechanism that keeps it.

    Attributes:
        epsilon: ε for each window and unit, as declared.
        delta: δ; 0 is pure differential privacy.
        unit: ``record`` or ``client``: whose data the promise protects.
        records_per_client: m, the contribution bound a window; None for unit ``record``.
        total_epsilon: The limit of the population's ledger.
        total_delta: Its limit on δ.
        population: Whose data it is; empty for the aggregator's single one.
        participation: ``protected``, or ``public``: every client submits in every window, and that it does is visible.
        min_clients_share: The share of ε for the noised test of the number of clients; None where there is no such
            test: with public participation, or without ``window.min_clients``.
        mechanism: The noise, with exact parameters.
    """

    epsilon: Fraction
    delta: Fraction
    unit: str
    records_per_client: int | None
    total_epsilon: Fraction
    total_delta: Fraction
    population: str
    participation: str
    min_clients_share: Fraction | None
    mechanism: Mechanism

    @classmethod
    def from_table(cls, table: Table, sensitivity: Sensitivity, min_clients: int = 0) -> "PrivacySpec":
        """Reads ``[privacy]``; calibrates the mechanism where it is not written, verifies it where it is.

        Args:
            table: ``[privacy]``.
            sensitivity: Of one record, without the count counter.
            min_clients: ``window.min_clients``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        table.choice("mode", built=["central"], known=["local", "secure"], default="central")
        epsilon = table.real("epsilon", expected="a number above 0", above=0)
        participation = table.choice("participation", built=PARTICIPATIONS, default=PROTECTED)
        delta = _delta(table, "delta")
        unit = table.choice("unit", built=["record", "client"], default="record")
        records = _records_per_client(table, unit)
        total_epsilon = table.real("total_epsilon", expected="a number above 0", above=0)
        total_delta = _delta(table, "total_delta")
        if total_delta < delta:
            came = real_text(total_delta) if table.has("total_delta") else Missing.MISSING
            expected = f"at least delta ({real_text(delta)}): the first release would pass the limit"
            raise PlanError(table.name("total_delta"), came, expected)
        population = table.text("population", "")
        share = _clients_share(table, participation, min_clients)
        mechanism = _mechanism(table, sensitivity, Claim(epsilon, delta, unit, records, share))
        table.finish()
        spec = cls(
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            records_per_client=records,
            total_epsilon=total_epsilon,
            total_delta=total_delta,
            population=population,
            participation=participation,
            min_clients_share=share,
            mechanism=mechanism,
        )
        spec._check_first_release(sensitivity, table.name("total_epsilon"))
        return spec

    def _check_first_release(self, sensitivity: Sensitivity, key: str) -> None:
        """Refuses limits that do not pay for one release."""
        claim = self.claim
        if self.mechanism.name == DISCRETE_GAUSSIAN:
            loss = Loss(rho=rho_of(self.mechanism, sensitivity, claim.records))
        else:
            loss = Loss.of_pure(claim.counters_epsilon)
        if claim.clients_epsilon:
            loss = loss.plus(Loss.of_pure(claim.clients_epsilon))
        if loss.within(Cost(self.total_epsilon, self.total_delta)):
            return
        needed = loss.cost(self.total_delta)
        assert needed is not None, "total_delta is at least delta, which is above 0 where it is needed"
        expected = f"at least {real_text(round_up(needed.epsilon))}, what the ledger charges for the first release"
        raise PlanError(key, real_text(self.total_epsilon), expected)

    @property
    def claim(self) -> Claim:
        """What it claims of one release, for :func:`hushsum.privacy.verifier.verify`."""
        return Claim(self.epsilon, self.delta, self.unit, self.records_per_client, self.min_clients_share)

    @property
    def relation(self) -> str:
        """Which data sets are neighbours: ``add/remove``, or ``zero-out`` where participation is public."""
        return ADD_REMOVE if self.participation == PROTECTED else ZERO_OUT

    @property
    def limits(self) -> Limits:
        """The limits of the population."""
        return Limits(self.population, self.unit, self.relation, self.total_epsilon, self.total_delta)

    def guarantee(self, sensitivity: Sensitivity) -> Guarantee:
        """What each release promises.

        Args:
            sensitivity: Of one record, without the count counter.
        """
        rho = None
        if self.mechanism.name == DISCRETE_GAUSSIAN:
            rho = round_up(rho_of(self.mechanism, sensitivity, self.claim.records))
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            relation=self.relation,
            mode=CENTRAL,
            mechanism=self.mechanism,
            records_per_client=self.records_per_client,
            rho=rho,
        )

    def to_fields(self) -> dict[str, object]:
        """Every key of ``[privacy]``, canonical; those that not every plan has only where they are set."""
        fields: dict[str, object] = {
            "mode": "central",
            "epsilon": real_text(self.epsilon),
            "delta": real_text(self.delta),
            "unit": self.unit,
            "total_epsilon": real_text(self.total_epsilon),
            "total_delta": real_text(self.total_delta),
            "population": self.population,
            "participation": self.participation,
            "mechanism": self.mechanism.to_fields(),
        }
        if self.records_per_client is not None:
            fields["records_per_client"] = self.records_per_client
        if self.min_clients_share is not None:
            fields["min_clients_share"] = real_text(self.min_clients_share)
        return fields


def _delta(table: Table, key: str) -> Fraction:
    delta = table.real(key, expected=_DELTA, default="0")
    if not 0 <= delta < 1:
        raise PlanError(table.name(key), real_text(delta), _DELTA)
    return delta


def _records_per_client(table: Table, unit: str) -> int | None:
    if unit == "client":
        return table.integer("records_per_client", low=1, high=2**31)
    if table.has("records_per_client"):
        expected = "nothing: it belongs to unit 'client' alone"
        raise PlanError(table.name("records_per_client"), table.value("records_per_client"), expected)
    return None


def _clients_share(table: Table, participation: str, min_clients: int) -> Fraction | None:
    key = "min_clients_share"
    if participation == PUBLIC or not min_clients:
        if table.has(key):
            expected = "nothing: it belongs to participation 'protected' with window.min_clients above 0"
            raise PlanError(table.name(key), table.value(key), expected)
        return None
    share = table.real(key, expected=_SHARE, above=0, default=_SHARE_DEFAULT)
    if share >= 1:
        raise PlanError(table.name(key), real_text(share), _SHARE)
    return share


def _mechanism(table: Table, sensitivity: Sensitivity, claim: Claim) -> Mechanism:
    written = table.optional_table("mechanism")
    if written is None:
        return calibrate(sensitivity, claim)
    mechanism = Mechanism.from_table(written)
    key, scale = "scale", mechanism.scale
    try:
        verify_counters(mechanism, sensitivity, claim)
        key, scale = "clients_scale", mechanism.clients_scale or Fraction(0)
        verify_clients(mechanism, claim)
    except GuaranteeError as error:
        came = real_text(scale) if scale else Missing.MISSING
        raise PlanError(written.name(key), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
