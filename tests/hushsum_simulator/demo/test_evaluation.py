"""The measured error of a release is the expected one; every delta is followed by its id.

What is left of a release without the exact sum: noise passes, and anything else in it does not.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum import Release
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.releases import of_silos
from hushsum_simulator.data import ClientRecords, ExactSums
from hushsum_simulator.demo.evaluation import (
    Residual,
    SentDelta,
    examine,
    in_bulk,
    measure,
    reconcile,
    reconcile_number,
    residual_of,
)
from hushsum_simulator.scenario import Material
from tests.hushsum.local_plans import silo_plan
from tests.hushsum_simulator.demo.summaries import is_noise
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


SENT = {SentDelta("a", DeltaId(1, 0)), SentDelta("a", DeltaId(1, 1)), SentDelta("b", DeltaId(2, 0))}


def verdicts(*seen: tuple[VerdictKind, str, DeltaId]) -> list[Verdict]:
    return [Verdict(kind, None, id, client, 5, position) for position, (kind, client, id) in enumerate(seen)]


COUNTED, DUPLICATE, LATE = VerdictKind.COUNTED, VerdictKind.DUPLICATE, VerdictKind.LATE
ALL = [(COUNTED, sent.client_id, sent.id) for sent in sorted(SENT)]


def test_what_was_sent_and_counted_once_is_in_order() -> None:
    result = reconcile(SENT, verdicts(*ALL, (DUPLICATE, "a", DeltaId(1, 0))))
    assert (result.counted, result.lost, result.double_counted, result.duplicates) == (3, 0, 0, 1)


def test_what_was_not_counted_is_lost_whatever_else_became_of_it() -> None:
    result = reconcile(SENT, verdicts(*ALL[1:], (LATE, *ALL[0][1:])))
    assert (result.counted, result.lost) == (2, 1)


def test_what_was_counted_twice_is_seen() -> None:
    result = reconcile(SENT, verdicts(*ALL, ALL[2]))
    assert (result.counted, result.double_counted) == (3, 1)


def test_the_same_id_of_another_client_is_another_delta() -> None:
    result = reconcile(SENT, verdicts(*ALL[1:], (COUNTED, "b", DeltaId(1, 0))))
    assert (result.counted, result.lost, result.double_counted) == (2, 1, 1)


@pytest.mark.parametrize(
    ("sent", "shuffled", "found"),
    (
        (3, None, (3, 0, 0)),
        (4, None, (3, 1, 0)),
        (2, None, (3, 0, 1)),
        (5, 5, (5, 0, 0)),  # the three that were counted are batches of a shuffler that took five
        (5, 4, (4, 1, 0)),
        (5, 6, (6, 0, 1)),
    ),
)
def test_reports_are_compared_by_their_number(sent: int, shuffled: int | None, found: tuple[int, int, int]) -> None:
    result = reconcile_number(sent, verdicts(*ALL, (DUPLICATE, "a", DeltaId(1, 0))), shuffled=shuffled)
    assert (result.counted, result.lost, result.double_counted) == found
    assert result.duplicates == 1


@pytest.mark.parametrize("shuffled", (None, 3))
def test_an_id_of_reports_that_was_counted_twice_is_seen(shuffled: int | None) -> None:
    assert reconcile_number(3, verdicts(*ALL, ALL[2]), shuffled=shuffled).double_counted == 1


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
    assert is_noise(residual)
    assert residual.noise_variance_ratio == pytest.approx(1, abs=0.1)


@pytest.mark.statistical
def test_heavier_tails_widen_what_the_variance_may_be(rng: np.random.Generator, vectors: list[Counters]) -> None:
    """Of Laplace noise (excess 3) the variance's z is a standard normal one too, up to its skew: 7 for six of those."""
    laplace = np.rint(rng.laplace(0, STD / 2**0.5, SIZE)).astype(np.int64)
    assert abs(examined(laplace, vectors, excess=3).noise_variance_z) < 7
    narrow, wide = examined(laplace, vectors), examined(laplace, vectors, excess=3)
    assert abs(narrow.noise_variance_z) == pytest.approx(abs(wide.noise_variance_z) * 2.5**0.5)


@pytest.mark.parametrize("times", (-1, 1), ids=("lost", "counted twice"))
def test_one_client_lost_or_doubled_is_seen(noise: Counters, vectors: list[Counters], times: int) -> None:
    strong = [vector * 10 for vector in vectors]
    residual = examined(noise + times * strong[7], strong)
    assert not is_noise(residual)
    assert residual.client_z * times > 6


@pytest.mark.parametrize("factor", (0.9, 1.1))
def test_noise_of_another_variance_is_seen(noise: Counters, vectors: list[Counters], factor: float) -> None:
    residual = examined(np.rint(noise * factor).astype(np.int64), vectors)
    assert not is_noise(residual)
    assert (residual.noise_variance_z > 6) == (factor > 1)


def test_a_shift_of_all_counters_is_seen(noise: Counters, vectors: list[Counters]) -> None:
    assert examined(noise + 5, []).noise_mean_z > 6


PLAN = silo_plan(privacy={"epsilon": 1, "delta": Fraction(1, 10**6), "total_delta": Fraction(1, 10**5)})
NUMBER = 6


def material(rng: np.random.Generator) -> Material:
    values = rng.uniform(0, 10, (NUMBER * 1000, 2))
    shares = [ClientRecords(f"c{at}", (values[at * 1000 : (at + 1) * 1000],)) for at in range(NUMBER)]
    return Material(PLAN, shares, values, values[:1])


def released(of: Material, times: Mapping[str, int]) -> Release:
    """The sum of each client's submission so many times."""
    counters, counts = np.zeros(PLAN.counters_shape, np.int64), np.zeros(1, np.int64)
    for share in of.shares:
        sketch = in_bulk(of.only({share.client_id}))
        data = silo.submission(PLAN, sketch.counters, sketch.counts, window=0, id=DeltaId(1, 0), entropy=OsEntropy())
        for _ in range(times[share.client_id]):
            silo.unpack(data, PLAN).add_to(counters, counts)
    return of_silos(PLAN, counters, counts, window=0, submissions=NUMBER)


@pytest.mark.statistical
@pytest.mark.usefixtures("repeatable_noise")
def test_of_all_submissions_nothing_is_left_but_noise(rng: np.random.Generator) -> None:
    """Eight normal quantities within six standard errors: a false alarm in 6·10⁷ runs."""
    of = material(rng)
    clients = Counter(share.client_id for share in of.shares)
    assert is_noise(residual_of(of, released(of, clients), of.shares))


@pytest.mark.parametrize(("times", "sign"), ((0, -1), (2, 1)), ids=("dropped", "doubled"))
def test_a_submission_that_is_not_there_once_is_left_whole(rng: np.random.Generator, times: int, sign: int) -> None:
    of = material(rng)
    numbers = {share.client_id: 1 for share in of.shares} | {"c3": times}
    residual = residual_of(of, released(of, numbers), of.shares)
    assert not is_noise(residual)
    assert sign * residual.client_z > 30
