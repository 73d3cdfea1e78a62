"""``python -m tests.fuzz --inputs 1000000 --seed 1 [--target NAME] [--jobs 2]``: a table, and 1 if anything was found.

What is found is saved outside of the repository, each with the command that tries it again. ``--replay FILE`` tries
one input; ``--list`` names the targets. With ``--engine coverage --seconds 600`` coverage chooses the inputs.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

from tests.fuzz import child, coverage
from tests.fuzz.course import alarm, attempt
from tests.fuzz.parent import Campaign, shares, slices

ENGINES: Final = {"mutation": child.__name__, "coverage": coverage.__name__}


def main() -> int:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--engine", choices=list(ENGINES), default="mutation", help="what chooses the inputs")
    parser.add_argument("--seconds", type=float, default=600, help="of coverage, all targets together (default 600)")
    parser.add_argument("--inputs", type=int, default=10_000, help="of all targets together (default 10000)")
    parser.add_argument("--least", type=int, default=1, help="of each target (default 1)")
    parser.add_argument("--seed", default="1", help="any text; the same one gives the same inputs")
    parser.add_argument("--target", action="append", help="of these targets alone; may be given more than once")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--every", type=int, default=1, help="keep every so-manieth sample of plans: a quicker start")
    parser.add_argument("--findings", type=Path, help="where to save what is found (default: a new temporary folder)")
    parser.add_argument("--replay", type=Path, help="try this one input of --target")
    parser.add_argument("--list", action="store_true", help="name the targets")
    asked = parser.parse_args()
    from tests.fuzz.targets import TARGETS

    unknown = [name for name in asked.target or () if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]}, expected one of {', '.join(TARGETS)}")
    if asked.list:
        print(*TARGETS, sep="\n")  # noqa: T201  a program that people run
        return 0
    if asked.replay:
        return replay(parser, asked.target, asked.replay)
    if asked.engine == "coverage" and coverage.MISSING:
        parser.error(f"--engine coverage: {coverage.MISSING}")
    folder = asked.findings or Path(tempfile.mkdtemp(prefix="hushsum-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [TARGETS[name] for name in asked.target or TARGETS]
    by_time = asked.engine == "coverage"
    work = shares(chosen, asked.seconds) if by_time else slices(chosen, asked.inputs, asked.least)
    return Campaign(chosen, work, asked.seed, asked.jobs, asked.every, folder, ENGINES[asked.engine]).run()


def replay(parser: argparse.ArgumentParser, names: list[str] | None, path: Path) -> int:
    """Tries one input again."""
    from tests.fuzz.targets import TARGETS

    if not names or len(names) != 1:
        parser.error("--replay needs one --target")
    warnings.simplefilter("error")
    with alarm():
        verdict, finding = attempt(TARGETS[names[0]].kit(), path.read_bytes())
    print(finding.told if finding else f"refused: {verdict}" if verdict else "accepted")  # noqa: T201  a program that people run
    return 1 if finding else 0


if __name__ == "__main__":
    sys.exit(main())
