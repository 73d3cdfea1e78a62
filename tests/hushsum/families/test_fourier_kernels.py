"""Answers of the fourier family against kernels written out here, and error bars that cover.

A check of the mathematics is a function that raises AssertionError; planted mistakes show that it does.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, norm, t

from hushsum.families.base import VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.families.fourier.parameters import orthogonal
from hushsum.public_random import PublicSeed
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
FALSE_ALARM = 1e-6
SIGMA = 2.0
PAIRS = {"independent": 96_000, "sobol": 32 * 800, "orthogonal": 48_000}
CLOSED: dict[str, Callable[[Floats], float]] = {
    "gaussian": lambda z: math.exp(-float(z @ z)),
    "laplacian": lambda z: math.exp(-float(np.abs(z).sum())),
    "cauchy": lambda z: math.prod(1 / (1 + v * v) for v in z.tolist()),
    "exponential-p": lambda z: math.exp(-float((np.abs(z) ** 1.5).sum())),
}
KINDS = [(kernel, draws) for kernel in CLOSED for draws in ("independent", "sobol")] + [("gaussian", "orthogonal")]


def family(
    kernel: str, draws: str, seed: int, rows: int, bandwidth: float = SIGMA, dim: int = 3, sets: int = 32
) -> Fourier:
    keys: dict[str, object] = {"kernel": kernel, "draws": draws, "rows": rows, "seed": seed % 2**53}
    keys |= {"bandwidth": bandwidth, "fraction_bits": 6}
    keys |= {"exponent": "1.5"} if kernel == "exponential-p" else {}
    keys |= {"sobol_sets": sets} if draws == "sobol" else {}
    record = VectorRecords(dim, (Fraction(-8),) * dim, (Fraction(8),) * dim)
    return Fourier.from_table(Table(keys, "sketch"), record)


def counters_of(sketched: Fourier, records: Floats) -> npt.NDArray[np.int64]:
    counters = np.zeros(sketched.shape, np.int64)
    sketched.add(counters, sketched.accept(records)[0])
    return counters


def pairs_of(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Near, farther, equal, at zero, along the boundary, and corner to corner."""
    x, side = rng.uniform(-4, 4, (4, 3)), np.full(3, 8.0)
    steps = np.array([0.3, 0.6, 1.0, 0.0])[:, None] * rng.choice([-1.0, 1.0], (4, 3))
    y = x + steps * SIGMA / math.sqrt(3)
    return np.vstack([x, np.zeros(3), side, side]), np.vstack([y, [0, 0, 1.0], side - [1.2, 0, 0], -side])


def assert_answers_are_the_kernel(sketched: Fourier, closed: Callable[[Floats], float], seed: int) -> None:
    """Seven pairs, one record and one query each, by the answer's own error bar; false alarm 1e-6 in all."""
    for x, y in zip(*pairs_of(np.random.default_rng(seed)), strict=True):
        answer, expected = sketched.answer(counters_of(sketched, x[None]), y[None]), closed((x - y) / SIGMA)
        tail = FALSE_ALARM / 14
        reach = norm.isf(tail) if answer.degrees is None else t.isf(tail, answer.degrees)
        assert abs(answer.value[0] - expected) < reach * answer.std_error[0] + sketched.kernel_error, (x, y, expected)


@pytest.mark.statistical
@pytest.mark.parametrize("kernel, draws", KINDS)
def test_answers_are_the_kernel_in_closed_form(kernel: str, draws: str, seed: int) -> None:
    """False alarm 1e-6."""
    assert_answers_are_the_kernel(family(kernel, draws, seed, PAIRS[draws]), CLOSED[kernel], seed)


@pytest.mark.statistical
@pytest.mark.parametrize("kernel, draws", KINDS)
def test_a_bandwidth_that_is_5_percent_wrong_is_caught(kernel: str, draws: str, seed: int) -> None:
    wrong = SIGMA * (0.95 if draws == "sobol" else 1.05)
    with pytest.raises(AssertionError):
        assert_answers_are_the_kernel(family(kernel, draws, seed, PAIRS[draws], wrong), CLOSED[kernel], seed)


@pytest.mark.parametrize("kernel", CLOSED)
def test_the_exact_kernel_is_the_closed_form(kernel: str, rng: np.random.Generator) -> None:
    x, y = rng.uniform(-8, 8, (5, 3)), rng.uniform(-8, 8, (4, 3))
    expected = [[CLOSED[kernel]((a - b) / SIGMA) for b in y] for a in x]
    assert np.allclose(family(kernel, "independent", 1, 8).kernel(x, y), expected, rtol=1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("draws", ("independent", "sobol", "orthogonal"))
def test_error_bars_cover_at_their_nominal_rate(draws: str, seed: int) -> None:
    """95 % intervals of 200 sketches; at most 1.5 % of the rate is given up. False alarm 1e-6."""
    records, query, hits = np.random.default_rng(seed).uniform(-3, 3, (60, 3)), np.zeros((1, 3)), 0
    for number in range(200):
        sketched = family("gaussian", draws, seed + number, 192, sets=8)
        low, high = sketched.answer(counters_of(sketched, records), query).interval(0.95)
        hits += bool(low <= sketched.kernel(records, query).sum() <= high)
    assert hits >= binom.ppf(FALSE_ALARM, 200, 0.935)


@pytest.mark.statistical
def test_sobol_pairs_err_less_than_independent_ones_where_the_kernel_is_wide(seed: int) -> None:
    """Mean squared errors over 60 seeds each; the true ratio is about 80, and F(60, 60) passes 4 in 1e-7 of cases."""
    records, query, errors = np.random.default_rng(seed).uniform(-2, 2, (60, 2)), np.zeros((1, 2)), {}
    for draws in ("independent", "sobol"):
        found = []
        for number in range(60):
            sketched = family("gaussian", draws, seed + number, 1024, dim=2, sets=8)
            exact = sketched.kernel(records, query).sum()
            found.append(sketched.answer(counters_of(sketched, records), query).value[0] - exact)
        errors[draws] = float(np.square(found).mean())
    assert errors["sobol"] < errors["independent"] / 3, errors


@pytest.mark.parametrize("dim", (1, 2, 7, 40))
def test_orthogonal_frequencies_are_at_right_angles_in_blocks(dim: int) -> None:
    blocks = orthogonal(PublicSeed(4), 6 * dim, dim).reshape(6, dim, dim)
    for block in blocks:
        norms = np.linalg.norm(block, axis=1)
        cosines = block @ block.T / np.outer(norms, norms)
        assert np.allclose(cosines, np.eye(dim), atol=1e-13)
        assert np.all(norms > 0)
