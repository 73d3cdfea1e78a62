"""The density estimator: what it integrates to, its intervals, and where noise leaves nothing of it."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

import hushsum as hs
from hushsum.estimators import KernelDensity
from hushsum.estimators.density import kernel_log_integral
from hushsum.parameters import digest
from hushsum.plan import Plan
from tests.plans import set_plan, small_plan, tables

Floats = npt.NDArray[np.float64]
NO_HASH: dict[str, Any] = {"kernel": ..., "buckets": ..., "rows": ..., "seed": ...}
SCALED: dict[str, Any] = {"transforms": [{"kind": "scale", "factor": [2, 0.5]}]}
MATRIX = np.array([[1.0, 0.5], [-0.25, 2.0]], np.float32)

#: Sketches whose kernel integrates in closed form, the last three under transforms.
NORMALISED: tuple[dict[str, Any], ...] = (
    {"family": "fourier", "kernel": "gaussian", "buckets": ...},
    {"family": "fourier", "kernel": "laplacian", "buckets": ...},
    {"family": "fourier", "kernel": "cauchy", "buckets": ..., "bandwidth": 0.3},
    {"family": "fourier", "kernel": "exponential-p", "exponent": "1.5", "buckets": ...},
    {"family": "hashed", "kernel": "laplacian", "power": 2},
    {**NO_HASH, "family": "hermite", "kernel": "gaussian", "order": 6},
    {"family": "fourier", "kernel": "gaussian", "buckets": ..., **SCALED},
    {"family": "hashed", "kernel": "laplacian", **SCALED},
)


def plan_of(sketch: dict[str, Any]) -> Plan:
    return small_plan(sketch={"bandwidth": 1, **sketch})


@pytest.mark.parametrize(
    "sketch", NORMALISED, ids=lambda sketch: f"{sketch['kernel']}{'-scaled' * ('transforms' in sketch)}"
)
def test_the_integral_of_the_kernel_is_that_of_a_fine_grid(sketch: dict[str, Any]) -> None:
    plan = plan_of(sketch)
    reach, cells = (400, 4001) if sketch["kernel"] == "cauchy" else (25, 501)
    axis = np.linspace(-reach, reach, cells)
    side = axis[1] - axis[0]
    if sketch["kernel"] == "cauchy":  # a product, of long tails: one axis, squared
        along = plan.family.kernel(np.array([[5.0, 5.0]]), 5 + np.column_stack([axis, np.zeros(cells)]))
        total = float(along.sum() * side) ** 2
    else:
        points = 5 + np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        total = float(plan.family.kernel(np.array([[5.0, 5.0]]), points).sum()) * side**2
    found = kernel_log_integral(plan)
    assert found is not None
    assert math.exp(found) == pytest.approx(total, rel=0.01)


def test_a_linear_transform_divides_by_its_determinant() -> None:
    def mapped(matrix: npt.NDArray[np.float32]) -> Plan:
        steps = [{"kind": "linear", "matrix": digest(matrix)}]
        sketch = {"family": "fourier", "kernel": "gaussian", "bandwidth": 1, "buckets": ..., "transforms": steps}
        return Plan.from_fields(tables(sketch=sketch), [matrix])

    determinant = np.linalg.det(MATRIX.astype(np.float64))
    assert kernel_log_integral(mapped(MATRIX)) == pytest.approx(math.log(math.pi / determinant))
    assert kernel_log_integral(mapped(np.array([[1.0, 0.5]], np.float32))) is None


@pytest.mark.parametrize(
    "sketch",
    (
        {},
        {"kernel": "angular", "bandwidth": ...},
        {"family": "partition", "cells": "lsh", "kernel": ...},
        {"family": "fourier", "kernel": "gaussian", "buckets": ..., "transforms": [{"kind": "unit-norm"}]},
    ),
)
def test_other_kernels_are_not_normalised(sketch: dict[str, Any]) -> None:
    plan = plan_of(sketch)
    model = KernelDensity.from_release(hs.release(hs.Sketch(plan)))
    assert not model.normalised_
    points = np.array([[5.0, 5.0], [2.0, 7.0]])
    assert np.array_equal(model.density_(points).value, model.release_.density(points).value)


@pytest.mark.statistical
def test_the_density_is_that_of_the_smoothed_records(rng: np.random.Generator) -> None:
    records, x = rng.normal(5, 1, 50_000), np.linspace(2, 8, 25)[:, None]
    sketch = {**NO_HASH, "family": "hermite", "kernel": "gaussian", "order": 6, "bandwidth": "0.4"}
    plan = small_plan(record={"dim": 1, "lower": [0], "upper": [10]}, sketch=sketch)
    model = KernelDensity(plan=plan).fit(records[:, None])
    # 50,000 draws have a density within 6 of its standard errors, about 0.002 each, and noise of ε = 1 is smaller yet.
    smoothed = norm.pdf(x[:, 0], 5, math.hypot(1, 0.4 / math.sqrt(2)))
    answer = model.density_(x)
    assert np.abs(answer.value - smoothed).max() < 0.02
    assert np.abs(np.exp(model.score_samples(x)) - smoothed).max() < 0.02
    assert model.score(x) == pytest.approx(model.score_samples(x).sum())
    low, high = answer.interval()
    assert (low < answer.value).all()
    assert (answer.value < high).all()


@pytest.mark.statistical
def test_the_density_of_cells_integrates_to_1_within_the_bounds(rng: np.random.Generator) -> None:
    cells = {"family": "partition", "kernel": ..., "bandwidth": 3, "rows": 1, "buckets": 16, **SCALED}
    plan = small_plan(sketch=cells, privacy={"epsilon": 50, "total_epsilon": 50})
    model = KernelDensity(plan=plan).fit(rng.uniform(0, 10, (2000, 2)))
    middles = np.linspace(0, 10, 101)[:-1] + 0.05
    points = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2)
    assert model.normalised_
    total = model.density_(points).value.sum() * 0.01
    # Of 16 cells and the count, each off by noise of about 0.03 records in 2,000; the grid cuts cells within 1 %.
    assert total == pytest.approx(1, abs=0.03)
    outside = model.density_([[11.0, 5.0]])
    assert abs(outside.value[0]) <= 1e-12
    assert np.isfinite(model.score_samples([[11.0, 5.0]])).all()


@pytest.mark.statistical
def test_a_density_that_noise_makes_negative_has_the_logarithm_of_the_floor() -> None:
    model = KernelDensity(epsilon=0.1, bounds=(0, 10), records=1000).fit(np.full((1, 2), 5.0))
    axis = np.linspace(0, 10, 30)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    kernel = model.release_.density(points).value
    scores = model.score_samples(points)
    assert (kernel < 0).any(), "noise of one record at ε = 0.1 is above it at 900 points"
    least = scores.min()
    assert np.isfinite(scores).all()
    assert np.array_equal(scores == least, kernel <= model.floor_)
    assert (np.diff(scores[np.argsort(kernel)]) >= 0).all(), "the order is kept"


def test_a_release_of_sets_is_refused() -> None:
    with pytest.raises(hs.PlanError, match=r"record.kind: got 'set', expected 'vector'"):
        KernelDensity.from_release(hs.release(hs.Sketch(set_plan())))


def test_where_there_are_fewer_records_than_noise_the_floor_is_the_largest_mean_kernel() -> None:
    sketch = hs.Sketch(plan_of({}))
    release = next(made for made in (hs.release(sketch) for _ in range(60)) if made.count < 1)  # half of them
    model = KernelDensity.from_release(release)
    assert model.floor_ == 1.0
    assert np.isfinite(model.score_samples([[5.0, 5.0]])).all()
