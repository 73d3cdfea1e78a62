"""The plan of a run.

How a run's clients fit into cohorts.
"""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hushsum.errors import PlanError
from hushsum.privacy.accountant import Account
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.events import TUMBLING
from hushsum.releases import spend_of
from hushsum_simulator.data import Records
from hushsum_simulator.errors import RecordsError, SettingsConflictError
from hushsum_simulator.plans import (
    central_twin,
    fit,
    load,
    of_file,
    of_photograph,
    privacy_table,
    refuse_incomparable,
    require_room,
    secure_table,
    tolerated,
)
from tests.plans import model_plan, set_plan, small_plan


def test_the_photographs_plan_has_the_bounds_of_every_picture() -> None:
    plan = of_photograph(privacy_table(Fraction("0.5"), "record", None), seed=9)
    assert [int(bound) for bound in plan.vectors.upper] == [255, 255, 255]
    assert plan.family.shape == (1000, 1024)
    assert plan.privacy.epsilon * 2 == 1
    assert plan.privacy.total_epsilon == 5
    assert plan.collection.names == ("red", "green", "blue")
    assert plan.family.to_fields()["draws"] == "sobol"
    assert plan.family.to_fields()["sobol_sets"] == 8


@pytest.mark.parametrize(("dim", "draws"), ((1, "sobol"), (20, "sobol"), (21, "independent")))
def test_the_rows_of_up_to_20_columns_are_sobol_points(dim: int, draws: str, rng: np.random.Generator) -> None:
    records = Records(rng.normal(0, 1, (30, dim)), tuple(map(str, range(dim))), "x.csv")
    plan = of_file(records, privacy_table(Fraction("1"), "record", None), seed=0)
    assert plan.family.to_fields()["draws"] == draws


def test_plans_that_a_run_cannot_compare_are_refused_with_what_to_do() -> None:
    with pytest.raises(PlanError, match=r"record.kind: got 'set'.*hushsum query --at 3,17,29"):
        refuse_incomparable(set_plan())
    with pytest.raises(PlanError, match=r"sketch.family: got 'paired'.*hushsum.estimators"):
        refuse_incomparable(model_plan())
    with pytest.raises(PlanError, match=r"window.time: got 'arrival'.*make a plan with 'event'"):
        refuse_incomparable(small_plan(window={"time": "arrival"}))
    refuse_incomparable(small_plan())


def test_unit_client_carries_its_bound() -> None:
    plan = of_photograph(privacy_table(Fraction("1"), "client", 5), seed=9)
    assert plan.privacy.unit == "client"
    assert plan.privacy.records_per_client == 5


def test_a_files_plan_has_its_extremes_and_room_where_a_column_is_constant() -> None:
    values = np.array([[1.5, 7.0], [-2.0, 7.0], [np.nan, 9.0]])
    plan = of_file(Records(values, ("a", "b"), "trips.csv"), privacy_table(Fraction("1"), "record", None), seed=0)
    assert plan.name == "trips"
    assert [float(bound) for bound in plan.vectors.lower] == [-2.0, 7.0]
    assert [float(bound) for bound in plan.vectors.upper] == [1.5, 8.0]


def test_a_file_without_a_usable_record_has_no_plan() -> None:
    with pytest.raises(RecordsError, match="without missing values"):
        of_file(Records(np.array([[np.nan]]), ("a",), "x.csv"), privacy_table(Fraction("1"), "record", None), seed=0)


def test_made_and_declared_plans_are_read_whatever_the_file_is_called(tmp_path: Path) -> None:
    plan = small_plan()
    made, declared, neither = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    made.write_bytes(plan.to_bytes())
    declared.write_text(
        'name = "test"\n[record]\nkind = "vector"\ndim = 2\nlower = [0, 0]\nupper = [10, 10]\n'
        '[sketch]\nfamily = "hashed"\nkernel = "euclidean"\nbandwidth = 2.5\nrows = 20\nbuckets = 64\nseed = 3\n'
        "[privacy]\nepsilon = 1.0\ntotal_epsilon = 100\n"
    )
    neither.write_bytes(b"\xff")
    assert load(made).id == plan.id
    assert load(declared).id == plan.id
    with pytest.raises(PlanError, match="a plan in TOML"):
        load(neither)


@pytest.mark.parametrize("delta", (Fraction(0), Fraction(1, 10**6)), ids=("pure", "delta"))
def test_a_secure_plan_has_a_smaller_sketch_and_a_twin_in_central_mode(delta: Fraction) -> None:
    cohort = fit(200, size=None, dropout_rate=0.1)
    plan = of_photograph(secure_table(Fraction(1), "record", None, delta=delta, cohort=cohort), seed=9)
    assert (plan.privacy.mode, plan.privacy.cohort) == ("secure", cohort)
    assert plan.words.bytes < 300_000
    twin = central_twin(plan)
    assert (twin.privacy.mode, twin.privacy.delta) == ("central", delta)
    assert twin.privacy.epsilon == 1
    assert twin.family.to_fields() == plan.family.to_fields()
    assert twin.privacy.mechanism.honest_survivors is None


@pytest.mark.parametrize("delta", (Fraction(1, 10**9), Fraction(1, 10**6), Fraction(1, 10**4)))
def test_the_ledger_reads_the_epsilon_of_a_secure_plan_after_its_first_release(delta: Fraction) -> None:
    cohort = fit(200, size=None, dropout_rate=0.1)
    plan = of_photograph(secure_table(Fraction(1), "record", None, delta=delta, cohort=cohort), seed=9)
    spent = Account(plan.limits).charge(spend_of(plan, kind=TUMBLING, window=5)).spent
    assert 0.97 < spent.epsilon <= 1


@pytest.mark.parametrize(("clients", "size"), ((200, 100), (130, 130), (205, 103), (12, 12), (1000, 100)))
def test_everybody_fits_into_cohorts_of_about_a_hundred(clients: int, size: int) -> None:
    cohort = fit(clients, size=None, dropout_rate=0.05)
    assert cohort.size == size
    last = clients - (clients - 1) // size * size
    assert last >= cohort.survivors_min


def test_a_cohort_can_lose_what_may_vanish_of_it() -> None:
    assert fit(200, size=200, dropout_rate=0.1).dropout == Fraction(1, 10)
    assert fit(200, size=200, dropout_rate=0.2).survivors_min == 160
    assert fit(200, size=100, dropout_rate=0.1).survivors_min <= 100 - 18


@pytest.mark.parametrize(
    ("clients", "size", "rate", "said"),
    (
        (170, 70, 0.0, "the last 30 fill none"),
        (200, 100, 0.4, "--dropout-rate 0.4: cohorts of 100"),
        (200, 100, 0.3, "lower it, or"),
    ),
    ids=("left over", "half of them", "no quorum"),
)
def test_what_does_not_go_together_is_one_sentence(clients: int, size: int, rate: float, said: str) -> None:
    with pytest.raises(SettingsConflictError, match=said) as caught:
        fit(clients, size=size, dropout_rate=rate)
    assert "\n" not in str(caught.value)


def test_a_plan_must_have_room_for_what_vanishes() -> None:
    cohort = Cohort(size=100, dropout=Fraction(1, 10))
    require_room(cohort, 200, 0.01)
    require_room(cohort, 100, 0.1)
    with pytest.raises(SettingsConflictError, match="can lose 10; with 200 clients"):
        require_room(cohort, 200, 0.1)
    with pytest.raises(SettingsConflictError, match="fill none"):
        require_room(cohort, 120, 0.0)


def test_a_plan_with_a_pool_leaves_clients_out_and_no_run_takes_it() -> None:
    with pytest.raises(SettingsConflictError, match="a pool of 150"):
        require_room(Cohort(size=100, fleet_corrupt=0, pool=150), 200, 0.0)


def test_a_cohort_of_all_misses_exactly_those_that_vanish() -> None:
    assert tolerated(200, 1, clients=200, vanishing=20) == 20
    assert tolerated(200, 1, clients=200, vanishing=0) == 0


def test_the_last_cohort_also_misses_what_fills_none() -> None:
    assert tolerated(103, 2, clients=205, vanishing=0) == 1


@pytest.mark.statistical
def test_a_cohort_misses_more_than_is_tolerated_less_than_once_in_a_million(rng: np.random.Generator) -> None:
    """Of 20,000 deals not one may pass it; each does with a probability below 10⁻⁶: a false alarm in 50 such tests.

    So two are allowed, which come once in 10⁶ tests or less (Poisson, mean 0.02).
    """
    most = tolerated(50, 4, clients=200, vanishing=20)
    worst = rng.multivariate_hypergeometric([50] * 4, 20, size=20_000).max(axis=1)
    assert (worst > most).sum() <= 2
    assert most < 20, "it is a bound, and no more than needed"
