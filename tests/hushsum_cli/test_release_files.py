"""`hushsum query` and `hushsum plot`, on a release in a file."""

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from tests.hushsum_cli.calling import Hushsum


def test_query_prints_what_the_release_answers(hushsum: Hushsum, release_file: Path) -> None:
    asked = ("--at", "3,7", "--at", "9,1", "--confidence", "0.9", "--json")
    shown = json.loads(hushsum("query", str(release_file), *asked).out)
    answer = hs.load(release_file).kernel_sum(np.array([[3.0, 7.0], [9.0, 1.0]]))
    assert [each["value"] for each in shown["answers"]] == answer.value.tolist()
    assert [each["std_error"] for each in shown["answers"]] == answer.std_error.tolist()
    assert [each["interval"] for each in shown["answers"]] == answer.interval(0.9).tolist()
    assert shown["answers"][0]["at"] == [3.0, 7.0]
    assert "unaccounted" in shown["statement"]


def test_query_takes_a_file_of_points(hushsum: Hushsum, release_file: Path, tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text("name,y,x\nhere,7,3\nthere,1,9\n")
    asked = ("--queries", str(points), "--columns", "x,y", "--density", "--json")
    shown = json.loads(hushsum("query", str(release_file), *asked).out)
    answer = hs.load(release_file).density(np.array([[3.0, 7.0], [9.0, 1.0]]))
    assert shown["what"] == "density"
    assert [each["value"] for each in shown["answers"]] == answer.value.tolist()


def test_query_shows_a_table_to_people(hushsum: Hushsum, release_file: Path) -> None:
    shown = hushsum("query", str(release_file), "--at", "3,7").out
    value = hs.load(release_file).kernel_sum(np.array([[3.0, 7.0]])).value[0]
    assert "3, 7" in shown
    assert f"{value:,.1f}" in shown
    assert "95 %" in shown


@pytest.mark.parametrize("points", ("3", "3,7,1", "3,north"))
def test_a_point_of_another_shape_is_refused(hushsum: Hushsum, release_file: Path, points: str) -> None:
    ended = hushsum("query", str(release_file), "--at", points)
    assert ended.status == 2
    assert "--at" in ended.err


def test_an_altered_release_is_refused(hushsum: Hushsum, release_file: Path) -> None:
    data = bytearray(release_file.read_bytes())
    data[100] ^= 1
    release_file.write_bytes(data)
    ended = hushsum("query", str(release_file), "--at", "3,7")
    assert ended.status == 1
    assert "truncated or altered" in ended.err


def test_plot_draws_what_is_asked_for(hushsum: Hushsum, release_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "today.png"
    ended = hushsum("plot", str(release_file), "--columns", "y,0", "--hold", "x=2", "-o", str(picture))
    assert (ended.status, ended.out) == (0, f"{picture}\n")
    assert matplotlib.image.imread(picture).std() > 0.05  # something is drawn


@pytest.mark.parametrize(
    "arguments", (("--columns", "z"), ("--columns", "x,x"), ("--hold", "x=much"), ("-o", "today.xyz"))
)
def test_what_plot_cannot_do_is_told(hushsum: Hushsum, release_file: Path, arguments: tuple[str, str]) -> None:
    ended = hushsum("plot", str(release_file), *arguments)
    assert ended.status == 2
    assert arguments[0].strip("-")[0] in ended.err
