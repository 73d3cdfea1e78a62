"""How many of counted points are orthogonal to each of the first points, coordinate by coordinate.

After Feldman, Nelson, Nguyen, Talwar 2022, section 4: sums over points are folded one coordinate at a time, each fold
replacing a coordinate of the points by the same one of the queries, beside the value z that the inner product has so
far. Here only canonical queries are folded, and those that differ by a factor are read off them: f^t numbers are moved
t − 2 times, f additions each.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import acceleration
from hushsum.noise.projective_points import indices_of, inverses, points

_BLOCK: Final = 1 << 21  # numbers of a block of rows

Int64 = npt.NDArray[np.int64]


def orthogonal(counts: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """Folds counts, a block of rows at a time.

    Args:
        counts: (R, points) how often each point was counted.
        field: f, a prime.
        dimension: t, at least 2.
        inputs: K, of how many points the result is asked.

    Returns:
        (R, K) int64: sums of the counts of all points orthogonal to each of the first K.
    """
    result = np.empty((len(counts), inputs), np.int64)
    step = max(1, _BLOCK // field ** (dimension - 1))
    for start in range(0, len(counts), step):
        block = np.ascontiguousarray(counts[start : start + step].T)  # rows side by side: every step serves them all
        result[start : start + step] = _orthogonal(block, field, dimension, inputs).T
    return result


def _orthogonal(counts: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """(K, rows) of (points, rows)."""
    if dimension == 1:
        return np.zeros((inputs, counts.shape[1]), np.int64)  # the one point is not orthogonal to itself
    below = points(field, dimension - 1)
    few = min(inputs, below)
    # Points (0, u) and points (1, x), against queries (0, v).
    lower = _orthogonal(counts[:below], field, dimension - 1, few)
    planes = _planes(counts[below:], field, dimension - 1, few)
    first: Int64 = lower + planes[0]
    if inputs <= below:
        return first
    # Against queries (1, w): <u, w> = 0, or <x, w> = −1, which is <x, v> = −1/g where w = g·v and v is canonical.
    w = np.arange(1, inputs - below)
    scale = inverses(field)[_leading(w, field)]
    classes = indices_of(_scaled(w, scale, field), field, dimension - 1)
    rest = planes[(-scale) % field, classes]
    rest += lower[classes]
    result: Int64 = np.concatenate([first, counts[:below].sum(axis=0, keepdims=True), rest])
    return result


def _planes(values: Int64, field: int, dimension: int, inputs: int) -> Int64:
    """(f, K, rows): for each z and each of the first K points v, the sum of the values of all x with <x, v> = z.

    Args:
        values: (f^dimension, rows), of all vectors x.
        field: f.
        dimension: At least 1.
        inputs: K.
    """
    rows = values.shape[1]
    if dimension == 1:
        return values.reshape(field, 1, rows)
    below = points(field, dimension - 1)
    parted = values.reshape(field, -1, rows)
    first = _planes(parted.sum(axis=0), field, dimension - 1, min(inputs, below))
    if inputs <= below:
        return first
    wanted = inputs - below  # queries (1, w): x of <x, (1, w)> = z has the first coordinate z − <x', w>
    state = parted
    for coordinate in range(dimension - 1):
        after = field ** (dimension - 2 - coordinate)
        most = min(field, -(-wanted // after)) if coordinate == 0 else field
        state = _fold()(state.reshape(field, -1, field, after * rows), field, most).reshape(field, -1, rows)
    return np.concatenate([first, state[:, :wanted]], axis=1)


def _fold() -> Callable[[Int64, int, int], Int64]:
    if not acceleration.enabled():
        return folded
    from hushsum.noise import projective_fold_fast

    return projective_fold_fast.folded


def folded(state: Int64, field: int, most: int) -> Int64:
    """(z, before, w, after) of (z, before, x, after): sums over x of what stands at z − x·w; for the w below most."""
    result = np.empty((field, state.shape[1], most, state.shape[3]), np.int64)
    for w in range(most):
        out = result[:, :, w]
        out[:] = state[:, :, 0]
        for x in range(1, field):
            shift = x * w % field
            out[shift:] += state[: field - shift, :, x]
            if shift:
                out[:shift] += state[field - shift :, :, x]
    return result


def _leading(numbers: Int64, field: int) -> Int64:
    """The leading digit in base f of each number above 0."""
    leading = numbers.copy()
    while len(large := np.flatnonzero(leading >= field)):
        leading[large] //= field
    return leading


def _scaled(numbers: Int64, scale: Int64, field: int) -> Int64:
    """Every digit in base f times the scale, modulo f."""
    result, rest, power = np.zeros_like(numbers), numbers.copy(), 1
    while rest.any():
        upper = rest // field
        result += (rest - upper * field) * scale % field * power
        rest, power = upper, power * field
    return result
