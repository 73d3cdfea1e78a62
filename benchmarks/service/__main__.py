"""Runs the service's benchmarks, prints a table of each and writes ``benchmarks/results/service_*.json``.

Two cores, loopback; clients, servers and brokers all run on them, and each figure stands beside that of the bare
library in the same run.
"""

import argparse
from pathlib import Path

from benchmarks.report import print_table, write_json
from benchmarks.service import checkpoints, fold, latency, memory, streaming, topics
from simulator.backends.kafka import missing_java
from simulator.backends.postgres import missing_postgres

SUBJECTS = {
    "streaming": streaming,
    "topics": topics,
    "fold": fold,
    "latency": latency,
    "memory": memory,
    "checkpoints": checkpoints,
}
NEEDS = {"topics": missing_java, "checkpoints": missing_postgres}
RESULTS = Path(__file__).resolve().parent.parent / "results"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"some of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few deltas and rounds: shows that it runs, no figures")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON (default: results, not if --quick)")
    options = parser.parse_args()
    for name in options.subjects:
        if name not in SUBJECTS:
            parser.error(f"no subject {name!r}; there are {', '.join(SUBJECTS)}")
    folder = options.out or (None if options.quick else RESULTS)
    for name in options.subjects or SUBJECTS:
        if name in NEEDS and (lacking := NEEDS[name]()) is not None:
            print(f"\n{name}: left out: {lacking}")
            continue
        rows = SUBJECTS[name].measure(quick=options.quick)
        print_table(SUBJECTS[name].TITLE, rows)
        if folder is not None:
            write_json(folder / f"service_{name}.json", SUBJECTS[name].TITLE, rows)


if __name__ == "__main__":
    main()
