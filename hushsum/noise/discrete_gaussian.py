"""The discrete Gaussian distribution P(k) ∝ e^(−k²/2σ²) on all integers, drawn exactly (Canonne et al. 2020).

Rejection from an envelope of strips with integer weights (:mod:`hushsum.noise.gaussian_envelope`). A draw takes 16
bytes: 32 bits choose a strip, 32 are the first bits of U, and the other word holds the place within the strip and a
sign. It is kept if U < p, p = C·e^(−x²/2σ²)/W_j; minus zero is not (where w = 1, strip 0 weighs half instead, and it
is). Nearly always the first bits of U lie below all p of the strip, or clear of p's fixed-point value: the rest is
decided by as many bits of both as it takes. So is the tail, once in 2^32 draws. That makes it exact, at distance 0 from
the distribution and of unbounded support, given uniform bytes.

Its time depends on what is drawn, if little: draw where nobody can measure it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum.compiled import enabled
from hushsum.entropy import Entropy
from hushsum.noise.gaussian_envelope import ACCEPTANCE_BITS, CHOICE_BITS, Strips, settle, strips
from hushsum.noise.random_words import below, check_draws, read, word, wrapped

SCALE_MIN: Final = Fraction(1, 2**16)  # of σ²
SCALE_MAX: Final = 2**90
_BYTES: Final = 16  # of a draw
_WORD: Final = np.dtype("<u8")
_ACCEPTANCE_MASK: Final = 2**ACCEPTANCE_BITS - 1
_FAST_DRAWS: Final = 4096  # fewer do not pay for loading the compiled loops
_SMALL: Final = 4  # σ² from which the sums over integers are the integrals over reals to the last bit of a float

Int64 = npt.NDArray[np.int64]
Settle = Callable[[Strips, npt.NDArray[np.uint64], Int64], tuple[Int64, Int64]]


@dataclass(frozen=True)
class DiscreteGaussian:
    """Discrete Gaussian noise.

    Args:
        scale: σ², exact, from 2^−16 to 2^90. On every counter it is Δ2²/2σ²-zCDP for changes of L2 norm Δ2
            (Canonne, Kamath, Steinke 2020, theorem 14).

    Raises:
        TypeError: The scale is no Fraction (a float would not say what it means).
        ValueError: The scale is out of range.
    """

    scale: Fraction
    block_draws: ClassVar[int] = 1 << 14  # the words of a block stay in the second-level cache

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Fraction):
            raise TypeError(f"the scale of a DiscreteGaussian is a Fraction, got {type(self.scale).__name__}")
        if not SCALE_MIN <= self.scale <= SCALE_MAX:
            raise ValueError(f"the scale of a DiscreteGaussian, its σ², is from 2^-16 to 2^90, got {self.scale}")

    @property
    def variance(self) -> float:
        """Of one draw: below σ², by less than a float tells where σ² is at least 4."""
        if self.scale >= _SMALL:
            return float(self.scale)
        weights = self._weights()
        return 2.0 * math.fsum(k * k * weight for k, weight in enumerate(weights)) / self._total(weights)

    @property
    def std(self) -> float:
        """The standard deviation of one draw."""
        return math.sqrt(self.variance)

    def log_probability(self, k: Int64) -> npt.NDArray[np.float64]:
        """The natural logarithm of P(k) of each element, in float64."""
        variance = float(self.scale)
        integral = math.sqrt(2.0 * math.pi * variance)  # the sum is 1 + 2e^(−2π²σ²) + … times that (Poisson)
        total = integral if self.scale >= _SMALL else self._total(self._weights())
        return -np.square(np.asarray(k, dtype=np.float64)) / (2.0 * variance) - math.log(total)

    def sample(self, size: int, entropy: Entropy) -> Int64:
        """Independent draws.

        It goes in rounds: the words of all draws in their order, then what the undecided among them need, and then the
        same for all that were rejected. So the draws do not depend on the size of a block. A value beyond int64
        (never seen: e^(−2^35) and less) wraps around, which is post-processing and takes nothing from the guarantee.

        Args:
            size: Number of draws, at least 0.
            entropy: Private randomness.

        Returns:
            (size,) int64.

        Raises:
            TypeError: ``entropy`` cannot be read from; a public seed cannot.
            ValueError: ``size`` is negative.
            OSError: ``entropy`` gave fewer bytes than it was asked for.
        """
        check_draws(size, entropy)
        envelope, loop = strips(self.scale), _loop(size)
        draws, rejected = self._round(envelope, loop, size, entropy)
        while len(rejected):
            again, still = self._round(envelope, loop, len(rejected), entropy)
            draws[rejected] = again
            rejected = rejected[still]
        return draws

    def _round(self, envelope: Strips, loop: Settle, size: int, entropy: Entropy) -> tuple[Int64, Int64]:
        """(size,) values, and the ascending positions of those that were rejected."""
        values = np.empty(size, dtype=np.int64)
        rejected: list[Int64] = []
        undecided: list[_Undecided] = []
        for start in range(0, size, self.block_draws):
            block = values[start : start + self.block_draws]
            words = np.frombuffer(read(entropy, block.size * _BYTES), dtype=_WORD).reshape(-1, 2)
            words = words.astype(np.uint64, copy=False)  # of this machine's byte order
            out, open_ = loop(envelope, words, block)
            rejected.append(out + start)
            undecided += [_Undecided(start + at, *words[at].tolist()) for at in open_.tolist()]
        for draw in undecided:
            value = _resolve(envelope, draw, entropy)
            if value is None:
                rejected.append(np.array([draw.position], dtype=np.int64))
            else:
                values[draw.position] = wrapped(value)
        return values, np.sort(np.concatenate(rejected)) if rejected else np.empty(0, dtype=np.int64)

    def _weights(self) -> list[float]:
        """e^(−k²/2σ²) of k = 0, 1, … as far as a float tells, for small σ²."""
        rate = 1.0 / (2.0 * float(self.scale))
        return [math.exp(-k * k * rate) for k in range(80)]  # σ < 2: the last is e^−800

    @staticmethod
    def _total(weights: list[float]) -> float:
        return weights[0] + 2.0 * math.fsum(weights[1:])


class _Undecided(NamedTuple):
    """A draw whose first bits of U do not tell whether it is kept, or one of the tail: its two words."""

    position: int
    choice: int
    place: int


def _loop(size: int) -> Settle:
    if size < _FAST_DRAWS or not enabled():
        return settle
    from hushsum.noise import gaussian_envelope_loops

    return gaussian_envelope_loops.settle


def _resolve(envelope: Strips, draw: _Undecided, entropy: Entropy) -> int | None:
    """The value of an undecided draw, or None where it is rejected."""
    strip = int(np.searchsorted(envelope.ends, draw.choice >> CHOICE_BITS, side="right"))
    if strip == envelope.tail:
        start, width = envelope.count << envelope.shift, 1 << envelope.tail_shift
        piece = _successes(entropy)
        x = start + piece * width + (word(entropy) & width - 1)
        threshold = envelope.tail_acceptance(piece, x)
    else:
        x = (strip << envelope.shift) + (draw.place & (1 << envelope.shift) - 1)
        threshold = envelope.acceptance(strip, x)
    if not below(threshold, draw.choice & _ACCEPTANCE_MASK, ACCEPTANCE_BITS, entropy):
        return None
    return -x if draw.place >> 63 else x


def _successes(entropy: Entropy) -> int:
    """Fair coins that come up 1 before the first 0: i with probability 2^−(i+1)."""
    passed = 0
    while (coins := word(entropy)) == 2**64 - 1:
        passed += 64
    return passed + (~coins & coins + 1).bit_length() - 1
