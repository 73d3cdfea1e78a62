"""Uniform integers below a total, exactly: 64-bit words, of which the few above the largest multiple are rejected.

How many words are read depends on the words alone, so on no value that a draw is then used for.
"""

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.words import check_draws, read

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
