"""What is left of a release without the exact sum: noise passes, and whatever else is in it does not."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from simulator.secure.residual import Residual, examine

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
