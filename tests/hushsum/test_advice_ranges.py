"""Advice where nothing is guessed: a table over numbers of records and densities."""

import pytest

from hushsum import Plan
from hushsum.advice import Allowance, advise, advise_range, advise_reports
from tests.hushsum.local_plans import report_plan, silo_plan
from tests.plans import client_plan, model_plan, secure_plan, set_plan, small_plan

#: Larger sizes than the plan's, which advice tries within its allowance, are of no interest here.
SMALL = Allowance(memory_mib=0.1)


@pytest.mark.parametrize(
    "plan", [small_plan(), client_plan(3), silo_plan(), secure_plan()], ids=["record", "client", "silo", "secure"]
)
def test_the_range_holds_what_is_advised_for_each_guess(plan: Plan) -> None:
    found = advise_range(plan, records=[3000, 200_000], densities=[0.3, 0.1])
    for row, density in enumerate(found.densities):
        for column, records in enumerate(found.records):
            advice = advise(plan, records=records, density=density, allowance=SMALL)
            assert found.errors[row][column] == pytest.approx(advice.std_error, rel=0.15)
            assert found.relative(row, column) == found.errors[row][column] / (records * density)


def test_the_range_of_reports_holds_what_is_advised_for_each_guess() -> None:
    plan = report_plan()
    found = advise_range(plan, records=[20_000], densities=[0.2])
    advice = advise_reports(plan, records=20_000, density=0.2)
    assert found.errors[0][0] == pytest.approx(advice.std_error, rel=0.15)


@pytest.mark.parametrize(
    "plan",
    [
        small_plan(),
        model_plan(),
        Plan(
            name="margin",
            record={"dim": 3, "lower": [-2, -2, -2], "upper": [2, 2, 2]},
            sketch={"family": "paired", "loss": "margin", "rows": 20, "radius": 2},
            privacy={"epsilon": 1, "total_epsilon": 1},
        ),
        set_plan(),
        small_plan(sketch={"family": "partition", "kernel": ..., "rows": 1}),
    ],
    ids=["vectors", "regression", "margin", "sets", "histogram"],
)
def test_some_usual_densities_are_those_of_every_family(plan: Plan) -> None:
    found = advise_range(plan)
    assert found.densities
    assert len(found.errors) == len(found.densities)
    for errors in found.errors:
        assert list(errors) == sorted(errors)  # of more records an answer errs by more of them, or as many
        assert errors[0] > 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="density: got 2"):
        advise_range(small_plan(), densities=[2.0])
    with pytest.raises(ValueError, match="records: got 0"):
        advise_range(small_plan(), records=[0])
    with pytest.raises(ValueError, match="the mean loss that synthetic records"):
        advise_range(model_plan(), densities=[0.9])
