"""Distances and angles of every pair of two sets of vectors."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

_CLOSE: Final = 1e-4  # share of the squared norms below which a squared distance has lost too many digits
_STEEP: Final = 1.0 - 1e-4  # |cosine| above which the arc cosine loses too many digits
_GATHERED_MAX: Final = 1 << 20  # coordinates gathered at once for pairs that are looked at again


def euclidean_distances(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """‖x − y‖₂ of every pair: (n, d) and (m, d) to (n, m) float64; exactly 0 for equal points."""
    x, y = matrix(x), matrix(y)
    if x.shape[1] <= 8:
        return np.sqrt(_summed(x, y, np.square))
    centre = y.mean(axis=0) if len(y) else 0.0
    x, y = x - centre, y - centre
    scale = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y)[None, :]
    squared = scale - 2.0 * (x @ y.T)
    for i, j in _in_blocks(squared < _CLOSE * scale, x.shape[1]):  # near pairs again, without the cancellation
        difference = x[i] - y[j]
        squared[i, j] = np.einsum("ij,ij->i", difference, difference)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)), np.float64)


def manhattan_distances(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """‖x − y‖₁ of every pair: (n, d) and (m, d) to (n, m) float64; exactly 0 for equal points."""
    return _summed(matrix(x), matrix(y), np.abs)


def angles(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """The angle θ between every pair of vectors: (n, d) and (m, d) to (n, m) float64 in [0, π].

    Exactly 0 for equal vectors and π for opposite ones, else within about 10⁻¹³. The zero vector has the angle that
    makes 1 − θ/π the share of random hyperplanes that leave both on one side, if a zero is taken for positive: π/2 to
    every other vector, 0 to itself.
    """
    x, y = matrix(x), matrix(y)
    u, x_is_zero = _unit(x)
    v, y_is_zero = _unit(y)
    cosine = u @ v.T
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    for i, j in _in_blocks(np.abs(cosine) > _STEEP, x.shape[1]):
        # Kahan 2006, "How Futile are Mindless Assessments of Roundoff", section 12: no digits are lost at either end.
        apart, together = u[i] - v[j], u[i] + v[j]
        apart, together = np.einsum("ij,ij->i", apart, apart), np.einsum("ij,ij->i", together, together)
        angle[i, j] = 2.0 * np.arctan2(np.sqrt(apart), np.sqrt(together))
    angle[x_is_zero[:, None] & y_is_zero[None, :]] = 0.0
    return np.asarray(angle, np.float64)


def differences(x: Floats, y: Floats) -> Iterator[Floats]:
    """x_j − y_j of every pair, (n, m), for one coordinate j after another, each in the same array."""
    difference = np.empty((len(x), len(y)))
    for j in range(x.shape[1]):
        with np.errstate(over="ignore"):
            np.subtract(x[:, j, None], y[None, :, j], out=difference)
        yield difference


def matrix(points: npt.ArrayLike) -> Floats:
    """Points as (n, d) float64.

    Raises:
        ValueError: They are no matrix.
    """
    array = np.asarray(points, np.float64)
    if array.ndim != 2:
        raise ValueError(f"points: got an array of shape {array.shape}, expected (n, d)")
    return array


def _summed(x: Floats, y: Floats, of: np.ufunc) -> Floats:
    total = np.zeros((len(x), len(y)))
    with np.errstate(over="ignore"):
        for difference in differences(x, y):
            total += of(difference, out=difference)
    return total


def _unit(points: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    largest = np.abs(points).max(axis=1, initial=0.0)
    is_zero = largest == 0.0
    scaled = points / np.where(is_zero, 1.0, largest)[:, None]  # first, so that no square overflows or vanishes
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return scaled / np.where(is_zero, 1.0, norms)[:, None], is_zero


def _in_blocks(chosen: npt.NDArray[np.bool_], d: int) -> Iterator[tuple[Places, Places]]:
    rows, columns = np.nonzero(chosen)
    block = max(1, _GATHERED_MAX // max(1, d))
    for start in range(0, len(rows), block):
        yield rows[start : start + block], columns[start : start + block]
