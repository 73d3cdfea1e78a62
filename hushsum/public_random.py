"""Public randomness: a seed and a purpose, expanded into hash parameters, the same bytes on every platform.

Words come from SHAKE-256; everything else is made of them with integers and the functions of
:mod:`hushsum.math_portable`, every floating-point step one NumPy ufunc over an array.

Nothing here is secret, and nothing private may be drawn from it: see :mod:`hushsum.entropy` for that.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import labels
from hushsum.canonical import INTEGER_LIMIT
from hushsum.errors import PlanError
from hushsum.math_portable import ln

#: No normal draw is larger in absolute value: √(−2 ln s) for the least s = 2⁻¹⁰⁴ of the polar method is 12.008.
NORMAL_LIMIT: Final = 12.1

_BLOCK_WORDS: Final = 1024
_ln = ln  # the name that the tests of these draws know


@dataclass(frozen=True)
class PublicSeed:
    """The seed of a plan's public draws.

    Attributes:
        value: 0 … 2⁵³ − 1.

    Raises:
        PlanError: The value is no integer of that range.
    """

    value: int

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value <= INTEGER_LIMIT:
            raise PlanError("sketch.seed", self.value, f"an integer from 0 to {INTEGER_LIMIT}")


class PublicStream:
    """One sequence of random words, and uniform and normal draws made of its words in order.

    Word i is the i-th little-endian 64-bit word of block ⌊i/1024⌋; block k is the first 8,192 bytes of
    SHAKE-256(label ‖ seed ‖ length of purpose ‖ purpose ‖ k), integers as 8 little-endian bytes. Every draw takes the
    next words and no more than it needs, so the sequence does not depend on how many are asked for in one call:
    ``normal(5)`` and ``normal(5)`` again are ``normal(10)``.

    Args:
        seed: The plan's public seed.
        purpose: What the draws are for; another purpose is an independent sequence.
    """

    def __init__(self, seed: PublicSeed, purpose: str) -> None:
        name = purpose.encode("utf-8")
        self._prefix = labels.PUBLIC_DRAWS + _little_endian(seed.value) + _little_endian(len(name)) + name
        self._next = 0
        self._block_index = -1
        self._block: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._spare: float | None = None  # the second normal of a pair whose first was the last one asked for

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """(n,) uint64: the next n words."""
        result = self._peek(n)
        self._next += n
        return result

    def uniform(self, n: int) -> npt.NDArray[np.float64]:
        """(n,) float64 in [0, 1): the upper 53 bits of each of the next n words, times 2⁻⁵³."""
        return _unit(self.words(n))

    def open_uniform(self, n: int) -> npt.NDArray[np.float64]:
        """(n,) float64 in (0, 1): the upper 52 bits of each of the next n words, plus ½, times 2⁻⁵², exactly."""
        return open_unit(self.words(n) >> np.uint64(12))

    def normal(self, n: int) -> npt.NDArray[np.float64]:
        """(n,) float64: standard normals by the polar method, at most :data:`NORMAL_LIMIT` in absolute value.

        Two words make a point of the square [−1, 1)²; a point outside the open unit disc, or its centre, is skipped;
        any other gives two normals, of which the second waits for the next call where n ends between them.
        Marsaglia and Bray, A convenient method for generating normal variables, 1964.
        """
        parts: list[npt.NDArray[np.float64]] = []
        wanted = n
        if wanted > 0 and self._spare is not None:
            parts.append(np.array([self._spare]))
            self._spare = None
            wanted -= 1
        while wanted > 0:
            pairs = self._accepted_pairs((wanted + 1) // 2)
            parts.append(pairs[:wanted])
            if len(pairs) > wanted:
                self._spare = float(pairs[wanted])
            wanted -= min(wanted, len(pairs))
        return np.concatenate(parts) if parts else np.empty(0)

    def _accepted_pairs(self, most: int) -> npt.NDArray[np.float64]:
        """The normals of at most ``most`` accepted points, two a point; takes the words up to the last one used."""
        tried = min(most + most // 3 + 8, 2**17)  # 4/π of them are needed on average; in rounds of bounded memory
        square = 2.0 * _unit(self._peek(2 * tried)) - 1.0  # exact: a multiple of 2⁻⁵² in [−1, 1)
        u, v = square[0::2], square[1::2]
        s = u * u + v * v
        accepted = np.flatnonzero((s < 1.0) & (s > 0.0))[:most]
        self._next += 2 * (int(accepted[-1]) + 1) if len(accepted) == most else 2 * tried
        u, v, s = u[accepted], v[accepted], s[accepted]
        factor = np.sqrt(-2.0 * ln(s) / s)
        return np.stack([u * factor, v * factor], axis=1).reshape(-1)

    def _peek(self, n: int) -> npt.NDArray[np.uint64]:
        first, last = self._next // _BLOCK_WORDS, (self._next + n - 1) // _BLOCK_WORDS
        if n <= 0:
            return np.empty(0, np.uint64)
        blocks = np.concatenate([self._read(index) for index in range(first, last + 1)])
        start = self._next - first * _BLOCK_WORDS
        return blocks[start : start + n]

    def _read(self, index: int) -> npt.NDArray[np.uint64]:
        if index != self._block_index:
            data = hashlib.shake_256(self._prefix + _little_endian(index)).digest(8 * _BLOCK_WORDS)
            self._block, self._block_index = np.frombuffer(data, "<u8").astype(np.uint64), index
        return self._block


def open_unit(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """(bits + ½)·2⁻⁵², exactly: integers below 2⁵² as the midpoints of as many intervals of (0, 1)."""
    return (bits.astype(np.float64) + 0.5) * 2.0**-52  # a 53rd bit would round the last midpoint up to 1


def _little_endian(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _unit(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
