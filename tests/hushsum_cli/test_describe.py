"""`hushsum describe`, on a release in a file."""

import json
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum.statistics import Statistics
from tests.hushsum_cli.calling import Hushsum


@pytest.fixture
def cells_file(tmp_path: Path) -> Path:
    """Of two columns and two classes, the second of them empty; a fifth of x is clipped."""
    rng = np.random.default_rng(1)
    record = {"dim": 2, "lower": [0, 0], "upper": [10, 40], "names": ["x", "y"], "classes": ["a", "b"]}
    sketch = {"family": "partition", "bandwidth": 2, "rows": 1, "buckets": 200}
    plan = hs.Plan(name="cells", record=record, sketch=sketch, privacy={"epsilon": 1, "total_epsilon": 2})
    points = np.stack([rng.choice([4.5, 11], 3000, p=[0.8, 0.2]), rng.normal(20, 4, 3000)], axis=1)
    path = tmp_path / "cells.hush"
    hs.release(hs.Sketch(plan).add(points, labels=["a"] * 3000)).save(path)
    return path


def test_describe_prints_the_figures_of_each_column(hushsum: Hushsum, cells_file: Path) -> None:
    shown = json.loads(hushsum("describe", str(cells_file), "--confidence", "0.9", "--json").out)
    found = Statistics(hs.load(cells_file))
    assert shown["count"]["value"] == float(found.count.value[0])
    assert list(shown["columns"]) == ["x", "y"]
    assert shown["columns"]["y"]["mean"] == {
        "value": float(found.mean("y").value[0]),
        "std_error": float(found.mean("y").std_error[0]),
        "interval": [float(end[0]) for end in found.mean("y").interval(0.9)],
        "at_bound": False,
    }
    median = found.quantiles(0.5, "y", confidence=0.9)
    assert shown["columns"]["y"]["50%"]["interval"] == [median.low[0], median.high[0]]
    assert (shown["columns"]["x"]["min"]["value"], shown["columns"]["x"]["max"]["value"]) == (0, 10)
    assert (shown["columns"]["x"]["cell_width"], shown["columns"]["y"]["cell_width"]) == (2, 2)
    assert "unaccounted" in shown["statement"]


def test_describe_says_what_is_at_a_bound_and_what_is_unknown(hushsum: Hushsum, cells_file: Path) -> None:
    lines = hushsum("describe", str(cells_file), "--label", "b").out.splitlines()
    assert "class 'b'" in lines[0]
    assert any("50%" in line and "unknown*" in line for line in lines)
    assert any(line.startswith("* the interval reaches a bound") for line in lines)
    assert any(line.startswith("unknown: too few records") for line in lines)
    shown = json.loads(hushsum("describe", str(cells_file), "--label", "b", "--json").out)
    assert shown["columns"]["x"]["mean"] == {"value": None, "std_error": None, "interval": None, "at_bound": False}
    of_a = hushsum("describe", str(cells_file), "--label", "a").out
    assert "width of a cell, which intervals include: x 2, y 2" in of_a
    assert "unknown" not in of_a


def test_a_release_of_another_family_is_an_error_that_says_what_to_use(hushsum: Hushsum, release_file: Path) -> None:
    ended = hushsum("describe", str(release_file))
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "sketch.family: got 'hashed', expected 'partition' for statistics of cells" in ended.err
    assert "use release.kernel_sum" in ended.err


def test_an_unknown_class_is_an_error(hushsum: Hushsum, cells_file: Path) -> None:
    ended = hushsum("describe", str(cells_file), "--label", "c")
    assert (ended.status, ended.err) == (1, "hushsum: label: got 'c'; the plan's classes are 'a', 'b'\n")
