"""Runs the benchmarks of local reports, prints a table of each and writes ``benchmarks/results/local_*.json``.

One core. Encoding stands beside bare sketching of the same records in the same one row each, decoding beside
``numpy.bincount`` of the same reports, in the same run.
"""

from benchmarks.command import Room
from benchmarks.local import decoding, encoding

SUBJECTS = {"encoding": encoding, "decoding": decoding}


def main() -> None:
    """The command line."""
    Room("python -m benchmarks.local", __doc__, SUBJECTS, prefix="local_").main()


if __name__ == "__main__":
    main()
