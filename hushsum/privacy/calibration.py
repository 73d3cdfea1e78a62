"""From a guarantee to the exact parameters of its mechanism; runs once, where a plan is made."""

from fractions import Fraction
from typing import Final

from hushsum.privacy.mechanism import DISCRETE_LAPLACE, Mechanism
from hushsum.privacy.verifier import records_of_unit, scale_needed
from hushsum.sensitivity import Sensitivity

COUNT_SHARE: Final = Fraction(1, 20)  # of ε, for the count counter
SIGNIFICANT_DIGITS: Final = 6


def calibrate(
    sensitivity: Sensitivity, *, epsilon: Fraction, delta: Fraction, unit: str, records_per_client: int | None
) -> Mechanism:
    """The mechanism with the least noise that supports a guarantee.

    Pure ε: one scale m·(L1 + c)/ε for all counters, rounded towards more noise, where the count counter's scale
    c = ⌈L1·0.05/0.95⌉ gives it 5 % of ε.

    Args:
        sensitivity: Of one record under the plan's relation, without the count counter.
        epsilon: Above 0, of one unit and one release.
        delta: 0.
        unit: ``record`` or ``client``.
        records_per_client: m, for unit ``client`` alone.

    Raises:
        NotBuiltError: δ > 0.
        PlanError: The guarantee is out of range or contradicts itself, or needs noise that no counter can hold.
    """
    records = records_of_unit(epsilon=epsilon, delta=delta, unit=unit, records_per_client=records_per_client)
    count_scale = _ceil(sensitivity.l1 * COUNT_SHARE / (1 - COUNT_SHARE))
    needed = scale_needed(sensitivity, count_scale, records, epsilon)
    return Mechanism(DISCRETE_LAPLACE, round_up(needed), count_scale)


def round_up(value: Fraction) -> Fraction:
    """The least number of 6 significant decimal digits that is not below a value above 0."""
    exponent = len(str(value.numerator)) - len(str(value.denominator)) - SIGNIFICANT_DIGITS
    notch = Fraction(10) ** exponent  # one of the two powers of ten that may be the sixth digit's
    if value >= 10**SIGNIFICANT_DIGITS * notch:
        notch *= 10
    return _ceil(value / notch) * notch


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
