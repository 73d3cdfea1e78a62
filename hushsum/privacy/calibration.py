"""From a guarantee to the exact parameters of its mechanism; runs once, where a plan is made."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, Missing, PlanError
from hushsum.noise.projective_geometry import projective_order
from hushsum.privacy.claim import Claim
from hushsum.privacy.distributed_gaussian import SHARE_MIN
from hushsum.privacy.exact_numbers import SIGNIFICANT_DIGITS, notch_of, numeral
from hushsum.privacy.factorisation import BITS_MAX, BITS_MIN, buffers_for, tree_for
from hushsum.privacy.likelihood_ratios import check_drawn, ratio_within
from hushsum.privacy.local_mode import PROJECTIVE, Reports
from hushsum.privacy.mechanisms import (
    DISCRETE_GAUSSIAN,
    DISCRETE_LAPLACE,
    REPORT_EPSILON_MAX,
    Mechanism,
    scale_fits,
    scales_text,
)
from hushsum.privacy.relations import Cost, Loss
from hushsum.privacy.verifier import loss_of, moved_squared, scale_needed, verify
from hushsum.privacy.zcdp import ALPHAS
from hushsum.sensitivity import RecordRows, Sensitivity

COUNT_SHARE: Final = Fraction(1, 20)  # of ε, or of ρ, for the count counter
_ROUNDINGS: Final = Fraction(1002, 1000)  # what roundings of a cumulative sequence may take of ρ: 0.1 % of the noise
_MUCH: Final = 1.4**2  # of a variance: what a histogram does not pay for a better number of records
_TOLERANCE: Final = 1e-9  # of ρ, far below the digits that are kept


#: ``privacy.noise``: the better of both, or one of them.
AUTO: Final = "auto"
NOISES: Final[Mapping[str, str | None]] = MappingProxyType(
    {AUTO: None, "laplace": DISCRETE_LAPLACE, "gaussian": DISCRETE_GAUSSIAN}
)


@dataclass(frozen=True)
class Budget:
    """The limits that releases of a plan are paid from, which decide between mechanisms that support the same claim.

    Args:
        limit: The population's total (ε, δ).
        adds: Whether the plan's windows add up: those of unit ``client``. A record is in one window alone.
    """

    limit: Cost
    adds: bool

    def releases(self, loss: Loss) -> int:
        """How many releases that lose as much it pays for: at most 10⁹; 1 for any number that do not add up."""
        return loss.times_within(loss, self.limit) if self.adds else int(loss.within(self.limit))


def calibrate(
    sensitivity: Sensitivity,
    claim: Claim,
    budget: Budget | None = None,
    *,
    noise: str = AUTO,
    rows: RecordRows | None = None,
) -> Mechanism:
    """The mechanism with the least noise that supports a claim. All its scales are rounded towards more noise.

    Discrete Laplace, pure ε: one scale b = m·(L1 + c)/ε for all counters, where c = ⌈L1·0.05/0.95⌉ gives the count
    counter 5 % of ε. Where the total δ is above 0, a ledger may count ρ = m²·(L2² + c²)/(2b²), of which that c can be
    most: then c = ⌈L2·√(0.05/0.95)⌉, 5 % of ρ, if the budget pays for more releases with it.

    Discrete Gaussian, δ > 0: σ² = m²·(L2² + c²)/(2ρ) with the largest ρ that gives (ε, δ), where
    c = ⌈L2·√(0.05/0.95)⌉ gives the count counter 5 % of ρ.

    With δ > 0 both support the claim: ``auto`` takes the one whose answers have the smaller error, Laplace noise only
    where the budget pays for no fewer windows with it, and for a secure sum only where the plan reserves a part of δ
    for its failures. The test of the number of clients, where the claim has one,
    takes its share of ε first; a failure of a secure sum takes its part of δ.

    Where the sums of rows tell the number of records, there is no count counter, c = 0, if that is better: where the
    standard error that noise gives an answer, and that of n̂, add up to less, and the budget pays for no fewer releases.
    Also where answers have no error but noise, which the counter would make 1.4 times as large or more, if the budget
    pays for a release: histograms of one row, of which counts are asked rather than shares.

    Args:
        sensitivity: Of one record under the plan's relation, without the count counter.
        claim: What is promised of one release.
        budget: Of its population; None: it decides nothing.
        noise: ``auto``, ``laplace`` or ``gaussian``; of reports ``auto``.
        rows: How well the sums of rows tell the number of records; None: they do not, or may not be used for it.

    Reports: the largest λ of 6 significant digits with λ^m ≤ e^ε.

    Raises:
        PlanError: The claim needs noise that no counter can hold, or leaves a report nothing or too much; Gaussian
            noise with δ = 0, or any with reports; or δ > 0 without the package dp_accounting, but for Laplace noise.
    """
    check_noise(noise, claim)
    if claim.reports is not None:
        return _randomiser(claim.reports, claim)
    clients_scale = None
    if claim.clients_share is not None:
        clients_scale = _held(DISCRETE_LAPLACE, round_up(1 / claim.clients_epsilon), claim, "min_clients_share")
    counted = _with_noise(sensitivity, claim, budget, noise, clients_scale)
    if rows is None:
        return counted
    try:
        bare = _with_noise(sensitivity, claim, budget, noise, clients_scale, bare=True)
    except PlanError:  # so little noise that no counter can hold it
        return counted
    paid = [1 if budget is None else _releases(each, sensitivity, claim, budget) for each in (bare, counted)]
    if rows.exact and noise_of(counted, claim) >= _MUCH * noise_of(bare, claim) and paid[0] >= min(1, paid[1]):
        return bare
    return bare if paid[0] >= paid[1] and _errors(bare, claim, rows) < _errors(counted, claim, rows) else counted


def noise_of(mechanism: Mechanism, claim: Claim) -> float:
    """The variance of the noise on one counter of a release; of cumulative ones that of the worst step."""
    if mechanism.factorisation is None or claim.horizon is None:
        return mechanism.noise_variance
    return mechanism.noise_variance * mechanism.factorisation.worst_variance(claim.horizon)


def _errors(mechanism: Mechanism, claim: Claim, rows: RecordRows) -> float:
    """The standard errors that noise gives an answer and the number of records, added up."""
    return math.sqrt(noise_of(mechanism, claim) * rows.answer) + _count_error(mechanism, claim, rows)


def _count_error(mechanism: Mechanism, claim: Claim, rows: RecordRows | None) -> float:
    """The standard error of the number of records, by the count counter, or where there is none by the sums of rows."""
    std_error = math.sqrt(noise_of(mechanism, claim))
    if mechanism.count_scale:
        return std_error / mechanism.count_scale
    assert rows is not None, "without a count counter the sums of rows tell it"
    return std_error * math.sqrt(rows.count)


def _with_noise(
    sensitivity: Sensitivity,
    claim: Claim,
    budget: Budget | None,
    noise: str,
    clients_scale: Fraction | None,
    *,
    bare: bool = False,
) -> Mechanism:
    """With the noise that is asked for, or the better one; ``bare``: without a count counter."""
    if not claim.delta or NOISES[noise] == DISCRETE_LAPLACE:
        return _laplace(sensitivity, claim, clients_scale, budget, bare=bare)
    gaussian = _gaussian(sensitivity, claim, clients_scale, bare=bare)
    # Pure secure sums have another rule for their failures, which the first release of a population would then fix.
    if NOISES[noise] == DISCRETE_GAUSSIAN or (claim.honest_survivors is not None and not claim.reserved):
        return gaussian
    try:
        laplace = _laplace(sensitivity, claim, clients_scale, budget, bare=bare)
    except PlanError:  # no counter can hold it
        return gaussian
    if noise_of(laplace, claim) >= noise_of(gaussian, claim):
        return gaussian
    paid = [_releases(each, sensitivity, claim, budget) for each in (laplace, gaussian)]
    return laplace if paid[0] >= paid[1] else gaussian


@dataclass(frozen=True)
class CountChoice:
    """One multiplier of the count counter that discrete Laplace noise may have; 0: no counter.

    Attributes:
        mechanism: With it.
        std_error: Of the noised number of records, in records; of cumulative releases at the worst step.
        releases: How many windows the population's limits pay for: at most 10⁹; 1 for any number that do not add up.
    """

    mechanism: Mechanism
    std_error: float
    releases: int


def count_choices(
    sensitivity: Sensitivity, claim: Claim, budget: Budget, rows: RecordRows | None = None
) -> tuple[CountChoice, ...]:
    """What :func:`calibrate` chooses the multiplier of the count counter from: 5 % of ε, or 5 % of ρ, or 0.

    Args:
        sensitivity: Of one record, without the count counter.
        claim: What is promised of one release; not of reports.
        budget: Of the population.
        rows: As :func:`calibrate` has it.

    Returns:
        The larger multiplier first; one alone where both are the same, and 0 last, where it is possible.
    """
    clients = Fraction(0) if claim.clients_share is None else round_up(1 / claim.clients_epsilon)
    return tuple(
        CountChoice(mechanism, _count_error(mechanism, claim, rows), budget.releases(loss))
        for bare in (False, True)[: 1 if rows is None else 2]
        for mechanism in _laplaces(sensitivity, claim, clients or None, bare=bare)
        for loss in (loss_of(mechanism, sensitivity, claim),)
    )


def check_noise(noise: str, claim: Claim, name: str | None = None) -> None:
    """Refuses a kind of noise that the claim cannot have, or that a mechanism of this name is not.

    Raises:
        PlanError: It names ``privacy.noise``.
    """
    wanted = NOISES[noise]
    if wanted is None:
        return
    if claim.reports is not None:
        raise PlanError("privacy.noise", noise, f"{AUTO!r}: reports are randomised, and get no noise")
    if wanted == DISCRETE_GAUSSIAN and not claim.delta:
        raise PlanError(
            "privacy.noise", noise, "'auto' or 'laplace' with delta 0: Gaussian noise has no pure guarantee"
        )
    if name is not None and name != wanted:
        raise PlanError("privacy.noise", noise, f"the noise of privacy.mechanism, {name!r}, or no value")


def _laplace(
    sensitivity: Sensitivity, claim: Claim, clients_scale: Fraction | None, budget: Budget | None, *, bare: bool
) -> Mechanism:
    usual, *others = _laplaces(sensitivity, claim, clients_scale, bare=bare)
    if budget is None or not budget.limit.delta:
        return usual
    paid = {each: _releases(each, sensitivity, claim, budget) for each in (usual, *others)}
    # The first of equals; where none is paid for, the one that is charged less, of which the refusal speaks.
    return max(paid, key=paid.__getitem__) if any(paid.values()) else [*paid][-1]


def _laplaces(
    sensitivity: Sensitivity, claim: Claim, clients_scale: Fraction | None, *, bare: bool
) -> Iterator[Mechanism]:
    """With 5 % of ε for the count counter, and, where that is less, with 5 % of ρ; or without it."""
    of_epsilon = _ceil(sensitivity.l1 * COUNT_SHARE / (1 - COUNT_SHARE))
    of_rho = _ceil_root(sensitivity.l2_squared * COUNT_SHARE / (1 - COUNT_SHARE))
    for count_scale in (0,) if bare else (of_epsilon, of_rho)[: 2 if of_rho < of_epsilon else 1]:
        tree = None if claim.horizon is None else tree_for(claim.horizon)
        needed = scale_needed(sensitivity, count_scale, claim, tree)
        scale = _held(DISCRETE_LAPLACE, round_up(needed), claim)
        yield Mechanism(DISCRETE_LAPLACE, scale, count_scale, clients_scale, claim.honest_survivors, factorisation=tree)


def _releases(mechanism: Mechanism, sensitivity: Sensitivity, claim: Claim, budget: Budget | None) -> int:
    return 0 if budget is None else budget.releases(loss_of(mechanism, sensitivity, claim))


def _randomiser(reports: Reports, claim: Claim) -> Mechanism:
    each, m = claim.report_epsilon, claim.records
    ratio = ratio_within(each) if each <= REPORT_EPSILON_MAX else None
    if ratio is None:
        of = f" of one report (epsilon / records_per_client, here {numeral(each, up=False)})" if m > 1 else ""
        bounds = f"at most {REPORT_EPSILON_MAX}{of}: reports above it are hardly randomised"
        if each < 1:
            bounds = f"at least 0.00001{of}: smaller values vanish at 6 significant digits"
        raise PlanError("privacy.epsilon", real_text(claim.epsilon), bounds)
    try:
        field = None
        if reports.randomiser == PROJECTIVE:
            field = projective_order(reports.inputs, ratio, rows=reports.rows, bits_max=reports.bits_max)
        mechanism = Mechanism(reports.randomiser, ratio, 1, field=field)
        check_drawn(mechanism, reports)
    except (ValueError, GuaranteeError) as error:
        came, expected = f"{reports.inputs} values a row", f"fewer, or another privacy.local.randomiser ({error})"
        raise PlanError("sketch.buckets", came, expected) from error
    return mechanism


def round_up(value: Fraction) -> Fraction:
    """The least number of 6 significant decimal digits that is not below a value above 0."""
    notch = notch_of(value)
    return _ceil(value / notch) * notch


def _gaussian(sensitivity: Sensitivity, claim: Claim, clients_scale: Fraction | None, *, bare: bool) -> Mechanism:
    count_scale = 0 if bare else _ceil_root(sensitivity.l2_squared * COUNT_SHARE / (1 - COUNT_SHARE))
    rho = _rho(claim.counters_epsilon, claim.noise_delta)
    buffers = None
    if claim.horizon is not None:
        least = moved_squared(sensitivity, count_scale, claim, buffers_for(claim.horizon, BITS_MAX))
        for bits in range(BITS_MIN, BITS_MAX + 1):  # each is stored for every buffer of every counter, at each step
            finer = buffers_for(claim.horizon, bits)
            moved = moved_squared(sensitivity, count_scale, claim, finer)
            if buffers is not None and not scale_fits(DISCRETE_GAUSSIAN, 2 * moved / (2 * rho) * 4**bits):
                break
            buffers = finer
            if moved <= _ROUNDINGS * least:
                break
    squared = moved_squared(sensitivity, count_scale, claim, buffers)
    units = 4**buffers.bits if buffers else 1
    needed = max(squared / (2 * rho), Fraction(SHARE_MIN * (claim.honest_survivors or 0)))
    more = Fraction(1, 10 ** (SIGNIFICANT_DIGITS + 1))
    while True:
        scale = round_up(needed)
        _held(DISCRETE_GAUSSIAN, scale * units, claim)
        mechanism = Mechanism(
            DISCRETE_GAUSSIAN, scale, count_scale, clients_scale, claim.honest_survivors, factorisation=buffers
        )
        try:
            verify(mechanism, sensitivity, claim)
        except GuaranteeError:  # the accountant counts in floats: what they lost is hardly ever a notch
            needed, more = scale * (1 + more), 2 * more
        else:
            return mechanism


@lru_cache(maxsize=256)
def _rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ρ of which the accountant says that ρ-zCDP gives (ε, δ), by bisection."""
    accounting = _accounting()
    orders = [float(alpha) for alpha in ALPHAS]

    def allowed(rho: float) -> bool:
        accountant = accounting.rdp.RdpAccountant(orders)
        accountant.compose(accounting.ZCDpEvent(rho))
        return bool(accountant.get_epsilon(float(delta)) <= epsilon)

    # ε is near ρ + 2·√(ρ·ln(1/δ)), which gives a first guess; a factor of two on either side brackets the truth.
    surprise = -math.log(delta)
    low = high = (epsilon / (math.sqrt(surprise + epsilon) + math.sqrt(surprise))) ** 2
    while not allowed(low):
        low /= 2
    while allowed(high):
        high *= 2
    while high / low > 1 + _TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return Fraction(low)


def _accounting() -> ModuleType:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        expected = (
            "a compiled plan (`hushsum plan make`), because δ > 0; to calibrate the noise here: "
            "pip install 'hushsum[analyst]'"
        )
        raise PlanError("privacy.mechanism", Missing.MISSING, expected) from error
    module: ModuleType = dp_accounting
    return module


def _held(name: str, scale: Fraction, claim: Claim, key: str = "epsilon") -> Fraction:
    if scale_fits(name, scale):
        return scale
    expected = (
        f"noise that fits a counter: this guarantee needs {name} of scale {_short(scale)}, supported "
        f"{scales_text(name)}"
    )
    came = claim.epsilon if key == "epsilon" else claim.clients_share
    assert came is not None, "the share is what asks for this scale"
    raise PlanError(f"privacy.{key}", real_text(came), expected)


def _short(scale: Fraction) -> str:
    """A scale that is far from 1 as a power of two, as :func:`scales_text` has them: a float ends at 10^308."""
    power = scale.numerator.bit_length() - scale.denominator.bit_length()
    return real_text(scale) if abs(power) < 32 else f"about 2^{power}"


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _ceil_root(value: Fraction) -> int:
    """⌈√value⌉ of a value above 0, exactly."""
    return math.isqrt(_ceil(value) - 1) + 1
