"""``python -m hushsum_simulator.deployment`` prepares what a deployment needs, fills it, or checks what came of it.

Everything is set by the environment, the same for all three.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from time import strftime
from typing import Final

from hushsum.errors import HushsumError
from hushsum_simulator.deployment.settings import VARIABLES, DeploymentSettings
from hushsum_simulator.errors import VariableError

_DONE, _FAILED, _MISUSED = 0, 1, 2


def main() -> int:
    """The command line; 0 where all went well, 1 where it did not, 2 where the environment says what it must not."""
    parser = argparse.ArgumentParser(
        prog="python -m hushsum_simulator.deployment",
        description=__doc__,
        epilog=_variables(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", choices=sorted(_PROGRAMS), help="prepare first, then fleet, then check")
    program = parser.parse_args().program
    try:
        return _PROGRAMS[program](DeploymentSettings.from_environment(os.environ))
    except VariableError as error:
        return _told(program, error, _MISUSED)
    except (HushsumError, OSError) as error:
        return _told(program, error, _FAILED)


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


def _say(text: str) -> None:
    sys.stdout.write(f"{strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def _told(program: str, error: Exception, status: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return status


def _variables() -> str:
    """Every variable with its default, a line each."""
    defaults = {f"HUSHSUM_{each.name.upper()}": each.default for each in fields(DeploymentSettings)}
    lines = ["variables:"]
    for name, text in VARIABLES.items():
        value = defaults[name]
        shown = ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
        lines.append(f"  {name:22} {text}" + (f"  [{shown}]" if shown else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
