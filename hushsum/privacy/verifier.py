"""Checks that a mechanism supports what a plan claims: integers and exact fractions only, so that it fits a device."""

from bisect import bisect_left
from fractions import Fraction
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError
from hushsum.noise.projective_geometry import is_prime
from hushsum.privacy.claim import Claim
from hushsum.privacy.distributed_gaussian import SHARE_MIN, rho_of_shares
from hushsum.privacy.exact_numbers import SIGNIFICANT_DIGITS, numeral
from hushsum.privacy.factorisation import BufferedToeplitz, Factorisation, SignedDigitTree
from hushsum.privacy.likelihood_ratios import check_drawn, rho_of_reports, verify_randomiser
from hushsum.privacy.local_mode import Reports
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN, DISCRETE_LAPLACE, SCALES, Mechanism, scales_text
from hushsum.privacy.relations import Loss
from hushsum.privacy.zcdp import epsilon_of, supports
from hushsum.sensitivity import Sensitivity

_SIX_DIGITS: Final = range(10 ** (SIGNIFICANT_DIGITS - 1), 10**SIGNIFICANT_DIGITS)


def verify(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> None:
    """Refuses a mechanism whose noise is too small for the claim.

    Discrete Laplace noise of scale b on every counter is pure ε where the counters of two neighbours differ by at most
    b·ε in L1 norm; discrete Gaussian noise is ρ-zCDP, where ρ = Δ2²/(2σ²) and they differ by at most Δ2 in L2 norm
    (Canonne, Kamath and Steinke 2020, Theorem 14). The test of the number of clients is pure, and its ε adds. Reports
    of likelihood ratio λ are pure ε where λ^m ≤ e^ε (:mod:`hushsum.privacy.likelihood_ratios`).

    Args:
        mechanism: What the plan says will be drawn.
        sensitivity: Of one record under the plan's relation, without the count counter.
        claim: What it must support.

    Raises:
        GuaranteeError: A scale is too small, or the mechanism is of another kind than the claim; the message has both
            numbers.
    """
    verify_shares(mechanism, claim)
    verify_sequence(mechanism, claim)
    verify_counters(mechanism, sensitivity, claim)
    verify_draws(mechanism, claim)
    verify_clients(mechanism, claim)


def verify_sequence(mechanism: Mechanism, claim: Claim) -> None:
    """The part of :func:`verify` that is about what the claim is of: one release, or a whole cumulative sequence."""
    if (mechanism.factorisation is None) == (claim.horizon is None):
        return
    if claim.horizon is None:
        raise GuaranteeError("a factorisation is for window.release 'cumulative' alone")
    raise GuaranteeError(
        f"{claim.horizon} cumulative releases need noise with a factorisation, got noise of one release alone"
    )


def verify_shares(mechanism: Mechanism, claim: Claim) -> None:
    """The part of :func:`verify` that is about who draws the noise: the aggregator, or h honest clients at the least.

    With fewer shares than the scale is divided by, the guarantee breaks, the worse the more rows there are.
    """
    came, h = mechanism.honest_survivors, claim.honest_survivors
    if came == h:
        return
    if h is None:
        raise GuaranteeError(f"noise in shares of {came} clients is only for mode 'secure'")
    got = "noise that is not drawn in shares" if came is None else f"shares of which {came} are the whole noise"
    raise GuaranteeError(
        f"at least {h} honest clients of this cohort survive: it needs honest_survivors = {h}, so that their shares "
        f"are the whole noise; got {got}"
    )


def verify_counters(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> None:
    """The part of :func:`verify` that is about the noise of the counters, or about randomised reports."""
    if claim.reports is not None:
        verify_randomiser(mechanism, claim.reports, claim)
    elif mechanism.randomises:
        raise GuaranteeError(
            f"{mechanism.name} randomises reports, one a record: it adds no noise to counters, and belongs to mode "
            "'local' with form 'report' alone"
        )
    elif mechanism.name == DISCRETE_GAUSSIAN:
        _verify_gaussian(mechanism, sensitivity, claim)
    else:
        _verify_laplace(mechanism, sensitivity, claim)


def verify_draws(mechanism: Mechanism, claim: Claim) -> None:
    """The part of :func:`verify` that is about what draws reports: the field of projective ones, and large integers."""
    if claim.reports is None:
        return
    if mechanism.field is not None:
        _verify_field(mechanism.field, claim.reports)
    check_drawn(mechanism, claim.reports)


def _verify_field(field: int, reports: Reports) -> None:
    if not is_prime(field):
        raise GuaranteeError(f"projective reports need a field of prime order, got field = {field}")
    if not reports.fits(field):
        raise GuaranteeError(
            f"projective reports of {reports.rows} rows x {reports.outputs(field)} outputs (field = {field}, for "
            f"{reports.inputs} values a row) take more than the {reports.bits_max} bits that a report may have"
        )


def verify_clients(mechanism: Mechanism, claim: Claim) -> None:
    """The part of :func:`verify` that is about the test of the number of clients."""
    if claim.clients_share is None:
        if mechanism.clients_scale is not None:
            came = real_text(mechanism.clients_scale)
            raise GuaranteeError(
                f"clients_scale {came} is noise for a test of the number of clients, which the plan does not have: "
                "it belongs to mode 'central' with window.min_clients above 0"
            )
        return
    needed = 1 / claim.clients_epsilon  # one unit changes the number of clients by 1 at most
    if mechanism.clients_scale is None or mechanism.clients_scale < needed:
        came = "none" if mechanism.clients_scale is None else real_text(mechanism.clients_scale)
        raise GuaranteeError(
            f"a test of the number of clients at epsilon {real_text(claim.clients_epsilon)} (min_clients_share of "
            f"epsilon {real_text(claim.epsilon)}) needs clients_scale >= {real_text(needed)}, got {came}"
        )


def scale_needed(
    sensitivity: Sensitivity, count_scale: int, claim: Claim, tree: Factorisation | None = None
) -> Fraction:
    """m·(L1 + c)/ε: the smallest scale of discrete Laplace noise that is pure ε for a unit of m records.

    Of cumulative releases by a tree it is that times its levels and the windows of a unit: as many nodes hold a unit.
    """
    times = tree.l1(claim.windows) if isinstance(tree, SignedDigitTree) else 1
    return times * claim.records * sensitivity.with_count(count_scale).l1 / claim.counters_epsilon


def rho_of(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> Fraction:
    """ρ = m²·(L2² + c²)/(2σ²), exactly: the zCDP that discrete Gaussian noise gives a unit of m records.

    All m records may fall into the same counters. In a secure sum h shares are not quite discrete Gaussian: an upper
    bound of ρ (Kairouz, Liu and Steinke 2021; docs/explanation/proofs/shares.md). Of cumulative releases it is an upper
    bound of ρ of the whole sequence.

    Raises:
        GuaranteeError: The variance of a share, σ²/h, is below 4.
    """
    return _rho(mechanism.scale, mechanism.count_scale, sensitivity, claim, mechanism.factorisation)


def loss_of(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> Loss:
    """What a ledger charges for one release: the loss of the events of its spend, with the test of clients.

    Args:
        mechanism: Verified for the claim.
        sensitivity: Of one record under the plan's relation, without the count counter.
        claim: Of the plan.
    """
    if mechanism.name == DISCRETE_GAUSSIAN:
        loss = Loss(rho=rho_of(mechanism, sensitivity, claim))
    elif mechanism.name == DISCRETE_LAPLACE:
        squared = claim.records**2 * sensitivity.with_count(mechanism.count_scale).l2_squared
        rho = None if mechanism.factorisation else squared / (2 * mechanism.scale**2)
        loss = Loss.of_pure(claim.counters_epsilon, rho=rho)
    else:
        loss = Loss.of_pure(claim.epsilon, rho=rho_of_reports(mechanism.scale, claim.records))
    if mechanism.clients_scale is not None:
        loss = loss.plus(Loss.of_pure(claim.clients_epsilon, rho=1 / (2 * mechanism.clients_scale**2)))
    return loss.failing(claim.failure, reserved=claim.reserved)


def variance_needed(
    sensitivity: Sensitivity, count_scale: int, claim: Claim, buffers: Factorisation | None = None
) -> Fraction | None:
    """The smallest σ² of 6 significant digits with which discrete Gaussian noise supports a claim with δ > 0.

    Returns:
        None where none that can be drawn does.
    """
    low, high = SCALES[DISCRETE_GAUSSIAN]
    if isinstance(buffers, BufferedToeplitz):
        high /= 4**buffers.bits
    least = SHARE_MIN * (claim.honest_survivors or 0)

    def enough(scale: Fraction) -> bool:
        if scale < least:
            return False
        rho = _rho(scale, count_scale, sensitivity, claim, buffers)
        return supports(rho, epsilon=claim.counters_epsilon, delta=claim.noise_delta)

    # The larger σ², the smaller ε: the first power of ten that is enough, then the digits below it.
    notch = Fraction(1, 10**26)
    while notch * _SIX_DIGITS.stop < low or not enough(notch * _SIX_DIGITS.stop):
        if notch * _SIX_DIGITS.stop > high:
            return None
        notch *= 10
    first = bisect_left(_SIX_DIGITS, 1, key=lambda digits: int(enough(notch * digits)))
    needed = notch * (_SIX_DIGITS.start + first)
    return max(low, needed) if needed <= high else None


def moved_squared(
    sensitivity: Sensitivity, count_scale: int, claim: Claim, buffers: Factorisation | None = None
) -> Fraction:
    """How far one unit moves what is noised, squared in L2 norm: m²·(L2² + c²), or an upper bound of a sequence's."""
    counted = sensitivity.with_count(count_scale)
    squared = Fraction(claim.records**2 * counted.l2_squared)
    if not isinstance(buffers, BufferedToeplitz):
        return squared
    assert claim.horizon is not None, "a factorisation is for cumulative releases"
    touched = claim.records * counted.l0
    return buffers.moved_squared(squared, touched, horizon=claim.horizon, windows=claim.windows)


def _rho(
    scale: Fraction,
    count_scale: int,
    sensitivity: Sensitivity,
    claim: Claim,
    buffers: Factorisation | None,
) -> Fraction:
    if buffers is not None:
        return moved_squared(sensitivity, count_scale, claim, buffers) / (2 * scale)
    squared = claim.records**2 * sensitivity.with_count(count_scale).l2_squared
    if claim.honest_survivors is None:
        return squared / (2 * scale)
    assert claim.counters is not None, "a claim has both or neither"
    return rho_of_shares(scale, claim.honest_survivors, squared, claim.counters)


def _verify_laplace(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> None:
    needed = scale_needed(sensitivity, mechanism.count_scale, claim, mechanism.factorisation)
    if mechanism.scale < needed:
        l1 = sensitivity.l1 + mechanism.count_scale
        raise GuaranteeError(
            f"{mechanism.name} of scale {real_text(mechanism.scale)} does not support {_counters(claim)}: one "
            f"{claim.unit} moves the counters by up to {claim.records} x {l1} = {claim.records * l1} in L1 norm"
            f"{_sequence(mechanism, claim)}, so it needs scale >= {real_text(needed)}, got {real_text(mechanism.scale)}"
        )


def _verify_gaussian(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim) -> None:
    if not claim.delta:
        raise GuaranteeError(
            f"{mechanism.name} noise does not support delta 0: it has no pure guarantee; discrete-laplace has one"
        )
    rho = rho_of(mechanism, sensitivity, claim)
    given = epsilon_of(rho, claim.noise_delta)
    if given > claim.counters_epsilon:
        squared = sensitivity.with_count(mechanism.count_scale).l2_squared
        needed = variance_needed(sensitivity, mechanism.count_scale, claim, mechanism.factorisation)
        came = real_text(mechanism.scale)
        enough = (
            f"it needs scale >= {real_text(needed)}" if needed else f"no scale {scales_text(mechanism.name)} suffices"
        )
        raise GuaranteeError(
            f"{mechanism.name} of scale {came} does not support {_counters(claim)}: one "
            f"{claim.unit} moves the counters by up to {claim.records} x sqrt({squared}) in L2 norm"
            f"{_sequence(mechanism, claim)}, so that it is {float(rho):.6g}-zCDP, which gives "
            f"epsilon {float(given):.6g}: {enough}, got {came}"
        )


def _sequence(mechanism: Mechanism, claim: Claim) -> str:
    """How often a unit is in what is noised, where that is a sequence."""
    made = mechanism.factorisation
    if made is None or claim.horizon is None:
        return ""
    windows = f" in {'one' if claim.windows == 1 else f'each of up to {claim.windows}'} of {claim.horizon} windows"
    if isinstance(made, SignedDigitTree):
        return f"{windows}, each in {made.levels} nodes of the tree"
    return f"{windows}, whose columns have the norm {float(made.squared_norm(claim.horizon, claim.windows)) ** 0.5:.6g}"


def _counters(claim: Claim) -> str:
    delta = f", delta {numeral(claim.noise_delta, up=False)}" if claim.delta else ""
    if claim.delta and claim.failure:
        delta += f" ({numeral(claim.delta, up=False)} less the part for failures of the protocol)"
    share = " (without the share of the test of the number of clients)" if claim.clients_share else ""
    return f"epsilon {numeral(claim.counters_epsilon, up=False)}{share}{delta} of unit {claim.unit!r}"
