"""δ at every ε, and ε at every δ, of noise on the few counters that one unit changes.

For discrete Gaussian noise of parameter σ² and a change c, an outcome x + k tells the neighbours apart by the loss
ln(P(k)/P(k − c)) = (‖c‖² − 2c·k)/(2σ²): it depends on the integer c·k alone. Its law is the convolution of the
counters' laws, done here in integers; δ(ε) = Σ P(c·k)·max(0, 1 − e^(ε − loss)) (Balle and Wang 2018, theorem 5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BITS: Final = 160  # of a weight in fixed point
_ROUNDING: Final = 1e-12  # relative, of the sums of floats below
_STEPS: Final = 100  # of a bisection


@dataclass(frozen=True)
class Losses:
    """The law of the privacy loss of one pair of neighbours.

    Attributes:
        values: The losses that can be.
        masses: The probability of each under the first neighbour.
        missing: At most so much probability is in neither.
    """

    values: Floats
    masses: Floats
    missing: float

    def delta(self, epsilon: float) -> float:
        """An upper bound of the least δ for which (ε, δ) holds, from the first neighbour to the second."""
        above = self.values > epsilon
        excess = -np.expm1(epsilon - self.values[above]) * self.masses[above]
        return float(excess.sum()) * (1 + _ROUNDING) + self.missing

    def epsilon(self, delta: float) -> float:
        """The least ε, within 1e-12, that holds at this δ; infinite where none does."""
        return least_epsilon(self.delta, delta, high=float(self.values.max()))


def least_epsilon(delta_at: Callable[[float], float], delta: float, *, high: float) -> float:
    """The least ε from 0 on at which a falling δ(ε) is at most this δ, rounded up; infinite where none does.

    Args:
        delta_at: δ of ε.
        delta: What is claimed.
        high: From this ε on it falls no more.
    """
    low, high = 0.0, max(0.0, high)
    if delta_at(low) <= delta:
        return low
    if delta_at(high) > delta:
        return math.inf
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


def gaussian_losses(changes: Sequence[int], scale: Fraction) -> Losses:
    """The losses of discrete Gaussian noise of parameter σ² on counters that differ by these changes.

    The law is symmetric: the losses from the second neighbour to the first are the same.
    """
    squared, moved = sum(change**2 for change in changes), sorted(abs(change) for change in changes if change)
    one_counter, missing = weights(scale)
    reach = len(one_counter) // 2
    products, one = [1], 1
    for change in moved:
        products = convolved(products, _stretched(one_counter, change))
        one *= sum(one_counter)
    sums = np.arange(len(products), dtype=np.float64) - sum(moved) * reach
    values: Floats = (squared - 2.0 * sums) / (2.0 * float(scale))
    masses = np.array([float(Fraction(product, one)) for product in products])
    return Losses(values, masses, missing * len(moved))


def weights(scale: Fraction) -> tuple[list[int], float]:
    """e^(−k²/2σ²) in fixed point for k from −reach to reach, and a bound of the share that is left out."""
    reach = math.isqrt(math.ceil(2 * scale * 80)) + 2  # e^-80 is left out
    with localcontext() as context:
        context.prec = 80
        double = 2 * Decimal(scale.numerator) / Decimal(scale.denominator)
        one = Decimal(2**_BITS)
        half = [int((-Decimal(k * k) / double).exp() * one) for k in range(reach + 1)]
    missing = 2 * math.exp(-80) * (1 + float(scale)) + 2.0**-100  # the tail's sum is below its first term · (1 + σ²)
    return half[:0:-1] + half, missing


def _stretched(weights: list[int], change: int) -> list[int]:
    """The weights of change·k."""
    result = [0] * ((len(weights) - 1) * change + 1)
    result[::change] = weights
    return result


def convolved(first: list[int], second: list[int]) -> list[int]:
    """The products of two polynomials with coefficients of at least 0: of two large integers that hold them."""
    bits = max(first).bit_length() + max(second).bit_length() + min(len(first), len(second)).bit_length()
    size = -(-bits // 8)
    packed = [int.from_bytes(b"".join(x.to_bytes(size, "little") for x in each), "little") for each in (first, second)]
    terms = len(first) + len(second) - 1
    data = (packed[0] * packed[1]).to_bytes(terms * size, "little")
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


def cut(law: list[int], terms: int, bits: int) -> list[int]:
    """The middle terms of a product of two laws in fixed point of so many bits, as such a law."""
    start = (len(law) - terms) // 2
    return [each >> bits for each in law[start : start + terms]]


def summed(law: list[int], number: int, bits: int) -> list[int]:
    """The law of the sum of so many, in fixed point, its middle 0; what lies beyond the reach of one is cut off."""
    total = [0] * len(law)
    total[len(law) // 2] = 1 << bits
    for binary in f"{number:b}":
        total = cut(convolved(total, total), len(law), bits)
        if binary == "1":
            total = cut(convolved(total, law), len(law), bits)
    return total
