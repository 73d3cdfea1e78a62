"""What decides the binary digits of a geometric variable, and these digits out of random words, in NumPy."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold

WORD_BITS: Final = 16  # of a first comparison
WORD: Final = np.dtype("<u2")
_TOP_EXPONENT: Final = 45  # e^−45 < 2^−64

Int64 = npt.NDArray[np.int64]
UInt16 = npt.NDArray[np.uint16]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Digits:
    """What decides one geometric: a threshold for each binary digit, and the last for all that stands above them.

    Attributes:
        thresholds: Lowest digit first.
        first_words: (columns,) the first 16 bits of each threshold.
    """

    thresholds: tuple[ProbabilityThreshold, ...]
    first_words: UInt16

    @property
    def columns(self) -> int:
        """Words of a geometric."""
        return len(self.thresholds)

    @property
    def bytes_per_draw(self) -> int:
        """A draw is the difference of two geometrics."""
        return 2 * self.columns * WORD.itemsize


@lru_cache(maxsize=64)
def digits(scale: Fraction) -> Digits:
    """The digits of the geometric with ratio q = e^(−1/scale)."""
    top = 0
    while 2**top < _TOP_EXPONENT * scale:  # until q^(2^B) < 2^−64
        top += 1
    thresholds = (
        *(ProbabilityThreshold(2**i / scale, Form.DIGIT) for i in range(top)),
        ProbabilityThreshold(2**top / scale, Form.TAIL),
    )
    first_words = np.array([threshold.prefix(WORD_BITS) for threshold in thresholds], dtype=np.uint16)
    first_words.flags.writeable = False
    return Digits(thresholds, first_words)


def differences(table: Digits, words: UInt16, values: Int64) -> Int64:
    """Writes the differences of pairs of geometrics, as far as their first words tell them.

    A whole column is one digit of all draws, so that the same few steps serve many words at once; how many, and which,
    depends on nothing that is drawn.

    Args:
        table: What decides the digits.
        words: (columns, 2n): of n geometrics that are added and then n that are subtracted.
        values: (n,) where the differences go.

    Returns:
        Ascending positions among all words of those that equal their threshold's, which decide nothing yet.
    """
    thresholds = table.first_words[:, np.newaxis]
    bits = (words < thresholds).view(np.uint8)
    columns, n = len(words), len(values)
    sums = np.zeros(2 * n, dtype=np.int64)
    for start in range(8 * ((columns - 1) // 8), -1, -8):
        byte = bits[min(start + 8, columns) - 1].copy()
        for column in range(min(start + 8, columns) - 2, start - 1, -1):
            np.add(byte, byte, out=byte)
            np.bitwise_or(byte, bits[column], out=byte)
        sums <<= 8
        sums |= byte
    np.subtract(sums[:n], sums[n:], out=values)
    return np.flatnonzero(words == thresholds)
