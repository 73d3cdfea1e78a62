"""Minima of noisy objectives."""

from typing import Any

import numpy as np
import pytest

from hushsum import fitting
from tests.hushsum.paired_releases import Floats, paired_plan, regression_records, release_of


@pytest.mark.parametrize("dim", (1, 3, 41))
def test_the_minimum_of_a_smooth_objective_is_found(dim: int, rng: np.random.Generator) -> None:
    target = rng.uniform(-1, 1, dim)
    found = fitting.minimise(
        lambda x: np.cosh(x - target).sum(axis=1), np.zeros(dim), radius=3.0, steps=20, oversampling=4
    )
    assert np.abs(found - target).max() < 0.02


def test_a_noisy_objective_is_smoothed(rng: np.random.Generator) -> None:
    def noisy(x: Floats) -> Floats:
        return np.asarray(((x - 0.5) ** 2).sum(axis=1) + rng.normal(0, 0.05, len(x)))

    found = fitting.minimise(noisy, [0.0, 0.0], radius=1.0, seed=4, steps=4, oversampling=60)
    assert np.abs(found - 0.5).max() < 0.15


def test_no_point_beyond_the_limit_is_asked_for_and_one_call_is_made_a_step() -> None:
    asked: list[Floats] = []

    def falling(x: Floats) -> Floats:
        asked.append(x)
        return np.asarray(-x[:, 0] + 0 * x[:, 1])

    found = fitting.minimise(falling, [0.0, 0.0], radius=2.0, limit=1.0, steps=5)
    assert len(asked) == 5
    assert max(np.linalg.norm(points, axis=1).max() for points in asked) <= 1 + 1e-12
    assert found == pytest.approx([1, 0], abs=0.1)


def test_equal_seeds_give_equal_minima_and_others_others() -> None:
    def objective(x: Floats) -> Floats:
        return np.asarray(np.abs(x).sum(axis=1))

    runs = [fitting.minimise(objective, [1.0, 2], radius=1.0, seed=seed) for seed in (9, 9, 8)]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


BAD: tuple[dict[str, Any], ...] = (
    {"radius": 0.0},
    {"radius": float("nan")},
    {"steps": 0},
    {"oversampling": 1},
    {"start": [[0.0]]},
    {"start": [float("nan")]},
    {"start": [2.0], "limit": 1.0},
)


@pytest.mark.parametrize("wrong", BAD)
def test_arguments_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    keys: dict[str, Any] = {"start": [0.0], "radius": 1.0, **wrong}
    with pytest.raises(ValueError, match=r"expected|farther"):
        fitting.minimise(lambda x: x[:, 0], keys.pop("start"), **keys)


@pytest.mark.statistical
def test_answers_of_a_sketch_are_minimised(seed: int, rng: np.random.Generator) -> None:
    plan = paired_plan(rows=1500, radius=1, seed=seed % 2**53)
    release = release_of(plan, regression_records(rng, 1500))
    found = fitting.minimise(lambda theta: release.kernel_sum(theta).value, [0.0, 0.0], radius=1.0, limit=1.7, steps=4)
    assert np.abs(found - [0.5, -0.3]).max() < 0.6
