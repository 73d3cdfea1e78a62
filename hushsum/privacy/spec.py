"""What a plan promises (``[privacy]``), read key by key, with the mechanism that keeps the promise."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hushsum import canonical
from hushsum.canonical import real_text
from hushsum.errors import CanonicalError, GuaranteeError, Missing, PlanError
from hushsum.privacy.account import Limits
from hushsum.privacy.calibration import calibrate, round_up
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import FAILURE, Cohort
from hushsum.privacy.guarantee import CENTRAL, MODES, SECURE, Guarantee
from hushsum.privacy.mechanism import DISCRETE_GAUSSIAN, Mechanism
from hushsum.privacy.numerals import numeral
from hushsum.privacy.relation import ADD_REMOVE, FAILURE_SHARE, ZERO_OUT, Cost, Loss
from hushsum.privacy.verifier import rho_of, verify_clients, verify_counters, verify_shares
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
            In mode ``secure`` it is always ``public``, and no key says so.
        min_clients_share: The share of ε for the noised test of the number of clients; None where there is no such
            test: with public participation, or without ``window.min_clients``.
        mechanism: The noise, with exact parameters.
        mode: ``central`` or ``secure``: who draws the noise.
        cohort: Of a secure sum; None in mode ``central``.
        counters: All counters that a secure sum has, count counters included; None in mode ``central``.
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
    mode: str = CENTRAL
    cohort: Cohort | None = None
    counters: int | None = None

    @classmethod
    def from_table(
        cls, table: Table, sensitivity: Sensitivity, min_clients: int = 0, counters: int | None = None
    ) -> "PrivacySpec":
        """Reads ``[privacy]``; calibrates the mechanism where it is not written, verifies it where it is.

        Args:
            table: ``[privacy]``.
            sensitivity: Of one record, without the count counter.
            min_clients: ``window.min_clients``.
            counters: Of all classes, count counters included; read in mode ``secure`` alone.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        mode = table.choice("mode", built=MODES, known=["local"], default=CENTRAL)
        cohort = _cohort(table, mode, min_clients)
        epsilon = table.real("epsilon", expected="a number above 0", above=0)
        participation = PUBLIC if cohort else table.choice("participation", built=PARTICIPATIONS, default=PROTECTED)
        delta = _delta(table, "delta")
        unit = table.choice("unit", built=["record", "client"], default="record")
        records = _records_per_client(table, unit)
        total_epsilon = table.real("total_epsilon", expected="a number above 0", above=0)
        total_delta = _total_delta(table, delta, cohort)
        population = table.text("population", "")
        share = _clients_share(table, participation, min_clients)
        survivors, counters = (cohort.honest_survivors, counters) if cohort else (None, None)
        claim = Claim(epsilon, delta, unit, records, share, survivors, counters)
        mechanism = _mechanism(table, sensitivity, claim)
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
            mode=mode,
            cohort=cohort,
            counters=counters,
        )
        spec._check_first_release(sensitivity, table.name("total_epsilon"))
        return spec

    def _check_first_release(self, sensitivity: Sensitivity, key: str) -> None:
        """Refuses limits that do not pay for one release."""
        claim = self.claim
        if self.mechanism.name == DISCRETE_GAUSSIAN:
            loss = Loss(rho=rho_of(self.mechanism, sensitivity, claim), failure=claim.failure)
        else:
            loss = Loss.of_pure(claim.counters_epsilon, failure=claim.failure)
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
        survivors = None if self.cohort is None else self.cohort.honest_survivors
        m, share = self.records_per_client, self.min_clients_share
        return Claim(self.epsilon, self.delta, self.unit, m, share, survivors, self.counters)

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
            rho = round_up(rho_of(self.mechanism, sensitivity, self.claim))
        return Guarantee(
            epsilon=self.epsilon,
            delta=max(self.delta, self.claim.failure),  # what is above 0 holds the failure already
            unit=self.unit,
            relation=self.relation,
            mode=self.mode,
            mechanism=self.mechanism,
            records_per_client=self.records_per_client,
            rho=rho,
            cohort=self.cohort,
        )

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The keys of a plan like this with others, as :meth:`hushsum.plan.Plan.replace_privacy` takes them."""
        keys = {**self.to_fields(), **changes}
        if changes.get("mechanism") is None:
            del keys["mechanism"]
        if keys["mode"] != self.mode:
            for other in {"secure", "participation", "min_clients_share"} - changes.keys():
                keys.pop(other, None)
        for key, total, old in (
            ("epsilon", "total_epsilon", self.total_epsilon),
            ("delta", "total_delta", self.total_delta),
        ):
            if total not in changes and key in changes and _passes(changes[key], old):
                keys[total] = changes[key]
        return {key: value for key, value in keys.items() if value is not None}

    def to_fields(self) -> dict[str, object]:
        """Every key of ``[privacy]``, canonical; those that not every plan has only where they are set."""
        fields: dict[str, object] = {
            "mode": self.mode,
            "epsilon": real_text(self.epsilon),
            "delta": real_text(self.delta),
            "unit": self.unit,
            "total_epsilon": real_text(self.total_epsilon),
            "total_delta": real_text(self.total_delta),
            "population": self.population,
            "mechanism": self.mechanism.to_fields(),
        }
        if self.cohort is None:
            fields["participation"] = self.participation
        else:
            fields["secure"] = self.cohort.to_fields()
        if self.records_per_client is not None:
            fields["records_per_client"] = self.records_per_client
        if self.min_clients_share is not None:
            fields["min_clients_share"] = real_text(self.min_clients_share)
        return fields


def _passes(value: object, limit: Fraction) -> bool:
    try:
        return canonical.real(value) > limit
    except CanonicalError:
        return False  # whoever reads the key refuses it by its name


def _delta(table: Table, key: str) -> Fraction:
    delta = table.real(key, expected=_DELTA, default="0")
    if not 0 <= delta < 1:
        raise PlanError(table.name(key), real_text(delta), _DELTA)
    return delta


def _cohort(table: Table, mode: str, min_clients: int) -> Cohort | None:
    if mode != SECURE:
        if table.has("secure"):
            raise PlanError(table.name("secure"), table.value("secure"), "nothing: it belongs to mode 'secure' alone")
        return None
    if table.has("participation"):
        expected = "nothing: in mode 'secure' it is always visible who takes part"
        raise PlanError(table.name("participation"), table.value("participation"), expected)
    if min_clients:
        expected = "0 in mode 'secure': a sum of a whole cohort is never withheld"
        raise PlanError("window.min_clients", min_clients, expected)
    written = table.optional_table("secure")
    return Cohort() if written is None else Cohort.from_table(written)


def _total_delta(table: Table, delta: Fraction, cohort: Cohort | None) -> Fraction:
    total = _delta(table, "total_delta")
    came = real_text(total) if table.has("total_delta") else Missing.MISSING
    if total < delta:
        expected = f"at least delta ({real_text(delta)}): the first release would pass the limit"
        raise PlanError(table.name("total_delta"), came, expected)
    if cohort is not None:
        least = FAILURE / FAILURE_SHARE if delta else FAILURE
        part = f"; that is to be at most {FAILURE_SHARE} of it" if delta else ""
        if total < least:
            expected = (
                f"at least 2^-{least.denominator.bit_length() - 1} ({numeral(least, up=True)}): a secure sum fails "
                f"with a probability of up to {numeral(FAILURE, up=True)} in a window, which is charged to it{part}"
            )
            raise PlanError(table.name("total_delta"), came, expected)
    return total


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
        verify_shares(mechanism, claim)
    except GuaranteeError as error:
        came_shares = mechanism.honest_survivors or Missing.MISSING
        raise PlanError(written.name("honest_survivors"), came_shares, f"as mode and cohort say ({error})") from error
    try:
        verify_counters(mechanism, sensitivity, claim)
        key, scale = "clients_scale", mechanism.clients_scale or Fraction(0)
        verify_clients(mechanism, claim)
    except GuaranteeError as error:
        came = real_text(scale) if scale else Missing.MISSING
        raise PlanError(written.name(key), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
