"""The geometry of projective responses: numbers of points (a format), hyperplanes, supports, and the field's order."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.noise import KRR, RANDOMISERS, Projective, Randomiser, projective_geometry, projective_order
from hushsum.noise.projective_geometry import dimension_of, indices_of, inverses, is_prime, numbers_of, points

Int64 = npt.NDArray[np.int64]

SPACES = ((2, 2), (2, 5), (3, 3), (3, 4), (5, 3), (7, 2), (7, 4), (13, 2))
RATIO = Fraction("7.38905")  # e², rounded down


def vectors(field: int, dimension: int) -> Int64:
    """(N, t) canonical vectors, by the definition."""
    numbers = np.arange(1, field**dimension)
    digits = np.stack([numbers // field**place % field for place in range(dimension - 1, -1, -1)], axis=1)
    leading = digits[np.arange(len(digits)), (digits != 0).argmax(axis=1)]
    canonical: Int64 = digits[leading == 1]
    return canonical


@pytest.mark.parametrize(("field", "dimension"), SPACES)
def test_points_are_numbered_as_their_canonical_vectors_ascend(field: int, dimension: int) -> None:
    canonical = vectors(field, dimension)
    numbers = canonical @ field ** np.arange(dimension - 1, -1, -1)
    every = np.arange(points(field, dimension))
    assert len(canonical) == len(every)
    assert np.array_equal(numbers_of(every, field, dimension), numbers)
    assert np.array_equal(indices_of(numbers, field, dimension), every)


def test_the_numbering_is_frozen() -> None:
    """Reports carry these numbers."""
    assert numbers_of(np.arange(14), 3, 4).tolist() == [1, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16, 17, 27]


@pytest.mark.parametrize("field", [2, 3, 5, 7, 101, 65_537])
def test_numbers_of_a_field_have_inverses(field: int) -> None:
    every = np.arange(field)
    assert inverses(field)[0] == 0
    assert (every * inverses(field) % field == (every > 0)).all()


@pytest.mark.parametrize(("field", "dimension"), SPACES)
@pytest.mark.parametrize("part", (0.01, 0.4, 1.0))
def test_supports_are_sums_over_hyperplanes(
    field: int, dimension: int, part: float, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    canonical = vectors(field, dimension)
    inputs = max(2, math.ceil(len(canonical) * part))
    orthogonal = (canonical @ canonical.T) % field == 0
    counts = rng.integers(-(2**40), 2**40, (5, len(canonical)))
    expected = (counts @ orthogonal)[:, :inputs]
    assert np.array_equal(projective_geometry.orthogonal(counts, field, dimension, inputs), expected)
    monkeypatch.setattr(projective_geometry, "_BLOCK", 1)  # one row at a time
    assert np.array_equal(projective_geometry.orthogonal(counts, field, dimension, inputs), expected)


def test_supports_of_a_large_space_are_right(rng: np.random.Generator) -> None:
    """Against the inner products of a few values with all points: field 17, 5 dimensions, 65,536 values."""
    response = Projective(RATIO, 65_536, 17)
    counts = rng.integers(0, 100, (2, response.outputs))
    found = response.support(counts)
    u = numbers_of(np.arange(response.outputs), 17, 5)
    for value in (0, 1, 17, 18, 5219, 5220, 5221, 40_000, 65_535):
        v, product = int(numbers_of(np.array([value]), 17, 5)[0]), np.zeros(len(u), np.int64)
        for place in range(5):
            product += u // 17**place % 17 * (v // 17**place % 17)
        assert np.array_equal(found[:, value], counts[:, product % 17 == 0].sum(axis=1))


@pytest.mark.parametrize("field", (0, 1, 4, 9, 15, -3, 2**31))
def test_a_field_that_is_none_is_refused(field: int) -> None:
    with pytest.raises(ValueError, match=r"prime|2\^62"):
        Projective(RATIO, 10, field)


def test_primes_are_told_from_other_numbers() -> None:
    assert [number for number in range(30) if is_prime(number)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert is_prime(2**31 - 1)


def test_the_dimension_is_the_least_that_holds_all_values() -> None:
    assert [dimension_of(3, inputs) for inputs in (2, 4, 5, 13, 14)] == [2, 2, 3, 3, 4]


# -------------------------------------------------------------------------------------------------- the field's order


def variance(response: Randomiser) -> float:
    gap = response.hit - response.miss
    chance = response.miss + gap / response.inputs
    return float(chance * (1 - chance) / gap**2)


@pytest.mark.parametrize("inputs", (16, 64, 256, 1024))
@pytest.mark.parametrize("ratio", ("1.64872", "2.71828", "7.38905", "54.5981"))
def test_the_order_is_of_nearly_the_least_variance_among_those_that_fit(inputs: int, ratio: str) -> None:
    exact, rows = Fraction(ratio), 100
    most = 8 * (math.ceil(math.log2(rows * inputs) / 8) + 1)
    chosen = projective_order(inputs, exact, rows=rows)
    fitting = [
        Projective(exact, inputs, field)
        for field in range(2, 4 * inputs)
        if is_prime(field) and math.log2(rows * points(field, dimension_of(field, inputs))) <= most
    ]
    assert variance(Projective(exact, inputs, chosen)) <= 1.02 * min(map(variance, fitting))


@pytest.mark.parametrize("inputs", (256, 1024, 65_536))
@pytest.mark.parametrize("epsilon", (0.5, 1.0, 2.0, 4.0))
def test_the_variance_comes_near_the_least_there_is_where_values_are_many(inputs: int, epsilon: float) -> None:
    """4e^ε/(e^ε − 1)² is what all good frequency oracles tend to; k-ary response is far from it."""
    ratio = Fraction(math.floor(math.exp(epsilon) * 10**5), 10**5)
    response = Projective(ratio, inputs, projective_order(inputs, ratio, rows=100))
    least = 4 * float(ratio) / (float(ratio) - 1) ** 2
    assert float(response.variance_of_miss) < 1.04 * least
    assert float(KRR(ratio, inputs).variance_of_miss) > 1.3 * float(response.variance_of_miss)


def test_an_order_fits_its_bits_or_there_is_none() -> None:
    narrow = projective_order(1000, RATIO, rows=1, bits_max=11)
    assert points(narrow, dimension_of(narrow, 1000)) <= 2**11
    with pytest.raises(ValueError, match="no field fits"):
        projective_order(1000, RATIO, rows=1, bits_max=9)
    with pytest.raises(ValueError, match="no field fits"):
        projective_order(2**31, RATIO, rows=1)


def test_a_projective_response_wants_a_field_and_no_other_has_one() -> None:
    with pytest.raises(ValueError, match="no field"):
        RANDOMISERS["k-rr"](RATIO, 10, 3)
    with pytest.raises(ValueError, match="requires field"):
        RANDOMISERS["projective"](RATIO, 10, None)
