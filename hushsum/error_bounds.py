"""Error bounds that the papers prove before any data is seen, as functions; and the number of rows that they favour.

All are for the **median of means** of **independent** rows or pairs, one query at a time: rows from Sobol sets or with
orthogonal directions are not independent, and nothing here holds for them. They are loose (real errors are often ten
times smaller): the error bars of an answer come from its rows, not from here.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SMALLEST_PRODUCT: Final = 4.0 - math.sqrt(14.0)  # of f̃·ε for which Corollary 3.5 is true, see there


def groups_for(failure_probability: float) -> int:
    """The groups of a median of means that fails with at most this probability: ⌈8 ln(1/β)⌉ (RACE, Lemma 3.3).

    A group's mean is off by more than twice its standard deviation with probability at most 1/4 (Chebyshev); half of k
    groups are with probability at most e^{−k/8} (Hoeffding).

    Raises:
        ValueError: β is not between 0 and 1.
    """
    return max(1, math.ceil(8.0 * _log_inverse(failure_probability)))


def median_of_means_bound(variance: npt.ArrayLike, rows: int, failure_probability: float) -> Floats:
    """How far a median of means may be off: 2·√(variance/⌊R/k⌋), k = groups_for(β), with probability 1 − β.

    RACE, Lemma 3.3, without its simplification that 8 ln(1/β) and R/k are whole; where they are, this is the
    printed √(32·variance·ln(1/β)/R).

    Args:
        variance: Of one of the independent rows, ≥ 0, any shape.
        rows: R, at least ``groups_for(failure_probability)``.
        failure_probability: β, between 0 and 1.

    Returns:
        float64 of the shape of ``variance``.

    Raises:
        ValueError: An argument is out of range.
    """
    groups = groups_for(failure_probability)
    _refuse_few(rows, groups)
    return np.asarray(2.0 * np.sqrt(_nonnegative("variance", variance) / (rows // groups)), np.float64)


def race_error_bound(root_kernel_sum: npt.ArrayLike, rows: int, epsilon: float, failure_probability: float) -> Floats:
    """|f̂ − f| ≤ 2·√((f̃² + 2R²/ε²)/⌊R/k⌋), k = ``groups_for(β)``, with probability 1 − β: RACE, Theorem 3.4.

    Of a kernel sum f = Σ k(x, q) from the hashed family under pure ε, with R independent rows, no rehash of codes into
    buckets, and k groups. It is :func:`median_of_means_bound` of a row's variance. The theorem prints
    √(f̃²/R + 2R/ε²)·√(32 ln(1/β)): the same where 8 ln(1/β) and R/k are whole, and less than what its proof gives
    where they are not, by up to √2 for each. Discrete Laplace noise has a variance below the 2R²/ε² of the theorem's
    Laplace noise.

    Args:
        root_kernel_sum: f̃ = Σ √k(x, q) ≥ 0, any shape; the number of records where nothing is known.
        rows: R, at least ``groups_for(failure_probability)``.
        epsilon: What the rows' counters take of ε, above 0. Where a client with m records is protected: ε/m.
        failure_probability: β, between 0 and 1.

    Returns:
        float64 of the shape of ``root_kernel_sum``.

    Raises:
        ValueError: An argument is out of range.
    """
    roots = _nonnegative("root_kernel_sum", root_kernel_sum)
    _refuse_few(rows, groups_for(failure_probability))
    variance = np.square(roots) + 2.0 * (rows / _above_zero("epsilon", epsilon)) ** 2
    return median_of_means_bound(variance, rows, failure_probability)


def optimal_rows(root_kernel_sum: float, epsilon: float) -> int:
    """R* = ⌈f̃·ε/√2⌉, at least 1: the rows that make Theorem 3.4 smallest (RACE, Corollary 3.5), up to one.

    Only for pure ε, where noise grows with the rows; at δ > 0 it does not, and more rows are always better. It depends
    on the data through f̃: choose it from a public guess.

    Args:
        root_kernel_sum: f̃ = Σ √k(x, q) ≥ 0.
        epsilon: As for :func:`race_error_bound`.

    Raises:
        ValueError: An argument is out of range.
    """
    root = float(_nonnegative("root_kernel_sum", root_kernel_sum))
    return max(1, math.ceil(root * _above_zero("epsilon", epsilon) / math.sqrt(2.0)))


def race_best_error_bound(root_kernel_sum: npt.ArrayLike, epsilon: float, failure_probability: float) -> Floats:
    """|f̂ − f| ≤ 16·√(f̃ ln(1/β)/ε) with probability 1 − β, from ``optimal_rows(f̃, ε)`` rows: RACE, Corollary 3.5.

    Theorem 3.4 at R = f̃·ε/√2 is 9.51·√(f̃ ln(1/β)/ε); the rest of the 16 is for rounding R up, and is enough if
    f̃·ε ≥ 4 − √14 = 0.26, and for whole groups, if ln(1/β) is at least 1/8 and a ninth of their number k. The paper
    states neither: a row for each group implies the first, and these take the place of a smaller ln(1/β), which only
    β > 0.41 has.

    Args:
        root_kernel_sum: As for :func:`race_error_bound`, so large that R* ≥ ``groups_for(failure_probability)``.
        epsilon: As for :func:`race_error_bound`.
        failure_probability: β, between 0 and 1.

    Returns:
        float64 of the shape of ``root_kernel_sum``.

    Raises:
        ValueError: An argument is out of range.
    """
    roots, epsilon = _nonnegative("root_kernel_sum", root_kernel_sum), _above_zero("epsilon", epsilon)
    groups = groups_for(failure_probability)
    least = max(_SMALLEST_PRODUCT, math.sqrt(2.0) * (groups - 1)) / epsilon
    if not np.all(roots > least):
        raise ValueError(
            f"root_kernel_sum: got {float(roots.min())}, expected above {least:.6g}: "
            f"below, the best number of rows is less than the {groups} groups of the median of means"
        )
    log = max(_log_inverse(failure_probability), groups / 9, 1 / 8)
    return np.asarray(16.0 * np.sqrt(roots * log / epsilon), np.float64)


def race_relative_error_bound(
    kernel_sum: npt.ArrayLike, root_kernel_sum: npt.ArrayLike, epsilon: float, failure_probability: float
) -> Floats:
    """|f̂ − f|/f ≤ 16·√(f̃ ln(1/β)/ε)/f with probability 1 − β: Corollary 3.5 divided by f (RACE, section 3.3).

    Args:
        kernel_sum: f = Σ k(x, q), above 0 and at most f̃, any shape.
        root_kernel_sum: As for :func:`race_best_error_bound`, of the same shape.
        epsilon: As for :func:`race_error_bound`.
        failure_probability: β, between 0 and 1.

    Returns:
        float64 of the same shape; 0.1 is ten per cent.

    Raises:
        ValueError: An argument is out of range.
    """
    sums = _nonnegative("kernel_sum", kernel_sum)
    if not np.all((sums > 0.0) & (sums <= np.asarray(root_kernel_sum, np.float64))):
        raise ValueError("kernel_sum: expected above 0, and at most root_kernel_sum (k ≤ √k)")
    return np.asarray(race_best_error_bound(root_kernel_sum, epsilon, failure_probability) / sums, np.float64)


def lsq_error_bound(
    pairs: int,
    epsilon: float,
    records: int,
    failure_probability: float,
    *,
    sparsity: int,
    magnitude: float,
    approximation: float = 0.0,
) -> float:
    """How far a density f̂/n from I independent LSQ pairs may be off, with probability 1 − η: LSQ, Lemma 2.5.

    α + 2·√((S²B⁴ + 2·I²·S³B⁴/(ε·n)²)/⌊I/k⌋), with k = ``groups_for(η)`` groups. Lemma 2.5 prints
    α + O(αSB² + S^{1.5}B² ln(1/η)/(α·ε·n)) for I = Θ(ln(1/η)/α²) pairs; this is the same with its constants: one pair's
    answer is within ±S·B², its noise has variance at most S·B²·2(I·B·S/(ε·n))² (its appendix A), and RACE, Lemma 3.3,
    with whole groups (:func:`median_of_means_bound`) takes the place of the proof's separate Hoeffding and Chebyshev
    steps, whose constants are larger.

    Args:
        pairs: I, at least ``groups_for(failure_probability)``.
        epsilon: What the pairs' counters take of a pure ε, above 0.
        records: n, above 0.
        failure_probability: η, between 0 and 1.
        sparsity: S, most entries of f(x) and of g(q) that are not 0: 1 hashed, 2 fourier (cosine and sine).
        magnitude: B, greatest absolute entry of f(x) and of g(q): 1 for both. The paper's R.
        approximation: α, greatest |E[f(x)·g(q)] − k(x, q)|: 0 for both.

    Returns:
        The bound on |f̂/n − f/n|; times n, that on the kernel sum.

    Raises:
        ValueError: An argument is out of range.
    """
    _refuse_few(pairs, groups_for(failure_probability), "pairs")
    if sparsity < 1 or records < 1:
        raise ValueError(f"sparsity, records: got {sparsity}, {records}, expected at least 1")
    spread = sparsity * _above_zero("magnitude", magnitude) ** 2
    noise = 2.0 * sparsity * (pairs / (_above_zero("epsilon", epsilon) * records)) ** 2
    variance = spread * spread * (1.0 + noise)
    bias = float(_nonnegative("approximation", approximation))
    return bias + float(median_of_means_bound(variance, pairs, failure_probability))


def _log_inverse(failure_probability: float) -> float:
    if not 0.0 < failure_probability < 1.0:
        raise ValueError(f"failure_probability: got {failure_probability}, expected a number between 0 and 1")
    return -math.log(failure_probability)


def _above_zero(name: str, value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name}: got {value}, expected a finite number above 0")
    return float(value)


def _nonnegative(name: str, values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    wrong = array[~((array >= 0.0) & (array < math.inf))]
    if wrong.size:
        raise ValueError(f"{name}: got {float(wrong.flat[0])}, expected a finite number from 0")
    return array


def _refuse_few(rows: int, groups: int, name: str = "rows") -> None:
    if rows != int(rows) or rows < groups:
        raise ValueError(f"{name}: got {rows}, expected an integer from {groups}, one for each group of the median")
