"""Exact kernel sums over many records, in bounded memory."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hushsum.kernels.distances import matrix
from hushsum.kernels.sets import Sets, checked, merge_equal_sets, take_sets

Floats = npt.NDArray[np.float64]
#: k(x, y): (n, d) and (m, d) to (n, m).
Kernel = Callable[[Floats, Floats], npt.NDArray[np.float64]]
#: The same of n sets and m sets.
SetKernel = Callable[[Sets, Sets], npt.NDArray[np.float64]]


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
    points, weights = merge_equal(matrix(records))
    return weighted_kernel_sums(kernel, points, weights, matrix(queries), block_pairs=block_pairs)


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


def set_kernel_sums(kernel: SetKernel, records: Sets, queries: Sets, *, block_pairs: int = 1 << 20) -> Floats:
    """Σ_x k(x, q) over all records that are sets: :func:`kernel_sums` for (starts, ids).

    Args:
        kernel: k of n sets and m sets as (n, m), such as :func:`~hushsum.kernels.jaccard`.
        records: n sets.
        queries: m sets.
        block_pairs: Greatest number of pairs evaluated at once.

    Returns:
        (m,) float64.

    Raises:
        ValueError: Starts or ids do not describe sets.
    """
    points, weights = merge_equal_sets(records)
    queries = checked(queries)
    m = len(queries[0]) - 1
    sums = np.zeros(m)
    width = min(m, max(1, block_pairs // 64))
    height = max(1, block_pairs // max(1, width))
    for first in range(0, m, max(1, width)):
        last = min(first + width, m)
        some = take_sets(queries, first, last)
        for start in range(0, len(weights), height):
            stop = min(start + height, len(weights))
            sums[first:last] += weights[start:stop] @ kernel(take_sets(points, start, stop), some)
    return sums


def merge_equal(points: Floats) -> tuple[Floats, Floats]:
    """Different points (k, d) and how often each occurs (k,), in an order that depends on the points (n, d) alone."""
    if len(points) < 2:
        return points, np.ones(len(points))
    order = np.lexsort(points.T[::-1])
    points = points[order]
    new = np.concatenate([[True], np.any(points[1:] != points[:-1], axis=1)])
    starts = np.flatnonzero(new)
    return points[starts], np.diff(np.append(starts, len(points))).astype(np.float64)
