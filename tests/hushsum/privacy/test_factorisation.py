"""Factorisations of prefix sums: what they charge is exact or above, and what they err by is what is documented."""

import math
import sys
from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.errors import PlanError
from hushsum.privacy.buffer_table import BUFFERS
from hushsum.privacy.factorisation import (
    UNIT,
    BufferedToeplitz,
    Cumulation,
    Node,
    SignedDigitTree,
    buffers_for,
    factorisation_from_table,
    tree_for,
    worst_nodes,
)
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]


def dense(made: BufferedToeplitz, steps: int) -> Floats:
    """C, from its definition."""
    theta, omega = np.array(made.theta) / UNIT, np.array(made.omega) / UNIT
    column = np.array([1.0] + [float((omega * theta ** (j - 1)).sum()) for j in range(1, steps)])
    found = np.zeros((steps, steps))
    for start in range(steps):
        found[start:, start] = column[: steps - start]
    return found


def test_the_worst_step_errs_by_the_documented_constants() -> None:
    steps = 10**4
    assert buffers_for(steps, 31).worst_error(steps) == pytest.approx(4.03, rel=0.01)
    assert SignedDigitTree((1, 11, 121, 1573)).worst_error(steps) == pytest.approx(18.76, rel=1e-3)
    assert SignedDigitTree((1, 29, 841)).worst_error(steps) == pytest.approx(18.97, rel=1e-3)
    assert SignedDigitTree((1, 13, 169, 2197)).worst_error(steps) == pytest.approx(19.2, rel=1e-2)
    assert tree_for(steps).worst_error(steps) <= 18.762


def test_the_mean_step_of_buffers_errs_by_the_documented_constant() -> None:
    made, steps = buffers_for(10**4, 31), 10**4
    norm = math.sqrt(made.squared_norm(steps, 1))
    sampled = [norm * math.sqrt(made.covariance(step, step)) for step in range(1, steps + 1, 50)]
    assert np.mean(sampled) == pytest.approx(3.86, rel=0.02)


@pytest.mark.parametrize(("windows", "factor"), [(2, 1.92), (10, 8.8), (100, 77)])
def test_units_in_several_windows_cost_the_documented_factors(windows: int, factor: float) -> None:
    made = buffers_for(10**4, 31)
    ratio = math.sqrt(made.squared_norm(10**4, windows) / made.squared_norm(10**4, 1))
    assert ratio == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_norms_are_upper_bounds_within_a_billionth(steps: int) -> None:
    made = buffers_for(steps, 24)
    columns = dense(made, steps)
    for windows in {1, min(2, steps), min(5, steps), steps}:
        exact = float((columns[:, :windows].sum(axis=1) ** 2).sum())
        bound = made.squared_norm(steps, windows)
        assert exact * (1 - 1e-13) <= bound <= exact * (1 + 1e-9)
        assert bound.denominator & (bound.denominator - 1) == 0  # a power of two


@pytest.mark.parametrize("theta", [(0,), (UNIT - 1,), (3, 900_000, UNIT - 1), (500_000,)])
def test_no_set_of_windows_moves_more_than_the_first_adjacent_ones(theta: tuple[int, ...]) -> None:
    made, steps = BufferedToeplitz(theta, (UNIT // len(theta),) * len(theta)), 7
    columns = dense(made, steps)
    for windows in range(1, steps + 1):
        sets = combinations(range(steps), windows)
        worst = max(float((columns[:, list(chosen)].sum(axis=1) ** 2).sum()) for chosen in sets)
        assert worst <= float(made.squared_norm(steps, windows)) * (1 + 1e-12)


@pytest.mark.parametrize("steps", [5, 60, 300])
def test_covariances_are_those_of_the_rows(steps: int) -> None:
    made = buffers_for(steps, 31)
    rows = np.tril(np.ones((steps, steps))) @ np.linalg.inv(dense(made, steps))
    expected = rows @ rows.T
    for first in range(1, steps + 1, max(1, steps // 9)):
        for second in range(1, steps + 1, max(1, steps // 7)):
            found = made.covariance(first, second)
            assert found == pytest.approx(expected[first - 1, second - 1], rel=1e-9)


def test_covariances_of_long_sequences_are_those_of_the_recursion() -> None:
    made, steps = buffers_for(10**6, 31), 20_000
    theta, omega = [value / UNIT for value in made.theta], [value / UNIT for value in made.omega]
    buffers, weights, total = [0.0] * 3, [], 0.0
    for step in range(steps):
        noise = (step == 0) - sum(o * b for o, b in zip(omega, buffers, strict=True))
        buffers = [t * b + noise for t, b in zip(theta, buffers, strict=True)]
        weights.append(total := total + noise)
    row = np.array(weights)
    assert made.covariance(steps, steps) == pytest.approx(float(row @ row), rel=1e-9)
    assert made.covariance(9_000, steps) == pytest.approx(float(row[:9_000] @ row[steps - 9_000 :]), rel=1e-9)


def test_rho_is_the_formula_rounded_up() -> None:
    made, horizon = buffers_for(1_000, 24), 1_000
    found = made.rho(Fraction(50), 105, 100, horizon=horizon, windows=3)
    norm = math.sqrt(float((dense(made, horizon)[:, :3].sum(axis=1) ** 2).sum()))
    theta, omega = np.array(made.theta) / UNIT, np.array(made.omega) / UNIT
    eta = 0.5 * (3 + float((omega / (1 - theta)).sum()))
    rounding = 2.0**-23 * eta * math.sqrt(horizon * 3 * 100)
    expected = (math.sqrt(105) * norm + rounding) ** 2 / 100
    assert expected * (1 - 1e-12) <= found <= expected * (1 + 1e-9)
    assert found > 105 * made.squared_norm(horizon, 3) / 100  # roundings are charged


@pytest.mark.parametrize(
    "blocks", [tuple(2**level for level in range(20)), tuple(3**level for level in range(13)), (1, 1000, 10**6)]
)
def test_the_nodes_of_a_hostile_plan_are_counted_in_few_steps(blocks: tuple[int, ...]) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        worst_nodes.__wrapped__(blocks, 10**6 - 7)
    finally:
        sys.setprofile(before)
    assert 0 < steps < 5_000


@pytest.mark.parametrize("blocks", [(1,), (1, 3), (1, 4, 24), (1, 11, 121), (1, 2, 4, 8, 16), (1, 7, 14)])
def test_a_prefix_is_the_signed_sum_of_its_nodes(blocks: tuple[int, ...]) -> None:
    made, seen = SignedDigitTree(blocks), dict[Node, tuple[int, int]]()
    counts = []
    for step in range(1, 400):
        nodes = made.nodes(step)
        covered = np.zeros(4_000)
        for node, sign in nodes.items():
            block = blocks[node.level]
            covered[node.index * block : (node.index + 1) * block] += sign
            if node in seen:  # at consecutive steps, with one sign
                assert seen[node] == (step - 1, sign)
            seen[node] = (step, sign)
        assert covered[:step].all()
        assert covered.sum() == step
        assert covered.min() >= 0
        counts.append(len(nodes))
        for other in (1, step, step + 40):
            assert made.covariance(step, other) == len(nodes.keys() & made.nodes(other).keys())
        assert worst_nodes(blocks, step) == max(counts)


def test_the_search_finds_the_best_tree_of_a_short_horizon() -> None:
    horizon = 150
    radices = [()] + [(a,) for a in range(2, 60)] + [(a, b) for a in range(2, 30) for b in range(2, 30)]
    found = []
    for each in radices:
        blocks = [1]
        for radix in each:
            blocks.append(blocks[-1] * radix)
        made = SignedDigitTree(tuple(blocks))
        worst = max(len(made.nodes(step)) for step in range(1, horizon + 1))
        found.append(made.levels**2 * worst)
    assert round(tree_for(horizon).worst_error(horizon) ** 2) == min(found)


def test_every_horizon_has_buffers_of_little_noise() -> None:
    assert [horizon for horizon, *_ in BUFFERS] == [2**power for power in range(2, 21)]
    for horizon in (1, 3, 9, 1_025, 10**6):
        # Beside the square-root Toeplitz factorisation, whose worst step has 1 + ln(T)/π and a little less.
        assert buffers_for(horizon, 31).worst_error(horizon) <= 1.09 * (1 + math.log(horizon) / math.pi)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"theta": [1, 1], "omega": [1, 1], "bits": 24}, "theta"),
        ({"theta": [UNIT], "omega": [1], "bits": 24}, "theta"),
        ({"theta": [1, 2, 3, 4], "omega": [1, 1, 1, 1], "bits": 24}, "theta"),
        ({"theta": [1, 2], "omega": [1], "bits": 24}, "omega"),
        ({"theta": [1, 2], "omega": [UNIT, 1], "bits": 24}, "omega"),  # c_1 above 1: C would rise
        ({"theta": [1], "omega": [0], "bits": 24}, "omega"),
        ({"theta": [1], "omega": [1], "bits": 23}, "bits"),
        ({"theta": [1], "omega": [1], "bits": 32}, "bits"),
        ({"blocks": [2, 4]}, "blocks"),
        ({"blocks": [1, 4, 6]}, "blocks"),
        ({"blocks": [1, 1]}, "blocks"),
        ({"blocks": [1], "bits": 24}, "bits"),
    ],
)
def test_factorisations_out_of_range_are_refused(fields: dict[str, object], key: str) -> None:
    with pytest.raises(PlanError, match=key):
        factorisation_from_table(Table(fields, "factorisation"))


def test_steps_beyond_the_horizon_have_no_covariance() -> None:
    sequence = Cumulation(tree_for(10), 10, 1)
    assert sequence.covariance(10, 10) == 10
    for step in (0, 11):
        with pytest.raises(ValueError, match="from 1 to 10"):
            sequence.covariance(step, 10)
