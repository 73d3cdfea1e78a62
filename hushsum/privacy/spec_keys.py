"""Keys of ``[privacy]`` that depend on each other: each is read, and refused where it contradicts another."""

from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, Missing, PlanError
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.guarantee import LOCAL, SECURE
from hushsum.privacy.local_mode import LocalMode, ReportSpace
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.numerals import numeral
from hushsum.privacy.relation import FAILURE_SHARE
from hushsum.privacy.verifier import verify_clients, verify_counters, verify_draws, verify_shares
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

PROTECTED: Final = "protected"
PUBLIC: Final = "public"
PARTICIPATIONS: Final = (PROTECTED, PUBLIC)

_DELTA: Final = "a number from 0 to below 1"
_SHARE: Final = "a number above 0 and below 1"
_SHARE_DEFAULT: Final = "0.05"
_REMOVED: Final = (
    "'protected': 'public' was removed. To hold windows of few clients back, set window.min_clients, whose test is "
    "noised; to protect all records of a client, whether it takes part included, set unit 'client'"
)
_VISIBLE: Final = {
    SECURE: "nothing: in mode 'secure' it is always visible who takes part",
    LOCAL: "nothing: in mode 'local' it is always visible that something was sent",
}


def delta_of(table: Table, key: str, local: LocalMode | None = None) -> Fraction:
    """A δ; with reports it is that of the statement about shuffled ones, and 0 without a shuffler."""
    delta = table.real(key, expected=_DELTA, default="0")
    if not 0 <= delta < 1:
        raise PlanError(table.name(key), real_text(delta), _DELTA)
    if local is not None and local.reports and (delta > 0) != (local.shuffle_min > 0):
        expected = (
            "0: reports are pure; a delta belongs to what a shuffler amplifies (privacy.local.shuffle_min above 0)"
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
            raise PlanError(table.name("local"), table.value("local"), "nothing: it belongs to mode 'local' alone")
        return None
    assert space is not None, "a plan says what its reports would be drawn from"
    return LocalMode.from_table(table.optional_table("local"), space)


def cohort_of(table: Table, mode: str, min_clients: int) -> Cohort | None:
    """The cohort of a secure sum; None in other modes."""
    if mode != SECURE:
        if table.has("secure"):
            raise PlanError(table.name("secure"), table.value("secure"), "nothing: it belongs to mode 'secure' alone")
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
        least = failure / FAILURE_SHARE if delta else failure
        part = f"; that is to be at most {FAILURE_SHARE} of it" if delta else ""
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
        expected = "nothing: it belongs to unit 'client' alone"
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


def mechanism_of(table: Table, sensitivity: Sensitivity, claim: Claim) -> Mechanism:
    """The mechanism as it is written, verified; or calibrated where it is not."""
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
        if mechanism.field is not None:
            key, scale = "field", Fraction(mechanism.field)
        verify_draws(mechanism, claim)
        key, scale = "clients_scale", mechanism.clients_scale or Fraction(0)
        verify_clients(mechanism, claim)
    except GuaranteeError as error:
        came = real_text(scale) if scale else Missing.MISSING
        raise PlanError(written.name(key), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
