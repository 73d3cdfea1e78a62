"""Programs for a deployment: ``prepare`` it, fill it with a ``fleet``, ``check`` the result; or run ``faults``.

Environment variables, the same for all of the first three, are their settings. ``faults`` needs no deployment: it
starts local processes, kills and pauses them under load, and checks every delta.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from time import strftime
from typing import Final

from hushsum.errors import HushsumError
from hushsum_simulator.deployment.settings import VARIABLES, DeploymentSettings
from hushsum_simulator.errors import VariableError

_DONE, _FAILED, _MISUSED = 0, 1, 2
_JARS: Final = Path(".cache/kafka/jars")


def main() -> int:
    """The command line: 0 if all went well, 1 if not, 2 if a variable has a value that it must not have."""
    parser = argparse.ArgumentParser(
        prog="python -m hushsum_simulator.deployment",
        description=__doc__,
        epilog=_variables(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = parser.add_subparsers(dest="program", required=True)
    for name in _PROGRAMS:
        programs.add_parser(name)
    faults = programs.add_parser("faults")
    faults.add_argument("--rounds", type=int, default=50)
    faults.add_argument("--seed", type=int, default=1)
    faults.add_argument("--load-s", type=float, default=4.0, help="of load in a round, before its window is sealed")
    faults.add_argument("--strikes", type=int, default=3, help="processes that are killed or paused in a round, 0 to 8")
    faults.add_argument("--jars", type=Path, default=_JARS, help="the broker's files (make broker)")
    options = parser.parse_args()
    try:
        if options.program == "faults":
            return _faults(options)
        return _PROGRAMS[options.program](DeploymentSettings.from_environment(os.environ))
    except VariableError as error:
        return _report(options.program, error, _MISUSED)
    except (HushsumError, OSError) as error:
        return _report(options.program, error, _FAILED)


def _prepare(settings: DeploymentSettings) -> int:
    from hushsum_simulator.deployment.prepare import prepare

    prepare(settings, _say)
    return _DONE


def _fleet(settings: DeploymentSettings) -> int:
    from hushsum_simulator.deployment.fleet import fleet

    fleet(settings, _say)
    return _DONE


def _check(settings: DeploymentSettings) -> int:
    from hushsum_simulator.deployment.check import check

    violations = check(settings, _say)
    for sentence in violations:
        sys.stderr.write(f"check: {sentence}\n")
    return _FAILED if violations else _DONE


_PROGRAMS: Final[Mapping[str, Callable[[DeploymentSettings], int]]] = {
    "prepare": _prepare,
    "fleet": _fleet,
    "check": _check,
}


def _faults(options: argparse.Namespace) -> int:
    from hushsum_simulator.deployment.faults import require_servers, run_faults

    require_servers(options.jars)
    given = {name: value for name, value in vars(options).items() if name != "program"}
    folder = Path(tempfile.mkdtemp(prefix="hushsum-faults-"))
    try:
        summary = run_faults(**given, folder=folder, say=_print)
    except HushsumError as error:
        sys.stderr.write(f"faults: {error}; the output of the processes is in {folder}\n")
        return _FAILED
    where = "" if summary.is_clean else f"; the output of the processes is in {folder}"
    _print(f"faults: seed {options.seed}, {summary}{where}")
    if not summary.is_clean:
        return _FAILED
    shutil.rmtree(folder)
    return _DONE


def _say(text: str) -> None:
    _print(f"{strftime('%H:%M:%S')} {text}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _report(program: str, error: Exception, status: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return status


def _variables() -> str:
    """A line for each variable with its default."""
    defaults = {f"HUSHSUM_{each.name.upper()}": each.default for each in fields(DeploymentSettings)}
    lines = ["variables:"]
    for name, variable in VARIABLES.items():
        value = defaults[name]
        shown = ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
        lines.append(f"  {name:22} {variable.text}" + (f"  [{shown}]" if shown else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
