"""Checks that a mechanism supports what a plan claims: integers and exact fractions only, so that it fits a device."""

from fractions import Fraction

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, NotBuiltError, PlanError
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.relation import CLIENT, UNITS, is_delta, is_positive
from hushsum.sensitivity import Sensitivity


def verify(
    mechanism: Mechanism,
    sensitivity: Sensitivity,
    *,
    epsilon: Fraction,
    delta: Fraction,
    unit: str,
    records_per_client: int | None,
) -> None:
    """Refuses a mechanism whose noise is too small for the claim.

    Discrete Laplace noise of scale b on every counter is pure ε where the counters of two neighbours differ by at most
    b·ε in L1 norm.

    Args:
        mechanism: What the plan says will be drawn.
        sensitivity: Of one record under the plan's relation, without the count counter.
        epsilon: Above 0, of one unit and one release.
        delta: 0.
        unit: ``record`` or ``client``.
        records_per_client: m, for unit ``client`` alone: the most records of one client in a window.

    Raises:
        GuaranteeError: The scale is too small; the message has both numbers.
        PlanError: The claim itself is out of range or contradicts itself.
        NotBuiltError: δ > 0.
    """
    records = records_of_unit(epsilon=epsilon, delta=delta, unit=unit, records_per_client=records_per_client)
    needed = scale_needed(sensitivity, mechanism.count_scale, records, epsilon)
    if mechanism.scale < needed:
        l1 = sensitivity.l1 + mechanism.count_scale
        raise GuaranteeError(
            f"{mechanism.name} of scale {real_text(mechanism.scale)} does not support epsilon {real_text(epsilon)} of "
            f"unit {unit!r}: one {unit} moves the counters by up to {records} x {l1} = {records * l1} in L1 norm, so "
            f"needs scale >= {real_text(needed)}, got {real_text(mechanism.scale)}"
        )


def scale_needed(sensitivity: Sensitivity, count_scale: int, records: int, epsilon: Fraction) -> Fraction:
    """m·(L1 + c)/ε: the smallest scale of discrete Laplace noise that is pure ε for a unit of m records."""
    return records * sensitivity.with_count(count_scale).l1 / epsilon


def records_of_unit(*, epsilon: Fraction, delta: Fraction, unit: str, records_per_client: int | None) -> int:
    """m: how many records of one window a unit may hold. Checks the claim on the way.

    Raises:
        PlanError: ε is not above 0, the unit is unknown, or ``records_per_client`` does not fit the unit.
        NotBuiltError: δ > 0.
    """
    if not is_positive(epsilon):
        raise PlanError("privacy.epsilon", epsilon, "an exact number above 0")
    if not is_delta(delta):
        raise PlanError("privacy.delta", delta, "an exact number from 0 to below 1")
    if delta > 0:
        raise NotBuiltError("privacy.delta", real_text(delta), "0 (pure epsilon)")
    if unit not in UNITS:
        raise PlanError("privacy.unit", unit, " or ".join(map(repr, UNITS)))
    if unit != CLIENT:
        if records_per_client is not None:
            raise PlanError("privacy.records_per_client", records_per_client, f"no such key with unit {unit!r}")
        return 1
    if type(records_per_client) is not int or records_per_client < 1:
        raise PlanError("privacy.records_per_client", records_per_client, "an integer of at least 1 with unit 'client'")
    return records_per_client
