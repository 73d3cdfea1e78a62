"""Factorisations of prefix sums, A = B·C: the noise of a cumulative sequence is B·z, what one window moves in z is C.

Whose noise is charged is decided by integers and exact fractions alone, rounded against us
(docs/explanation/proofs/cumulative.md). Floats give error bars.

* :class:`BufferedToeplitz`, for discrete Gaussian noise (δ > 0): C is the lower triangular Toeplitz matrix of 1 and
  c_j = Σ_i ω_i·θ_i^(j−1), so that few buffers hold all that is needed of earlier noise.
* :class:`SignedDigitTree`, for discrete Laplace noise (δ = 0): z holds the nodes of a tree of windows, and a prefix is
  the signed sum of few nodes.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, Self

from hushsum.errors import PlanError
from hushsum.schedule import HORIZON_MAX
from hushsum.schema import Table

UNIT: Final = 2**20  # of theta and omega
BUFFERS_MAX: Final = 3
BITS_MIN: Final = 24
BITS_MAX: Final = 31
LEVELS_MAX: Final = 20
NODES_MAX: Final = 4096  # of one release, whose keys a state holds
_GUARD: Final = 256  # bits of enclosures of powers
_NORM_BITS: Final = 64  # of the bounds that are kept

_KEY: Final = "privacy.mechanism.factorisation"


@dataclass(frozen=True)
class BufferedToeplitz:
    """A buffered linear Toeplitz factorisation in integers (MATH: BLT).

    Args:
        theta: θ_i in units of 2^−20, from 0 to 2^20 − 1, rising.
        omega: ω_i in the same units, at least 1; their sum is at most 2^20, so that the coefficients of C never rise.
        bits: k: noise is drawn, and sums are kept, in units of 2^−k of a counter; from 24 to 31.

    Raises:
        PlanError: A parameter is out of range; it names the key under ``privacy.mechanism.factorisation``.
    """

    theta: tuple[int, ...]
    omega: tuple[int, ...]
    bits: int = BITS_MAX

    def __post_init__(self) -> None:
        theta, omega, bits = self.theta, self.omega, self.bits
        if (
            not 1 <= len(theta) <= BUFFERS_MAX
            or not all(type(value) is int and 0 <= value < UNIT for value in theta)
            or any(after <= before for before, after in pairwise(theta))
        ):
            raise PlanError(f"{_KEY}.theta", list(theta), f"1 to {BUFFERS_MAX} rising integers from 0 to {UNIT - 1}")
        if (
            len(omega) != len(theta)
            or not all(type(value) is int and value >= 1 for value in omega)
            or sum(omega) > UNIT
        ):
            expected = f"{len(theta)} integers of at least 1, one for each of theta, of at most {UNIT} together"
            raise PlanError(f"{_KEY}.omega", list(omega), expected)
        if type(bits) is not int or not BITS_MIN <= bits <= BITS_MAX:
            raise PlanError(f"{_KEY}.bits", bits, f"an integer from {BITS_MIN} to {BITS_MAX}")

    @cached_property
    def rounding(self) -> Fraction:
        """η = ½·(d + Σ ω_i/(1 − θ_i)): how far roundings move one step's noise at most, in units of 2^−k."""
        held = sum((Fraction(omega, UNIT - theta) for theta, omega in self._pairs), Fraction(0))
        return (len(self.theta) + held) / 2

    def squared_norm(self, horizon: int, windows: int) -> Fraction:
        """An upper bound of max ‖Σ_j C·e_(t_j)‖₂² over any ``windows`` of ``horizon`` steps; a multiple of 2^−64.

        The coefficients of C are at least 0 and never rise, so that ⟨C·e_s, C·e_t⟩ is largest where both steps are
        early and near to each other: the first adjacent columns are the worst ones. Of these, entry t is the sum of the
        coefficients up to t, without those up to t − w; all sums are geometric.
        """
        w = min(windows, horizon)
        theta, omega = zip(*((Fraction(t, UNIT), Fraction(o, UNIT)) for t, o in self._pairs), strict=True)
        low, high = zip(*(_power(value, w) for value in theta), strict=True)
        ratio = [o / (1 - t) for t, o in zip(theta, omega, strict=True)]
        # t < w: (whole − Σ ratio_i·θ_i^t)²
        whole = 1 + sum(ratio, Fraction(0))
        total = w * whole**2
        for i, t in enumerate(theta):
            total -= 2 * whole * ratio[i] * (1 - high[i]) / (1 - t)
        # t >= w: (Σ ratio_i·(1 − θ_i^w)·θ_i^(t−w))²
        for i, t in enumerate(theta):
            for j, s in enumerate(theta):
                both = t * s
                total += ratio[i] * ratio[j] * (1 - _power(both, w)[0]) / (1 - both)
                later = 1 - _power(both, horizon - w)[0]
                total += ratio[i] * ratio[j] * (1 - low[i]) * (1 - low[j]) * later / (1 - both)
        return _up(total)

    def rho(self, scale: Fraction, l2_squared: Fraction | int, l0: int, *, horizon: int, windows: int) -> Fraction:
        """An upper bound of ρ of the whole sequence: (Δ2·‖C‖ + 2^(1−k)·η·√(T·L0))²/(2σ²).

        Args:
            scale: σ², of noise in units of a counter.
            l2_squared: Δ2², how far a unit moves the counters of one window.
            l0: How many counters a unit can move in one window.
            horizon: T.
            windows: In how many windows a unit may be.
        """
        return self.moved_squared(l2_squared, l0, horizon=horizon, windows=windows) / (2 * scale)

    def moved_squared(self, l2_squared: Fraction | int, l0: int, *, horizon: int, windows: int) -> Fraction:
        """(Δ2·‖C‖ + 2^(1−k)·η·√(T·L0))², rounded up: what ρ is, but for 2σ²."""
        w = min(windows, horizon)
        shift = root_up(l2_squared * self.squared_norm(horizon, w))
        rounded = root_up(self.rounding**2 * horizon * w * l0 / Fraction(4) ** (self.bits - 1))
        return (shift + rounded) ** 2

    def covariance(self, first: int, second: int) -> float:
        """Of the noise at two steps, from 1 on, in variances of one draw: the product of two rows of B."""
        early, gap = min(first, second), abs(second - first)
        poles, shares = self._response
        total = 0.0
        for rate, share in zip(poles, shares, strict=True):
            for other, weight in zip(poles, shares, strict=True):
                both = rate + other - rate * other  # 1 − λ·λ′
                terms = float(early) if both == 0.0 else -_power_minus_one(both, early) / both
                total += share * weight * (_power_minus_one(other, gap) + 1.0) * terms
        return total

    def worst_variance(self, horizon: int) -> float:
        """Of the noise of the worst step, in variances of one draw; it is the last one."""
        return self.covariance(horizon, horizon)

    def worst_error(self, horizon: int) -> float:
        """The noise of the worst step, in standard deviations that one window alone would have."""
        return math.sqrt(float(self.squared_norm(horizon, 1)) * self.worst_variance(horizon))

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.theta, self.omega, strict=True))

    @cached_property
    def _response(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """1 − λ_m and r_m of the coefficients b_j = Σ_m r_m·λ_m^j of B = 1/((1 − q)·C(q)), all r_m at least 0.

        λ is 1, or a root of 1 + Σ ω_i/(λ − θ_i): one below each θ_i.
        """
        tau = [(UNIT - theta) / UNIT for theta in reversed(self.theta)]  # rising
        omega = [value / UNIT for value in reversed(self.omega)]
        poles, shares = [0.0], [1.0 / (1.0 + sum(o / t for t, o in zip(tau, omega, strict=True)))]
        for index, start in enumerate(tau):
            low, high = start, tau[index + 1] if index + 1 < len(tau) else start + sum(omega) + 1.0
            while low < (middle := (low + high) / 2) < high:
                above = sum(o / (middle - t) for t, o in zip(tau, omega, strict=True)) > 1.0
                low, high = (middle, high) if above else (low, middle)
            poles.append(high)
            shares.append(1.0 / (high * sum(o / (high - t) ** 2 for t, o in zip(tau, omega, strict=True))))
        return tuple(poles), tuple(shares)

    def to_fields(self) -> dict[str, object]:
        """Lists of integers, and k."""
        return {"theta": list(self.theta), "omega": list(self.omega), "bits": self.bits}


@dataclass(frozen=True)
class Node:
    """One node of a tree: the windows from index·block to (index + 1)·block."""

    level: int
    index: int


@dataclass(frozen=True)
class SignedDigitTree:
    """A tree of windows of which the prefix of t is what the signed digits of t say, each digit nodes of one level.

    Args:
        blocks: How many windows a node of each level has: 1, and then rising multiples, each of the one before.

    Raises:
        PlanError: They are not; it names the key under ``privacy.mechanism.factorisation``.
    """

    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        blocks = self.blocks
        if (
            not 1 <= len(blocks) <= LEVELS_MAX
            or not all(type(block) is int and block >= 1 for block in blocks)
            or blocks[0] != 1
            or any(after <= before or after % before for before, after in pairwise(blocks))
            or blocks[-1] > 2 * HORIZON_MAX
        ):
            expected = (
                f"1 and then up to {LEVELS_MAX - 1} rising integers up to {2 * HORIZON_MAX}, each a multiple of the "
                "one before"
            )
            raise PlanError(f"{_KEY}.blocks", list(blocks), expected)

    @property
    def levels(self) -> int:
        """How many nodes hold each window: the ℓ1 norm of a column of C."""
        return len(self.blocks)

    def l1(self, windows: int) -> int:
        """max ‖Σ_j C·e_(t_j)‖₁ over any ``windows`` steps: entries of C are at least 0, so that norms add up."""
        return self.levels * windows

    def nodes(self, step: int) -> dict[Node, int]:
        """The nodes of which the prefix of ``step`` windows is the sum, with their signs, 1 or −1.

        With each step the quotients never fall. So a node is used at consecutive steps, with one sign: it is drawn when
        it enters and when it leaves, and never again.
        """
        found: dict[Node, int] = {}
        quotients = self._quotients(step)
        for level, (quotient, above) in enumerate(quotients):
            low, high = min(quotient, above), max(quotient, above)
            sign = 1 if quotient > above else -1
            found |= {Node(level, index): sign for index in range(low, high)}
        return found

    def _quotients(self, step: int) -> list[tuple[int, int]]:
        """Of each level how many nodes of its size come nearest to the prefix, and how many of these the next has."""
        found, quotient = [], step
        for block, larger in pairwise(self.blocks):
            radix = larger // block
            above = (quotient + (radix - 1) // 2) // radix  # the digit is from −⌊(radix − 1)/2⌋ to ⌊radix/2⌋
            found.append((quotient, above * radix))
            quotient = above
        return [*found, (quotient, 0)]

    def covariance(self, first: int, second: int) -> float:
        """Of the noise at two steps, in variances of one draw: how many nodes both have. No node changes its sign."""
        both = 0
        for (one, one_above), (other, other_above) in zip(self._quotients(first), self._quotients(second), strict=True):
            if (one > one_above) == (other > other_above):
                low = max(min(one, one_above), min(other, other_above))
                both += max(0, min(max(one, one_above), max(other, other_above)) - low)
        return float(both)

    def worst_variance(self, horizon: int) -> float:
        """Of the noise of the worst step, in variances of one draw: its number of nodes."""
        return float(worst_nodes(self.blocks, horizon))

    def worst_error(self, horizon: int) -> float:
        """The noise of the worst step, in standard deviations that one window alone would have."""
        return self.levels * math.sqrt(self.worst_variance(horizon))

    def to_fields(self) -> dict[str, object]:
        """A list of integers."""
        return {"blocks": list(self.blocks)}


Factorisation = BufferedToeplitz | SignedDigitTree


def factorisation_from_table(table: Table) -> Factorisation:
    """Reads what ``to_fields`` of either wrote.

    Raises:
        PlanError: A key is missing, unknown or out of range.
    """
    made: Factorisation
    if table.has("blocks"):
        made = SignedDigitTree(table.integers("blocks", low=1, high=2 * HORIZON_MAX))
    else:
        theta = table.integers("theta", low=0, high=UNIT - 1)
        omega = table.integers("omega", low=1, high=UNIT, rising=False)
        made = BufferedToeplitz(theta, omega, table.integer("bits", low=BITS_MIN, high=BITS_MAX))
    table.finish()
    return made


@dataclass(frozen=True)
class Cumulation:
    """A sequence of cumulative releases, as far as its noise goes.

    Args:
        factorisation: How the noise of a step is made of draws.
        horizon: T, how many steps it has at most, from 1 to 10^6.
        windows: In how many windows one unit may be, from 1 to the horizon.

    Raises:
        PlanError: A number is out of range; it names the key of the plan.
    """

    factorisation: Factorisation
    horizon: int
    windows: int

    def __post_init__(self) -> None:
        if type(self.horizon) is not int or not 1 <= self.horizon <= HORIZON_MAX:
            raise PlanError("window.horizon", self.horizon, f"an integer from 1 to {HORIZON_MAX}")
        if type(self.windows) is not int or not 1 <= self.windows <= self.horizon:
            raise PlanError("window.windows_per_client", self.windows, f"an integer from 1 to {self.horizon}")
        made = self.factorisation
        if isinstance(made, SignedDigitTree) and (nodes := worst_nodes(made.blocks, self.horizon)) > NODES_MAX:
            expected = f"at most {NODES_MAX} nodes in a release, got {nodes} within {self.horizon} windows"
            raise PlanError(f"{_KEY}.blocks", list(made.blocks), expected)

    def covariance(self, first: int, second: int) -> float:
        """Of the noise of two steps, in variances of one draw.

        Raises:
            ValueError: A step below 1 or above the horizon.
        """
        for step in (first, second):
            if not 1 <= step <= self.horizon:
                raise ValueError(f"a step from 1 to {self.horizon}, the horizon of the plan; got {step}")
        return self.factorisation.covariance(first, second)

    @cached_property
    def worst_variance(self) -> float:
        """Of the noise of the worst step, in variances of one draw."""
        return self.factorisation.worst_variance(self.horizon)

    def windows_factor(self, windows: int) -> float:
        """By what the noise is larger for units in so many windows than for units in one."""
        made = self.factorisation
        if isinstance(made, SignedDigitTree):
            return made.l1(windows) / made.l1(1)
        return math.sqrt(made.squared_norm(self.horizon, windows) / made.squared_norm(self.horizon, 1))

    def windows_text(self) -> str:
        """What the bound on the windows of a client costs, and means; empty where a unit is in one window."""
        if self.windows == 1:
            return ""
        choices = sorted({1, 2, 10, 100, self.windows} & set(range(1, self.horizon + 1)))
        factors = ", ".join(f"x {self.windows_factor(number):.3g} for {number:,}" for number in choices)
        return (
            f"a client is counted in at most {self.windows:,} windows over the plan's life, and in none after that. "
            f"Noise by that number: {factors}"
        )

    def to_fields(self) -> dict[str, object]:
        """Integers, ready for the canonical encoding."""
        return {"factorisation": self.factorisation.to_fields(), "horizon": self.horizon, "windows": self.windows}

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads what :meth:`to_fields` wrote.

        Raises:
            PlanError: A key is missing, unknown or out of range.
        """
        made = cls(
            factorisation_from_table(table.table("factorisation")),
            table.integer("horizon", low=1, high=HORIZON_MAX),
            table.integer("windows", low=1, high=HORIZON_MAX),
        )
        table.finish()
        return made


def buffers_for(horizon: int, bits: int) -> BufferedToeplitz:
    """The buffers with the least noise at the worst step, of a unit in one window; from a table."""
    from hushsum.privacy.buffer_table import BUFFERS

    _, theta, omega = BUFFERS[bisect_left(BUFFERS, horizon, key=lambda entry: entry[0])]
    return BufferedToeplitz(theta, omega, bits)


@lru_cache(maxsize=64)
def tree_for(horizon: int) -> SignedDigitTree:
    """The tree with the least noise at the worst step, by an exact search over all radices that do not fall."""
    return SignedDigitTree(_TreeSearch(horizon).blocks)


class _TreeSearch:
    """Finds the blocks with the least levels²·nodes, nodes those of the worst prefix."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._best = horizon
        self.blocks: tuple[int, ...] = (1,)
        for levels in range(2, 9):  # equal radices first: what is good already leaves little to search
            radix = max(2, round((2 * horizon) ** (1 / levels)))
            self._try(tuple(radix**level for level in range(levels)))
        self._above((1,), 0, 0)

    def _try(self, blocks: tuple[int, ...]) -> None:
        noise = len(blocks) ** 2 * worst_nodes(blocks, self._horizon)
        if noise < self._best:
            self._best, self.blocks = noise, blocks

    def _above(self, blocks: tuple[int, ...], digits: int, longest: int) -> None:
        """Tries what stands above ``blocks``, of which all digits are ``digits`` nodes, up to ``longest`` windows."""
        levels, block = len(blocks) + 1, blocks[-1]
        for radix in range(block // blocks[-2] if len(blocks) > 1 else 2, self._horizon + 2):
            nodes, length = digits + radix // 2, longest + radix // 2 * block
            # A prefix up to that length has no node of the next level, which would be of no use.
            if length >= self._horizon or levels > LEVELS_MAX or levels**2 * nodes >= self._best:
                return
            larger = (*blocks, block * radix)
            if self._is_hopeless(levels, nodes, larger[-1], radix):
                continue
            # Below a top digit that leaves room for all lower ones, all of these are at their highest.
            if levels**2 * (nodes + (self._horizon - length) // larger[-1]) < self._best:
                self._try(larger)
            self._above(larger, nodes, length)

    def _is_hopeless(self, levels: int, nodes: int, block: int, radix: int) -> bool:
        """Whether no radices from this one on, above these levels, come below the best: by a bound on their nodes."""
        ratio = self._horizon / block
        for more in range(LEVELS_MAX + 1 - levels):
            each = max(radix, (2 * ratio) ** (1 / (more + 1)))
            above = max(0.0, more * (each - 1) / 2 + ratio / each**more - 2)
            if (levels + more) ** 2 * (nodes + above) < self._best:
                return False
        return True


@lru_cache(maxsize=1024)
def worst_nodes(blocks: tuple[int, ...], horizon: int) -> int:
    """The most nodes of a prefix of 1 to ``horizon`` windows, exactly; in a few steps for each level."""
    radices = [larger // block for block, larger in pairwise(blocks)]
    highest, nodes = [0], [0]  # the largest value of the digits below each level, and how many nodes these are
    for block, radix in zip(blocks, radices, strict=False):
        highest.append(highest[-1] + radix // 2 * block)
        nodes.append(nodes[-1] + radix // 2)
    if horizon <= highest[-1]:  # no node of the last level is in use
        return worst_nodes(blocks[:-1], horizon)
    none = -horizon - nodes[-1]

    def most(level: int, limit: int) -> int:
        """The most nodes of the levels below, of a value of at most ``limit``; below 0 where there is none."""
        if limit >= highest[level]:
            return nodes[level]
        if level == 0:
            return none
        block, highest_digit = blocks[level - 1], radices[level - 1] // 2
        lowest_digit, found = -((radices[level - 1] - 1) // 2), none
        # Digits up to this leave room for whatever the levels below have; the next one for a part of that, and no other
        # one for anything, because the levels below reach over less than a block.
        free = min((limit - highest[level - 1]) // block, highest_digit)
        if free >= lowest_digit:
            found = max(-lowest_digit, abs(free)) + nodes[level - 1]
        if lowest_digit <= (digit := free + 1) <= highest_digit:
            found = max(found, abs(digit) + most(level - 1, limit - digit * block))
        return found

    top = (horizon + highest[-1]) // blocks[-1]
    counts = range(max(1, top - 2), top + 1)  # a value with such a top digit is above 0
    return max(nodes[-1], *(count + most(len(radices), horizon - count * blocks[-1]) for count in counts))


def root_up(value: Fraction) -> Fraction:
    """√value of a value of at least 0, rounded up to a multiple of 2^−64."""
    scaled = -(-(value.numerator << 2 * _NORM_BITS) // value.denominator)
    return Fraction(math.isqrt(scaled - 1) + 1 if scaled else 0, 1 << _NORM_BITS)


def _up(value: Fraction) -> Fraction:
    return Fraction(-(-(value.numerator << _NORM_BITS) // value.denominator), 1 << _NORM_BITS)


def _power(base: Fraction, exponent: int) -> tuple[Fraction, Fraction]:
    """Bounds of base^exponent for a base from 0 to below 1, by squaring in fixed point that is rounded outwards."""
    low = high = 1 << _GUARD
    square_low = (base.numerator << _GUARD) // base.denominator
    square_high = -(-(base.numerator << _GUARD) // base.denominator)
    while exponent:
        if exponent & 1:
            low, high = low * square_low >> _GUARD, -(-high * square_high >> _GUARD)
        square_low, square_high = square_low * square_low >> _GUARD, -(-square_high * square_high >> _GUARD)
        exponent >>= 1
    return Fraction(low, 1 << _GUARD), Fraction(high, 1 << _GUARD)


def _power_minus_one(rate: float, exponent: int) -> float:
    """(1 − rate)^exponent − 1, to the last digits where the rate is small."""
    if rate < 1.0:
        return math.expm1(exponent * math.log1p(-rate))
    return float((1.0 - rate) ** exponent - 1.0)
