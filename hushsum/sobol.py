"""Scrambled Sobol points: each uniform, together far more evenly spread than independent ones."""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.public_random import PublicSeed, PublicStream, open_unit
from hushsum.sobol_directions import DIRECTIONS

#: Most dimensions of a point.
MAX_DIMS: Final = 512
#: Most points of one set: its scrambling takes a table of as many entries a dimension.
MAX_POINTS: Final = 2**20

_LEVELS_MAX: Final = MAX_POINTS.bit_length() - 1


def sobol(seed: PublicSeed, purpose: str, *, sets: int, points: int, dims: int) -> npt.NDArray[np.float64]:
    """Independently scrambled sets of the first points of a Sobol sequence, in Gray-code order.

    Each point alone is uniform on its lattice of midpoints; within a set, every interval [i/2ᵏ, (i+1)/2ᵏ) of a
    dimension holds one of each 2ᵏ points that start at a multiple of 2ᵏ. Owen's nested uniform scrambling, exactly:
    Owen, Randomly permuted (t, m, s)-nets and (t, s)-sequences, 1995. Bits beyond those that tell the points of a set
    apart are independent under it, and are drawn so.

    Args:
        seed: The plan's public seed.
        purpose: What the points are for; set k is drawn from the stream ``{purpose}/sobol/{k}``.
        sets: At least 0.
        points: Points of a set, 0 … :data:`MAX_POINTS`; best a power of two.
        dims: 1 … :data:`MAX_DIMS`.

    Returns:
        (sets·points, dims) float64 in (0, 1), odd multiples of 2⁻⁵³: row r belongs to set ⌊r/points⌋.

    Raises:
        ValueError: A number is out of its range.
    """
    if sets < 0 or not 0 <= points <= MAX_POINTS or not 1 <= dims <= MAX_DIMS:
        raise ValueError(
            f"sets ≥ 0, 0 ≤ points ≤ {MAX_POINTS} and 1 ≤ dims ≤ {MAX_DIMS} expected, got {sets}, {points}, {dims}"
        )
    levels = max(points - 1, 0).bit_length()
    plain = sequence(levels, dims)[:, :points]
    result = np.empty((sets, points, dims))
    for index in range(sets):
        stream = PublicStream(seed, f"{purpose}/sobol/{index}")
        scrambled = np.take_along_axis(_nested_permutations(stream, levels, dims), plain, axis=1).T
        tail = stream.words(points * dims).reshape(points, dims) >> np.uint64(12 + levels)
        result[index] = open_unit(scrambled.astype(np.uint64) << np.uint64(52 - levels) | tail)
    return result.reshape(sets * points, dims)


def sequence(levels: int, dims: int) -> npt.NDArray[np.int64]:
    """(dims, 2**levels) int64: the Sobol sequence times 2**levels, without scrambling, in Gray-code order."""
    points = np.zeros((dims, 1), np.int64)
    for level in range(levels):
        # The Gray code of 2^level + i is that of 2^level − 1 − i with bit `level` set.
        direction = _directions()[:dims, level, None] << (levels - 1 - level)
        points = np.concatenate([points, points[:, ::-1] ^ direction], axis=1)
    return points


def _nested_permutations(stream: PublicStream, levels: int, dims: int) -> npt.NDArray[np.int64]:
    """(dims, 2**levels): for each dimension, a random permutation that flips digit k by a bit of the k digits before.

    The bits are those of the stream's next words, lowest first, each dimension from a word of its own; those of level
    k are its bits 2ᵏ … 2ᵏ⁺¹ − 1, in the order of the digits before, and bit 0 is not used.
    """
    words = stream.words(dims * -(-(2**levels) // 64)).astype("<u8").reshape(dims, -1)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(np.int64)
    image = np.zeros((dims, 1), np.int64)
    for level in range(levels):
        flip = bits[:, 2**level : 2 ** (level + 1)]
        image = np.stack([2 * image + flip, 2 * image + (1 - flip)], axis=2).reshape(dims, -1)
    return image


@cache
def _directions() -> npt.NDArray[np.int64]:
    """(MAX_DIMS, levels) int64: m_1, m_2, … of each dimension, m_k odd and below 2ᵏ.

    m_k = 2a_1 m_{k−1} ⊕ 2²a_2 m_{k−2} ⊕ … ⊕ 2ˢm_{k−s} ⊕ m_{k−s} for the polynomial xˢ + a_1 xˢ⁻¹ + … + 1: Joe and Kuo
    2008, section 2.
    """
    table = np.ones((MAX_DIMS, _LEVELS_MAX), np.int64)  # the first dimension's numbers are 1
    for row, entry in enumerate(DIRECTIONS.split()[1:], start=1):
        polynomial, *numbers = map(int, entry.split(":"))
        degree = len(numbers)
        for k in range(degree, _LEVELS_MAX):
            number = numbers[k - degree]
            for back in range(1, degree + 1):
                if polynomial >> (degree - back) & 1:
                    number ^= numbers[k - back] << back
            numbers.append(number)
        table[row] = numbers[:_LEVELS_MAX]
    table.setflags(write=False)
    return table
