"""Runs many schedules: ``python -m tests.simulation --schedules 10000 --seed 1``.

A line for each schedule that fails; the first of them is shrunk as well, and printed as a literal, to be pinned in
``test_pinned.py``. The last line: schedules run, deltas lost, deltas doubled, seed of the first failure.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.operations import drawn
from tests.simulation.planted import PLANTED
from tests.simulation.shrink import shrunk
from tests.simulation.stage import Planted
from tests.simulation.world import Result, run


def _ran(seed: int, planted: str) -> Result:
    return run(drawn(seed), _planted(planted))


def _planted(name: str) -> Planted:
    return PLANTED[name]() if name else Planted()


def _results(seeds: range, planted: str, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from (_ran(seed, planted) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(_ran, planted=planted), seeds, chunksize=8)


def _tell(seed: int, result: Result) -> None:
    found = "; ".join(" ".join(what.split()) for what in result.wrong)
    sys.stdout.write(f"\nseed {seed}: {result.lost} lost, {result.doubled} doubled; {found}\n")
    sys.stdout.flush()


def _tell_shrunk(seed: int, planted: str) -> None:
    smallest = shrunk(drawn(seed), lambda schedule: run(schedule, _planted(planted)).failed)
    sys.stdout.write(f"shrunk to:\n{smallest!r}\n")
    sys.stdout.flush()


def main() -> int:
    """Returns 0 where nothing was found, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--planted", default="", choices=["", *PLANTED], help="a bug to be found")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    lost = doubled = done = 0
    first: int | None = None
    for seed, result in zip(seeds, _results(seeds, options.planted, options.jobs), strict=True):
        done, lost, doubled = done + 1, lost + result.lost, doubled + result.doubled
        if result.failed:
            _tell(seed, result)
        if result.failed and first is None:
            first = seed
            _tell_shrunk(seed, options.planted)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {len(seeds)} schedules" + "\n" * (done == len(seeds)))
            sys.stderr.flush()
    sys.stdout.write(
        f"schedules {done}, lost {lost}, doubled {doubled}, first failure {'none' if first is None else first}\n"
    )
    return 0 if first is None else 1


if __name__ == "__main__":
    sys.exit(main())
