"""A compiled loop that makes a step of a sequence with buffers, as :func:`hushsum.cumulative.advance` defines it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined
from hushsum.privacy.factorisation import UNIT, BufferedToeplitz

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

_UNIT_BITS: Final = UNIT.bit_length() - 1
_MASK: Final = UNIT - 1
_HALF: Final = UNIT >> 1


def warm_up() -> None:
    """Compiles the loop, or loads it."""
    exact, noise, words = (np.zeros(1, np.int64) for _ in range(3))
    advance(BufferedToeplitz((0,), (1,)), exact, noise, words, np.zeros(1, np.uint32), np.zeros((1, 1), np.int64))


def advance(made: BufferedToeplitz, exact: Int64, noise: Int64, words: Int64, parts: UInt32, buffers: Int64) -> None:
    """See :func:`hushsum.cumulative.advance`."""
    shares = np.array([made.omega, made.theta], np.int64)
    _advance(shares, made.bits, exact, noise, words, parts, buffers)


@compiled
def _advance(shares: Int64, bits: int, exact: Int64, noise: Int64, words: Int64, parts: UInt32, buffers: Int64) -> None:
    omega, theta = shares[0], shares[1]
    below = (1 << bits) - 1
    for i in range(len(noise)):
        w = noise[i]
        for j in range(len(omega)):
            w -= _share(omega[j], buffers[j, i])
        for j in range(len(theta)):
            buffers[j, i] = _share(theta[j], buffers[j, i]) + w
        rest = np.int64(parts[i]) + w
        words[i] += exact[i] + (rest >> bits)
        rest &= below
        parts[i] = rest
        noise[i] = words[i] + (rest >> (bits - 1))


@inlined
def _share(share: int, buffer: int) -> int:
    """See :func:`hushsum.cumulative._share`."""
    return share * (buffer >> _UNIT_BITS) + ((share * (buffer & _MASK) + _HALF) >> _UNIT_BITS)
