"""Runs the benchmarks of the secure sum, prints a table of each and writes ``benchmarks/results/secure_*.json``.

Everything stands beside the raw cipher, or beside Flower's public helper functions, in the same run. Flower is no part
of the environment: ``build_tools/peers.py`` fetches it into a folder of its own, and where it cannot, its figures are
left out.
"""

import argparse
from pathlib import Path

from benchmarks.report import print_table, write_json
from benchmarks.secure import masking, noise_shares, rounds, sharing
from build_tools import peers

SUBJECTS = {"masking": masking, "sharing": sharing, "noise_shares": noise_shares, "rounds": rounds}
RESULTS = Path(__file__).resolve().parent.parent / "results"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"some of {', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few words and rounds: shows that it runs, no figures")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON (default: results, not if --quick)")
    options = parser.parse_args()
    for name in options.subjects:
        if name not in SUBJECTS:
            parser.error(f"no subject {name!r}; there are {', '.join(SUBJECTS)}")
    if not peers.is_ready() and (wrong := peers.fetch()) is not None:
        print(f"\nFlower is left out: {wrong}")
    folder = options.out or (None if options.quick else RESULTS)
    for name in options.subjects or SUBJECTS:
        rows = SUBJECTS[name].measure(quick=options.quick)
        print_table(SUBJECTS[name].TITLE, rows)
        if folder is not None:
            write_json(folder / f"secure_{name}.json", SUBJECTS[name].TITLE, rows)


if __name__ == "__main__":
    main()
