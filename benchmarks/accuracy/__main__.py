"""How far private answers are from exact sums: ``python -m benchmarks.accuracy``, or ``make bench-accuracy``.

Prints the tables, and writes ``accuracy.json`` and ``accuracy_*.json`` in ``benchmarks/results``, ``docs/accuracy.md``
and its figures. Minutes; ``--quick`` takes little of everything, prints it, and writes nothing unless ``--out`` says
where; ``--modes`` measures the modes and the shuffled protocols alone, ``--post`` what is computed after a release,
``--quantiles`` quantiles beside other libraries, ``--histogram`` a histogram beside bare noise, ``--estimators`` the
estimators, ``--peers`` diffprivlib's classifiers, and all of them keep the rest of the page as it was. diffprivlib
needs an environment of its own: ``build_tools/diffprivlib.txt``. ``--papers`` repeats the papers' experiments, or those
that are named, in place of all that, and writes ``docs/papers.md``: ``make paper-tables``.

Where a file of ``../shared/data`` is missing, a generated stand-in is measured: the tables, which say so, are printed,
and nothing is written but JSON where ``--out`` says.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.accuracy import estimators, histogram, postprocessing, quantiles, regression
from benchmarks.accuracy import page as pages
from benchmarks.accuracy.curves import Truth, best_rows, measure
from benchmarks.accuracy.data import data_sets
from benchmarks.accuracy.draws import measure_draws
from benchmarks.accuracy.modes import measure_carried, measure_modes
from benchmarks.accuracy.papers import run as experiments
from benchmarks.accuracy.shuffled import measure_shuffled
from benchmarks.accuracy.subjects import SUBJECTS, Subject, quick
from benchmarks.accuracy.tables import matching
from benchmarks.data_files import shown
from benchmarks.report import Row, print_table, write_json
from hushsum.families import warm_up

TITLE: Final = "Errors against exact kernel sums (epsilon 0: without noise)"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGE: Final = _ROOT / "docs" / "accuracy.md"
_RESULTS: Final = _ROOT / "benchmarks" / "results"
_FILES: Final = {
    "all": "accuracy.json",
    "modes": "accuracy_modes.json",
    "post": "accuracy_post.json",
    "quantiles": "accuracy_quantiles.json",
    "histogram": "accuracy_histogram.json",
    "estimators": "accuracy_estimators.json",
    "peers": "accuracy_peers.json",
}
_PARTS: Final = {
    "mode": "modes",
    "shuffled": "modes",
    "carried": "modes",
    "post": "post",
    "quantiles": "quantiles",
    "histogram": "histogram",
    "estimators": "estimators",
    "peers": "peers",
}  # and of all others "all"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few records, one sketch each: shows that it runs")
    parser.add_argument("--page", action="store_true", help="measure nothing: the page and figures from the last JSON")
    parser.add_argument("--modes", action="store_true", help="modes and shuffled protocols alone; the rest as it was")
    parser.add_argument("--post", action="store_true", help="post-processing alone; the rest as it was")
    parser.add_argument("--quantiles", action="store_true", help="quantiles beside peers alone; the rest as it was")
    parser.add_argument("--histogram", action="store_true", help="a histogram beside bare noise; the rest as it was")
    parser.add_argument("--estimators", action="store_true", help="the estimators alone; the rest as it was")
    parser.add_argument("--peers", action="store_true", help="diffprivlib's classifiers alone, where it is installed")
    known = ", ".join(experiments.EXPERIMENTS)
    parser.add_argument("--papers", nargs="*", metavar="NAME", help=f"the papers' experiments alone, or some: {known}")
    parser.add_argument("--out", type=Path, help="folder for the page, the figures and the JSON")
    options = parser.parse_args()
    if options.papers is not None:
        _papers(parser, options)
        return
    chosen = [name for name in _FILES if name != "all" and getattr(options, name)] or list(_FILES)
    rows: list[Row] = []
    if not options.page:
        for name in chosen:
            rows += _MEASURES[name](little=options.quick)
        if not rows:
            sys.exit("nothing was measured: see the lines above")
        if _print_stand_ins(rows, options.out):
            return
        if options.quick and not options.out:
            print(pages.text(rows))
            return
        _save(options.out or _RESULTS, rows)
    if options.page or not options.quick:  # of what was not measured, the last figures
        rows = [row for name in _FILES for row in _of(name, rows) or _saved(name)]
    pages.write(options.out / "accuracy.md" if options.out else _PAGE, rows)


def _papers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    names = options.papers or list(experiments.EXPERIMENTS)
    if unknown := [name for name in names if name not in experiments.EXPERIMENTS]:
        parser.error(f"no experiment {unknown[0]!r}; there are {', '.join(experiments.EXPERIMENTS)}")
    if options.page:
        target = options.out / "papers.md" if options.out else experiments.PAGE
        experiments.write_page(options.out or experiments.RESULTS, target)
    else:
        experiments.run(names, quick=options.quick, out=options.out)


def _print_stand_ins(rows: list[Row], out: Path | None) -> bool:
    """If a stand-in was measured: prints the tables, which say so, in place of the page, which is about real data."""
    marked = [{**row, "data": shown(str(row["data"]))} if "data" in row else row for row in rows]
    if marked == rows:
        return False
    for part in dict.fromkeys(str(row["part"]) for row in marked):
        print_table(f"{part}, with stand-ins: {TITLE}", matching(marked, part=part))
    if out:
        _save(out, marked)
    print("\nThe page and the saved results are of real data: they were not changed.")
    return True


def _of(name: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if _PARTS.get(str(row["part"]), "all") == name]


def _save(folder: Path, rows: list[Row]) -> None:
    for name, file in _FILES.items():
        if some := _of(name, rows):
            write_json(folder / file, TITLE, some)


def _saved(name: str) -> list[Row]:
    path = _RESULTS / _FILES[name]
    rows: list[Row] = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []
    return rows


def measure_all(*, little: bool) -> list[Row]:
    """Every part, with a line of progress for each sketch; each row says its ``part``."""
    started = time.perf_counter()
    warm_up()
    rows: list[Row] = []
    subjects = [quick(subject) if little else subject for subject in SUBJECTS]
    for subject in subjects:
        rows += _curves(subject, little=little, started=started)
    rows += [{"part": "draws", **row} for row in measure_draws(quick=little)]
    rows += [{"part": "regression", **row} for row in regression.measure(quick=little)]
    print(f"{time.perf_counter() - started:4.0f} s  all measured", flush=True)
    return rows


def measure_all_modes(*, little: bool) -> list[Row]:
    """Modes, and shuffled protocols."""
    started = time.perf_counter()
    rows = [{"part": "mode", **row} for row in measure_modes(quick=little)]
    rows += [{"part": "shuffled", **row} for row in measure_shuffled(quick=little)]
    rows += [{"part": "carried", **row} for row in measure_carried(quick=little)]
    print(f"{time.perf_counter() - started:4.0f} s  modes measured", flush=True)
    return rows


def measure_all_post(*, little: bool) -> list[Row]:
    """What is computed after a release."""
    return [{"part": "post", **row} for row in postprocessing.measure(quick=little)]


def measure_all_quantiles(*, little: bool) -> list[Row]:
    """Quantiles, beside other libraries."""
    return [{"part": "quantiles", **row} for row in quantiles.measure(quick=little)]


def measure_all_estimators(*, little: bool) -> list[Row]:
    """The estimators of scikit-learn's form."""
    return [{"part": "estimators", **row} for row in estimators.measure(quick=little)]


def measure_all_peers(*, little: bool) -> list[Row]:
    """diffprivlib's classifiers, where it is installed."""
    return [{"part": "peers", **row} for row in estimators.measure_peers(quick=little)]


def measure_all_histograms(*, little: bool) -> list[Row]:
    """A histogram, beside bare noise."""
    return [{"part": "histogram", **row} for row in histogram.measure(quick=little)]


def _curves(subject: Subject, *, little: bool, started: float) -> list[Row]:
    rows: list[Row] = []
    for data in data_sets([subject.data], quick=little):
        truth = Truth(data)
        for curve in subject.curves:
            if not curve.built(data):
                continue
            rows += [{"part": "curve", **row} for row in measure(curve, truth)]
            plan = curve.plan(data, curve.sizes[0], 1)
            exact = truth.of(plan) / data.size
            known: Row = {"part": "kernel", "data": data.name, "sketch": curve.label}
            rows.append(
                {
                    **known,
                    "records": data.size,
                    "mean density": float(exact.mean()),
                    "median density": float(np.median(exact)),
                    "relative error": float(np.mean(np.abs(exact - exact.mean())[exact > 0] / exact[exact > 0])),
                    "density error": float(np.mean(np.abs(exact - exact.mean()))),
                }
            )
            if curve.family == "hashed":
                stars = best_rows(curve, truth)
                rows += [{**known, "part": "best rows", "epsilon": e, "rows": R} for e, R in stars.items()]
            print(f"{time.perf_counter() - started:4.0f} s  {data.name}: {curve.label}", flush=True)
        rows.append({"part": "about", "data": data.name, "text": data.about, "setting": subject.setting})
    return rows


_MEASURES: Final = {
    "all": measure_all,
    "modes": measure_all_modes,
    "post": measure_all_post,
    "quantiles": measure_all_quantiles,
    "histogram": measure_all_histograms,
    "estimators": measure_all_estimators,
    "peers": measure_all_peers,
}

if __name__ == "__main__":
    main()
