"""Kernels in closed form, for exact comparison, and exact kernel sums over many records in bounded memory."""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: k(x, y): (n, d) and (m, d) to (n, m).
Kernel = Callable[[Floats, Floats], npt.NDArray[np.float64]]

_ROOT_HALF: Final = math.sqrt(0.5)
_ROOT_2_OVER_PI: Final = math.sqrt(2.0 / math.pi)
_CLOSE: Final = 1e-4  # share of the squared norms below which a squared distance has lost too many digits


def euclidean(distance: npt.ArrayLike, width: float, power: int = 1) -> Floats:
    """The probability that ⌊(a·x + b)/w⌋ is the same for two points at this distance, to a power.

    k = 1 − 2Φ(−w/c) − (2c/(√(2π) w)) (1 − e^{−w²/(2c²)}), Datar, Immorlica, Indyk and Mirrokni 2004, section 3.2; the
    kernel of RACE, section 2.

    Args:
        distance: c = ‖x − y‖₂ ≥ 0, any shape; infinity gives 0.
        width: w, above 0.
        power: Number of concatenated hashes.

    Returns:
        float64 of the same shape, in [0, 1]; exactly 1 where c = 0.
    """
    c = np.asarray(distance, np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        z = np.minimum(width / np.maximum(c, 0.0), 1e300)
    # 1 − 2Φ(−z) = erf(z/√2); where z is tiny both parts vanish together and their difference is √(2/π)·z/2.
    small = z < 1e-7
    safe = np.where(small, 1.0, z)
    with np.errstate(over="ignore"):
        value = _erf(safe * _ROOT_HALF) + _ROOT_2_OVER_PI / safe * np.expm1(-0.5 * safe * safe)
    value = np.where(small, 0.5 * _ROOT_2_OVER_PI * z, value)
    value = np.where(c == 0.0, 1.0, np.clip(value, 0.0, 1.0))
    return np.asarray(value if power == 1 else value**power, np.float64)


def euclidean_distances(x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
    """‖x − y‖₂ of every pair: (n, d) and (m, d) to (n, m) float64; exactly 0 for equal points."""
    x, y = _matrix(x), _matrix(y)
    if x.shape[1] <= 8:
        return np.sqrt(_squared_directly(x, y))
    centre = y.mean(axis=0) if len(y) else 0.0
    x, y = x - centre, y - centre
    scale = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y)[None, :]
    squared = scale - 2.0 * (x @ y.T)
    rows, columns = np.nonzero(squared < _CLOSE * scale)
    for start in range(0, len(rows), 65_536):  # near pairs again, without the cancellation
        i, j = rows[start : start + 65_536], columns[start : start + 65_536]
        difference = x[i] - y[j]
        squared[i, j] = np.einsum("ij,ij->i", difference, difference)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)), np.float64)


def kernel_sums(
    kernel: Kernel, records: npt.ArrayLike, queries: npt.ArrayLike, *, block_pairs: int = 1 << 14
) -> Floats:
    """Σ_x k(x, q) over all records, exactly (to float64), for each query.

    Equal records are evaluated once and weighted. Pairs are evaluated in blocks, so memory beside the arguments is a
    few times ``block_pairs`` float64.

    Args:
        kernel: k(x, y) of (n, d) and (m, d) float64 as (n, m), such as a family's ``kernel``.
        records: (n, d).
        queries: (m, d).
        block_pairs: Greatest number of pairs evaluated at once.

    Returns:
        (m,) float64.
    """
    points, weights = merge_equal(_matrix(records))
    return weighted_kernel_sums(kernel, points, weights, _matrix(queries), block_pairs=block_pairs)


def weighted_kernel_sums(
    kernel: Kernel, points: Floats, weights: Floats, targets: Floats, *, block_pairs: int = 1 << 14
) -> Floats:
    """Σ_i w_i k(x_i, q): :func:`kernel_sums` of points that :func:`merge_equal` has merged, for many calls on the same.

    Args:
        kernel: As for :func:`kernel_sums`.
        points: (n, d).
        weights: (n,).
        targets: (m, d).
        block_pairs: Greatest number of pairs evaluated at once.

    Returns:
        (m,) float64.
    """
    sums = np.zeros(len(targets))
    if not len(points):
        return sums
    width = min(len(targets), max(1, block_pairs // 64))
    height = max(1, block_pairs // max(1, width))
    for first in range(0, len(targets), max(1, width)):
        some = targets[first : first + width]
        for start in range(0, len(points), height):
            stop = start + height
            sums[first : first + width] += weights[start:stop] @ kernel(points[start:stop], some)
    return sums


def _squared_directly(x: Floats, y: Floats) -> Floats:
    squared = np.zeros((len(x), len(y)))
    difference = np.empty_like(squared)
    for j in range(x.shape[1]):
        np.subtract(x[:, j, None], y[None, :, j], out=difference)
        np.multiply(difference, difference, out=difference)
        squared += difference
    return squared


def merge_equal(points: Floats) -> tuple[Floats, Floats]:
    """Different points (k, d) and how often each occurs (k,), in an order that depends on the points (n, d) alone."""
    if len(points) < 2:
        return points, np.ones(len(points))
    order = np.lexsort(points.T[::-1])
    points = points[order]
    new = np.concatenate([[True], np.any(points[1:] != points[:-1], axis=1)])
    starts = np.flatnonzero(new)
    return points[starts], np.diff(np.append(starts, len(points))).astype(np.float64)


def _matrix(points: npt.ArrayLike) -> Floats:
    matrix = np.asarray(points, np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"points: got an array of shape {matrix.shape}, expected (n, d)")
    return matrix


def _erf(x: Floats) -> Floats:
    try:
        from scipy.special import erf
    except ImportError:  # scipy is never needed on a device; this is slower, and the same to 1e-15
        return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)
    return np.asarray(erf(x), np.float64)
