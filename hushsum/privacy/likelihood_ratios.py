"""Likelihood ratios of randomised reports: λ from ε, rounded down, and the check that λ^m ≤ e^ε, by integers alone.

All reports of a unit compose: m of them, each of which is at most λ times as likely for one record as for another, are
at most λ^m times as likely. That is at most e^ε where λ ≤ e^(ε/m), and this is what is compared, so that no number
grows with m.
"""

import math
from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError
from hushsum.noise.exp_thresholds import exp_minus
from hushsum.noise.projective_geometry import field_end
from hushsum.noise.randomiser import RANDOMISERS
from hushsum.privacy.claim import Claim
from hushsum.privacy.exact_numbers import notch_of, numeral
from hushsum.privacy.local_mode import ONE_BIT, Reports
from hushsum.privacy.mechanisms import RATIO_MIN, REPORT_EPSILON_MAX, Mechanism
from hushsum.privacy.zcdp import ln

_LN_BITS: Final = 64  # of ln λ
_BITS: Final = 192  # of e^-x: a ratio of 6 digits is never so near to e^x


def supports_ratio(ratio: Fraction, epsilon: Fraction) -> bool:
    """Whether ratio ≤ e^epsilon, proven by a bound of e^-epsilon from above; what it does not settle reads False.

    Args:
        ratio: Above 0.
        epsilon: Above 0.
    """
    if epsilon > 2 * REPORT_EPSILON_MAX:
        return ratio <= 1 << 2 * REPORT_EPSILON_MAX  # e^x > 2^x: no ratio of a report is larger
    bits = _BITS + 2 * math.ceil(epsilon)
    return ratio * exp_minus(epsilon, bits)[1] <= 1 << bits


def ratio_within(epsilon: Fraction) -> Fraction | None:
    """The largest number of 6 significant digits above 1 that is at most e^epsilon; None: there is none.

    Args:
        epsilon: Of one report, above 0 and at most 20.
    """
    bits = _BITS + 2 * math.ceil(epsilon)
    below = Fraction(1 << bits, exp_minus(epsilon, bits)[1])
    notch = notch_of(below)
    ratio = below // notch * notch
    return ratio if ratio >= RATIO_MIN else None


def rho_of_reports(ratio: Fraction, number: int) -> Fraction:
    """ρ of the zCDP of independent reports of one unit: ½(ln λ)² each, ln λ rounded up to 64 binary digits.

    Args:
        ratio: λ, above 1.
        number: Of the reports of a unit, at least 1.
    """
    return number * Fraction(ln(ratio, _LN_BITS)[1], 1 << _LN_BITS) ** 2 / 2


def verify_randomiser(mechanism: Mechanism, reports: Reports, claim: Claim) -> None:
    """Refuses a randomiser of another kind, and one whose reports tell more than is claimed.

    Raises:
        GuaranteeError: With both numbers.
    """
    if mechanism.name != reports.randomiser:
        raise GuaranteeError(f"reports are randomised by {reports.randomiser!r}, got {mechanism.name!r}")
    if not supports_ratio(mechanism.scale, claim.report_epsilon):
        enough = ratio_within(claim.report_epsilon) if claim.report_epsilon <= REPORT_EPSILON_MAX else None
        needed = "no scale suffices" if enough is None else f"it needs scale <= {real_text(enough)}"
        came, each = real_text(mechanism.scale), numeral(claim.report_epsilon, up=False)
        raise GuaranteeError(
            f"{mechanism.name} of likelihood ratio {came} does not support epsilon {numeral(claim.epsilon, up=False)} "
            f"of unit {claim.unit!r}: its reports in a window compose, at most {claim.records}, so each may have "
            f"epsilon {each}: {needed} (e^{each}, rounded down), got {came}"
        )


def check_drawn(mechanism: Mechanism, reports: Reports) -> None:
    """Refuses a randomiser whose draws need larger integers than devices have, or tables of a field beyond all use.

    Raises:
        GuaranteeError: Too many values a row, for a ratio of so many digits; or the field is too large.
    """
    if mechanism.name == ONE_BIT:
        return  # it has two values, whatever the family
    end = field_end(reports.inputs, mechanism.scale)
    if mechanism.field is not None and mechanism.field >= end:
        raise GuaranteeError(
            f"projective reports of {reports.inputs} values a row and a likelihood ratio of "
            f"{real_text(mechanism.scale)} have a field below {end}, got field = {mechanism.field}"
        )
    try:
        RANDOMISERS[mechanism.name](mechanism.scale, reports.inputs, mechanism.field)
    except ValueError as error:
        raise GuaranteeError(f"reports of {reports.inputs} values a row cannot be drawn: {error}") from error
