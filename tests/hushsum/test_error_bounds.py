"""Bounds against simulation of the mechanisms that they are about, against each other, and against wrong arguments."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushsum import error_bounds, kernels

Floats = npt.NDArray[np.float64]
POINTS = np.concatenate([np.linspace(0.0, 3.0, 25), np.full(15, 1.0)])
QUERY, WIDTH = 1.2, 1.5
KERNEL = kernels.euclidean(np.abs(POINTS - QUERY), WIDTH)
TRIALS = 3000


def race_sketches(rows: int, epsilon: float, rng: np.random.Generator) -> Floats:
    """(trials, rows) of the noisy counter at the query: real hashes, discrete Laplace noise for L1 sensitivity R."""
    a, b = rng.normal(size=(TRIALS, rows, 1)), rng.uniform(0, WIDTH, (TRIALS, rows, 1))
    same = np.floor((a * POINTS + b) / WIDTH) == np.floor((a * QUERY + b) / WIDTH)
    ratio = 1.0 - math.exp(-epsilon / rows)
    noise = rng.geometric(ratio, (TRIALS, rows)) - rng.geometric(ratio, (TRIALS, rows))
    return np.asarray(same.sum(axis=2) + noise, np.float64)


def waves(pairs: int, epsilon: float, rng: np.random.Generator) -> Floats:
    """(trials, pairs) of a density from cosines and sines, with Laplace noise for L1 sensitivity 2I/n."""
    omega = rng.normal(0.0, math.sqrt(2.0) / WIDTH, (TRIALS, pairs, 1))
    noise = rng.laplace(0.0, 2.0 * pairs / (epsilon * len(POINTS)), (2, TRIALS, pairs))
    exact = np.cos(omega * (POINTS - QUERY)).mean(axis=2)
    turn = omega[:, :, 0] * QUERY
    return np.asarray(exact + noise[0] * np.cos(turn) + noise[1] * np.sin(turn), np.float64)


def median_of_means(values: Floats, groups: int) -> Floats:
    size = values.shape[1] // groups
    means = values[:, : groups * size].reshape(len(values), groups, size).mean(axis=2)
    return np.asarray(np.median(means, axis=1), np.float64)


def most_failures(failure_probability: float) -> float:
    """Failures that a true bound exceeds once in a million runs of a test."""
    return float(stats.binom.isf(1e-6, TRIALS, failure_probability))


@pytest.mark.statistical
@pytest.mark.parametrize(("rows", "epsilon", "beta"), ((4, 2.0, 0.61), (24, 1.0, 0.05), (48, 20.0, 0.05)))
def test_a_simulated_race_sketch_keeps_to_its_bounds(
    rows: int, epsilon: float, beta: float, rng: np.random.Generator
) -> None:
    root_sum = float(np.sqrt(KERNEL).sum())
    values = race_sketches(rows, epsilon, rng)
    off = np.abs(median_of_means(values, error_bounds.groups_for(beta)) - KERNEL.sum())
    bound = float(error_bounds.race_error_bound(root_sum, rows, epsilon, beta))
    assert np.sum(off > bound) <= most_failures(beta)
    assert values.var() < root_sum**2 + 2 * (rows / epsilon) ** 2  # what the theorem takes the variance to be at most
    assert np.sum(off > bound / 40) > most_failures(beta), "a bound forty times smaller must be seen to fail"


@pytest.mark.parametrize("beta", (0.99, 0.5, 0.05, 1e-3, 1e-9))
def test_half_of_the_groups_are_off_at_once_as_rarely_as_was_asked(beta: float) -> None:
    def probability(groups: int) -> float:  # each with 1/4, by Chebyshev's inequality
        return float(stats.binom.sf(math.ceil(groups / 2) - 1, groups, 0.25))

    assert probability(error_bounds.groups_for(beta)) <= beta
    assert beta > 0.1 or probability(error_bounds.groups_for(beta) // 4) > beta, (
        "a quarter of the groups must be too few"
    )


@pytest.mark.statistical
@pytest.mark.parametrize("epsilon", (0.5, 1e6))
def test_simulated_lsq_pairs_keep_to_their_bound(epsilon: float, rng: np.random.Generator) -> None:
    pairs, beta = 48, 0.05
    density = float(kernels.gaussian(np.abs(POINTS - QUERY), WIDTH).mean())
    off = np.abs(median_of_means(waves(pairs, epsilon, rng), error_bounds.groups_for(beta)) - density)
    bound = error_bounds.lsq_error_bound(pairs, epsilon, len(POINTS), beta, sparsity=2, magnitude=1.0)
    assert np.sum(off > bound) <= most_failures(beta)
    assert np.sum(off > bound / 60) > most_failures(beta), "a bound sixty times smaller must be seen to fail"


def test_with_whole_groups_the_bounds_are_the_printed_formulas() -> None:
    beta = math.exp(-3.0 + 1e-12)  # 24 groups
    assert error_bounds.race_error_bound(100.0, 72, 0.5, beta) == pytest.approx(
        math.sqrt(100.0**2 / 72 + 2 * 72 / 0.5**2) * math.sqrt(32 * 3.0)
    )
    lsq = error_bounds.lsq_error_bound(120, 0.5, 1000, beta, sparsity=3, magnitude=2.0, approximation=0.01)
    assert lsq == pytest.approx(0.01 + math.sqrt(32 * 3.0 * (3**2 * 2**4 / 120 + 2 * 120 * 3**3 * 2**4 / 500**2)))
    log = math.log(1 / 0.05)
    assert error_bounds.race_best_error_bound(1000.0, 0.5, 0.05) == pytest.approx(16 * math.sqrt(1000.0 / 0.5 * log))
    relative = error_bounds.race_relative_error_bound([50.0, 100.0], [1000.0, 1000.0], 0.5, 0.05)
    assert relative == pytest.approx(16 * math.sqrt(1000.0 / 0.5 * log) / np.array([50.0, 100.0]))


@given(st.integers(1, 400), st.floats(1e-3, 0.99), st.floats(0.01, 100.0))
def test_bounds_hold_of_groups_that_are_not_whole(more: int, beta: float, epsilon: float) -> None:
    """Each is what Chebyshev and Hoeffding give of the groups that there are, never the smaller printed number."""
    groups = error_bounds.groups_for(beta)
    rows = groups + more
    per_row = 30.0**2 + 2 * (rows / epsilon) ** 2
    proved = 2 * math.sqrt(per_row / (rows // groups))
    assert float(error_bounds.race_error_bound(30.0, rows, epsilon, beta)) >= proved * (1 - 1e-12)
    wave = 4 * (1 + 4 * (rows / (epsilon * 100)) ** 2)  # sparsity 2, magnitude 1
    lsq = error_bounds.lsq_error_bound(rows, epsilon, 100, beta, sparsity=2, magnitude=1.0)
    assert lsq >= 2 * math.sqrt(wave / (rows // groups)) * (1 - 1e-12)


def test_one_row_of_a_hash_is_one_pair_of_lsq() -> None:
    lsq = error_bounds.lsq_error_bound(64, 0.5, 1000, 0.05, sparsity=1, magnitude=1.0)
    assert 1000 * lsq == pytest.approx(float(error_bounds.race_error_bound(1000.0, 64, 0.5, 0.05)))


def test_with_whole_groups_the_lemma_is_its_printed_form() -> None:
    beta = math.exp(-3.0 + 1e-12)  # 24 groups
    assert error_bounds.median_of_means_bound(7.0, 240, beta) == pytest.approx(math.sqrt(32 * 7.0 * 3.0 / 240))


@pytest.mark.parametrize(("beta", "groups"), ((0.999, 1), (0.61, 4), (0.05, 24), (0.01, 37), (1e-6, 111)))
def test_groups_are_eight_times_the_logarithm_rounded_up(beta: float, groups: int) -> None:
    assert error_bounds.groups_for(beta) == groups


@given(st.floats(0.0, 1e5), st.floats(1e-3, 10.0))
def test_the_optimal_rows_are_the_best_or_next_to_it(root_sum: float, epsilon: float) -> None:
    best = error_bounds.optimal_rows(root_sum, epsilon)
    rows = np.arange(1, best + 1000, dtype=np.float64)
    assert abs(best - (1 + int(np.argmin(root_sum**2 / rows + 2 * rows / epsilon**2)))) <= 1
    assert best - 1 <= root_sum * epsilon / math.sqrt(2) <= best * (1 + 1e-12)


@given(st.floats(0.001, 0.999), st.floats(1e-3, 10.0), st.floats(1.0, 1e3))
def test_the_theorem_at_the_optimal_rows_is_within_the_corollary(beta: float, epsilon: float, factor: float) -> None:
    least = max(math.sqrt(2) * (error_bounds.groups_for(beta) - 1), 4 - math.sqrt(14)) / epsilon
    root_sum = least * factor * (1 + 1e-9)
    rows = error_bounds.optimal_rows(root_sum, epsilon)
    best = error_bounds.race_best_error_bound(root_sum, epsilon, beta)
    assert error_bounds.race_error_bound(root_sum, rows, epsilon, beta) <= best * (1 + 1e-12)


def test_below_its_condition_the_corollary_would_be_false() -> None:
    root_sum, beta = 0.25, 0.9  # one group, one row, f̃·ε below 4 − √14
    theorem = error_bounds.race_error_bound(root_sum, error_bounds.optimal_rows(root_sum, 1.0), 1.0, beta)
    assert theorem > 16 * math.sqrt(root_sum * math.log(1 / beta))
    with pytest.raises(ValueError, match=r"root_kernel_sum: got 0\.25, expected above 0\.258"):
        error_bounds.race_best_error_bound(root_sum, 1.0, beta)


REFUSED: dict[str, Callable[[], object]] = {
    "failure_probability: got 0.0": lambda: error_bounds.groups_for(0.0),
    "failure_probability: got 1.0": lambda: error_bounds.race_error_bound(1.0, 100, 1.0, 1.0),
    "failure_probability: got nan": lambda: error_bounds.groups_for(math.nan),
    "epsilon: got 0": lambda: error_bounds.race_error_bound(1.0, 100, 0, 0.05),
    "epsilon: got inf": lambda: error_bounds.optimal_rows(1.0, math.inf),
    "rows: got 23, expected an integer from 24": lambda: error_bounds.race_error_bound(1.0, 23, 1.0, 0.05),
    "rows: got 24.5": lambda: error_bounds.median_of_means_bound(1.0, 24.5, 0.05),  # type: ignore[arg-type]  # the wrong type
    "variance: got -1.0": lambda: error_bounds.median_of_means_bound([1.0, -1.0], 100, 0.05),
    "root_kernel_sum: got nan": lambda: error_bounds.race_error_bound(math.nan, 100, 1.0, 0.05),
    "root_kernel_sum: got -2.0": lambda: error_bounds.optimal_rows(-2.0, 1.0),
    "less than the 24 groups": lambda: error_bounds.race_best_error_bound([1e4, 10.0], 1.0, 0.05),
    "kernel_sum: expected above 0": lambda: error_bounds.race_relative_error_bound(0.0, 1e4, 1.0, 0.05),
    "at most root_kernel_sum": lambda: error_bounds.race_relative_error_bound(2e4, 1e4, 1.0, 0.05),
    "pairs: got 5": lambda: error_bounds.lsq_error_bound(5, 1.0, 100, 0.05, sparsity=2, magnitude=1.0),
    "sparsity, records: got 0, 100": lambda: error_bounds.lsq_error_bound(
        50, 1.0, 100, 0.05, sparsity=0, magnitude=1.0
    ),
    "magnitude: got -1.0": lambda: error_bounds.lsq_error_bound(50, 1.0, 100, 0.05, sparsity=1, magnitude=-1.0),
    "approximation: got -1.0": lambda: error_bounds.lsq_error_bound(
        50, 1.0, 100, 0.05, sparsity=1, magnitude=1.0, approximation=-1.0
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_arguments_out_of_range_are_refused_by_name(what: str) -> None:
    with pytest.raises(ValueError, match=what):
        REFUSED[what]()
