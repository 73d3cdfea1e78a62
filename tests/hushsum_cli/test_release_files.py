"""`hushsum query` and `hushsum plot`, on a release in a file."""

import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum.query import count_std_error
from tests.hushsum_cli.calling import Hushsum
from tests.plans import classed_plan, model_plan, set_plan, small_plan


def test_query_prints_what_the_release_answers(hushsum: Hushsum, release_file: Path) -> None:
    asked = ("--at", "3,7", "--at", "9,1", "--confidence", "0.9", "--json")
    shown = json.loads(hushsum("query", str(release_file), *asked).out)
    answer = hs.load(release_file).kernel_sum(np.array([[3.0, 7.0], [9.0, 1.0]]))
    assert [each["value"] for each in shown["answers"]] == answer.value.tolist()
    assert [each["std_error"] for each in shown["answers"]] == answer.std_error.tolist()
    assert [each["interval"] for each in shown["answers"]] == np.stack(answer.interval(0.9), axis=1).tolist()
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


def test_query_takes_columns_by_position_only_if_asked_to(hushsum: Hushsum, release_file: Path, tmp_path: Path) -> None:
    points, nameless = tmp_path / "points.csv", tmp_path / "nameless.hush"
    hs.release(hs.Sketch(small_plan()).add([[3.0, 7.0]])).save(nameless)
    points.write_text("y,x\n3,7\n9,1\n")
    unasked = hushsum("query", str(nameless), "--queries", str(points))
    assert (unasked.status, unasked.err.count("\n")) == (1, 1)
    assert "the plan has no names for its 2 columns" in unasked.err
    for file, options, expected in (
        (nameless, ("--by-position",), [[3.0, 7.0], [9.0, 1.0]]),
        (release_file, ("--by-position",), [[3.0, 7.0], [9.0, 1.0]]),
        (release_file, (), [[7.0, 3.0], [1.0, 9.0]]),
    ):
        shown = json.loads(hushsum("query", str(file), "--queries", str(points), *options, "--json").out)
        answer = hs.load(file).kernel_sum(expected)
        assert [each["at"] for each in shown["answers"]] == expected
        assert [each["value"] for each in shown["answers"]] == answer.value.tolist()


def test_a_line_of_queries_with_another_number_of_cells_is_refused(
    hushsum: Hushsum, release_file: Path, tmp_path: Path
) -> None:
    points = tmp_path / "points.csv"
    points.write_text("x,y\n3,7\n9\n")
    ended = hushsum("query", str(release_file), "--queries", str(points), "--by-position")
    assert (ended.status, ended.out) == (1, "")
    assert "line 3 of points.csv: 1 cell, expected 2" in ended.err


def test_query_shows_a_table_to_people(hushsum: Hushsum, release_file: Path) -> None:
    shown = hushsum("query", str(release_file), "--at", "3,7").out
    value = hs.load(release_file).kernel_sum(np.array([[3.0, 7.0]])).value[0]
    assert "3, 7" in shown
    assert f"{value:,.1f}" in shown
    assert "95 %" in shown
    assert shown.splitlines()[0].strip() == "test, released in process"


def test_an_error_that_one_row_does_not_show_is_unknown(hushsum: Hushsum, tmp_path: Path) -> None:
    file = tmp_path / "row.hush"
    hs.release(hs.Sketch(small_plan(sketch={"rows": 1}))).save(file)
    (answer,) = json.loads(hushsum("query", str(file), "--at", "3,7", "--json").out)["answers"]
    assert answer["value"] == hs.load(file).kernel_sum([[3, 7]]).value[0]
    assert (answer["std_error"], answer["interval"]) == (None, None)
    assert hushsum("query", str(file), "--at", "3,7").out.count("unknown") == 3


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


def test_plot_draws_every_kind_and_chooses_one(hushsum: Hushsum, release_file: Path, tmp_path: Path) -> None:
    picture, classes = tmp_path / "today.png", tmp_path / "classes.hush"
    hs.release(hs.Sketch(classed_plan("a", "b"))).save(classes)
    for file, options in (
        (release_file, ()),
        (release_file, ("--kind", "pairs", "--dark")),
        (classes, ()),
        (classes, ("--kind", "density", "--columns", "1")),
    ):
        ended = hushsum("plot", str(file), *options, "-o", str(picture))
        assert (ended.status, ended.out) == (0, f"{picture}\n")
        dark = matplotlib.image.imread(picture)[0, 0, :3].max() < 0.5
        assert dark == ("--dark" in options)
    for wrong, expected in (
        (("--kind", "classes"), "record.classes: got 'none'"),
        (("--kind", "cdf"), "'partition' for statistics of cells"),
        (("--kind", "pairs", "--hold", "x=2"), "--hold and --difference are for --kind density"),
    ):
        ended = hushsum("plot", str(release_file), *wrong)
        assert ended.status != 0
        assert expected in ended.err


def test_plot_writes_a_page_that_shows_values_with_their_intervals(
    hushsum: Hushsum, release_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "today.html"
    for options in ((), ("--difference", str(release_file), "--dark")):
        ended = hushsum("plot", str(release_file), *options, "-o", str(page))
        assert (ended.status, ended.out) == (0, f"{page}\n")
        text = page.read_text(encoding="utf-8")
        assert text.startswith("<!DOCTYPE html>")
        assert "95 %" in text


def test_plot_draws_a_difference(hushsum: Hushsum, release_file: Path, tmp_path: Path) -> None:
    picture, other = tmp_path / "difference.png", tmp_path / "other.hush"
    ended = hushsum("plot", str(release_file), "--difference", str(release_file), "-o", str(picture))
    assert (ended.status, ended.out.strip()) == (0, str(picture))
    assert matplotlib.image.imread(picture).std() > 0.05
    hs.release(hs.Sketch(small_plan(sketch={"seed": 77}))).save(other)
    ended = hushsum("plot", str(release_file), "--difference", str(other), "-o", str(picture))
    assert ended.status != 0
    assert "releases are compared by counters of the same rows and columns" in ended.err


@pytest.mark.parametrize(
    "arguments", (("--columns", "z"), ("--columns", "x,x"), ("--hold", "x=much"), ("-o", "today.xyz"))
)
def test_what_plot_cannot_do_is_told(hushsum: Hushsum, release_file: Path, arguments: tuple[str, str]) -> None:
    ended = hushsum("plot", str(release_file), *arguments)
    assert ended.status == 2
    assert arguments[0].strip("-")[0] in ended.err


@pytest.fixture
def classed_file(tmp_path: Path) -> Path:
    """The release of 300 records of class a at (3, 7), and of 200 of class b at (8, 1)."""
    sketch = hs.Sketch(classed_plan())
    sketch.add(np.tile([3.0, 7.0], (300, 1)), labels=["a"] * 300)
    sketch.add(np.tile([8.0, 1.0], (200, 1)), labels=["b"] * 200)
    path = tmp_path / "classes.hush"
    hs.release(sketch).save(path)
    return path


@pytest.mark.parametrize("density", (False, True))
def test_query_answers_for_one_class_and_counts_them_all(hushsum: Hushsum, classed_file: Path, density: bool) -> None:
    release, queries = hs.load(classed_file), np.array([[3.0, 7.0], [8.0, 1.0]])
    asked = ("--at", "3,7", "--at", "8,1", "--json", *(["--density"] if density else []))
    ask = release.density if density else release.kernel_sum
    for label in ("a", "b", "c", None):
        shown = json.loads(hushsum("query", str(classed_file), *asked, *(["--label", label] if label else [])).out)
        answer = ask(queries, label=label)
        assert [each["value"] for each in shown["answers"]] == answer.value.tolist()
        assert [each["std_error"] for each in shown["answers"]] == answer.std_error.tolist()
        assert shown["label"] == label
        assert shown["count"] == {"value": release.count, "std_error": count_std_error(release.plan)}
        assert {name: each["value"] for name, each in shown["counts"].items()} == {
            name: release.count_of(name) for name in "abc"
        }


def test_query_shows_people_the_class_and_the_count_of_each(hushsum: Hushsum, classed_file: Path) -> None:
    release = hs.load(classed_file)
    out = hushsum("query", str(classed_file), "--at", "3,7", "--label", "a").out
    assert "class 'a'" in out
    lines = [line.split() for line in out.splitlines()]
    for label in "abc":
        error = count_std_error(release.plan, label=label)
        assert [label, f"{release.count_of(label):,.1f}", f"{error:,.1f}"] in lines
    assert f"{release.count:,.1f} ± " in out


def test_a_class_that_the_release_does_not_have_is_told_with_those_that_it_has(
    hushsum: Hushsum, classed_file: Path, release_file: Path
) -> None:
    ended = hushsum("query", str(classed_file), "--at", "3,7", "--label", "z")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "the plan's classes are 'a', 'b', 'c'" in ended.err
    assert "it has no classes" in hushsum("query", str(release_file), "--at", "3,7", "--label", "a").err


@pytest.fixture
def sets_file(tmp_path: Path) -> Path:
    """The release of 400 times the set {3, 17, 29}."""
    sketch = hs.Sketch(set_plan())
    sketch.add([np.array([3, 17, 29])] * 400)
    path = tmp_path / "visits.hush"
    hs.release(sketch).save(path)
    return path


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """The release of 500 records of a plan for models of two coefficients."""
    sketch = hs.Sketch(model_plan())
    sketch.add(np.tile([0.5, 0.5, 0.2], (500, 1)))
    path = tmp_path / "model.hush"
    hs.release(sketch).save(path)
    return path


def test_query_asks_about_one_set_of_ids_at_a_time(hushsum: Hushsum, sets_file: Path) -> None:
    asked = ("--at", "3,17,29", "--at", "5", "--at", "29,3,17")
    shown = json.loads(hushsum("query", str(sets_file), *asked, "--json").out)
    answer = hs.load(sets_file).kernel_sum([[3, 17, 29], [5], [3, 17, 29]])
    assert [each["at"] for each in shown["answers"]] == [[3, 17, 29], [5], [3, 17, 29]]
    assert [each["value"] for each in shown["answers"]] == answer.value.tolist()
    assert "3, 17, 29" in hushsum("query", str(sets_file), *asked).out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    (
        (("--at", "3,north"), 2, "expected the ids of one set, separated by commas, such as 3,17,29"),
        (("--at", "3.5"), 2, "expected the ids of one set"),
        (("--at", str(2**70)), 2, "expected the ids of one set"),
        (("--at", "3,100"), 1, "from 0 to 99"),
        (("--queries", "points.csv"), 2, "--queries is not supported for plans of sets"),
    ),
    ids=str,
)
def test_what_is_no_set_of_ids_is_told(
    hushsum: Hushsum,
    sets_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(sets_file.parent)
    Path("points.csv").write_text("a,b\n1,2\n")
    ended = hushsum("query", str(sets_file), *arguments)
    assert ended.status == status
    assert message in " ".join(ended.err.split())


def test_query_asks_for_the_losses_of_models(hushsum: Hushsum, model_file: Path, tmp_path: Path) -> None:
    shown = json.loads(hushsum("query", str(model_file), "--at", "0.2,0.2", "--at", "1,-1", "--json").out)
    answer = hs.load(model_file).kernel_sum(np.array([[0.2, 0.2], [1.0, -1.0]]))
    assert [each["value"] for each in shown["answers"]] == answer.value.tolist()
    (tmp_path / "models.csv").write_text("a,b\n0.2,0.2\n1,-1\n")
    of_file = json.loads(hushsum("query", str(model_file), "--queries", str(tmp_path / "models.csv"), "--json").out)
    assert of_file == shown
    ended = hushsum("query", str(model_file), "--at", "1,2,3")
    assert (ended.status, "'1,2,3' has 3 numbers, expected 2 coefficients of a model" in ended.err) == (2, True)
    (tmp_path / "records.csv").write_text("a,b,c\n1,2,3\n")
    ended = hushsum("query", str(model_file), "--queries", str(tmp_path / "records.csv"))
    assert (ended.status, "expected 2 coefficients of a model" in ended.err) == (1, True)


def test_plot_says_of_sets_and_models_what_to_do_instead(
    hushsum: Hushsum, sets_file: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, hint in ((sets_file, "hushsum query --at 3,17,29"), (model_file, "hushsum.estimators")):
        for columns in ((), ("--columns", "0")):
            ended = hushsum("plot", str(file), *columns)
            assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
            assert hint in ended.err
    assert not list(tmp_path.glob("*.png"))


def test_show_says_what_a_file_promises_and_counts(hushsum: Hushsum, release_file: Path) -> None:
    release = hs.load(release_file)
    shown = json.loads(hushsum("release", "show", str(release_file), "--json").out)
    assert shown["statement"] == release.statement()
    assert (shown["count"], shown["count_std_error"]) == (release.count, count_std_error(release.plan))
    told = hushsum("release", "show", str(release_file)).out
    assert f"{release.count:,.0f} ±" in told
    assert "released in process" in told
    promise = " ".join(told.split())
    assert "guarantee ε = 1, δ = 0, unit record, add/remove: adding or removing one record changes" in promise
    assert "that one record is included can afterwards believe it with at most 73.2 %. That is ε = 1, δ = 0." in promise
