"""Random words that are compared with probabilities, as many bits of either as it takes."""

from typing import Final

from hushsum.entropy import Entropy
from hushsum.noise.thresholds import ProbabilityThreshold

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
