"""Runs every benchmark, prints a table of each and writes ``benchmarks/results/*.json``.

One core and one BLAS thread, but for ``cores`` and ``memory``.
"""

import argparse
from pathlib import Path

from benchmarks import (
    binning,
    cells,
    cores,
    encoding,
    fourier,
    memory,
    minhash,
    noise,
    one_permutation,
    queries,
    rotations,
    sketching,
)
from benchmarks.report import print_table, write_json

SUBJECTS = {
    "sketching": sketching,
    "binning": binning,
    "fourier": fourier,
    "minhash": minhash,
    "one_permutation": one_permutation,
    "cells": cells,
    "queries": queries,
    "encoding": encoding,
    "cores": cores,
    "memory": memory,
    "rotations": rotations,
    "noise": noise,
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"some of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few records and repeats: shows that it runs, no figures")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON (default: results, not if --quick)")
    options = parser.parse_args()
    for name in options.subjects:
        if name not in SUBJECTS:
            parser.error(f"no subject {name!r}; there are {', '.join(SUBJECTS)}")
    folder = options.out or (None if options.quick else RESULTS)
    for name in options.subjects or SUBJECTS:
        rows = SUBJECTS[name].measure(quick=options.quick)
        print_table(SUBJECTS[name].TITLE, rows)
        if folder is not None:
            write_json(folder / f"{name}.json", SUBJECTS[name].TITLE, rows)


if __name__ == "__main__":
    main()
