"""Data sets of the benchmarks: files where they are, and stand-ins of the same shape, which tables name."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data_files, fetch_data, workloads
from benchmarks.accuracy import __main__ as accuracy
from benchmarks.accuracy.data import data_sets
from benchmarks.data_files import FILES, columns, shown

#: Records and columns of the files.
SHAPES = {
    "skin": (245_057, 4),
    "covtype": (100_000, 55),
    "taxi": (73_154, 2),
    "pay": (148_654, 2),
    "slashdot": (948_464, 2),
    "ego_facebook": (88_234, 2),
    "htru2": (17_898, 9),
    "airfoil": (1503, 6),
    "naval": (11_934, 18),
}


@pytest.fixture
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FOLDER", tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_stand_in_has_the_shape_of_its_file_and_says_that_it_is_one(
    name: str, no_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    made = columns(name)
    assert made.shape == SHAPES[name]
    assert np.isfinite(made).all()
    assert (made.std(axis=0) > 0).all()
    assert "stand-in" in capsys.readouterr().out
    assert shown(name) == f"{name} (stand-in)"
    assert shown(f"{name}, 2 columns").endswith("(stand-in)")
    assert shown("random 55") == "random 55"


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_where_it_is_and_a_stand_in_has_its_shape(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not (data_files.FOLDER / FILES[name]).exists():
        pytest.skip(f"there is no shared/data/{FILES[name]} beside the project")
    assert columns(name).shape == SHAPES[name]
    assert shown(name) == name
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ("skin", "covtype", "taxi", "slashdot", "ego_facebook", "htru2", "covtype-2"))
def test_stand_ins_lie_within_the_public_bounds_of_their_data(name: str, no_files: None) -> None:
    (made,) = data_sets([name], quick=True)
    if "lower" in made.record:
        assert ((made.record["lower"] <= made.records) & (made.records <= made.record["upper"])).all()
    else:
        degrees = np.diff(made.records.indptr)
        assert degrees.min() >= 1
        assert degrees.max() > (20 if name == "slashdot" else 5) * np.median(degrees), "heavy-tailed"


@pytest.mark.parametrize("packed", (False, True))
def test_a_data_set_is_fetched_only_if_its_numbers_have_the_known_digest(
    packed: bool, no_files: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = b"# from to\n0 1\n0\t2\n"
    there = tmp_path / ("edges.txt.gz" if packed else "edges.txt")
    there.write_bytes(gzip.compress(text) if packed else text)
    expected = fetch_data.digest(np.array([[0.0, 1.0], [0.0, 2.0]]))
    with pytest.raises(ValueError, match=f"SHA-256 {expected}, expected 00"):
        fetch_data.fetch("slashdot", fetch_data.Source(there.as_uri(), "00"))
    assert not (tmp_path / FILES["slashdot"]).exists()
    assert fetch_data.fetch("slashdot", fetch_data.Source(there.as_uri(), expected)) == "fetched, 2 records"
    assert columns("slashdot").tolist() == [[0, 1], [0, 2]]
    assert fetch_data.fetch("slashdot", fetch_data.Source("file:///nowhere", "00")) == "is there"
    assert capsys.readouterr().out == "", "no stand-in"


@pytest.mark.parametrize("name", fetch_data.SOURCES)
def test_digests_of_sources_are_those_of_the_files(name: str) -> None:
    if not (data_files.FOLDER / FILES[name]).exists():
        pytest.skip(f"there is no shared/data/{FILES[name]} beside the project")
    assert fetch_data.digest(columns(name)) == fetch_data.SOURCES[name].digest


def test_labels_of_stand_ins_are_those_of_the_files(no_files: None) -> None:
    for name, labels in (("skin", {1, 2}), ("htru2", {0, 1}), ("covtype", set(range(1, 8)))):
        assert set(columns(name)[:, -1]) == labels
    assert (columns("covtype")[:, 10:14].sum(axis=1) == 1).all()
    assert (columns("covtype")[:, 14:54].sum(axis=1) == 1).all()


def test_a_workload_of_a_stand_in_says_so_in_its_table(no_files: None) -> None:
    workloads.data.cache_clear()
    try:
        (made,) = workloads.workloads([("taxi", {"family": "hermite", "kernel": "gaussian", "bandwidth": "0.01"})])
        assert made.about["data"] == "taxi (stand-in)"
        assert len(made.vectors(100)) == 100
    finally:
        workloads.data.cache_clear()


def test_accuracy_of_stand_ins_is_printed_and_leaves_the_page_of_real_data(
    no_files: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("_PAGE", "_RESULTS"):
        monkeypatch.setattr(accuracy, name, tmp_path / "saved" / name)
    row = {"part": "post", "data": "taxi", "sketch": "grid", "rms": 2.0}
    monkeypatch.setitem(accuracy._MEASURES, "post", lambda little: [row])
    monkeypatch.setattr(sys, "argv", ["accuracy", "--post", "--out", str(tmp_path / "out")])
    accuracy.main()
    out = capsys.readouterr().out
    assert "taxi (stand-in)" in out
    assert "they were not changed" in out
    (written,) = (tmp_path / "out").iterdir()
    assert json.loads(written.read_text("utf-8"))["rows"] == [{**row, "data": "taxi (stand-in)"}]
    assert not (tmp_path / "saved").exists()
