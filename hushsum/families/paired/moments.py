"""Sums of x·xᵀ and of label·x, read off a paired sketch by least squares: no private bit is spent.

For a random direction a, E[sign(a·z)·a] = √(2/π)·z/‖z‖. So for two parts k ≠ l of a row, Σ sign(a_k·z)·sign(a_l·z) over
all records, which the row's counters hold, is on average (2/π)·a_kᵀ(Σ u·uᵀ)a_l as the best linear predictor, where u is
the record as it is hashed, of length 1; the inner form has z/radius for u, but for lengths beyond the radius. Every row
gives p(p − 1)/2 such equations of known coefficients. Their solution uses all counters at once, where an answer at one
θ reads one counter a row, and a minimum among answers is known only as well as their differences.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushsum.families.paired.rows import PairedRows

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Estimates, in records, of sums over all records.

    Attributes:
        second: (k, k): Σ u·uᵀ, u the record [x, y], or x with the margin loss. The orthogonal form takes u/‖u‖ for u,
            the inner form shortens u to the radius.
        first: (k,): Σ label·x of the margin loss; None with the regression loss.
        std_error: Of an entry of ``second``, hashing error and noise together.
    """

    second: Float64
    first: Float64 | None
    std_error: float


def moments(rows: PairedRows, counters: npt.NDArray[np.int64]) -> Moments:
    """Solves the equations of all rows.

    Args:
        rows: Of the family.
        counters: (R, W), noised.

    Raises:
        ValueError: There are fewer than twice as many equations as unknowns.
    """
    refuse_few_rows(rows)
    directions, signs, k = rows.directions.astype(np.float64), rows.signs(), rows.lift.features
    power, unknowns = signs.shape[1], k * (k + 1) // 2
    equations = len(directions) * power * (power - 1) // 2
    upper = np.triu_indices(k)
    matrix, target = np.empty((equations, unknowns)), np.empty(equations)
    pairs = [(i, j) for i in range(power) for j in range(i)]
    for number, (i, j) in enumerate(pairs):
        some = slice(number * len(directions), (number + 1) * len(directions))
        left, right = directions[:, i], directions[:, j]
        products = left[:, upper[0]] * right[:, upper[1]]
        matrix[some] = products + np.where(upper[0] == upper[1], 0.0, left[:, upper[1]] * right[:, upper[0]])
        target[some] = counters @ (signs[:, i] * signs[:, j])
    # The normal equations: a matrix of products of normal draws, twice as high as wide, is nowhere near singular.
    solution = np.linalg.solve(matrix.T @ matrix, matrix.T @ target)
    residual = target - matrix @ solution
    scale = rows.lift.radius**2 if rows.lift.inner else 1.0
    second = np.zeros((k, k))
    second[upper] = solution
    second += np.triu(second, 1).T
    error = math.sqrt(float(residual @ residual) / (equations - unknowns) / equations)
    factor = math.pi / 2 * scale
    return Moments(second * factor, _first(rows, counters, directions, signs), error * factor)


def refuse_few_rows(rows: PairedRows) -> None:
    """Refuses a sketch whose equations do not determine the sums.

    Raises:
        ValueError: There are fewer than twice as many equations as unknowns.
    """
    k, power = rows.lift.features, rows.signs().shape[1]
    equations, unknowns = power * (power - 1) // 2, k * (k + 1) // 2
    if len(rows.directions) * equations < 2 * unknowns:
        least = -(-2 * unknowns // equations)
        raise ValueError(f"rows: {len(rows.directions)} are too few for {k} columns, expected at least {least}")


def _first(
    rows: PairedRows, counters: npt.NDArray[np.int64], directions: Float64, signs: npt.NDArray[np.int64]
) -> Float64 | None:
    if rows.folded:
        return None  # a code and its complement are counted together
    target = (counters @ signs).reshape(-1).astype(np.float64)
    solution = np.linalg.lstsq(directions.reshape(len(target), -1), target, rcond=None)[0]
    scale = rows.lift.radius if rows.lift.inner else 1.0
    return np.asarray(solution * math.sqrt(math.pi / 2) * scale, np.float64)
