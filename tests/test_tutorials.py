"""The tutorials, typed as a reader types them: every block of each page runs from an empty folder.

``pytest tests/test_tutorials.py -s`` prints the minutes that each takes. tests/test_notebooks.py runs two as notebooks.
"""

import asyncio
import re
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aggregator.app import running
from aggregator.runtime import SystemRuntime
from build_tools.docs_site.tutorials import BLOCK, FOLDER, commands_of, minutes
from hushsum import Plan
from tests.doc_pages import PATIENCE_S, Terminals, answers, in_process, run_page, terminals
from tests.services import config_of

Rows = Sequence[Sequence[float]]
PAGES = ("nobody-trusted", "private-density", "team", "three-devices")


def typed(name: str, opened: Terminals, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a page in the terminals' empty folder; the number of its blocks that were run."""
    monkeypatch.chdir(opened.folder)
    page = opened.copy_of(FOLDER / f"{name}.md")
    start = time.monotonic()
    blocks = run_page(page, opened.folder, opened.run, PATIENCE_S)
    ran = (time.monotonic() - start) / 60
    read, type_ = minutes(page.read_text(encoding="utf-8"))
    sys.stdout.write(
        f"{name}: {read:.1f} min to read + {type_:.1f} to type + {ran:.1f} to run = {read + type_ + ran:.1f}\n"
    )
    return blocks


def truth(folder: Path, names: Sequence[str], factor: Sequence[float], bandwidth: float, places: Rows) -> list[float]:
    """The exact kernel sums of the records in CSV files: of exp(−d²/h²) after scaling."""
    records = np.concatenate([np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1) for name in names])
    apart = (records[:, None] - np.asarray(places)) * factor / bandwidth
    return [float(each) for each in np.exp(-np.square(apart).sum(axis=2)).sum(axis=0)]


def are_near(came: list[list[float]], true: Sequence[float], bias: float = 0) -> bool:
    """Whether answers are within 12 standard errors, and the family's bias, of what the files of a page hold.

    Noise of this many draws is nearly normal; one discrete Laplace draw alone passes 12 with probability 2·10⁻⁸.
    """
    assert len(came) == len(true)
    return all(abs(value - at) < 12 * error + bias for (value, error), at in zip(came, true, strict=True))


def test_every_tutorial_is_tested() -> None:
    assert sorted(page.stem for page in FOLDER.glob("*.md")) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_says_how_long_it_takes(name: str) -> None:
    """Reading and typing are computed; the rest are the commands, and what a reader waits for."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    (stated,) = [int(number) for number in re.findall(r"It takes about (\d+) minutes", text)]
    assert sum(minutes(text)) <= stated <= sum(minutes(text)) + 5
    assert name != "private-density" or stated <= 10


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_has_numbered_steps_and_says_what_may_go_wrong(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    steps = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 6
    assert text.count("*When it goes wrong:*") >= 3
    assert "## What you have\n" in text
    assert "## Where to go next\n" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_list_of_releases_is_awaited_by_a_release_and_not_by_their_number(name: str) -> None:
    """Numbers may differ there, also that of releases."""
    for block in BLOCK.finditer((FOLDER / f"{name}.md").read_text(encoding="utf-8")):
        if block["kind"] == "console":
            for command, lines in commands_of(block["text"]):
                assert not command.startswith("hushsum release list") or any(" released " in line for line in lines)


def test_minutes_are_those_of_reading_and_typing() -> None:
    prose = "word " * 200
    assert minutes(prose) == (1.0, 0.0)
    assert minutes(f"{prose}\n```console\n$ {'x' * 200}\n{'shown ' * 200}\n```\n") == (2.0, 1.0)
    assert minutes(f"<!-- file: a.py -->\n```python\n{'x' * 399}\n```\n") == (0.0, 2.0)


def test_a_reader_of_the_first_tutorial_gets_the_density_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which takes 6 seconds; as a notebook it runs in processes."""
    monkeypatch.chdir(tmp_path)
    outputs: dict[str, str] = {}
    run = in_process(monkeypatch, capsys)

    def kept(command: str) -> str:
        return outputs.setdefault(command, run(command))

    assert run_page(FOLDER / "private-density.md", tmp_path, kept) == 8
    places = [[30, 40_000], [55, 75_000], [90, 150_000]]
    true = truth(tmp_path, ["people"], [0.008333, 0.000005], 0.064, places)
    asked = outputs["hushsum query today.hush --at 30,40000 --at 55,75000 --at 90,150000"]
    assert are_near(answers(asked), true, bias=0.0061 * 20_000)
    made, shown = (size_of(folder / "private-density.png") for folder in (tmp_path, FOLDER))
    assert made == shown


def size_of(png: Path) -> tuple[int, int]:
    """Width and height of a picture, from its header."""
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    return width, height


async def test_the_device_of_the_second_tutorial_contributes_to_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (FOLDER / "three-devices.md").read_text(encoding="utf-8")
    files = {block["file"]: block["text"] for block in BLOCK.finditer(page) if block["file"]}
    monkeypatch.chdir(tmp_path)
    async with running(config_of(tmp_path, Plan.from_toml(files["rooms.toml"])), SystemRuntime()) as service:
        monkeypatch.setattr(sys, "argv", ["device.py", "kitchen", "21", "50"])
        code = files["device.py"].replace("localhost:7443", service.grpc)
        await asyncio.to_thread(exec, compile(code, "device.py", "exec"), {})
    assert "kitchen added 500 readings; 1 delta acknowledged\n" in capsys.readouterr().out


@pytest.mark.long
def test_a_reader_of_the_second_tutorial_collects_from_three_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings are made up anew by each device; the least of 500 that are near their mean is far above 400."""
    with terminals(tmp_path) as opened:
        assert typed("three-devices", opened, monkeypatch) == 8
        near, _, far = answers(dict(opened.outputs)["hushsum query rooms.hush --at 21,50 --at 12,70 --at 30,20"])
    assert near[0] > 400
    assert abs(far[0]) < 12 * far[1]


@pytest.mark.long
def test_a_reader_of_the_third_tutorial_gets_near_the_truth_in_both_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminals(tmp_path) as opened:
        assert typed("nobody-trusted", opened, monkeypatch) == 12
        places = [[21, 50], [12, 70], [30, 20]]
        true = truth(opened.folder, ["kitchen", "bedroom", "cellar"], [0.25, 0.1], 1, places)
        outputs = dict(opened.outputs)
        for file, least, most in (("reports", 100, 150), ("sums", 30, 33)):
            came = answers(outputs[f"hushsum query {file}.hush --at 21,50 --at 12,70 --at 30,20"])
            assert are_near(came, true, bias=0.0052 * 1500), file
            assert all(least < error < most for _, error in came), "what the table of the page states"


@pytest.mark.long
def test_a_team_runs_its_service_as_the_fourth_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end of a window, which is a minute."""
    with terminals(tmp_path) as opened:
        assert typed("team", opened, monkeypatch) == 21
