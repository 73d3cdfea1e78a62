"""The analyst's views: they show what releases say, as the library says it, for every family and mode."""

import csv
import html
import io
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum.entropy import ReplayableEntropy
from hushsum.releases import draw
from hushsum_page.figures import Choice, choice_of, csv_of, panels_of
from hushsum_page.source import REMOVED, WITHHELD, OutcomeEntry, PlanEntry
from hushsum_proto.messages import NextOutcome
from tests.hushsum_page.page_releases import (
    MAKERS,
    NAMED,
    WINDOW,
    Browser,
    address_of,
    browser_of,
    points,
    saved,
    windows,
)
from tests.plans import client_plan, small_plan

DRAWN = sorted(set(MAKERS) - {"paired", "sets"})


class ListedSource:
    """Plans and outcomes without any data, as a service may have them."""

    title = "Releases of this service"

    def __init__(self, *entries: PlanEntry) -> None:
        self.entries = list(entries)

    async def plans(self) -> list[PlanEntry]:
        return self.entries

    async def data(self, plan: hs.Plan, outcome: OutcomeEntry) -> bytes:
        raise AssertionError("nothing here is loaded")


def code_in(text: str, heading: int = 0) -> str:
    """The lines of Python that a page shows."""
    return html.unescape(re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)[heading])


def run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(code, "page", "exec"), names)
    return names


@pytest.mark.parametrize("name", MAKERS)
def test_a_release_of_every_family_and_mode_has_its_page(name: str, tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS[name]()})
    page = browser.get(address_of(browser, "today.hush"))
    assert page.status_code == 200
    text = html.unescape(page.text)
    release = hs.load(tmp_path / "today.hush")
    assert release.statement() in text
    assert "<h2>Its guarantee</h2>" in text
    assert ("<svg" in re.sub(r'<a class="brand".*?</a>', "", page.text)) is (name in DRAWN)
    assert not re.search(r"\sstyle=|<style|<script>|javascript:|\son[a-z]+=", page.text)


@pytest.mark.parametrize("name", DRAWN)
def test_every_kind_of_picture_has_its_tables_and_files(name: str, tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS[name]()})
    address = address_of(browser, "today.hush")
    kinds = re.findall(r'<option value="(density|pairs|classes|cdf)"', browser.get(address).text)
    assert kinds[0] == "density"
    release = hs.load(tmp_path / "today.hush")
    for kind in kinds:
        page = browser.get(f"{address}?kind={kind}")
        assert page.status_code == 200, kind
        assert 'class="numbers"' in page.text
        table = browser.get(f"{address}/figure.csv?kind={kind}")
        assert table.text == csv_of(panels_of(release, Choice(kind))[0])


@pytest.mark.parametrize(("name", "kind"), [("one column", "density"), ("classes", "classes"), ("partition", "cdf")])
def test_a_picture_is_saved_in_both_themes(name: str, kind: str, tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS[name]()})
    address = address_of(browser, "today.hush")
    for theme, least, most in (("light", 0.8, 1.0), ("dark", 0.0, 0.2)):
        picture = browser.get(f"{address}/figure.png?kind={kind}&theme={theme}")
        pixels = matplotlib.image.imread(io.BytesIO(picture.content), format="png")
        assert least <= float(pixels[0, 0, :3].mean()) <= most


def test_the_answer_at_a_point_is_that_of_the_library_with_its_error_and_interval(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["classes"]()})
    address = address_of(browser, "today.hush")
    release = hs.load(tmp_path / "today.hush")
    for label in (None, "red"):
        answer = release.kernel_sum([[3.0, 7.0]], label=label)
        low, high = answer.interval(0.95)
        query = "?c0=3&c1=7" + (f"&label={label}" if label else "")
        for page in (browser.get(address + query), browser.get(f"{address}/at{query}")):
            assert f"{answer.value[0]:,.1f}" in page.text
            assert f"{answer.std_error[0]:,.1f}" in page.text
        assert f"{low[0]:,.1f} to {high[0]:,.1f}" in browser.get(address + query).text


def test_sets_and_models_answer_without_a_picture(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"sets": MAKERS["sets"](), "models": MAKERS["paired"]()})
    sets, models = (address_of(browser, f"{name}.hush") for name in ("sets", "models"))
    expected = hs.load(tmp_path / "sets.hush").kernel_sum([np.array([1, 2, 3])])
    assert f"{expected.value[0]:,.1f}" in browser.get(f"{sets}?at=3,2,1").text
    loss = hs.load(tmp_path / "models.hush").kernel_sum([[0.5, -0.5]])
    assert f"{loss.value[0]:,.1f}" in browser.get(f"{models}?c0=0.5&c1=-0.5").text
    assert "no picture of sets and of models" in browser.get(sets).text


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("c0=3&c1=", "expected a number"),
        ("c0=3&c1=nan", "expected a number"),
        ("c0=3&c1=1e999", "expected a number"),
        ("c0=3&c1=seven", "expected a number, got &#39;seven&#39;"),
        ("c0=3&c1=7&label=blue", "one of the plan&#39;s classes"),
        ("kind=pie", "kind: expected"),
        ("x=7", "column: expected a number from 0 to 1"),
        ("x=0&y=0", "two different ones"),
        ("hold1=far", "held at a number"),
        ("hold9=1", "column: expected a number from 0 to 1"),
        ("kind=cdf", "for statistics of cells"),
    ],
)
def test_what_cannot_be_understood_is_said_on_the_page(query: str, why: str, tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    page = browser.get(f"{address_of(browser, 'today.hush')}?{query}")
    assert why in page.text
    assert page.status_code == (200 if "cdf" in query else 422)


def test_a_slice_goes_through_the_values_that_are_chosen(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    address = address_of(browser, "today.hush")
    release = hs.load(tmp_path / "today.hush")
    lines = list(csv.reader(io.StringIO(browser.get(f"{address}/figure.csv?kind=density&x=1&y=0&hold0=2.5").text)))
    start = lines.index(["depth (m)", *lines[lines.index([]) + 1][1:]]) + 1
    at = [[2.5, float(line[0])] for line in lines[start:]]
    assert np.allclose(release.density(at).value, [float(line[1]) for line in lines[start:]])
    assert "width = 2.5" in browser.get(f"{address}?kind=density&x=1&y=0&hold0=2.5").text


@pytest.mark.parametrize("query", ["", "?kind=pairs", "?x=1&y=0&hold0=2.5"])
def test_the_python_lines_of_a_picture_run(query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    run(code_in(browser.get(address_of(browser, "today.hush") + query).text), tmp_path, monkeypatch)
    assert (tmp_path / "figure.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "query"), [("classes", "c0=3&c1=7&label=red"), ("sets", "at=3,2,1"), ("paired", "c0=1&c1=0")]
)
def test_the_python_lines_of_an_answer_give_the_same(
    name: str, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS[name]()})
    text = browser.get(f"{address_of(browser, 'today.hush')}?{query}").text
    answer = run(code_in(text[text.index('id="answer"') :]), tmp_path, monkeypatch)["answer"]
    assert f"{answer.value[0]:,.1f}</td><td>{answer.std_error[0]:,.1f}" in text


def test_a_release_is_saved_byte_for_byte(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    saved_file = browser.get(f"{address_of(browser, 'today.hush')}/release.hush")
    assert saved_file.content == (tmp_path / "today.hush").read_bytes()
    assert saved_file.headers["content-disposition"].startswith('attachment; filename="test-')


def test_a_plan_says_its_promise_in_odds(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    for page in (browser.get("/"), browser.get(re.findall(r'"(/plans/[0-9a-f]{16})"', browser.get("/").text)[0])):
        assert "An observer may believe that one record is included." in page.text
        for before, after in (("1 %", "2.7 %"), ("10 %", "23.2 %"), ("50 %", "73.2 %")):  # docs/how-to/epsilon.md
            assert f"<td>{before}</td><td>{after}</td>" in page.text


def test_a_sequence_is_promised_as_a_whole(tmp_path: Path) -> None:
    page = browser_of(tmp_path, {"today": MAKERS["cumulative"]()}).get("/").text
    assert "All cumulative releases of its sequence together can change that belief" in page


def test_a_client_in_several_windows_is_told_what_all_of_them_may_spend(tmp_path: Path) -> None:
    release = draw(
        hs.Sketch(client_plan()), kind="tumbling", window=WINDOW, entropy=ReplayableEntropy(b"page"), accounted=True
    )
    assert "all releases together spend at most ε = 100" in browser_of(tmp_path, {"today": release}).get("/").text


def test_outcomes_that_are_not_shown_are_listed_with_what_became_of_them() -> None:
    plan = small_plan()
    outcomes = tuple(
        OutcomeEntry("", WITHHELD if number % 2 else REMOVED, "tumbling", WINDOW - number, 0) for number in range(120)
    )
    following = NextOutcome(WINDOW + 1, 1_700_003_900_000, is_sealed=False)
    browser = Browser(ListedSource(PlanEntry(plan, outcomes, following))).sign_in()
    page = browser.get(f"/plans/{plan.hex_id[:16]}")
    assert "60 withheld" in page.text
    assert "60 removed" in page.text
    assert f"next: window {WINDOW + 1:,}, its seal is due at 2023-11-14 23:18 UTC" in page.text
    assert "page 1 of 3" in page.text
    last = browser.get(f"/plans/{plan.hex_id[:16]}?page=3").text
    assert f"window {WINDOW - 119:,}" in last
    assert "/releases/" not in last
    browser = Browser(ListedSource(PlanEntry(plan, outcomes, following._replace(is_sealed=True)))).sign_in()
    for address in ("/", f"/plans/{plan.hex_id[:16]}"):
        assert f"next: window {WINDOW + 1:,}, sealed and not published yet" in browser.get(address).text


@pytest.mark.parametrize("page", ["0", "-1", "x", "99999999999999999999", "٣"])
def test_a_page_that_there_is_not_is_the_first_or_the_last(page: str, tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    plan = re.findall(r'"(/plans/[0-9a-f]{16})"', browser.get("/").text)[0]
    assert "today.hush" in browser.get(f"{plan}?page={page}").text


def test_an_empty_service_says_so() -> None:
    assert "There is no plan here yet." in Browser(ListedSource()).sign_in().get("/").text
    plan = small_plan()
    browser = Browser(ListedSource(PlanEntry(plan, ()))).sign_in()
    assert "nothing released yet" in browser.get("/").text
    assert "Nothing has been released yet." in browser.get(f"/plans/{plan.hex_id[:16]}").text
    assert "no release of a window yet" in browser.get(f"/plans/{plan.hex_id[:16]}/time").text
    assert "there are none here" in browser.get("/compare").text


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A plan with 100 windows, whose records move in the middle."""
    return browser_of(tmp_path_factory.mktemp("hundred"), windows(small_plan(record=NAMED), 100))


def test_two_windows_are_compared_as_the_library_does(hundred: Browser) -> None:
    first, second = (address_of(hundred, f"w{at}.hush")[-16:] for at in (99, 0))
    page = hundred.get(f"/compare?first={first}&second={second}")
    assert "outlined: more than noise explains" in page.text
    assert re.search(r"one population: p = \d", page.text)
    table = hundred.get(f"/compare.csv?first={first}&second={second}").text
    assert table.startswith("width (mm),depth (m),difference of the densities")
    same = hundred.get(f"/compare?first={first}&second={first}").text
    assert "one population: p = 1" in same


def test_releases_of_other_sketches_are_not_compared(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {name: MAKERS[name]() for name in ("hashed", "hermite", "sets")})
    first, second = (address_of(browser, f"{name}.hush")[-16:] for name in ("hashed", "hermite"))
    assert browser.get("/compare").text.count("<option") == 4  # the two that have pictures, twice
    page = browser.get(f"/compare?first={first}&second={second}")
    assert page.status_code == 422
    assert "releases are compared by counters of the same rows and columns" in page.text


def test_a_series_has_every_window(hundred: Browser) -> None:
    plan = re.findall(r'"(/plans/[0-9a-f]{16})"', hundred.get("/").text)[0]
    page = hundred.get(f"{plan}/time")
    assert page.status_code == 200
    assert page.text.count("<circle") == 200
    lines = list(csv.reader(io.StringIO(hundred.get(f"{plan}/time.csv").text)))
    assert len(lines) == 2 * (100 + 1) + 1


def test_changes_are_found_where_they_are(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, windows(small_plan(record=NAMED, sketch={"rows": 50}), 12))
    plan = re.findall(r'"(/plans/[0-9a-f]{16})"', browser.get("/").text)[0]
    assert 'class="change"' not in browser.get(f"{plan}/time").text
    page = browser.get(f"{plan}/time?changes=yes").text
    assert "Looking for changes" in page  # nobody waits for it
    while "Looking for changes" in page:
        asked = browser.get(f"{plan}/time?changes=yes", **{"hx-request": "true"})
        page = asked.text if asked.status_code == 200 else page
        time.sleep(0.05)
    assert "1 change found" in page
    assert page.count('class="change"') == 2  # in both pictures


def test_polls_for_changes_load_nothing_until_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hushsum_page.library.KEPT_COUNTERS", 1)  # whatever is loaded is loaded again
    browser = browser_of(tmp_path, windows(small_plan(record=NAMED, sketch={"rows": 50}), 3))
    plan = re.findall(r'"(/plans/[0-9a-f]{16})"', browser.get("/").text)[0]
    source, loads, may_end = browser.library.source, list[str](), threading.Event()
    data, drift = source.data, hs.Series.drift

    async def counted(plan: hs.Plan, outcome: OutcomeEntry) -> bytes:
        loads.append(outcome.id)
        return await data(plan, outcome)

    def held(series: hs.Series) -> Any:
        may_end.wait(60)
        return drift(series)

    monkeypatch.setattr(source, "data", counted)
    monkeypatch.setattr(hs.Series, "drift", held)
    changes = f"{plan}/time?changes=yes"
    assert "Looking for changes" in browser.get(changes).text
    loads.clear()
    for _ in range(3):
        assert browser.get(changes, **{"hx-request": "true"}).status_code == 204
        assert "Looking for changes" in browser.get(changes).text  # its picture without changes is kept
    assert loads == []
    may_end.set()
    while (found := browser.get(changes, **{"hx-request": "true"})).status_code == 204:
        time.sleep(0.01)
    assert "<svg" in found.text
    assert len(loads) == 3, "once, to draw the result"
    assert browser.get(changes).text.count("<svg") == found.text.count("<svg")
    assert len(loads) == 3


def test_changes_of_a_sketch_with_too_few_rows_are_not_looked_for(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, windows(small_plan(record=NAMED, sketch={"rows": 4}), 3))
    plan = re.findall(r'"(/plans/[0-9a-f]{16})"', browser.get("/").text)[0]
    while "Looking for changes" in (page := browser.get(f"{plan}/time?changes=yes").text):
        time.sleep(0.05)
    assert "expected 8 or more to test" in page
    assert page.count("<svg") > 2  # the picture is there without them


def test_a_file_that_changes_is_not_shown_any_more(tmp_path: Path) -> None:
    browser = browser_of(tmp_path, {"today": MAKERS["hashed"]()})
    address = address_of(browser, "today.hush")
    MAKERS["hermite"]().save(tmp_path / "today.hush")
    page = browser.get(address)
    assert page.status_code == 404
    assert "today.hush has changed" in page.text
    (tmp_path / "today.hush").unlink()
    assert "cannot be read any more" in browser.get(address).text


def test_a_choice_is_read_from_an_address() -> None:
    asked: Mapping[str, str] = {"kind": "density", "x": "1", "y": "0", "hold0": "2.5", "c0": "3"}
    assert choice_of(small_plan(), asked) == Choice("density", (1, 0), ((0, 2.5),))


def test_saved_files_have_one_page_each(tmp_path: Path) -> None:
    paths = saved(tmp_path, {"a": MAKERS["hashed"](), "b": MAKERS["hashed"]()})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    browser = browser_of(tmp_path, {"a": MAKERS["hashed"]()})
    assert len(points()) == 500
    assert "a.hush" in browser.get("/").text
