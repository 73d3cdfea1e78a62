"""Plans proposed from public bounds and a few answers."""

import warnings
from collections.abc import Mapping
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import hushsum as hs
from hushsum.families.partition import Partition
from hushsum.families.partition.heavy_hitters import heavy_cells
from hushsum.proposal import QUESTIONS, TRUSTED, Proposal, propose

POSSIBLE = [
    (question, trust)
    for question, trust in product(QUESTIONS, TRUSTED)
    if trust != "report" or question not in {"histogram", "regression"}
]


def columns(number: int, *, alike: bool) -> dict[str, tuple[int, int]]:
    """Bounds of so many columns, all as wide as each other or not, with 0 in the middle."""
    return {f"c{i}": (-1, 1) if alike else (-1 - i, 1 + i) for i in range(number)}


def proposed(bounds: Mapping[str, object], **answers: object) -> Proposal:
    """A proposal where nothing else is asked for."""
    if answers.get("question") == "classes":
        answers["classes"] = ["a", "b", "c"]
    return propose(bounds, **{"epsilon": 1, "total_epsilon": 3, **answers})  # type: ignore[arg-type]  # of several types


@pytest.mark.parametrize(("question", "trust"), POSSIBLE)
@pytest.mark.parametrize("dim", [2, 3, 12])
def test_a_written_proposal_makes_the_same_plan_without_a_warning(question: str, trust: str, dim: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for records, alike, epsilon in product((500, 10**7), (True, False), ("0.1", 5)):
            answers = {"question": question, "trust": trust, "records": records, "epsilon": epsilon}
            proposal = proposed(columns(dim, alike=alike), total_epsilon=20, **answers)
            assert hs.Plan.from_toml(proposal.to_toml("a comment")).id == proposal.plan.id
            assert 0 < proposal.density < 1


def test_sobol_rows_are_proposed_up_to_20_columns() -> None:
    draws = {dim: proposed(columns(dim, alike=True)).tables["sketch"]["draws"] for dim in (3, 20, 21)}
    assert draws == {3: "sobol", 20: "sobol", 21: "independent"}


@pytest.mark.parametrize("question", ["outliers", "classes"])
def test_where_places_are_compared_the_kernel_decays_fast(question: str) -> None:
    found = {dim: proposed(columns(dim, alike=True), question=question).tables["sketch"] for dim in (2, 3, 4, 20, 200)}
    assert [found[dim]["kernel"] for dim in found] == ["gaussian", "gaussian", "laplacian", "laplacian", "euclidean"]
    assert (found[3]["family"], found[3]["order"]) == ("hermite", 1)
    plain = proposed(columns(4, alike=True)).tables["sketch"]
    assert plain["kernel"] == "euclidean"
    reports = proposed(columns(3, alike=True), question=question, trust="report").tables["sketch"]
    assert (reports["family"], reports["kernel"]) == ("hashed", "laplacian")


def test_classes_have_few_rows_of_many_buckets_at_delta_0_and_many_with_sobol_points_above() -> None:
    few, many = (proposed(columns(8, alike=True), question="classes", delta=d).tables["sketch"] for d in (0, 1e-6))
    assert (few["rows"], few["buckets"], few["draws"]) == (32, 8192, "independent")
    assert (many["rows"], many["buckets"], many["draws"]) == (1024, 1024, "sobol")


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("dim", [2, 8])
def test_a_bandwidth_that_is_given_is_a_share_of_the_bounds(dim: int, alike: bool) -> None:
    proposal = proposed(columns(dim, alike=alike), question="density", bandwidth="0.05")
    width = 2 if alike else 1  # columns that are not alike are scaled to 1
    assert proposal.tables["sketch"]["bandwidth"] == Fraction(width, 20)
    narrow, wide = (proposed(columns(8, alike=alike), bandwidth=share) for share in ("0.01", 1))
    assert narrow.density < wide.density
    assert narrow.tables["sketch"]["rows"] <= wide.tables["sketch"]["rows"]


@pytest.mark.parametrize("trust", ["central", "silo"])
def test_a_narrow_bandwidth_that_is_given_does_not_make_a_huge_sketch(trust: str) -> None:
    for dim, question in product((1, 2, 3), ("density", "classes")):
        for bandwidth in ("0.1", "0.01", "0.001", "0.0001"):
            plan = proposed(columns(dim, alike=True), question=question, trust=trust, bandwidth=bandwidth).plan
            assert np.prod(plan.counters_shape) <= 2**25
    assert proposed(columns(2, alike=True), bandwidth="0.01").tables["sketch"]["family"] == "hermite"
    assert proposed(columns(2, alike=True), bandwidth="0.0001").tables["sketch"]["family"] == "hashed"


@pytest.mark.parametrize("bandwidth", [0, -1, "1.01"])
def test_a_bandwidth_that_is_no_share_is_refused(bandwidth: object) -> None:
    with pytest.raises(ValueError, match=r"bandwidth: got .*, expected a share of the bounds' width, above 0"):
        proposed(columns(2, alike=True), bandwidth=bandwidth)


@pytest.mark.parametrize("question", ["histogram", "regression"])
def test_questions_without_a_kernel_refuse_a_bandwidth(question: str) -> None:
    with pytest.raises(ValueError, match=f"bandwidth: not supported with question '{question}'"):
        proposed(columns(2, alike=True), question=question, bandwidth="0.1")


@pytest.mark.parametrize(
    "bounds",
    [(0, 1), ("-0.3", "0.6"), (0, "0.3"), ("40.5", "40.9"), ("0.1", "0.7"), (0, 7)],
    ids=lambda bounds: f"{bounds[0]}-{bounds[1]}",
)
@pytest.mark.parametrize("records", [60, 135, 1500])
def test_a_proposed_histogram_has_a_counter_for_each_cell(bounds: tuple[object, object], records: int) -> None:
    for pair in (bounds, (0, 2)):
        proposal = proposed({"x": bounds, "y": pair}, question="histogram", records=records)
        family = proposal.plan.family
        assert isinstance(family, Partition)
        assert family.tables.levels[0].direct
        grid = family.tables.grid
        assert grid is not None
        low, high = grid.corners(grid.counts[None] - 1)
        assert np.all(high - low > 0.9 * grid.side)  # no sliver at the end
        sketch = hs.Sketch(proposal.plan).add(np.full((5000, 2), [float(Fraction(str(bounds[0]))), 0.0]))
        assert len(heavy_cells(family, sketch.counters[0])) == 1


def test_more_records_or_a_larger_epsilon_ask_for_more_rows_and_cells() -> None:
    few, many = (proposed(columns(5, alike=True), records=records).tables["sketch"] for records in (500, 10**6))
    assert few["rows"] < many["rows"]
    assert few["bandwidth"] > many["bandwidth"]
    coarse, fine = (
        proposed(columns(2, alike=True), question="histogram", epsilon=epsilon).tables["sketch"]["buckets"]
        for epsilon in ("0.01", 1)
    )
    assert coarse < fine


@pytest.mark.parametrize(
    ("records", "cells", "levels"), [(5000, 100, 1), (45_000, 100, 1), (50_000, 512, 6), (200_000, 1024, 7)]
)
def test_a_histogram_of_one_column_has_levels_where_its_cells_stand_out_of_their_noise(
    records: int, cells: int, levels: int
) -> None:
    sketch = proposed({"x": (0, 512)}, question="histogram", records=records).tables["sketch"]
    assert (sketch["buckets"], sketch.get("levels", 1)) == (cells, levels)
    for answers in ({"trust": "silo"}, {"epsilon": "0.01"}):
        assert (
            "levels" not in proposed({"x": (0, 512)}, question="histogram", records=records, **answers).tables["sketch"]
        )
    assert "levels" not in proposed(columns(2, alike=True), question="histogram", records=10**7).tables["sketch"]


def test_counters_of_many_classes_stay_below_what_a_plan_is_warned_of() -> None:
    labels = [f"label {number}" for number in range(1000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = propose(columns(8, alike=True), epsilon=5, total_epsilon=5, question="density", classes=labels).plan
    assert plan.counters_shape[0] == 1000


def test_a_regression_has_its_target_last_and_a_middle_of_0() -> None:
    bounds = {"y": (-2, 2), "a": (-1, 1), "b": (-5, 5)}
    plan = proposed(bounds, question="regression", target="y").plan
    assert plan.collection.names == ("a", "b", "y")
    with pytest.raises(ValueError, match=r"column 'b' has 0 and 10, .* subtract 5 from its values and its bounds"):
        proposed({**bounds, "b": (0, 10)}, question="regression", target="y")


@pytest.mark.parametrize("pair", [None, (None, 10), (float("nan"), 1)])
def test_a_missing_bound_is_refused_with_the_reason(pair: object) -> None:
    with pytest.raises(hs.RecordError, match=r"column 'y' .*must not be taken from the data: .* single records"):
        proposed({"x": (0, 1), "y": pair})


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"question": "average"}, "question: got 'average', expected one of 'density'"),
        ({"trust": "me"}, "trust: got 'me', expected one of 'central'"),
        ({"trust": "report", "question": "histogram"}, "reports cannot answer 'histogram'"),
        ({"records": 0}, "records: got 0"),
        ({"target": "c0"}, "target: allowed only with question 'regression'"),
        ({"question": "regression", "target": "z"}, "target: no column 'z'; there are c0, c1"),
    ],
)
def test_answers_that_do_not_fit_are_refused_by_name(answers: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        proposed(columns(2, alike=True), **answers)


def test_a_grid_of_too_many_cells_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a histogram of 25 columns has at least 2\^25 cells"):
        proposed(columns(25, alike=True), question="histogram")


def test_a_bound_that_is_no_number_is_named() -> None:
    with pytest.raises(hs.PlanError, match="bounds of column 'x'"):
        proposed({"x": ("low", 1)})
    with pytest.raises(hs.RecordError, match="expected a lower bound below the upper bound"):
        proposed({"x": (1, 1)})
    with pytest.raises(hs.RecordError, match="expected a lower and an upper bound"):
        proposed({"x": 3})


def test_names_with_quotes_and_letters_of_any_script_are_written_as_they_are() -> None:
    proposal = propose({'a"b\\': (-1, 1), "größe ∂x": (-1, 1)}, epsilon=1, total_epsilon=1, name='of "us"')
    assert hs.Plan.from_toml(proposal.to_toml()).collection.names == ('a"b\\', "größe ∂x")
