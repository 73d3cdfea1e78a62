"""What is left of a release without the exact sum: noise passes, and whatever else is in it does not."""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from simulator.residual import Residual, examine, read_out

Counters = npt.NDArray[np.int64]
SIZE, CLIENTS, STD = 20_000, 40, 60.0


@pytest.fixture
def vectors(rng: np.random.Generator) -> list[Counters]:
    """Counters of clients with 50 rows of 400 buckets each, and 100 records in every row."""
    return [rng.multinomial(100, [1 / 400] * 400, size=50).reshape(-1).astype(np.int64) for _ in range(CLIENTS)]


@pytest.fixture
def noise(rng: np.random.Generator) -> Counters:
    return np.rint(rng.normal(0, STD, SIZE)).astype(np.int64)


def examined(left: Counters, vectors: list[Counters], excess: float = 0.0) -> Residual:
    makers: list[Callable[[], Counters]] = [partial(np.copy, vector) for vector in vectors]
    return examine(left, makers, STD**2 + 1 / 12, excess=excess)


@pytest.mark.statistical
def test_noise_of_the_stated_variance_is_noise(noise: Counters, vectors: list[Counters]) -> None:
    """Of 42 quantities that are standard normal, one passes 6 once in 10⁷ tests."""
    residual = examined(noise, vectors)
    assert residual.is_noise
    assert residual.variance_ratio == pytest.approx(1, abs=0.1)


@pytest.mark.statistical
def test_heavier_tails_widen_what_the_variance_may_be(rng: np.random.Generator, vectors: list[Counters]) -> None:
    """Of Laplace noise (excess 3) the variance's z is a standard normal one too, up to its skew: 7 for six of those."""
    laplace = np.rint(rng.laplace(0, STD / 2**0.5, SIZE)).astype(np.int64)
    assert abs(examined(laplace, vectors, excess=3).variance_z) < 7
    narrow, wide = examined(laplace, vectors), examined(laplace, vectors, excess=3)
    assert abs(narrow.variance_z) == pytest.approx(abs(wide.variance_z) * 2.5**0.5)


@pytest.mark.parametrize("times", (-1, 1), ids=("lost", "counted twice"))
def test_one_client_lost_or_doubled_is_seen(noise: Counters, vectors: list[Counters], times: int) -> None:
    strong = [vector * 10 for vector in vectors]
    residual = examined(noise + times * strong[7], strong)
    assert not residual.is_noise
    assert residual.client_z * times > 6


@pytest.mark.parametrize("factor", (0.9, 1.1))
def test_noise_of_another_variance_is_seen(noise: Counters, vectors: list[Counters], factor: float) -> None:
    residual = examined(np.rint(noise * factor).astype(np.int64), vectors)
    assert not residual.is_noise
    assert (residual.variance_z > 6) == (factor > 1)


def test_a_shift_of_all_counters_is_seen(noise: Counters, vectors: list[Counters]) -> None:
    assert examined(noise + 5, []).mean_z > 6


@pytest.mark.statistical
@pytest.mark.parametrize("inside", ((), (1, 4), tuple(range(8))), ids=("nobody", "some", "all"))
def test_who_is_in_a_sum_can_be_read_out_with_the_records_at_hand(
    noise: Counters, vectors: list[Counters], inside: tuple[int, ...]
) -> None:
    """One vector more or less is 40 standard deviations of the noise here, one in another's place more: half is 20."""
    alike = vectors[0] * 40
    doubtful = {str(number): alike + vector * 20 for number, vector in enumerate(vectors[:8])}
    left = noise + sum((doubtful[str(number)] for number in inside), np.zeros(SIZE, np.int64))
    assert read_out(left, doubtful) == {str(number) for number in inside}


def test_where_nobody_is_in_doubt_nothing_is_read_out(noise: Counters) -> None:
    assert read_out(noise, {}) == set()


def test_what_is_read_out_leaves_least_of_all_choices(rng: np.random.Generator) -> None:
    """Much noise and vectors that are much alike: the search must find what trying every choice finds."""
    alike = rng.integers(0, 20, 300)
    doubtful = {str(number): alike + rng.integers(0, 3, 300) for number in range(8)}
    for _ in range(20):
        left = rng.integers(-40, 41, 300) + sum(doubtful[str(number)] for number in rng.permutation(8)[:4])
        choices = [set(choice) for size in range(9) for choice in itertools.combinations(doubtful, size)]
        squares = {
            float(np.sum((left - sum(doubtful[client] for client in choice)) ** 2)): choice for choice in choices
        }
        assert read_out(left, doubtful) == squares[min(squares)]
