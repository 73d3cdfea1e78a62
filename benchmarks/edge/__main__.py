"""Runs the benchmarks of a device, prints a table of each and writes ``benchmarks/results/edge_*.json``.

Each figure stands beside that of a bare device (:mod:`benchmarks.edge.bare_device`), which does the least that a device
needs, in the same run. Linux alone tells what is measured here.
"""

from benchmarks.command import Room
from benchmarks.edge import energy, flash, hashing, memory, wire

SUBJECTS = {"memory": memory, "flash": flash, "hashing": hashing, "energy": energy, "wire": wire}

if __name__ == "__main__":
    Room("python -m benchmarks.edge", __doc__, SUBJECTS, prefix="edge_").main()
