"""The pure pieces of ``make bench-accuracy``, on little data."""

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import hushsum as hs
from benchmarks.accuracy import estimators, postprocessing, quantiles
from benchmarks.accuracy.curves import NO_NOISE, PURE, SMALL_DELTA, Curve, Truth, best_rows, errors_of, keys, measure
from benchmarks.accuracy.data import DataSet, vectors
from benchmarks.accuracy.page import text, write
from benchmarks.accuracy.regression import r_squared, sloped, standardised
from benchmarks.accuracy.sums import exact_sums
from benchmarks.accuracy.tables import best, errors_table, matching, number
from benchmarks.report import Row
from hushsum import kernels


@pytest.fixture
def little(rng: np.random.Generator) -> DataSet:
    points = np.round(rng.uniform(0, 10, (400, 2)))  # of which many are equal
    return vectors("little", "bounds 0 to 10", [0, 0], [10, 10], (points, rng.uniform(0, 10, (60, 2))))


CURVE = Curve("hashed euclidean", keys("hashed", "euclidean", 4, buckets=64), (8, 512), seeds=(2, 4), epsilons=(0.5,))


def test_exact_sums_are_those_of_every_pair(little: DataSet) -> None:
    family = CURVE.plan(little, 8, 1).family
    pairs = family.kernel(little.records, little.queries)
    np.testing.assert_allclose(exact_sums(family, little.records, little.queries), pairs.sum(axis=0), rtol=1e-12)


def test_exact_sums_of_sets_are_those_of_every_pair(rng: np.random.Generator) -> None:
    matrix = sparse.csr_matrix(rng.random((130, 12)) < 0.4).astype(np.int8)
    matrix = matrix[np.diff(matrix.indptr) > 0]
    records, queries = matrix[:70], matrix[70:]
    data = DataSet("sets", "", {"kind": "set", "universe": 12}, records, queries)
    family = Curve("", {"family": "hashed", "kernel": "jaccard", "buckets": 64}, (8,)).plan(data, 8, 1).family
    pairs = kernels.jaccard((records.indptr, records.indices), (queries.indptr, queries.indices))
    np.testing.assert_allclose(exact_sums(family, records, queries), pairs.sum(axis=0), rtol=1e-12)


def test_errors_are_what_their_names_say() -> None:
    answer = hs.Answer(np.array([9.0, 22.0, 5.0]), np.array([1.0, 0.1, 1.0]))
    relative, absolute, coverage, half = errors_of(answer, answer.value / 50, np.array([10.0, 20.0, 0.0]), 100)
    assert relative == pytest.approx((0.1 + 0.1) / 2)
    assert absolute == pytest.approx((abs(0.18 - 0.1) + abs(0.44 - 0.2) + 0.1) / 3)
    assert coverage == pytest.approx(1 / 3)
    assert half == pytest.approx(1.96 * (0.1 + 0.1 / 20) / 2, rel=1e-3)


@pytest.mark.usefixtures("repeatable_noise")
@pytest.mark.statistical
def test_a_curve_falls_with_rows_and_rises_with_noise(little: DataSet) -> None:
    truth = Truth(little)
    rows = measure(CURVE, truth)
    assert [(row["size"], row["epsilon"], row["delta"], row["sketches"]) for row in rows] == [
        (8, NO_NOISE, PURE, 4),
        (8, 0.5, PURE, 4),
        (8, 0.5, SMALL_DELTA, 4),
        (512, NO_NOISE, PURE, 4),
        (512, 0.5, PURE, 4),
        (512, 0.5, SMALL_DELTA, 4),
    ]
    errors = [float(row["relative error"]) for row in rows]
    assert errors[3] < errors[0]  # of public seeds alone: the same every time
    assert errors[4] > 2 * errors[5]  # √(2·512)/0.5 beside 1/√(2ρ): 64 beside 10 records
    assert (
        errors[4] > 2 * errors[3]
    )  # 512 rows of noise at ε = 0.5: the mean of 240 errors is about 15 times as large, false alarm < 1e-9
    stars = best_rows(dataclasses.replace(CURVE, epsilons=(0.1, 0.5)), truth)
    assert stars[0.5] > stars[0.1] >= 1


def test_a_family_that_is_not_offered_is_skipped_with_one_line(
    little: DataSet, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dataclasses.replace(CURVE, label="a dream", sketch={"family": "dream"})
    assert not other.built(little)
    assert capsys.readouterr().out == "little: a dream skipped, this version does not offer it\n"
    assert CURVE.built(little)


def test_the_best_row_has_the_least_error_and_a_table_shows_it() -> None:
    rows: list[Row] = [
        {"sketch": "a", "axis": "rows", "size": size, "epsilon": epsilon, "delta": PURE, "relative error": error}
        for size, epsilon, error in ((8, NO_NOISE, 0.5), (32, NO_NOISE, 0.25), (8, 1.0, 0.125), (32, 1.0, 0.75))
    ]
    found = best(matching(rows, epsilon=NO_NOISE), "relative error")
    assert found is not None
    assert found["size"] == 32
    table = errors_table("nowhere", "relative error", rows, {"a": 0.9}, PURE)
    assert table.splitlines()[2:] == ["| a | 0.25 (R 32) | 0.12 (R 8) | 0.9 |"]
    assert best([], "relative error") is None


@pytest.mark.parametrize(("value", "written"), [(0.0, "0"), (0.034567, "0.035"), (1.234e-5, "1.2e-5"), (12.3, "12")])
def test_numbers_are_written_with_two_digits(value: float, written: str) -> None:
    assert number(value) == written


def test_the_page_shows_what_was_measured_and_nothing_else(little: DataSet, tmp_path: Path) -> None:
    data = dataclasses.replace(little, name="skin")
    kernel: Row = {"part": "kernel", "data": "skin", "sketch": CURVE.label, "relative error": 0.5, "density error": 0.1}
    about: Row = {"part": "about", "data": "skin", "text": data.about, "setting": "w = 4"}
    rows = [{"part": "curve", **row} for row in measure(CURVE, Truth(data))] + [kernel, about]
    write(tmp_path / "accuracy.md", rows)
    page = (tmp_path / "accuracy.md").read_text("utf-8")
    assert page == text(rows)
    assert "## skin\n" in page
    assert "| hashed euclidean |" in page
    assert "## taxi" not in page
    assert {path.name for path in (tmp_path / "accuracy").iterdir()} == {"skin.png", "skin-delta.png"}
    assert (tmp_path / "accuracy" / "skin.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore::hushsum.errors.PlanWarning")
def test_the_page_shows_errors_before_and_after_post_processing(little: DataSet) -> None:
    """Of one sketch each: consistent levels, shrunk sums and a control variate."""
    cells = {"family": "partition", "bandwidth": 1, "buckets": 128, "rows": 1}
    rows: list[Row] = [
        {"part": "post", **row}
        for some in (
            postprocessing.levels(little, 1, 128, 4, seeds=1),
            postprocessing.shrunk(little, [cells], seeds=1),
            postprocessing.control(little, 100, seeds=1),
        )
        for row in some
    ]
    for row in matching(rows, topic="levels"):
        assert float(row["cells after"]) < float(row["cells before"])
    for row in matching(rows, topic="shrunk"):
        assert float(row["cut"]) <= float(row["before"])
    page = text(rows)
    assert page.count("\n### ") == 3
    assert "| little | grid | partition, 1 rows, 128 buckets |" in page


def test_errors_of_quantiles_are_in_records_and_in_the_unit_of_the_column() -> None:
    values = np.array([1.0, 2.0, 2.0, 2.0, 5.0, 6.0])
    assert quantiles.errors(values, (0.5,), [[2.0], [6.0]]) == {"rank error": 1.0, "error": 2.0}  # 5 are below 6.0
    assert quantiles.errors(values, (0.5, 1.0), [[1.5, 7.0]]) == {"rank error": 1.0, "error": 0.75}


@pytest.mark.usefixtures("repeatable_noise")
def test_the_page_shows_quantiles_beside_the_libraries_that_are_installed(
    little: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantiles, "find_spec", lambda name: find_spec(name) if name == "opendp" else None)
    monkeypatch.setattr(quantiles, "EPSILONS", {1.0: 128})
    rows: list[Row] = [{"part": "quantiles", **row} for row in quantiles._of(little, quick=True)]
    assert [row["library"] for row in rows] == ["Hushsum", "OpenDP"] * 3
    assert all(float(row["error"]) < 10 for row in rows)
    page = text(rows)
    assert "## Quantiles" in page
    assert page.count("| not installed |") == 3


@pytest.mark.usefixtures("repeatable_noise")
def test_the_page_shows_classifiers_beside_peers_where_these_were_measured(rng: np.random.Generator) -> None:
    labels = (np.arange(6000) % 2).astype(np.float64)
    points = rng.normal(0.3 + 0.4 * labels[:, None], 0.05, (6000, 2))
    some = "little", points, labels, [(0.0, 1.0)] * 2
    rows = [*estimators._classes(*some, quick=True), *estimators._linear_classes(*some, quick=True)]
    assert [row["estimator"] for row in rows] == ["KernelClassifier"] * 2 + ["LinearClassifier"] * 2
    assert all(float(row["median"]) > 0.9 for row in rows)
    measured: list[Row] = [{"part": "estimators", **row} for row in rows]
    page = text(measured)
    assert "## Estimators at ε = 1" in page
    assert "diffprivlib's" not in page
    peers: list[Row] = [
        {"part": "peers", "peer": kind, "data": "little", "median": median, "least": 0.1, "most": 1.0}
        for kind, median in (("LogisticRegression", 1.01), ("GaussianNB", 0.5))
    ]
    page = text([*measured, *peers])
    assert "| diffprivlib's LogisticRegression | diffprivlib's GaussianNB |" in page
    assert "little at δ = 0: above GaussianNB, 1.0 points below LogisticRegression" in " ".join(page.split())


def test_a_regression_explains_what_it_can() -> None:
    records = sloped(5000, np.random.default_rng(7))
    assert r_squared(records, np.array([0.5])) == pytest.approx(0.5, abs=0.05)
    assert r_squared(records, np.array([0.0])) == pytest.approx(0.0, abs=0.01)


def test_columns_that_say_nothing_new_are_left_out(rng: np.random.Generator) -> None:
    values = rng.normal(size=(50, 2))
    given = np.column_stack([values[:, 0], np.ones(50), 3 * values[:, 0] + 1, values[:, 1]])
    scaled = standardised(given)
    assert scaled.shape == (50, 2)
    assert np.abs(scaled).max() <= 3
