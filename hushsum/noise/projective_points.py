"""Points of a projective space over a prime field, numbered; the numbering is part of the format of reports.

A point of dimension t is a vector of t coordinates, not all zero, up to a factor; its canonical vector is the one whose
first coordinate that is not 0 is 1. Read as a number in base f, the first coordinate first, canonical vectors are
numbered in ascending order: with k coordinates after its leading 1, number n stands at n − f^k + (f^k − 1)/(f − 1).
So the first (f^k − 1)/(f − 1) points are those of dimension k, with zeros before.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def points(field: int, dimension: int) -> int:
    """(f^t − 1)/(f − 1): how many there are; 0 of dimension 0."""
    number: int = (field**dimension - 1) // (field - 1)
    return number


def dimension_of(field: int, least: int) -> int:
    """The least dimension, from 2, with at least so many points."""
    dimension = 2
    while points(field, dimension) < least:
        dimension += 1
    return dimension


def is_prime(number: int) -> bool:
    """Whether the number is a prime."""
    return number >= 2 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def numbers_of(indices: Int64, field: int, dimension: int) -> Int64:
    """The canonical vectors of points, as numbers in base f."""
    powers, first, steps = steps_of(field, dimension)
    result: Int64 = indices + steps[0]
    for k in range(1, len(powers)):
        result += steps[k] * (indices >= first[k])
    return result


def indices_of(numbers: Int64, field: int, dimension: int) -> Int64:
    """The points of canonical vectors, given as numbers in base f."""
    powers, _, steps = steps_of(field, dimension)
    result: Int64 = numbers - steps[0]
    for k in range(1, len(powers)):
        result -= steps[k] * (numbers >= powers[k])
    return result


@lru_cache(maxsize=64)
def inverses(field: int) -> Int64:
    """(f,) the inverse of each number of the field; 0 of 0."""
    square, result = np.arange(field, dtype=np.int64), np.ones(field, np.int64)
    for bit in reversed(f"{field - 2:b}"):  # Fermat: the inverse is the power of f − 2, and f² is below 2^62
        if bit == "1":
            result = result * square % field
        square = square * square % field
    result[0] = 0
    result.flags.writeable = False
    return result


@lru_cache(maxsize=64)
def steps_of(field: int, dimension: int) -> Int64:
    """(3, t), for k = 0 … t − 1: f^k; the first point with k coordinates after its leading 1; and a step.

    A point's number in base f is its own and the steps of all k whose first point it reaches.
    """
    powers = np.array([field**k for k in range(dimension)], np.int64)
    first = np.array([points(field, k) for k in range(dimension)], np.int64)
    result = np.stack([powers, first, np.diff(powers - first, prepend=0)])
    result.flags.writeable = False
    return result
