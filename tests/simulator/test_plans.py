"""The plan of a run."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hushsum.errors import PlanError
from hushsum.privacy.account import Account
from hushsum.privacy.event import TUMBLING
from hushsum.releases import spend_of
from simulator.cohort_sizes import fit
from simulator.errors import RecordsError
from simulator.plans import (
    central_twin,
    load,
    of_file,
    of_photograph,
    privacy_table,
    refuse_incomparable,
    secure_table,
)
from simulator.records import Records
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


def test_plans_whose_answers_are_no_densities_are_refused_with_what_to_do() -> None:
    with pytest.raises(PlanError, match=r"record.kind: got 'set'.*hushsum query --at 3,17,29"):
        refuse_incomparable(set_plan())
    with pytest.raises(PlanError, match=r"sketch.family: got 'paired'.*hushsum.fitting"):
        refuse_incomparable(model_plan())
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
    with pytest.raises(PlanError, match="TOML in UTF-8"):
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
