"""The discrete Laplace distribution P(k) ∝ e^(−|k|/scale) on all integers, drawn exactly (Canonne et al. 2020).

A draw is the difference of two geometrics with ratio q = e^(−1/scale). The binary digits of a geometric are
independent, digit i being 1 with probability q^(2^i) / (1 + q^(2^i)), and what stands above B digits is geometric
again, with ratio q^(2^B). So a draw is a fixed number of comparisons of random 16-bit words with fixed thresholds. A
word that equals its threshold's first 16 bits decides nothing yet: more bits of both are compared, as many as it takes.
That makes it exact, at distance 0 from the distribution, given uniform bytes.

The work of a draw is the same whatever comes out, but for those ties: one word in 65,536.
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
from hushsum.noise.exp_thresholds import Form
from hushsum.noise.geometric_digits import WORD, WORD_BITS, Digits, Int64, UInt16, differences, digits
from hushsum.noise.random_words import below_tied, check_draws, read, wrapped

SCALE_MAX: Final = 2**48  # int64 then holds every draw, but for an event of probability e^(−2^14)
SCALE_MIN: Final = Fraction(1, 2**48)  # so that 1/scale is a float for the error bars
GROUP_DRAWS: Final = 4096  # whose words stand column by column; part of the definition, unlike the size of a block
_FAST_DRAWS: Final = 4096  # fewer do not pay for loading the compiled loops

Differences = Callable[[Digits, UInt16, Int64], Int64]


@dataclass(frozen=True)
class DiscreteLaplace:
    """Discrete Laplace noise.

    Args:
        scale: Exact, from 2^−48 to 2^48. Noise of scale Δ1/ε on every counter is pure ε for changes of L1 norm Δ1.

    Raises:
        TypeError: The scale is no Fraction (a float would not say what it means).
        ValueError: The scale is out of range.
    """

    scale: Fraction
    block_draws: ClassVar[int] = GROUP_DRAWS  # whole groups; their words stay in the second-level cache

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Fraction):
            raise TypeError(f"the scale of a DiscreteLaplace is a Fraction, got {type(self.scale).__name__}")
        if not SCALE_MIN <= self.scale <= SCALE_MAX:
            raise ValueError(f"the scale of a DiscreteLaplace is from 2^-48 to 2^48, got {self.scale}")

    @property
    def variance(self) -> float:
        """2q/(1 − q)², of one draw."""
        x = float(1 / self.scale)
        return 2.0 * math.exp(-x) / math.expm1(-x) ** 2

    @property
    def std(self) -> float:
        """The standard deviation of one draw: nearly √2·scale where the scale is large."""
        return math.sqrt(self.variance)

    def log_probability(self, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The natural logarithm of P(k) = (1 − q)/(1 + q)·q^|k| of each element, in float64."""
        x = float(1 / self.scale)
        peak = math.log(math.tanh(x / 2))  # (1 − q)/(1 + q)
        return peak - np.abs(np.asarray(k, dtype=np.float64)) * x

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Independent draws.

        It reads the first words of all draws, group after group, in a group column after column, in a column first all
        that are added and then all that are subtracted; and then what the ties need, in the same order. So the draws do
        not depend on the size of a block. A value beyond int64 (never seen: e^(−2^14) and less) wraps around, which is
        post-processing and takes nothing from the guarantee.

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
        table, loop = digits(self.scale), _loop(size)
        draws = np.empty(size, dtype=np.int64)
        ties: list[_Tie] = []
        block_draws = max(1, self.block_draws // GROUP_DRAWS) * GROUP_DRAWS
        for start in range(0, size, block_draws):
            block = draws[start : start + block_draws]
            words = np.frombuffer(read(entropy, block.size * table.bytes_per_draw), dtype=WORD)
            words = words.astype(np.uint16, copy=False)  # of this machine's byte order
            for at in range(0, block.size, GROUP_DRAWS):
                group = block[at : at + GROUP_DRAWS]
                own = words[2 * table.columns * at :][: 2 * table.columns * group.size].reshape(table.columns, -1)
                ties += [_tie(position, start + at, group.size) for position in loop(table, own, group)]
        for tie in ties:
            _resolve(draws, tie, table, entropy)
        return draws


class _Tie(NamedTuple):
    """A word that equals its threshold's first bits: of which draw and digit, and whether that is subtracted."""

    draw: int
    column: int
    subtracted: bool


def _tie(position: int, start: int, group: int) -> _Tie:
    column, geometric = divmod(int(position), 2 * group)
    return _Tie(start + geometric % group, column, geometric >= group)


def _loop(size: int) -> Differences:
    if size < _FAST_DRAWS or not enabled():
        return differences
    from hushsum.noise import geometric_digits_loops

    return geometric_digits_loops.differences


def _resolve(draws: Int64, tie: _Tie, table: Digits, entropy: Entropy) -> None:
    """Decides a tie, and adds what its digit stands for."""
    threshold = table.thresholds[tie.column]
    if not below_tied(threshold, WORD_BITS, entropy):
        return
    times = 1
    if threshold.form is Form.TAIL:  # unbounded: geometric with ratio q^(2^B)
        while below_tied(threshold, 0, entropy):
            times += 1
    value = times << tie.column
    draws[tie.draw] = wrapped(int(draws[tie.draw]) + (-value if tie.subtracted else value))
