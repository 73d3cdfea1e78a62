"""``make paper-tables``: one small experiment from data to the page, and the committed page against its rows."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.data import DataSet, vectors
from benchmarks.accuracy.papers import density, page, run
from benchmarks.accuracy.papers.page_tables import ratios_table
from benchmarks.accuracy.papers.tally import HUSHSUM, Tally
from benchmarks.baselines.race import Race
from benchmarks.baselines.series import Bernstein, Cosines, Histogram, lattice_points


@pytest.fixture
def little(rng: np.random.Generator) -> DataSet:
    points = np.round(rng.uniform(0, 10, (500, 1)), 1)
    return vectors("little", "bounds 0 to 10", [0], [10], (points, rng.uniform(1, 9, (40, 1))))


def test_an_experiment_goes_from_data_to_the_page(
    little: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = density.Subject("little", 2, 64, density.NORM, 10, (2, 4))
    monkeypatch.setitem(run.EXPERIMENTS, "density", lambda quick: density.of_data(subject, little, quick=quick))
    monkeypatch.setattr(sys, "argv", ["accuracy", "--papers", "density", "--quick", "--out", str(tmp_path)])
    accuracy.main()
    rows = json.loads((tmp_path / "papers_density.json").read_text("utf-8"))["rows"]
    methods = {row["method"] for row in rows}
    assert methods == {
        HUSHSUM,
        density.RACE,
        density.RACE_CODE,
        density.BERNSTEIN,
        density.SPECTRAL,
        density.HISTOGRAM,
    }
    assert all(row["least"] <= row["median"] <= row["most"] for row in rows)
    found = (tmp_path / "papers.md").read_text("utf-8")
    assert found == page.text(rows)
    assert "## RACE figure 3" in found
    assert (tmp_path / "papers" / "race-density.png").read_bytes().startswith(b"\x89PNG")
    assert "density:" in capsys.readouterr().out


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    rows = run.saved(run.RESULTS)
    found = run.PAGE.read_text("utf-8")
    assert found == page.text(rows)
    assert {str(row["figure"]) for row in rows} <= {figure for shown in page.SECTIONS for figure in shown}
    for figure in re.findall(r"\]\(papers/([\w-]+\.png)\)", found):
        assert (run.PAGE.with_suffix("") / figure).is_file()


def test_a_tally_keeps_the_median_and_the_spread_of_its_seeds() -> None:
    tally = Tally("race-3", "little", "error")
    for value in (3.0, 1.0, 2.0, 10.0, 2.5):
        tally.add(HUSHSUM, value, size=8, epsilon=0.1)
    (row,) = tally.rows()
    assert (row["median"], row["least"], row["most"], row["seeds"]) == (2.5, 1.0, 10.0, 5)


def test_a_ratio_above_its_aim_is_a_miss() -> None:
    ours, ours_with_delta, theirs = (
        Tally("race-3", "little", "error"),
        Tally("race-3", "little", "error"),
        Tally("race-3", "little", "error"),
    )
    for epsilon, error in ((0.1, 0.6), (1.0, 1.1)):
        ours.add(HUSHSUM, error, epsilon=epsilon)
        ours_with_delta.add(HUSHSUM, 0.7, epsilon=epsilon, delta=1e-6)
        theirs.add("peer", 1.0, epsilon=epsilon)
    rows = [*ours.rows(), *ours_with_delta.rows(), *theirs.rows()]
    lines = ratios_table(rows, "peer").splitlines()[2:]
    assert lines[0].endswith("| 0.60 | 1.10 **miss** |")
    assert lines[1].endswith("| 0.70 **miss** | 0.70 |")


def test_baselines_without_noise_are_kernel_sums(rng: np.random.Generator) -> None:
    """What they release at a huge ε: RACE within its hashing error, series within their truncation."""
    records, queries = rng.uniform(0.2, 0.8, (2000, 1)), np.linspace(0.1, 0.9, 9)[:, None]

    def kernel(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(-np.square(left - right.T) / 0.1))

    def sums(points: np.ndarray) -> np.ndarray:
        return np.asarray(kernel(records, points).sum(axis=0))

    exact = sums(queries)
    for method in (
        Bernstein.of(sums(lattice_points(300, 1)), 300, queries),
        Cosines.of(sums, kernel, 20, queries),
        Histogram.of(records, kernel, 300, queries),
    ):
        np.testing.assert_allclose(method.answer(1e9, rng), exact, rtol=0.02)
    plan = density.Subject("little", 0.2, 64, density.RELATIVE).plan(
        vectors("little", "", [0], [1], (records, queries)), 8, 1
    )
    sketch = Race.of(records, np.ones(2000), queries, bandwidth=0.2, rows=4000, buckets=1000, rng=rng)
    ((found, counted),) = sketch.answers([4000], 1e-12, rng)
    np.testing.assert_allclose(found, plan.family.kernel(records, queries).sum(axis=0), rtol=0.1)
    assert counted == pytest.approx(2000)


def test_noise_of_baselines_is_what_their_sensitivity_asks_for(rng: np.random.Generator) -> None:
    """One record changes r counters of RACE by 1, and every point of Bernstein's lattice by at most 1."""
    empty = Race(np.zeros((50, 400)), np.zeros((50, 1), np.int64))
    ((_, total),) = empty.answers([50], 1 / 0.5, rng)
    assert abs(total) < 6 * np.sqrt(2 * 400 / 50) * 50 / 0.5
    lattice = Bernstein(np.zeros(121), [np.eye(11)[[3]], np.eye(11)[[7]]])
    found = np.array([lattice.answer(0.5, rng)[0] for _ in range(2000)])
    assert np.abs(found).mean() == pytest.approx(121 / 0.5, rel=0.12)
