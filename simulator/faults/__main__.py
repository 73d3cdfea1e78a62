"""`python -m simulator.faults --rounds 50 --seed 1`: its last line says what was lost and what was counted twice."""

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from hushsum.errors import HushsumError
from simulator.backends.kafka import missing_java
from simulator.backends.postgres import missing_postgres
from simulator.faults.run import run

_JARS = Path(".cache/kafka/jars")


def main() -> int:
    """The command line; 0 where nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m simulator.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load-s", type=float, default=4.0, help="of load in a round, before its window is sealed")
    parser.add_argument("--strikes", type=int, default=3, help="processes that are killed or paused in a round, 0 to 8")
    parser.add_argument("--jars", type=Path, default=_JARS, help="the broker's files (make broker)")
    options = parser.parse_args()
    lacking = missing_java() or missing_postgres() or (None if options.jars.is_dir() else "run make broker first")
    if lacking is not None:
        sys.stderr.write(f"faults: {lacking}\n")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="hushsum-faults-"))
    try:
        tally = asyncio.run(
            run(
                rounds=options.rounds,
                seed=options.seed,
                jars=options.jars,
                folder=folder,
                load_s=options.load_s,
                strikes=options.strikes,
                say=_say,
            )
        )
    except HushsumError as error:
        sys.stderr.write(f"faults: {error}; what the processes wrote is in {folder}\n")
        return 1
    _say(f"faults: seed {options.seed}, {tally}" + ("" if tally.clean else f"; what they wrote is in {folder}"))
    if tally.clean:
        shutil.rmtree(folder)
    return 0 if tally.clean else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
