"""The expected error of a release is the one that is measured."""

import numpy as np
import pytest

import hushsum as hs
from simulator.accuracy import measure
from simulator.exact import ExactSums
from tests.plans import small_plan


def told(_: int) -> None:
    """A bar that nobody looks at."""


@pytest.mark.statistical
@pytest.mark.usefixtures("repeatable_noise")
@pytest.mark.parametrize("epsilon", ("0.5", "50"), ids=("mostly noise", "mostly hashing"))
def test_the_mean_error_over_many_plans_is_the_expected_one(rng: np.random.Generator, epsilon: str) -> None:
    """The ratio has a standard deviation of 0.045 (of 12 repetitions): 0.3 is more than six of them."""
    records, queries = rng.uniform(0, 10, (400, 2)), rng.uniform(0, 10, (40, 2))
    measured, expected = [], []
    for draw in range(80):
        plan = small_plan(sketch={"seed": draw}, privacy={"epsilon": epsilon})
        bulk = hs.Sketch(plan)
        bulk.add(records)
        truth = ExactSums(plan, records).at(queries, told)
        accuracy = measure(hs.release(bulk), bulk, queries, truth)
        assert accuracy.mean_relative is not None
        assert accuracy.expected_relative is not None
        measured.append(accuracy.mean_relative)
        expected.append(accuracy.expected_relative)
    assert np.mean(measured) / np.mean(expected) == pytest.approx(1, abs=0.3)


def test_queries_below_the_floor_do_not_count() -> None:
    plan = small_plan()
    bulk = hs.Sketch(plan)
    bulk.add(np.full((2000, 2), 5.0))
    queries = np.array([[5.0, 5], [5, 5], [0, 0]])
    accuracy = measure(hs.release(bulk), bulk, queries, np.array([2000.0, 2000.0, 1.9]))
    assert accuracy.queries == 2
    assert accuracy.floor == 2.0
    assert accuracy.mean_kernel_sum == 2000.0


def test_one_row_alone_does_not_show_what_error_to_expect() -> None:
    bulk = hs.Sketch(small_plan(sketch={"rows": 1}))
    bulk.add(np.full((2000, 2), 5.0))
    accuracy = measure(hs.release(bulk), bulk, np.full((1, 2), 5.0), np.array([2000.0]))
    assert accuracy.mean_relative is not None
    assert accuracy.expected_relative is None


def test_without_a_query_above_the_floor_there_is_no_error() -> None:
    plan = small_plan()
    bulk = hs.Sketch(plan)
    bulk.add(np.full((2000, 2), 5.0))
    accuracy = measure(hs.release(bulk), bulk, np.zeros((1, 2)), np.zeros(1))
    assert accuracy.mean_relative is None
    assert accuracy.expected_relative is None
