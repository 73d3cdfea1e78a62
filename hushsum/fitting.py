"""Linear models from released sketches of the paired family, and minima of answers: nothing here costs privacy.

:func:`fit_regression` and :func:`fit_margin` solve for θ from all counters at once
(:mod:`hushsum.families.paired.moments`). :func:`minimise` needs answers alone, for any objective, as RACE, section 4,
proposes; but the answers of one sketch share a hashing error that changes with θ.

Seen with power 4 and radius the median length, pure ε, unit record, columns standardised and clipped at 3: the share
of variance explained on airfoil (1,503 records, 6 columns; least squares 0.53), the accuracy on htru2 (17,898 records,
9 features and a one; least squares 0.972, logistic regression 0.980, always the commoner label 0.908).

======== ==== ========== ======= ====== ======== =========
data     R    form       exact   ε = 10 ε = 1    ε = 0.1
======== ==== ========== ======= ====== ======== =========
airfoil  30   inner      0.48    0.48   0.49     0.04
airfoil  100  inner      0.51    0.51   0.45     −0.02
airfoil  1000 inner      0.52    0.51   0.22     −0.06
airfoil  100  orthogonal 0.50    0.49   0.45     −0.01
htru2    100  inner      0.970   0.970  0.970    0.967
htru2    100  orthogonal 0.971   0.971  0.972    0.967
htru2    1000 inner      0.973   0.973  0.969    0.952
======== ==== ========== ======= ====== ======== =========

The least *answer* explains 0.30 of airfoil at R = 1000 without noise, and nothing below R = 100; the least exact loss
0.52 (inner) and less than the mean does (orthogonal, −2.8), hence the default form. A radius of the largest length
within the bounds makes 0.45 at ε = 1, R = 100 into 0.06. Columns that nearly depend on each other, as naval's, ask for
more than any of this: a ridge of a tenth of a column's variance leaves 0.09 of 0.84 there even without a sketch.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families.paired import Paired
from hushsum.families.paired.moments import Moments, moments
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.releases import Release

Float64 = npt.NDArray[np.float64]
#: Values (m,) at points (m, d).
Objective = Callable[[Float64], npt.ArrayLike]

_QUADRATIC_MAX: Final = 40  # coordinates, above which the model's second derivatives are a diagonal
_SHRINK: Final = 0.7
_FITS: Final = {"regression": "fit_regression", "margin": "fit_margin"}
_BISECTIONS: Final = 100


def fit_regression(release: Release) -> Float64:
    """The coefficients θ (d − 1,) of y ≈ θ·x by least squares on the sums Σ [x, y]·[x, y]ᵀ that a sketch holds.

    Directions of x in which those sums are no larger than their own error are shrunk, so that noise alone gives nearly
    0. With the ``inner`` form and no record longer than its radius this tends to least squares as rows are added; with
    the ``orthogonal`` form, to least squares of records divided by their lengths. Noise with δ = 0 grows with R: a few
    times as many equations, R·p(p − 1)/2, as d(d + 1)/2 sums is enough there.

    Args:
        release: Of the paired family with the regression loss; its classes are added.

    Raises:
        PlanError: The plan is of another family or loss.
        ValueError: There are too few rows for so many columns.
    """
    found = _moments(release, "regression")
    return _solve(found.second[:-1, :-1], found.second[:-1, -1], found.std_error)


def fit_margin(release: Release) -> Float64:
    """The coefficients θ (d − 1,) of a linear classifier, sign(θ·x), by least squares to the labels ±1.

    As :func:`fit_regression`, on the sums Σ x·xᵀ and Σ label·x that a sketch of the margin loss holds.

    Args:
        release: Of the paired family with the margin loss; its classes are added.

    Raises:
        PlanError: The plan is of another family or loss.
        ValueError: There are too few rows for so many columns.
    """
    found = _moments(release, "margin")
    assert found.first is not None, "a sketch of the margin loss holds it"
    return _solve(found.second, found.first, found.std_error)


def minimise(
    objective: Objective,
    start: npt.ArrayLike,
    *,
    radius: float,
    limit: float | None = None,
    seed: int = 0,
    steps: int = 12,
    oversampling: int = 4,
) -> Float64:
    """A point (d,) where a noisy objective is small, by a quadratic model fitted within a ball that shrinks.

    Each step draws points uniformly in a ball, fits a quadratic to their values by least squares, and moves the ball's
    centre to the model's minimum within it (Conn, Scheinberg and Vicente 2009, Introduction to Derivative-Free
    Optimization, chapters 4 and 10). A wide ball averages over errors that a finite difference would take for slopes.

    Args:
        objective: Values (m,) at points (m, d), called once a step.
        start: (d,), the first centre.
        radius: Of the first ball, above 0; each next one is 0.7 of it.
        limit: No point asked for is farther than this from 0, such as √(norm_bound² − 1); None: anywhere.
        seed: Of the points, which are public draws: 0 to 2⁵³ − 1.
        steps: How many times, at least 1.
        oversampling: Points a coefficient of the model, at least 2.

    Raises:
        ValueError: An argument is out of its range, or the start is beyond the limit.
    """
    centre = np.array(start, np.float64)
    if centre.ndim != 1 or not len(centre) or not np.isfinite(centre).all():
        raise ValueError(f"start: got an array of shape {centre.shape}, expected (d,) finite numbers")
    if not (np.isfinite(radius) and radius > 0 and steps >= 1 and oversampling >= 2):
        raise ValueError("expected a radius above 0, at least one step and an oversampling of at least 2")
    if limit is not None and not np.linalg.norm(centre) <= limit:
        raise ValueError(f"start: expected a distance from 0 of at most {limit:g}")
    stream = PublicStream(PublicSeed(seed), "fitting/minimise")
    first, second = _terms(len(centre))
    count = oversampling * (1 + len(centre) + len(first))
    for _ in range(steps):
        points = _within(centre + radius * _ball(stream, count, len(centre)), limit)
        offsets = (points - centre) / radius
        values = np.asarray(objective(points), np.float64)
        features = np.concatenate([np.ones((count, 1)), offsets, offsets[:, first] * offsets[:, second]], axis=1)
        solution = np.linalg.lstsq(features, values - values.mean(), rcond=None)[0]
        curvature = np.zeros((len(centre), len(centre)))
        curvature[first, second] = solution[1 + len(centre) :]
        step = _least_in_ball(solution[1 : 1 + len(centre)], curvature + curvature.T)
        centre = _within((centre + radius * step)[None], limit)[0]
        radius *= _SHRINK
    return centre


def _moments(release: Release, loss: str) -> Moments:
    family = release.plan.family
    if not isinstance(family, Paired):
        raise PlanError("sketch.family", family.name, "'paired'")
    if family.loss != loss:
        raise PlanError("sketch.loss", family.loss, f"{loss!r}; {_FITS[family.loss]} fits this release")
    return moments(family.tables, release.counters.sum(axis=0))


def _solve(matrix: Float64, vector: Float64, std_error: float) -> Float64:
    """A⁻¹b, no eigenvalue of A below the largest that a matrix of such errors alone would have (Wigner's 2σ√k)."""
    eigenvalues, basis = np.linalg.eigh(matrix)
    floor = 2.0 * std_error * np.sqrt(len(vector)) + np.finfo(np.float64).tiny
    return np.asarray(basis @ (basis.T @ vector / np.maximum(eigenvalues, floor)), np.float64)


def _terms(dim: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The pairs of coordinates whose products are terms of the model."""
    if dim > _QUADRATIC_MAX:
        return np.arange(dim), np.arange(dim)
    return np.triu_indices(dim)


def _ball(stream: PublicStream, count: int, dim: int) -> Float64:
    """(count, dim): uniform within the unit ball."""
    points = stream.normal(count * dim).reshape(count, dim)
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points / lengths * stream.uniform(count)[:, None] ** (1.0 / dim), np.float64)


def _within(points: Float64, limit: float | None) -> Float64:
    """The points, those beyond the limit pulled back to it."""
    if limit is None:
        return points
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points * np.minimum(1.0, limit / np.maximum(lengths, limit)), np.float64)


def _least_in_ball(gradient: Float64, curvature: Float64) -> Float64:
    """The least point of g·x + ½x·Hx within the unit ball (Nocedal and Wright 2006, section 4.3), by bisection."""
    eigenvalues, basis = np.linalg.eigh(curvature)
    turned = basis.T @ gradient
    length = float(np.linalg.norm(turned))
    if length == 0.0:
        return np.zeros(len(gradient))
    least = max(0.0, -float(eigenvalues[0]))
    low, high = least, least + length  # at high the step is no longer than 1
    if eigenvalues[0] > 0.0 and np.linalg.norm(turned / eigenvalues) <= 1.0:
        return np.asarray(-basis @ (turned / eigenvalues), np.float64)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        shifted = eigenvalues + middle
        if shifted[0] <= 0.0 or np.linalg.norm(turned / shifted) > 1.0:
            low = middle
        else:
            high = middle
    return np.asarray(-basis @ (turned / (eigenvalues + high)), np.float64)
