"""Measures the papers' experiments, saves the rows, and writes the page from what was saved."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.papers import density, features, graphs, models, page, samples, seconds
from benchmarks.report import Row, print_table, write_json
from hushsum.families import warm_up

TITLE: Final = "The papers' experiments (epsilon 0: without noise)"
EXPERIMENTS: Final[Mapping[str, Callable[..., list[Row]]]] = {
    "density": density.measure,
    "seconds": seconds.measure,
    "features": features.measure,
    "graphs": graphs.measure,
    "models": models.measure,
    "samples": samples.measure,
    "peers": models.measure_peers,
}
_ROOT: Final = Path(__file__).resolve().parents[3]
RESULTS: Final = _ROOT / "benchmarks" / "results"
PAGE: Final = _ROOT / "docs" / "papers.md"


def run(names: Sequence[str], *, quick: bool, out: Path | None, results: Path = RESULTS, target: Path = PAGE) -> None:
    """Measures some experiments.

    Args:
        names: Of :data:`EXPERIMENTS`.
        quick: Little of everything: printed, and written only where ``out`` says.
        out: Folder for the JSON, the page and its figures, in place of those of the project.
        results: Folder with the rows that were saved before.
        target: The page. It is of what was saved: whole experiments on real data.
    """
    folder, is_saved = out or results, False
    for name in names:
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of records that are clipped, and of rows chosen for the comparison
            warm_up()
            rows = EXPERIMENTS[name](quick=quick)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        if quick or has_stand_ins(rows):
            print_table(TITLE, [{key: row[key] for key in row if key != "pixels"} for row in rows])
        if rows and (out or not (quick or has_stand_ins(rows))):
            write_json(folder / _file(name), TITLE, rows, is_dense=True)
            is_saved = True
    if is_saved:
        write_page(folder, out / "papers.md" if out else target)
    else:
        print("\nThe page is of whole runs with real data: it was not changed.")


def write_page(results: Path, target: Path) -> None:
    """Writes the page and its figures from the saved rows."""
    page.write(target, saved(results))


def saved(results: Path) -> list[Row]:
    """The rows of every experiment that was saved in this folder."""
    paths = [path for name in EXPERIMENTS if (path := results / _file(name)).exists()]
    return [row for path in paths for row in json.loads(path.read_text("utf-8"))["rows"]]


def has_stand_ins(rows: Sequence[Row]) -> bool:
    """Whether any row is of generated data."""
    return any("stand-in" in str(row["data"]) for row in rows)


def _file(name: str) -> str:
    return f"papers_{name}.json"
