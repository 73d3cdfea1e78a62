"""What this device allows: it refuses plans that guarantee less than its owner asks for, whatever the service says."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Final

from edge_client.errors import PolicyError, SettingsError
from hushsum.canonical import real, real_text
from hushsum.errors import CanonicalError, DirectoryError, GuaranteeError, PlanError
from hushsum.plan import Plan
from hushsum.privacy.cohort import MALICIOUS
from hushsum.privacy.guarantee import CENTRAL, LOCAL, MODES, SECURE
from hushsum.privacy.relations import CLIENT, UNITS
from hushsum.privacy.spec import PARTICIPATIONS, PROTECTED
from hushsum.privacy.verifier import verify
from hushsum.signed_plan import SignedPlan
from hushsum.signing import Directory, Role, VerifyKey

_DELTA: Final = "a number from 0 to below 1"
_SHARE: Final = "a number from 0 to 1"
_POSITIVE: Final = "a number above 0"
#: The δ of a total that a device takes unless told otherwise, once it limits its ε.
TOTAL_DELTA: Final = Fraction(1, 10**4)

#: The rule of new plans, by its name.
NEW_PLAN: Final = "new_plan_after_s"
#: The rule of signatures, by its name; it is checked before all others.
SIGNED_BY: Final = "signed_by"

_Number = float | Fraction | Decimal | str
_Signers = VerifyKey | Iterable[VerifyKey] | str | PathLike[str]

#: The less a device need trust others, the stronger; a stricter mode than asked for is always allowed.
_STRENGTH: Final = {CENTRAL: 0, SECURE: 1, LOCAL: 2}
_TRUSTED: Final = {
    CENTRAL: "in which the service sees each device's counters",
    SECURE: "in which the noise shares of other devices are needed",
}
_ASKED: Final = {
    SECURE: "mode 'secure' or 'local'",
    LOCAL: "mode 'local'",
}


@dataclass(frozen=True)
class Policy:
    """The rules of one device. A rule that is None allows everything, but for ``max_total_delta``, of which see below.

    The mechanism is verified always. Numbers are exact: a float means its shortest text, and a text may be such
    as ``"0.5"`` or ``"1/3"``. No rule counts on a shuffler: the ε of a plan is the one that holds against an
    observer of what a device sends.

    Attributes:
        max_epsilon: The largest ε of a window and unit that a plan may have; above 0.
        max_delta: The largest δ; 0 demands pure plans, of which secure ones are none, for their protocol may fail. It
            has a default, for with a large δ a small ε says nothing.
        unit: Whom a plan must protect: ``client`` refuses plans that protect single records alone.
        participation: ``protected`` refuses plans under which it is no secret that this device takes part.
        mode: The weakest mode that is accepted, ``central`` (as None), ``secure`` or ``local``; a stricter one always
            is. ``secure`` refuses plans whose service is trusted with what this device sends, and secure ones whose
            server is trusted to keep to the protocol. It allows one without a directory of clients, whose server is
            still trusted to pass on keys: ``directory`` refuses that. ``local`` refuses all under which this device
            does not by itself make private what it sends.
        directory: True refuses secure plans that name no directory of clients: their server could put keys of its own
            in place of others' and open what this device sends. It says nothing of other plans.
        min_window_s: The shortest window in seconds: each may spend ε anew.
        max_total_epsilon: The largest ``total_epsilon`` that a plan may have: what its population may spend in all, and
            this device in its lifetime; in mode ``central`` this device under its plans of that mode, which all have
            one population, and whose spends the service alone counts. It means no more than the δ at which that ε is
            counted: see the next.
        max_total_delta: The largest ``total_delta`` that a plan may have: the more of it, the more windows an ε in all
            pays for, pure ones too; from 0 to 1. None: 0 where ``max_delta`` is 0; else 0.0001 where
            ``max_total_epsilon`` is set, for with a large δ a small ε in all says nothing; else no limit. 0 demands
            plans whose total is pure, of which secure ones are none; 1 allows every total.
        memoise: True allows plans whose devices send the same report of a record in every window. Over several windows
            they guarantee less: it can be seen that a record came again, or changed. Their ε holds there for a record
            that is replaced wherever it occurs, by one that its device has nowhere else.
        signed_by: Whose signature a plan must carry: a key, several of which any one will do, or the path of a
            directory's file, whose keys of role ``planner`` these are. It is read here, once; then these are keys.
        new_plan_after_s: Takes up the plan that the service collects in place of the spool's, when the next client
            starts on the spool, at the earliest so many seconds after the last change; at least 0. None: the spool
            keeps its first plan for ever. It needs ``signed_by``: else a service could replace a plan by any other. A
            new plan must obey all these rules, protect as its predecessor does (:meth:`check_change`), and be paid for
            by the device's account, which all plans of a spool share.

    Raises:
        SettingsError: A rule holds what it must not.
    """

    max_epsilon: _Number | None = None
    max_delta: _Number | None = Fraction(1, 10**5)
    unit: str | None = None
    participation: str | None = None
    mode: str | None = None
    directory: bool = False
    min_window_s: _Number | None = None
    max_total_epsilon: _Number | None = None
    max_total_delta: _Number | None = None
    memoise: bool = False
    signed_by: _Signers | None = None
    new_plan_after_s: _Number | None = None

    def __post_init__(self) -> None:
        for rule in ("max_epsilon", "min_window_s", "max_total_epsilon"):
            _check_number(rule, getattr(self, rule), _POSITIVE, lambda number: number > 0)
        _check_number(NEW_PLAN, self.new_plan_after_s, "a number of seconds, at least 0", lambda number: number >= 0)
        if self.new_plan_after_s is not None and self.signed_by is None:
            raise SettingsError(f"{NEW_PLAN}: needs signed_by: without a signature a service could send any plan")
        _check_number("max_delta", self.max_delta, _DELTA, lambda number: 0 <= number < 1)
        _check_number("max_total_delta", self.max_total_delta, _SHARE, lambda number: 0 <= number <= 1)
        for name, came, known in (
            ("unit", self.unit, UNITS),
            ("participation", self.participation, PARTICIPATIONS),
            ("mode", self.mode, MODES),
        ):
            if came not in {None, *known}:
                raise SettingsError(f"{name}: got {came!r}, expected {' or '.join(map(repr, known))}")
        for rule, given in (("directory", self.directory), ("memoise", self.memoise)):
            if not isinstance(given, bool):
                raise SettingsError(f"{rule}: got {given!r}, expected True or False")
        if self.signed_by is not None:
            object.__setattr__(self, "signed_by", _keys(self.signed_by))

    @property
    def epsilon_limit(self) -> Fraction | None:
        """``max_epsilon``, exactly."""
        return _exact(self.max_epsilon)

    @property
    def delta_limit(self) -> Fraction | None:
        """``max_delta``, exactly."""
        return _exact(self.max_delta)

    @property
    def total_delta_limit(self) -> Fraction | None:
        """``max_total_delta``, exactly; or what the other rules make of it."""
        if self.max_total_delta is not None:
            return _exact(self.max_total_delta)
        if self.delta_limit == 0:
            return Fraction(0)
        return None if self.max_total_epsilon is None else TOTAL_DELTA

    @property
    def new_plan_after_ms(self) -> int | None:
        """``new_plan_after_s`` in milliseconds, rounded up; None where no new plan is taken up."""
        seconds = _exact(self.new_plan_after_s)
        return None if seconds is None else ceil(1000 * seconds)

    def check(self, plan: Plan, signed: SignedPlan | None = None) -> None:
        """Refuses a plan that these rules do not allow, or whose mechanism does not support what it claims.

        Args:
            plan: Whose id and tables count.
            signed: The same plan with a signature, where it came with one; read under ``signed_by`` alone.

        Raises:
            PolicyError: With the rule, what the plan asks for, and what is allowed.
        """
        self._check_signature(plan, signed)
        self._check_numbers(plan)
        privacy = plan.privacy
        if self.unit == CLIENT and privacy.unit != CLIENT:
            asked_unit = f"unit {privacy.unit!r}, which protects only single records"
            raise PolicyError("unit", asked_unit, "unit 'client', which protects all records of a client")
        if self.participation == PROTECTED != privacy.participation:
            by = f"mode {privacy.mode!r}"
            asked_for = f"{by}, in which participation is visible"
            raise PolicyError("participation", asked_for, "participation 'protected'")
        self._check_mode(plan)
        if privacy.local is not None and privacy.local.memoise and not self.memoise:
            asked_memo = "memoised reports, which make recurring records visible"
            raise PolicyError("memoise", asked_memo, "reports with a new draw in each window")
        try:
            verify(privacy.mechanism, plan.family.sensitivity, privacy.claim)
        except GuaranteeError as error:
            allowed = "only mechanisms that support the claimed guarantee"
            raise PolicyError("mechanism", f"one that does not ({error})", allowed) from error

    def check_change(self, earlier: Plan, plan: Plan, signed: SignedPlan | None) -> None:
        """Refuses a plan in place of an earlier one that these rules do not allow, or that protects less than that.

        The earlier plan's trust mode, unit ``client`` and key registry become rules; so do the adversary and the share
        of corrupt clients of a secure sum, where the new plan has one, too. In mode ``central`` the service alone
        counts what is spent, by population: there a new plan must be of the same population, and may not raise its
        totals.

        Raises:
            PolicyError: As :meth:`check`.
        """
        had, cohort = earlier.privacy, plan.privacy.cohort
        unit = CLIENT if had.unit == CLIENT else self.unit
        directory = self.directory or bool(had.cohort and had.cohort.directory)
        replace(self, unit=unit, directory=directory).check(plan, signed)
        _require_mode(plan, had.mode, adversary="" if had.cohort is None else had.cohort.adversary)
        if had.cohort is not None and cohort is not None and cohort.corrupt < had.cohort.corrupt:
            asked = f"a secure sum in which a share of {real_text(cohort.corrupt)} may be corrupt"
            raise PolicyError(NEW_PLAN, asked, f"at least the share before, {real_text(had.cohort.corrupt)}")
        if plan.privacy.mode == CENTRAL:
            _require_totals(earlier, plan)

    def _check_numbers(self, plan: Plan) -> None:
        privacy, limits = plan.privacy, plan.limits
        each = f" per window and {privacy.unit}"
        lifetime = ", the total for this device"
        for name, asked, limit, meant in (
            ("epsilon", privacy.epsilon, self.epsilon_limit, each),
            ("delta", plan.guarantee.delta, self.delta_limit, each),  # with what a secure sum's failure takes
            ("total_epsilon", limits.epsilon, _exact(self.max_total_epsilon), lifetime),
            ("total_delta", limits.delta, self.total_delta_limit, ", the total for this device"),
        ):
            if limit is not None and asked > limit:
                raise PolicyError(f"max_{name}", f"{name} {real_text(asked)}{meant}", f"at most {real_text(limit)}")
        length, shortest = Fraction(plan.window.length_ms, 1000), _exact(self.min_window_s)
        if shortest is not None and length < shortest:
            asked_length = f"windows of {real_text(length)} s"
            raise PolicyError("min_window_s", asked_length, f"windows of at least {real_text(shortest)} s")

    def _check_mode(self, plan: Plan) -> None:
        cohort = plan.privacy.cohort
        _require_mode(plan, self.mode or CENTRAL, adversary=MALICIOUS)
        if self.directory and cohort is not None and not cohort.directory:
            asked = "a secure sum without a key registry, in which the server is trusted to relay keys"
            raise PolicyError("directory", asked, "a plan with a key registry of clients")

    def _check_signature(self, plan: Plan, signed: SignedPlan | None) -> None:
        if self.signed_by is None:
            return
        assert isinstance(self.signed_by, tuple), "normalised by the constructor"
        allowed = f"only plans signed by {_named(self.signed_by)}"
        if signed is None:
            raise PolicyError(SIGNED_BY, "no readable signature", allowed)
        if signed.bundle != plan.bundle:
            raise PolicyError(SIGNED_BY, f"a signature of another plan ({signed.plan_id.hex()})", allowed)
        try:
            signed.verify(self.signed_by)
        except PlanError as error:
            asked = f"a signature that does not verify (it claims key {signed.key_id!r})"
            raise PolicyError(SIGNED_BY, asked, allowed) from error


def _require_mode(plan: Plan, weakest: str, *, adversary: str) -> None:
    """Refuses a plan of a weaker mode; and, where that is ``secure``, a secure sum against a weaker adversary."""
    cohort, mode = plan.privacy.cohort, plan.privacy.mode
    if _STRENGTH[mode] < _STRENGTH[weakest]:
        raise PolicyError("mode", f"mode {mode!r}, {_TRUSTED[mode]}", _ASKED[weakest])
    if weakest == SECURE and adversary == MALICIOUS and cohort is not None and cohort.adversary != MALICIOUS:
        asked = f"a secure sum with adversary {cohort.adversary!r}: the server is trusted to follow the protocol"
        raise PolicyError("mode", asked, f"mode 'secure' with adversary {MALICIOUS!r}")


def _require_totals(earlier: Plan, plan: Plan) -> None:
    """Refuses a central plan of another population than its predecessor's, or one that may spend more in all."""
    had, limits = earlier.limits, plan.limits
    if limits.population != had.population:
        asked = f"population {limits.population!r}, for which the service begins to count anew"
        raise PolicyError(NEW_PLAN, asked, f"plans of population {had.population!r} in mode {CENTRAL!r}")
    for name, asks, most in (("epsilon", limits.epsilon, had.epsilon), ("delta", limits.delta, had.delta)):
        if asks > most:
            allowed = f"at most the total of the plan before, {real_text(most)}"
            raise PolicyError(NEW_PLAN, f"total_{name} {real_text(asks)}", allowed)


def _exact(value: _Number | None) -> Fraction | None:
    return None if value is None else real(value)


def _check_number(rule: str, value: _Number | None, expected: str, fits: Callable[[Fraction], bool]) -> None:
    try:
        good = value is None or fits(real(value))
    except CanonicalError as error:
        raise SettingsError(f"{rule}: got {value!r}, expected {expected}") from error
    if not good:
        raise SettingsError(f"{rule}: got {value!r}, expected {expected}")


def _keys(given: _Signers) -> tuple[VerifyKey, ...]:
    if isinstance(given, str | PathLike):
        return _planners(Path(given))
    keys = (given,) if isinstance(given, VerifyKey) else tuple(given) if isinstance(given, Iterable) else ()
    if not keys or not all(isinstance(key, VerifyKey) for key in keys):
        raise SettingsError(
            f"signed_by: got {given!r}, expected a VerifyKey, several of them, or the path of a key registry"
        )
    return keys


def _planners(path: Path) -> tuple[VerifyKey, ...]:
    try:
        found = Directory.from_toml(path.read_text(encoding="utf-8")).of_role(Role.PLANNER)
    except OSError as error:
        raise SettingsError(f"signed_by: {path}: {error.strerror}, expected a key registry") from error
    except (DirectoryError, UnicodeDecodeError) as error:
        raise SettingsError(f"signed_by: {path}: {error}") from error
    if not found:
        raise SettingsError(f"signed_by: {path}: no key of role {Role.PLANNER.value!r}, expected at least one")
    return found


def _named(keys: tuple[VerifyKey, ...]) -> str:
    first = f"the key {keys[0].hex[:16]}…"
    return first if len(keys) == 1 else f"{first} or one of {len(keys) - 1} more"
