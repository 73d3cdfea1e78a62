"""Random words: compared with probabilities to as many bits as it takes, and made into exact uniform integers.

A uniform integer below a total is made of 64-bit words, of which the few above the largest multiple are rejected. How
many words are read depends on the words alone, so on no value that a draw is then used for.
"""

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.exp_thresholds import ProbabilityThreshold

TIE_BITS: Final = 64  # of each further comparison
_TIE_MASK: Final = 2**TIE_BITS - 1


def check_draws(size: int, entropy: Entropy) -> None:
    """Refuses what no sampler can draw.

    Raises:
        TypeError: ``entropy`` cannot be read from; a public seed cannot.
        ValueError: ``size`` is negative.
    """
    if not isinstance(entropy, Entropy):
        raise TypeError(f"noise is drawn from an Entropy, got {type(entropy).__name__}")
    if size < 0:
        raise ValueError(f"cannot draw {size} times")


def read(entropy: Entropy, size: int) -> bytes:
    """``size`` bytes.

    Raises:
        OSError: The source gave fewer.
    """
    data = entropy.read(size)
    if len(data) != size:  # never stretch what came: the same word would decide two draws
        raise OSError(f"the source of entropy gave {len(data)} bytes of {size}")
    return data


def word(entropy: Entropy) -> int:
    """A uniform integer below 2^64."""
    return int.from_bytes(read(entropy, TIE_BITS // 8), "little")


def below(threshold: ProbabilityThreshold, digits: int, bits: int, entropy: Entropy) -> bool:
    """Whether U < p, where the first ``bits`` binary digits of U are ``digits`` and all others are still to be read."""
    wanted = threshold.prefix(bits)  # 2^bits where p = 1, which no digits reach
    return digits < wanted if digits != wanted else below_tied(threshold, bits, entropy)


def below_tied(threshold: ProbabilityThreshold, bits: int, entropy: Entropy) -> bool:
    """Whether U < p, given that their first ``bits`` binary digits are equal."""
    while True:
        further = word(entropy)
        bits += TIE_BITS
        wanted = threshold.prefix(bits) & _TIE_MASK
        if further != wanted:
            return further < wanted


def wrapped(value: int) -> int:
    """The value modulo 2^64, as an int64."""
    return (value + 2**63) % 2**64 - 2**63


TOTAL_MAX: Final = 2**62  # so that every step of what is made of a draw fits an int64
_WORD: Final = np.dtype("<u8")

Int64 = npt.NDArray[np.int64]


class Blocks:
    """How many draws are made at once: speed alone, it never changes what is drawn."""

    draws: ClassVar[int] = 1 << 13  # a block's words, and what is made of them, stay in the second-level cache


def check_total(name: str, total: int) -> None:
    """Refuses what no 64-bit word decides without overflow.

    Raises:
        ValueError: The total passes 2^62.
    """
    if total > TOTAL_MAX:
        raise ValueError(f"{name} draws below {total}, expected at most 2^62: fewer values, or a ratio of fewer digits")


def uniform(total: int, size: int, entropy: Entropy) -> Int64:
    """Independent uniform integers.

    It goes in rounds: one word for each draw, in their order, then one for each that was rejected. So the draws do not
    depend on the size of a block.

    Args:
        total: From 1 to 2^62.
        size: Number of draws, at least 0.
        entropy: Private randomness.

    Returns:
        (size,) int64, from 0 to ``total`` − 1.

    Raises:
        TypeError: ``entropy`` cannot be read from; a public seed cannot.
        ValueError: ``size`` is negative.
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    check_draws(size, entropy)
    draws = np.empty(size, np.int64)
    rejected = _round(total, draws, entropy)
    while len(rejected):
        again = np.empty(len(rejected), np.int64)
        still = _round(total, again, entropy)
        draws[rejected] = again
        rejected = rejected[still]
    return draws


def _round(total: int, draws: Int64, entropy: Entropy) -> Int64:
    """Writes a word modulo ``total`` to each, and gives the ascending positions of those that were rejected."""
    largest = np.uint64(2**64 // total * total - 1)  # the last word that counts
    divisor = np.uint64(total)
    rejected: list[Int64] = []
    for start in range(0, len(draws), Blocks.draws):
        block = draws[start : start + Blocks.draws].view(np.uint64)
        words = np.frombuffer(read(entropy, block.size * _WORD.itemsize), _WORD).astype(np.uint64, copy=False)
        np.floor_divide(words, divisor, out=block)  # by one divisor, which NumPy does without dividing
        np.multiply(block, divisor, out=block)
        np.subtract(words, block, out=block)
        out = np.flatnonzero(words > largest)
        if len(out):
            rejected.append(out + start)
    return np.concatenate(rejected) if rejected else np.empty(0, np.int64)
