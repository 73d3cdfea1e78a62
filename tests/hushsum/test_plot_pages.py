"""Figures as pages: they show what the pictures show, and load nothing."""

import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import hushsum as hs
from hushsum.panels import KINDS, LinePanel, Panels, PlanePanel, View, density_panels, difference_panels, release_panels
from hushsum.plot_pages import page
from tests.plans import classed_plan, small_plan

HOSTILE = "</script><script>alert('x')</script>"


class Read(HTMLParser):
    """The tags of a page with their attributes, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.is_script = tag == "script"
        if self.is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_script = False

    def handle_data(self, data: str) -> None:
        if self.is_script:
            self.scripts[-1] += data

    @property
    def specification(self) -> dict[str, Any]:
        _, _, arguments = self.scripts[1].partition('vegaEmbed("#figure", ')
        found: dict[str, Any] = json.JSONDecoder().raw_decode(arguments)[0]
        return found


def charts(specification: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The charts of a page, row by row."""
    rows = specification["vconcat"]
    return [[{"data": row.get("data"), **chart} for chart in row["hconcat"]] for row in rows]


def data_of(specification: dict[str, Any], chart: dict[str, Any], layer: int) -> list[dict[str, Any]]:
    """What a layer of a chart shows: data that all layers share are those of the chart, or of its row."""
    data = chart["layer"][layer].get("data") or chart["data"]
    found: list[dict[str, Any]] = specification["datasets"][data["name"]]
    return found


@pytest.fixture
def release(repeatable_noise: None) -> hs.Release:
    """Records at (2, 8), of a plan of named columns."""
    sketch = hs.Sketch(small_plan(record={"names": ["width", "depth"], "units": ["mm", "m"]}, sketch={"rows": 50}))
    return hs.release(sketch.add(np.tile([2.0, 8.0], (2000, 1))))


@pytest.fixture
def grid(repeatable_noise: None) -> hs.Release:
    cells = {"family": "partition", "bandwidth": 1, "rows": 1, "buckets": 16, "seed": 3}
    record = {"dim": 1, "lower": [0], "upper": [10], "names": ["age"], "units": ["years"]}
    plan = hs.Plan(name="drawn", record=record, sketch=cells, privacy={"epsilon": 1, "total_epsilon": 1})
    return hs.release(hs.Sketch(plan).add(np.full((500, 1), 4.0)))


@pytest.fixture
def classes(repeatable_noise: None) -> hs.Release:
    sketch = hs.Sketch(classed_plan("red", HOSTILE, sketch={"rows": 50}))
    return hs.release(sketch.add(np.tile([2.0, 8.0], (300, 1)), labels=["red", HOSTILE, HOSTILE] * 100))


def assert_loads_nothing(text: str) -> None:
    """No tag loads anything, its policy forbids all but its own scripts, and its data are all in it."""
    read = Read(text)
    assert [tag for tag, _ in read.tags] == ["html", "head", "meta", "meta", "title", "body", "div", "script", "script"]
    assert not {name for _, attributes in read.tags for name in attributes} & {
        "src",
        "href",
        "srcset",
        "data",
        "onload",
    }
    policy = read.tags[3][1]["content"] or ""
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in read.scripts]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {' '.join(digests)}"
    specification = read.specification
    assert not re.findall(r'"url"\s*:', json.dumps(specification))
    assert {key for key, value in flat(specification) if isinstance(value, str) and "://" in value} == {"$schema"}
    assert "import(" not in text
    assert not re.search(r"url\(\s*['\"]?https?:", text)


def flat(value: Any, key: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for name, each in value.items() for pair in flat(each, name)]
    return [pair for each in value for pair in flat(each, key)] if isinstance(value, list) else [(key, value)]


def test_a_page_has_the_values_of_the_panels_with_their_intervals(release: hs.Release) -> None:
    panels = density_panels(release, view=View((0, 1), (2.0, 8.0)))
    specification = Read(page(panels)).specification
    (heat_map, widths), (line,) = charts(specification)
    plane, below = panels.rows[0][0], panels.rows[1][0]
    assert isinstance(plane, PlanePanel)
    assert isinstance(below, LinePanel)
    cells = data_of(specification, heat_map, 0)
    assert [cell["value"] for cell in cells] == release.density(plane.points).value.tolist() == plane.value.tolist()
    assert [cell["half"] for cell in data_of(specification, widths, 0)] == plane.half.tolist()
    assert [(cell["x"], cell["y"]) for cell in cells] == list(map(tuple, plane.points.tolist()))
    assert cells[7]["shown"] == f"{plane.value[7]:.4g} ± {plane.half[7]:.2g}"
    tooltip = heat_map["layer"][0]["encoding"]["tooltip"]
    assert [each["title"] for each in tooltip] == ["width (mm)", "depth (m)", "released density, 95 %"]
    assert line["layer"][0]["encoding"]["x"]["title"] == ["width (mm)"]
    drawn = data_of(specification, line, 0)
    low, high = release.density(below.points).interval(0.95)
    assert [(row["low"], row["high"]) for row in drawn] == list(zip(low.tolist(), high.tolist(), strict=True))
    assert "density, 95 %" in [each["title"] for each in line["layer"][-1]["encoding"]["tooltip"]]
    assert data_of(specification, line, -1)[3]["shown0"] == drawn[3]["shown"]


def every_kind(release: hs.Release, grid: hs.Release, classes: hs.Release) -> list[Panels]:
    other = hs.release(hs.Sketch(release.plan).add(np.tile([8.0, 2.0], (2000, 1))))
    compared = difference_panels(release.compare(other), view=View((0, 1), (2.0, 8.0)))
    shown = [release_panels(release, kind="density"), release_panels(release, kind="pairs")]
    return [*shown, release_panels(classes), release_panels(grid), compared]


def test_pages_of_every_kind_load_nothing(release: hs.Release, grid: hs.Release, classes: hs.Release) -> None:
    every = every_kind(release, grid, classes)
    assert {panels.kind for panels in every} == {*KINDS, "difference"}
    for panels in every:
        assert_loads_nothing(page(panels, dark=panels.kind == "cdf"))


@pytest.mark.parametrize(
    "planted",
    [
        ('<div id="figure">', '<div id="figure"><img src="https://example.org/a.png">'),
        ("default-src 'none'", "default-src *"),
        ('"datasets"', '"url": "https://example.org/data.json", "datasets"'),
        ("window.vegaEmbed", 'import("https://example.org/a.js");window.vegaEmbed'),
    ],
)
def test_a_page_that_loads_something_is_found(grid: hs.Release, planted: tuple[str, str]) -> None:
    text = page(release_panels(grid))
    assert planted[0] in text
    with pytest.raises(AssertionError):
        assert_loads_nothing(text.replace(*planted, 1))


def test_a_text_of_the_plan_is_no_script(classes: hs.Release) -> None:
    text = page(release_panels(classes))
    assert text.count("</script") == 2
    specification = Read(text).specification
    bars = data_of(specification, charts(specification)[0][0], 0)
    assert HOSTILE in [row["name"] for row in bars]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_a_page_under_its_policy(tmp_path: Path, classes: hs.Release) -> None:
    right = page(release_panels(classes))
    for text, is_drawn in ((right, True), (right.replace("script-src 'sha256-", "script-src 'sha256-A"), False)):
        (tmp_path / "figure.html").write_text(text, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,900"]
        options += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'seen.png'}"]
        command = ["chromium", *options, (tmp_path / "figure.html").as_uri()]
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        assert ("CONSOLE" not in ended.stderr) is is_drawn, "an error, or a refusal of the policy"
        assert bool(matplotlib.image.imread(tmp_path / "seen.png").std() > 0.05) is is_drawn


_POINTING = """<script>setTimeout(() => {
  const canvas = document.querySelector("canvas"), at = canvas.getBoundingClientRect();
  for (const type of ["pointerover", "pointermove", "mousemove"])
    canvas.dispatchEvent(new PointerEvent(type, {clientX: at.left + 400, clientY: at.top + 150, bubbles: true}));
}, 1500)</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_the_value_under_the_pointer(tmp_path: Path, repeatable_noise: None) -> None:
    """The pointer is a script of this test, which the policy of a page would refuse."""
    sketch = hs.Sketch(small_plan(record={"dim": 1, "lower": [0], "upper": [10], "names": ["age"], "units": ["years"]}))
    panels = release_panels(hs.release(sketch.add(np.full((500, 1), 4.0))))
    text = re.sub(r"<meta http-equiv[^>]*>", "", page(panels), count=1)
    before, _, after = text.rpartition("</body>")
    (tmp_path / "figure.html").write_text(before + _POINTING + after, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--timeout=8000"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command.append((tmp_path / "figure.html").as_uri())
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    tooltip = re.search(r'<div id="vg-tooltip-element".*?</div>', ended.stdout, re.DOTALL)
    assert tooltip is not None
    shown = re.findall(r'<td class="(?:key|value)">(.*?)</td>', tooltip[0])
    line = panels.rows[0][0]
    assert isinstance(line, LinePanel)
    at = int(np.argmin(np.abs(line.x - float(shown[1]))))
    low, high = line.curves[0].low[at], line.curves[0].high[at]
    expected = f"{line.curves[0].value[at]:.4g} ± {(high - low) / 2:.2g}"
    assert shown == ["age (years)", shown[1], "density, 95 %", expected]
