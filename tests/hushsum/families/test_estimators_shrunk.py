"""Shrunk answers: what they do to single sums, to many, and which threshold they take."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families import Answer

Floats = npt.NDArray[np.float64]


def estimates(truth: Floats, std_error: Floats, rng: np.random.Generator) -> Answer:
    return Answer(truth + rng.normal(0, 1, len(truth)) * std_error, std_error)


def by_search(answer: Answer) -> Floats:
    """The definition, tried at every threshold."""
    z, squares = answer.value / answer.std_error, np.square(answer.std_error)
    tried = [0.0, *(t for t in z if 0 < t <= math.sqrt(2 * math.log(len(z))))]
    risks = [float((np.where(z <= t, z * z - 1, 1 + t * t) * squares).sum()) for t in tried]
    best = int(np.argmin(risks))
    t = tried[best] if risks[best] < risks[0] / 2 else 0.0
    return np.asarray(np.maximum(answer.value - t * answer.std_error, 0.0))


@pytest.mark.parametrize("full", (0, 3, 30, 100))
def test_the_threshold_minimises_steins_estimate_of_the_risk(full: int, rng: np.random.Generator) -> None:
    truth = np.where(np.arange(100) < full, rng.exponential(30, 100), 0.0)
    answer = estimates(truth, rng.uniform(1, 3, 100), rng)
    assert np.allclose(answer.shrunk(), by_search(answer))


@pytest.mark.statistical
def test_where_most_sums_are_0_the_error_halves_and_where_none_is_it_stays(rng: np.random.Generator) -> None:
    """Of 20,000 sums: in theory 0.3 and 1.0 of the root mean square error; false alarm far below 1e-6."""
    noise = np.full(20_000, 2.0)
    for truth, most in ((np.where(rng.random(20_000) < 0.02, 100.0, 0.0), 0.5), (rng.uniform(50, 90, 20_000), 1.0)):
        answer = estimates(truth, noise, rng)
        before, after = (np.square(values - truth).mean() for values in (answer.value, answer.shrunk()))
        assert math.sqrt(after / before) <= most


@pytest.mark.parametrize("unknown", (math.nan, 0.0))
def test_few_answers_and_those_without_an_error_are_cut_at_0_alone(unknown: float, rng: np.random.Generator) -> None:
    few = estimates(np.zeros(29), np.ones(29), rng)
    assert np.array_equal(few.shrunk(), np.maximum(few.value, 0))
    many = estimates(np.zeros(100), np.where(np.arange(100) < 50, unknown, 1.0), rng)
    assert np.array_equal(many.shrunk()[:50], np.maximum(many.value[:50], 0), equal_nan=True)
    assert (many.shrunk()[50:] < np.maximum(many.value[50:], 0)).any()
    assert len(Answer(np.empty(0), np.empty(0)).shrunk()) == 0


def test_the_order_of_the_answers_does_not_matter_and_they_stay_as_they_were(rng: np.random.Generator) -> None:
    answer = estimates(np.where(np.arange(300) < 20, 40.0, 0.0), np.ones(300), rng)
    value, order = answer.value.copy(), rng.permutation(300)
    turned = Answer(answer.value[order], answer.std_error[order])
    assert np.allclose(turned.shrunk(), answer.shrunk()[order])
    assert np.array_equal(answer.value, value)
    middle = (answer.interval().low + answer.interval().high) / 2
    assert np.allclose(middle, value)
