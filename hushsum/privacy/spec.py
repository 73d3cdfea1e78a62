"""What a plan promises (``[privacy]``), read key by key, with the mechanism that keeps the promise.

Keys that depend on each other are refused where they contradict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hushsum import canonical
from hushsum.canonical import real_text
from hushsum.errors import CanonicalError, GuaranteeError, Missing, PlanError
from hushsum.privacy.accountant import Limits
from hushsum.privacy.calibration import AUTO, NOISES, Budget, calibrate, check_noise, round_up
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.factorisation import Cumulation
from hushsum.privacy.guarantee import CENTRAL, LOCAL, MODES, SECURE, Guarantee
from hushsum.privacy.local_mode import SILO, LocalMode, Reports, ReportSpace
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN, Mechanism
from hushsum.privacy.relations import ADD_REMOVE, CLIENT, FAILURE_SHARE, REPLACE, ZERO_OUT, Cost
from hushsum.privacy.verifier import (
    loss_of,
    rho_of,
    verify_clients,
    verify_counters,
    verify_draws,
    verify_sequence,
    verify_shares,
)
from hushsum.schedule import HOURLY, Schedule
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity, Summed

__all__ = ["PARTICIPATIONS", "PROTECTED", "PUBLIC", "PrivacySpec"]

#: Keys that belong to one mode alone.
_OF_MODES: Final = frozenset({"secure", "local", "participation", "min_clients_share"})


@dataclass(frozen=True)
class PrivacySpec:
    """What is promised (``[privacy]``) and the mechanism that keeps it.

    Attributes:
        epsilon: ε for each window and unit, as declared.
        delta: δ; 0 is pure differential privacy. With reports it is of the statement about shuffled ones alone: each
            report by itself is pure, and so is what the ledger is charged.
        unit: ``record`` or ``client``: whose data the promise protects.
        records_per_client: m, the contribution bound a window; None for unit ``record``.
        total_epsilon: The limit of the population's ledger.
        total_delta: Its limit on δ.
        population: Whose data it is; empty for the aggregator's single one.
        participation: ``protected`` in mode ``central``. In modes ``secure`` and ``local`` it is ``public``: clients
            submit in every window, and that they do is visible; no key says so.
        min_clients_share: The share of ε for the noised test of the number of clients; None where there is no such
            test: in modes ``secure`` and ``local``, and without ``window.min_clients``.
        mechanism: The noise, or the randomiser, with exact parameters.
        mode: ``central``, ``secure`` or ``local``: who draws the noise.
        cohort: Of a secure sum; None in other modes.
        counters: All counters that a secure sum has, with a count counter for each class, whether it has one or not;
            None in other modes.
        local: The form of mode ``local``; None in other modes.
        reports: How each record becomes a report; None but in mode ``local`` with that form.
        horizon: ``window.horizon``: how many cumulative releases ε is for; None: it is for each window's release.
        windows_per_client: ``window.windows_per_client``; None but for those with unit ``client``.
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
    local: LocalMode | None = None
    reports: Reports | None = None
    horizon: int | None = None
    windows_per_client: int | None = None

    @classmethod
    def from_table(
        cls,
        table: Table,
        sensitivity: Sensitivity,
        schedule: Schedule = HOURLY,
        counters: int | None = None,
        space: ReportSpace | None = None,
        sketch: Summed | None = None,
    ) -> "PrivacySpec":
        """Reads ``[privacy]``; calibrates the mechanism where it is not written, verifies it where it is.

        Args:
            table: ``[privacy]``.
            sensitivity: Of one record, without the count counter.
            schedule: ``[window]``.
            counters: Of all classes, count counters included; read in mode ``secure`` alone.
            space: What reports are drawn from; read in mode ``local`` alone.
            sketch: What may tell the number of records without a count counter; None: nothing does.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        mode = table.choice("mode", built=MODES, default=CENTRAL)
        min_clients = schedule.min_clients
        schedule.check_sequence(mode, central=mode == CENTRAL)
        cohort = cohort_of(table, mode, min_clients)
        local = local_of(table, mode, space)
        reports = local.of(space) if local and space else None
        epsilon = table.real("epsilon", expected="a number above 0", above=0)
        participation = participation_of(table, mode)
        delta = delta_of(table, "delta", local)
        unit = table.choice("unit", built=["record", "client"], default="record")
        records = records_per_client_of(table, unit)
        total_epsilon = table.real("total_epsilon", expected="a number above 0", above=0)
        charged = Fraction(0) if reports else delta
        total_delta = total_delta_of(table, charged, cohort)
        population = table.text("population", "")
        share = clients_share_of(table, participation, min_clients)
        survivors, counters = (cohort.honest_survivors, counters) if cohort else (None, None)
        drawn = cohort is not None and cohort.pool > 0
        reserved = cohort is not None and cohort.reserved
        sequence = (schedule.horizon, schedule.windows_per_client)
        claim = Claim(epsilon, charged, unit, records, share, survivors, counters, reports, drawn, reserved, *sequence)
        adds = unit == CLIENT and schedule.horizon is None
        mechanism = mechanism_of(table, sensitivity, claim, Budget(Cost(total_epsilon, total_delta), adds), sketch)
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
            local=local,
            reports=reports,
            horizon=schedule.horizon,
            windows_per_client=schedule.windows_per_client,
        )
        _ = spec.cumulation  # a tree of too many nodes is refused here
        spec._check_first_release(sensitivity, table.name("total_epsilon"))
        return spec

    def _check_first_release(self, sensitivity: Sensitivity, key: str) -> None:
        """Refuses limits that do not pay for one release."""
        loss = loss_of(self.mechanism, sensitivity, self.claim)
        if loss.within(Cost(self.total_epsilon, self.total_delta)):
            return
        needed = loss.cost(self.total_delta)
        assert needed is not None, "total_delta is at least delta, which is above 0 where it is needed"
        expected = f"at least {real_text(round_up(needed.epsilon))}, the charge of the first release"
        raise PlanError(key, real_text(self.total_epsilon), expected)

    @property
    def is_silo(self) -> bool:
        """Whether each client noises all its counters by itself: mode ``local``, form ``silo``."""
        return self.local is not None and not self.local.reports

    @property
    def shuffle_min(self) -> int:
        """The least number of reports in a shuffled batch; 0: there is no shuffler."""
        return 0 if self.local is None else self.local.shuffle_min

    @property
    def claim(self) -> Claim:
        """What it claims of one release, for :func:`hushsum.privacy.verifier.verify`."""
        survivors = None if self.cohort is None else self.cohort.honest_survivors
        m, share = self.records_per_client, self.min_clients_share
        delta = Fraction(0) if self.reports else self.delta
        drawn = self.cohort is not None and self.cohort.pool > 0
        reserved = self.cohort is not None and self.cohort.reserved
        return Claim(
            self.epsilon,
            delta,
            self.unit,
            m,
            share,
            survivors,
            self.counters,
            self.reports,
            drawn,
            reserved,
            self.horizon,
            self.windows_per_client,
        )

    @property
    def cumulation(self) -> Cumulation | None:
        """The noise of a cumulative sequence; None where each window is released alone."""
        made = self.mechanism.factorisation
        if made is None or self.horizon is None:
            return None
        return Cumulation(made, self.horizon, self.claim.windows)

    @property
    def relation(self) -> str:
        """Which data sets are neighbours.

        ``add/remove``; ``zero-out`` where it is visible who takes part; ``replace`` where every report is.
        """
        if self.reports:
            return REPLACE
        return ADD_REMOVE if self.participation == PROTECTED else ZERO_OUT

    @property
    def budget(self) -> Budget:
        """The limits, and whether windows add up: what decides between mechanisms that support the same claim.

        Windows of unit ``client`` do. A record is in one window alone, and a cumulative sequence is paid for once.
        """
        return Budget(Cost(self.total_epsilon, self.total_delta), self.unit == CLIENT and self.horizon is None)

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
            delta=max(self.claim.delta, self.claim.failure),  # what is above 0 holds the failure already
            unit=self.unit,
            relation=self.relation,
            mode=self.mode,
            mechanism=self.mechanism,
            records_per_client=self.records_per_client,
            rho=rho,
            cohort=self.cohort,
            local=self.local,
            horizon=self.horizon,
            windows_per_client=self.windows_per_client,
        )

    def check_window(self, schedule: Schedule) -> None:
        """Refuses windows that do not fit the mode.

        Raises:
            PlanError: It names the key of ``[window]``.
        """
        if self.mode != CENTRAL:
            schedule.check_late()
        if self.reports:
            schedule.check_reports()
            if self.local is not None and self.local.shuffle_min:
                schedule.check_after_end("privacy.local.shuffle_min: a shuffler forwards")
            return
        schedule.check_clients()
        if self.participation == PUBLIC:
            schedule.check_shown()
        if self.cohort is not None:
            schedule.check_rounds(self.cohort.wait_ms)
        if self.local is not None:
            schedule.check_after_end("privacy.local.form = 'silo': a client sends")

    def changed(self, changes: Mapping[str, object]) -> dict[str, object]:
        """The keys of a plan like this with others, as :meth:`hushsum.plan.Plan.replace_privacy` takes them."""
        keys = {**self.to_fields(), **changes}
        if changes.get("mechanism") is None:
            del keys["mechanism"]
            if self.keeps_gaussian(keys):
                keys.setdefault("noise", "gaussian")
        if keys["mode"] != self.mode:
            for other in _OF_MODES - changes.keys():
                keys.pop(other, None)
        for key, total, old in (
            ("epsilon", "total_epsilon", self.total_epsilon),
            ("delta", "total_delta", self.total_delta),
        ):
            charged = key == "epsilon" or not self._reports_with(changes)
            # A total below ε is paid for by zCDP: a smaller ε must not raise it.
            rises = key in changes and _passes(changes[key], max(old, getattr(self, key)))
            if charged and total not in changes and rises:
                keys[total] = changes[key]
        return {key: value for key, value in keys.items() if value is not None}

    def keeps_gaussian(self, keys: Mapping[str, object]) -> bool:
        """Whether a plan with these keys of ``[privacy]``, calibrated anew, has Gaussian noise because this one has it.

        It may have been asked for, and a population of Gaussian noise pays for less Laplace noise.
        """
        return (
            self.mechanism.name == DISCRETE_GAUSSIAN
            and _passes(keys["delta"], Fraction(0))
            and not self._reports_with(keys)
        )

    def _reports_with(self, changes: Mapping[str, object]) -> bool:
        """Whether a plan like this with these changes has reports, of which no δ is charged."""
        if changes.get("mode", self.mode) != LOCAL:
            return False
        local = changes.get("local", self.local.to_fields() if self.local else None)
        return not (isinstance(local, Mapping) and local.get("form") == SILO)

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
        if self.cohort is not None:
            fields["secure"] = self.cohort.to_fields()
        elif self.local is not None:
            fields["local"] = self.local.to_fields()
        else:
            fields["participation"] = self.participation
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


PROTECTED: Final = "protected"
PUBLIC: Final = "public"
PARTICIPATIONS: Final = (PROTECTED, PUBLIC)

_DELTA: Final = "a number from 0 to below 1"
_SHARE: Final = "a number above 0 and below 1"
_SHARE_DEFAULT: Final = "0.05"
_REMOVED: Final = (
    "'protected': 'public' was removed. To withhold windows with few clients, set window.min_clients, a test with "
    "noise; to protect all records of a client and its participation, set unit 'client'"
)
_VISIBLE: Final = {
    SECURE: "no value: in mode 'secure' participation is always visible",
    LOCAL: "no value: in mode 'local' participation is always visible",
}


def delta_of(table: Table, key: str, local: LocalMode | None = None) -> Fraction:
    """A δ; with reports it is that of the statement about shuffled ones, and 0 without a shuffler."""
    delta = table.real(key, expected=_DELTA, default="0")
    if not 0 <= delta < 1:
        raise PlanError(table.name(key), real_text(delta), _DELTA)
    if local is not None and local.reports and (delta > 0) != (local.shuffle_min > 0):
        expected = (
            "0: reports are pure; a delta requires amplification by a shuffler (privacy.local.shuffle_min above 0)"
        )
        if not delta:
            expected = "above 0 with privacy.local.shuffle_min: at this delta the shuffled reports are amplified"
        raise PlanError(table.name(key), real_text(delta) if table.has(key) else Missing.MISSING, expected)
    return delta


def participation_of(table: Table, mode: str) -> str:
    """Whether it is hidden who takes part; in modes where it never is, no key says so."""
    if mode not in _VISIBLE:
        if table.has("participation") and table.value("participation") == PUBLIC:
            raise PlanError(table.name("participation"), PUBLIC, _REMOVED)
        return table.choice("participation", built=(PROTECTED,), default=PROTECTED)
    if table.has("participation"):
        raise PlanError(table.name("participation"), table.value("participation"), _VISIBLE[mode])
    return PUBLIC


def local_of(table: Table, mode: str, space: ReportSpace | None) -> LocalMode | None:
    """The form of mode ``local``; None in other modes."""
    if mode != LOCAL:
        if table.has("local"):
            raise PlanError(table.name("local"), table.value("local"), "no value: only for mode 'local'")
        return None
    assert space is not None, "a plan says what its reports would be drawn from"
    return LocalMode.from_table(table.optional_table("local"), space)


def cohort_of(table: Table, mode: str, min_clients: int) -> Cohort | None:
    """The cohort of a secure sum; None in other modes."""
    if mode != SECURE:
        if table.has("secure"):
            raise PlanError(table.name("secure"), table.value("secure"), "no value: only for mode 'secure'")
        return None
    if min_clients:
        expected = "0 in mode 'secure': a sum of a whole cohort is never withheld"
        raise PlanError("window.min_clients", min_clients, expected)
    written = table.optional_table("secure")
    return Cohort() if written is None else Cohort.from_table(written)


def total_delta_of(table: Table, delta: Fraction, cohort: Cohort | None) -> Fraction:
    """The limit on δ: what the first release takes of it at the least.

    Args:
        table: ``[privacy]``.
        delta: That is charged for one release.
        cohort: Of a secure sum, whose failures are charged too.
    """
    total = delta_of(table, "total_delta")
    came = real_text(total) if table.has("total_delta") else Missing.MISSING
    if total < delta:
        expected = f"at least delta ({real_text(delta)}): the first release would pass the limit"
        raise PlanError(table.name("total_delta"), came, expected)
    if cohort is not None:
        failure = cohort.failure
        in_part = bool(delta) or cohort.reserved
        least = failure / FAILURE_SHARE if in_part else failure
        part = f"; that is to be at most {FAILURE_SHARE} of it" if in_part else ""
        if total < least:
            many = f"{least.numerator} x " if least.numerator > 1 else ""
            expected = (
                f"at least {many}2^-{least.denominator.bit_length() - 1} ({numeral(least, up=True)}): a secure sum "
                f"fails with a probability of up to {numeral(failure, up=True)} in a window, which is charged to "
                f"it{part}"
            )
            raise PlanError(table.name("total_delta"), came, expected)
    return total


def records_per_client_of(table: Table, unit: str) -> int | None:
    """m of unit ``client``; None for unit ``record``."""
    if unit == "client":
        return table.integer("records_per_client", low=1, high=2**31)
    if table.has("records_per_client"):
        expected = "no value: only unit 'client' has it"
        raise PlanError(table.name("records_per_client"), table.value("records_per_client"), expected)
    return None


def clients_share_of(table: Table, participation: str, min_clients: int) -> Fraction | None:
    """The share of ε for the noised test of the number of clients; None where there is none."""
    key = "min_clients_share"
    if participation == PUBLIC or not min_clients:
        if table.has(key):
            expected = "nothing: it belongs to mode 'central' with window.min_clients above 0"
            raise PlanError(table.name(key), table.value(key), expected)
        return None
    share = table.real(key, expected=_SHARE, above=0, default=_SHARE_DEFAULT)
    if share >= 1:
        raise PlanError(table.name(key), real_text(share), _SHARE)
    return share


def mechanism_of(
    table: Table, sensitivity: Sensitivity, claim: Claim, budget: Budget, sketch: Summed | None = None
) -> Mechanism:
    """The mechanism as it is written, verified; or calibrated where it is not, for the noise that is asked for."""
    noise = table.choice("noise", built=tuple(NOISES), default=AUTO)
    written = table.optional_table("mechanism")
    if written is None:
        rows = sketch.record_rows if sketch is not None and sketch.rows_sum_to_records else None
        return calibrate(sensitivity, claim, budget, noise=noise, rows=None if claim.reports else rows)
    mechanism = Mechanism.from_table(written)
    if not mechanism.count_scale and (sketch is None or not sketch.rows_sum_to_records):
        expected = "at least 1: rows of this sketch do not sum to the number of records; only a counter tells it"
        raise PlanError(written.name("count_scale"), 0, expected)
    check_noise(noise, claim, mechanism.name)
    key, scale = "scale", mechanism.scale
    try:
        verify_shares(mechanism, claim)
    except GuaranteeError as error:
        came_shares = mechanism.honest_survivors or Missing.MISSING
        raise PlanError(
            written.name("honest_survivors"), came_shares, f"the value that follows from mode and cohort ({error})"
        ) from error
    try:
        verify_sequence(mechanism, claim)
    except GuaranteeError as error:
        came_made = written.value("factorisation") if written.has("factorisation") else Missing.MISSING
        expected = f"what window.release asks for ({error})"
        raise PlanError(written.name("factorisation"), came_made, expected) from error
    try:
        verify_counters(mechanism, sensitivity, claim)
        if mechanism.field is not None:
            key, scale = "field", Fraction(mechanism.field)
        verify_draws(mechanism, claim)
        key, scale = "clients_scale", mechanism.clients_scale or Fraction(0)
        verify_clients(mechanism, claim)
    except GuaranteeError as error:
        came = real_text(scale) if scale else Missing.MISSING
        raise PlanError(written.name(key), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
