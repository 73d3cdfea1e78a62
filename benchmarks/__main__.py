"""Runs every benchmark, prints a table of each and writes ``benchmarks/results/*.json``.

One core and one BLAS thread, but for ``cores`` and ``memory``.
"""

from benchmarks import (
    binning,
    cells,
    cores,
    encoding,
    fourier,
    imports,
    memory,
    minhash,
    noise,
    one_permutation,
    queries,
    rotations,
    sketching,
)
from benchmarks.command import Room

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
    "imports": imports,
}

if __name__ == "__main__":
    Room("python -m benchmarks", __doc__, SUBJECTS).main()
