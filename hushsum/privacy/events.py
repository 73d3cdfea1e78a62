"""Privacy events and spends, as the values that a ledger stores (a ``DpEvent`` elsewhere).

An event is one run of a mechanism: how far one unit moves its values (norms, stored as strings, because no encoding
bounds them), and into how many shares its noise is divided. Events of the ledger's first version are still read.
"""

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Final, Self

from hushsum import canonical, schedule
from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import CanonicalError, GuaranteeError, PlanError
from hushsum.privacy.cohort import RESERVED
from hushsum.privacy.distributed_gaussian import rho_of_shares
from hushsum.privacy.factorisation import BufferedToeplitz, Cumulation, SignedDigitTree
from hushsum.privacy.guarantee import LOCAL, MODES, SECURE
from hushsum.privacy.likelihood_ratios import rho_of_reports, supports_ratio
from hushsum.privacy.local_mode import RANDOMISERS
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN, DISCRETE_LAPLACE, is_ratio
from hushsum.privacy.relations import ADD_REMOVE, NO_LOSS, RELATIONS, REPLACE, UNITS, Loss, is_delta, is_positive
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity


@dataclass(frozen=True)
class ClaimedEvent:
    """One run of a mechanism as the first version of the ledger wrote it: its claim, without parameters.

    Args:
        mechanism: Its name.
        epsilon: Above 0.
        delta: From 0 to below 1.

    Raises:
        PlanError: A field is out of range; it names the field under ``spend``.
    """

    mechanism: str
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise PlanError("spend.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("spend.delta", self.delta, "an exact number from 0 to below 1")

    @cached_property
    def loss(self) -> Loss:
        """What it loses, in its own unit and relation."""
        return Loss.of_pure(self.epsilon, self.delta)

    def to_fields(self) -> dict[str, object]:
        """Strings, which stand among the fields of its spend."""
        return {"mechanism": self.mechanism, "epsilon": real_text(self.epsilon), "delta": real_text(self.delta)}


_NORMS: Final = ("l0", "l1", "l2_squared", "linf")
_WHOLE: Final = "an integer of at least 1"


def check(sensitivity: Sensitivity) -> None:
    """Refuses norms that are no integers of at least 1, or that no set of changes has: too small ones prove too much.

    Raises:
        PlanError: It names the norm under ``event.sensitivity``.
    """
    for name in _NORMS:
        norm = getattr(sensitivity, name)
        if type(norm) is not int or norm < 1:
            raise PlanError(f"event.sensitivity.{name}", norm, _WHOLE)
    l0, l1, l2_squared, linf = (getattr(sensitivity, name) for name in _NORMS)
    # True of the norms of each change, and so of the largest ones of any set; the last is that of Cauchy and Schwarz.
    for name, norm, low, high in (
        ("l1", l1, linf, l0 * linf),
        ("l2_squared", l2_squared, max(linf**2, -(-(l1**2) // l0)), l1 * linf),
    ):
        if not low <= norm <= high:
            others = ", ".join(f"{other} = {getattr(sensitivity, other)}" for other in _NORMS if other != name)
            raise PlanError(f"event.sensitivity.{name}", norm, f"an integer from {low} to {high} beside {others}")


def to_fields(sensitivity: Sensitivity) -> dict[str, str]:
    """Strings, for norms pass the integers of the canonical encoding."""
    return {name: str(getattr(sensitivity, name)) for name in _NORMS}


def from_table(table: Table) -> Sensitivity:
    """Reads what :func:`to_fields` wrote.

    Raises:
        PlanError: A norm is missing, unknown or no integer of at least 1.
    """
    sensitivity = Sensitivity(**{name: _whole(table, name) for name in _NORMS})
    table.finish()
    return sensitivity


def _whole(table: Table, name: str) -> int:
    value = table.real(name, expected=_WHOLE, above=0)
    if value.denominator != 1:
        raise PlanError(table.name(name), real_text(value), _WHOLE)
    return value.numerator


@dataclass(frozen=True)
class Shares:
    """What the spend of a secure sum needs beside its mechanism: h clients each drew a share of the noise.

    Args:
        honest_survivors: h, at least 1.
        counters: D, the number of all counters, the count counters included; at least 1.
        failure: The probability that the protocol fails, above 0 and below 1: a part of δ.
        reserved: Whether a part of the population's total δ is kept for failures.

    Raises:
        PlanError: A field is out of range; it names the field under ``event.shares``.
    """

    honest_survivors: int
    counters: int
    failure: Fraction
    reserved: bool = False

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
        """Integers and strings, ready for the canonical encoding; ``failures`` only where a part of δ is kept."""
        fields: dict[str, object] = {
            "honest_survivors": self.honest_survivors,
            "counters": self.counters,
            "failure": real_text(self.failure),
        }
        return {**fields, "failures": RESERVED} if self.reserved else fields

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
            reserved=table.has("failures") and table.choice("failures", built=(RESERVED,)) == RESERVED,
        )
        table.finish()
        return shares


TUMBLING: Final = schedule.TUMBLING
CUMULATIVE: Final = schedule.CUMULATIVE
IN_PROCESS: Final = "in-process"
CHOICE: Final = "choice"
KINDS: Final = (TUMBLING, CUMULATIVE, IN_PROCESS, CHOICE)

REPORT_NOISY_MAX: Final = "report-noisy-max"
MECHANISMS: Final = (DISCRETE_LAPLACE, DISCRETE_GAUSSIAN, REPORT_NOISY_MAX, *RANDOMISERS)

#: How far one report moves what is counted.
ONE_REPORT: Final = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)
_PLAN_ID: Final = re.compile(r"[0-9a-f]{64}")
_WINDOW: Final = b',"window":'  # the last of the canonical keys of a spend


@dataclass(frozen=True)
class Event:
    """One run of a mechanism with its exact parameters.

    Args:
        mechanism: ``discrete-laplace`` (noise of scale b on every value), ``discrete-gaussian`` (of σ² on every value),
            ``report-noisy-max`` (noise of scale b on every utility, of which the largest one's index is shown), or a
            randomiser of reports (none is more than λ times as likely for one record as for another).
        scale: b, or σ² for ``discrete-gaussian``, or λ.
        sensitivity: How far one unit moves the values, under the relation of the spend: all its records together, the
            count counters included. Of a randomiser: how many reports it has (``l1``), each of which is one.
        epsilon: The pure ε that is claimed; 0 for ``discrete-gaussian``, of which ρ follows from the rest.
        shares: Of a secure sum: of how many shares the noise is, and what else its spend needs; None: drawn whole.
        cumulation: Of a whole sequence of cumulative releases, of which it is one event; ``sensitivity`` is then that
            of one window, its ``l0`` not cut at the number of counters. None: of one release.

    Raises:
        PlanError: A field is out of range; it names the field under ``event``.
        GuaranteeError: The parameters do not support the claim.
    """

    mechanism: str
    scale: Fraction
    sensitivity: Sensitivity
    epsilon: Fraction
    shares: Shares | None = None
    cumulation: Cumulation | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise PlanError("event.mechanism", self.mechanism, " or ".join(map(repr, MECHANISMS)))
        if not is_positive(self.scale):
            raise PlanError("event.scale", self.scale, "an exact number above 0")
        check(self.sensitivity)
        self._check_cumulation()
        if self.shares is not None and self.mechanism == REPORT_NOISY_MAX:
            raise PlanError(
                "event.shares", self.shares, f"None with {REPORT_NOISY_MAX}, because its noise is not drawn in shares"
            )
        if self.mechanism == DISCRETE_GAUSSIAN:
            if self.epsilon != 0:
                raise GuaranteeError(f"discrete Gaussian noise supports no pure epsilon, got {real_text(self.epsilon)}")
            _ = self.rho  # shares that are too narrow for one are refused here
        elif not is_positive(self.epsilon):
            raise PlanError("event.epsilon", self.epsilon, "an exact number above 0")
        elif self.mechanism in RANDOMISERS:
            self._check_reports()
        elif self.epsilon < self._needed:
            raise GuaranteeError(
                f"{self.mechanism} of scale {real_text(self.scale)} does not support epsilon {real_text(self.epsilon)} "
                f"at a sensitivity of {self.sensitivity}: it supports {real_text(self._needed)}"
            )

    def _check_cumulation(self) -> None:
        if self.cumulation is None:
            return
        kind = {DISCRETE_GAUSSIAN: BufferedToeplitz, DISCRETE_LAPLACE: SignedDigitTree}.get(self.mechanism)
        made = self.cumulation.factorisation
        if self.shares is not None or kind is None or not isinstance(made, kind):
            expected = "buffers with discrete-gaussian, a tree with discrete-laplace, drawn whole; else None"
            raise PlanError("event.cumulation", made.to_fields(), expected)

    def _check_reports(self) -> None:
        reports = self.sensitivity.l1
        if not is_ratio(self.scale):
            raise PlanError("event.scale", real_text(self.scale), "a likelihood ratio of at most 6 significant digits")
        if self.shares is not None or self.sensitivity != ONE_REPORT.times(reports, reports):
            raise PlanError("event.sensitivity", self.sensitivity, f"that of {reports} reports, drawn whole")
        if not supports_ratio(self.scale, self.epsilon / reports):
            raise GuaranteeError(
                f"{self.mechanism} of likelihood ratio {real_text(self.scale)} does not support epsilon "
                f"{real_text(self.epsilon)} for {reports} reports of one unit: it supports {reports} x "
                f"ln {real_text(self.scale)} = {reports * math.log(self.scale):.6g}"
            )

    @cached_property
    def rho(self) -> Fraction:
        """ρ of the zCDP that its parameters prove (docs/explanation/proofs/zcdp.md).

        ``discrete-gaussian``: L2²/(2σ²) (Canonne, Kamath and Steinke 2020, Theorem 14); of shares an upper bound. The
        others are pure, and their counters, or reports, compose: ``discrete-laplace``: a counter that moves by a is
        |a|/b-private, all together L2²/(2b²). A randomiser: ½(ln λ)² a report, rounded up. ``report-noisy-max``
        shows one index, of which ½ε² is proven, as of a sequence by a tree. Of one by buffers an upper bound.
        """
        squared = self.sensitivity.l2_squared
        if self.cumulation is not None:
            return self._rho_of_sequence(self.cumulation)
        if self.mechanism == DISCRETE_GAUSSIAN:
            if self.shares is None:
                return squared / (2 * self.scale)
            return self.shares.rho(self.scale, squared)
        if self.mechanism == DISCRETE_LAPLACE:
            return squared / (2 * self.scale**2)
        if self.mechanism in RANDOMISERS:
            return rho_of_reports(self.scale, self.sensitivity.l1)
        return self.epsilon**2 / 2

    def _rho_of_sequence(self, sequence: Cumulation) -> Fraction:
        made, l2_squared, l0 = sequence.factorisation, self.sensitivity.l2_squared, self.sensitivity.l0
        if isinstance(made, BufferedToeplitz):
            return made.rho(self.scale, l2_squared, l0, horizon=sequence.horizon, windows=sequence.windows)
        return self.epsilon**2 / 2  # neighbours may depend on earlier outputs: pure ε holds, and no more is proven

    @cached_property
    def loss(self) -> Loss:
        """What it loses, in its own unit and relation."""
        gaussian = self.mechanism == DISCRETE_GAUSSIAN
        loss = Loss(rho=self.rho) if gaussian else Loss.of_pure(self.epsilon, rho=self.rho)
        return loss.failing(self.shares.failure, reserved=self.shares.reserved) if self.shares else loss

    @property
    def _needed(self) -> Fraction:
        # A noisy maximum shows one index, however many utilities there are: one may rise as the others fall.
        if self.mechanism == REPORT_NOISY_MAX:
            return 2 * self.sensitivity.linf / self.scale
        if self.cumulation is not None and isinstance(self.cumulation.factorisation, SignedDigitTree):
            return self.cumulation.factorisation.l1(self.cumulation.windows) * self.sensitivity.l1 / self.scale
        return self.sensitivity.l1 / self.scale

    def to_fields(self) -> dict[str, object]:
        """Nested strings, ready for the canonical encoding; norms too, for their squares pass its integers.

        ``shares`` and ``cumulation`` only where they are set.
        """
        fields: dict[str, object] = {
            "mechanism": self.mechanism,
            "scale": real_text(self.scale),
            "sensitivity": to_fields(self.sensitivity),
            "epsilon": real_text(self.epsilon),
        }
        if self.shares is not None:
            fields["shares"] = self.shares.to_fields()
        if self.cumulation is not None:
            fields["cumulation"] = self.cumulation.to_fields()
        return fields

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote.

        Raises:
            PlanError: A field is missing, unknown or out of range.
            GuaranteeError: The parameters do not support the claim.
        """
        event = cls(
            mechanism=table.choice("mechanism", built=MECHANISMS),
            scale=table.real("scale", expected="an exact number above 0", above=0),
            sensitivity=from_table(table.table("sensitivity")),
            epsilon=table.real("epsilon", expected="an exact number of at least 0"),
            shares=Shares.from_table(table.table("shares")) if table.has("shares") else None,
            cumulation=Cumulation.from_table(table.table("cumulation")) if table.has("cumulation") else None,
        )
        table.finish()
        return event


@dataclass(frozen=True)
class Spend:
    """What one outcome, one in-process release, or one private choice costs its population.

    Args:
        population: Whose data it is.
        plan_id: 64 lower-case hexadecimal digits.
        kind: ``tumbling``, ``cumulative`` for a whole sequence of releases, ``in-process`` for a release without a
            window, or ``choice`` of a plan's parameter.
        window: The window's index, for ``tumbling`` alone.
        unit: ``record`` or ``client``.
        relation: ``add/remove``, ``zero-out`` or ``replace``.
        mode: ``central``; ``secure``: every mechanism of such a spend drew its noise in shares, and of no other;
            ``local``: each client drew its noise, or under ``replace`` randomised its reports.
        events: Every mechanism that ran; none where a window was withheld by a public number, or nobody entered.

    Raises:
        PlanError: A field is out of range; it names the field under ``spend``.
    """

    population: str
    plan_id: str
    kind: str
    window: int | None
    unit: str
    relation: str
    mode: str
    events: tuple[Event, ...] | tuple[ClaimedEvent]

    def __post_init__(self) -> None:
        if not _PLAN_ID.fullmatch(self.plan_id):
            raise PlanError("spend.plan_id", self.plan_id, "64 lower-case hexadecimal digits")
        for field, value, known in (
            ("kind", self.kind, KINDS),
            ("unit", self.unit, UNITS),
            ("relation", self.relation, RELATIONS),
            ("mode", self.mode, MODES),
        ):
            if value not in known:
                raise PlanError(f"spend.{field}", value, " or ".join(map(repr, known)))
        if (self.window is not None) != (self.kind == TUMBLING):
            raise PlanError("spend.window", self.window, "a window's index for kind 'tumbling', else None")
        if self.window is not None and (type(self.window) is not int or abs(self.window) > INTEGER_LIMIT):
            raise PlanError("spend.window", self.window, "an integer")
        if type(self.events) is not tuple or (not self.events and self.kind != TUMBLING):
            raise PlanError("spend.events", self.events, "a tuple of at least one event, unless a window is withheld")
        self._check_events()

    def _check_events(self) -> None:
        if self.mode == LOCAL and self.relation == ADD_REMOVE:
            raise PlanError(
                "spend.mode", self.mode, "'central' with 'add/remove': in mode 'local' participation is visible"
            )
        in_shares = [getattr(event, "shares", None) is not None for event in self.events]
        if not all(in_shares) if self.mode == SECURE else any(in_shares):
            raise PlanError("spend.events", self.events, "noise in shares of clients if and only if mode is 'secure'")
        for event in self.events:
            if (getattr(event, "cumulation", None) is not None) != (self.kind == CUMULATIVE):
                expected = "a factorisation if and only if kind is 'cumulative'"
                raise PlanError("spend.events", event.mechanism, expected)
            if (event.mechanism in RANDOMISERS) != (self.mode == LOCAL and self.relation == REPLACE):
                expected = "randomised reports if and only if mode is 'local' with 'replace'"
                raise PlanError("spend.events", event.mechanism, expected)

    @cached_property
    def loss(self) -> Loss:
        """What it loses, in its own unit and relation."""
        return reduce(Loss.plus, (event.loss for event in self.events), NO_LOSS)

    def to_fields(self) -> dict[str, object]:
        """Nested strings and integers, ready for the canonical encoding; ``window`` only where there is one."""
        claimed = bool(self.events) and isinstance(self.events[0], ClaimedEvent)
        events = [event.to_fields() for event in self.events]
        fields: dict[str, object] = {
            "population": self.population,
            "plan_id": self.plan_id,
            "kind": self.kind,
            "unit": self.unit,
            "relation": self.relation,
            "mode": self.mode,
            **(events[0] if claimed else {"events": events}),
        }
        return fields if self.window is None else {**fields, "window": self.window}

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Reads what :meth:`to_fields` wrote, in this version or the first.

        Raises:
            PlanError: A field is missing, unknown or out of range.
            GuaranteeError: An event's parameters do not support its claim.
        """
        table = Table(fields, "spend")
        events: tuple[Event, ...] | tuple[ClaimedEvent]
        if table.has("events"):
            events = tuple(Event.from_table(event) for event in table.tables("events"))
        else:
            events = (
                ClaimedEvent(
                    mechanism=table.text("mechanism"),
                    epsilon=table.real("epsilon", expected="an exact number above 0", above=0),
                    delta=table.real("delta", expected="an exact number from 0 to below 1"),
                ),
            )
        spend = cls(
            population=table.text("population"),
            plan_id=table.text("plan_id"),
            kind=table.choice("kind", built=KINDS),
            window=table.integer("window", low=-INTEGER_LIMIT) if table.has("window") else None,
            unit=table.choice("unit", built=UNITS),
            relation=table.choice("relation", built=RELATIONS),
            mode=table.choice("mode", built=MODES),
            events=events,
        )
        table.finish()
        return spend

    def to_bytes(self) -> bytes:
        """Its canonical bytes."""
        return canonical.encode(self.to_fields())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Spend":
        """Reads what :meth:`to_bytes` wrote. Spends that differ by their window alone share their events.

        Raises:
            CanonicalError: Not canonical bytes.
            PlanError: A field is missing, unknown or out of range.
            GuaranteeError: An event's parameters do not support its claim.
        """
        head, found, window = data.rpartition(_WINDOW)
        if not found:
            return _read(data)
        try:
            number = int(window[:-1])
        except ValueError:
            number = None
        if window != b"%r}" % number:
            raise CanonicalError(f"not canonical: {canonical.shown(window)} where a window's index ends a spend")
        return replace(_read(head + _WINDOW + b"0}"), window=number)


@lru_cache(maxsize=256)
def _read(data: bytes) -> Spend:
    spend = Spend.from_fields(canonical.decode(data))
    if spend.to_bytes() != data:  # an integer where its exact number is written as text
        raise CanonicalError(f"not canonical: {canonical.shown(data)}")
    return spend
