"""The tutorials, typed as a reader types them: every block of each page runs from an empty folder, in real processes.

``pytest tests/test_tutorials.py -s`` prints the minutes that each takes. Tutorials of which a notebook is made run as
that notebook, too, by IPython.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from build_tools.docs_site.tutorials import AS_NOTEBOOKS, FOLDER, NOTEBOOKS, minutes, notebook_file
from tests.doc_pages import PATIENCE_S, SHOWN_WINDOW, Terminals, run_page, terminals

PAGES = ("nobody-trusted", "private-density", "team", "three-devices")


def typed(name: str, opened: Terminals, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs a page in the terminals' empty folder; the number of its blocks that were run."""
    monkeypatch.chdir(opened.folder)
    page = opened.copy_of(FOLDER / f"{name}.md")
    start = time.monotonic()
    blocks = run_page(page, opened.folder, opened.run, PATIENCE_S)
    ran = (time.monotonic() - start) / 60
    read, type_ = minutes(page.read_text(encoding="utf-8"))
    print(f"{name}: {read:.1f} min to read + {type_:.1f} to type + {ran:.1f} to run = {read + type_ + ran:.1f}")
    return blocks


def answers(out: str) -> list[list[float]]:
    """Value and standard error at each place of an output of `hushsum query`."""
    lines = re.findall(r"^ *\d+, \d+ (.*)$", out, re.MULTILINE)
    return [[float(number.replace(",", "")) for number in line.split()[:2]] for line in lines]


def are_near(came: list[list[float]], true: list[float]) -> bool:
    """Whether answers are within seven standard errors of what the data of a page has: noise has wider tails than six."""
    return len(came) == len(true) and all(abs(value - at) < 9 * error for (value, error), at in zip(came, true, strict=True))


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
