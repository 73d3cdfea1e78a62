"""`hushsum`: the group of all subcommands, and the one place where errors become a line and an exit status."""

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, TextIO

import click

from hushsum_cli.admin import admin
from hushsum_cli.advise import advise
from hushsum_cli.audit import audit
from hushsum_cli.describe import describe
from hushsum_cli.drift import drift
from hushsum_cli.extras import install_hint
from hushsum_cli.keys import keys
from hushsum_cli.ledger import ledger
from hushsum_cli.output import examples
from hushsum_cli.plan import plan
from hushsum_cli.plot import plot
from hushsum_cli.query import query
from hushsum_cli.release import release
from hushsum_cli.send import send
from hushsum_cli.serve import serve
from hushsum_cli.simulate import simulate
from hushsum_cli.view import view

_python_shows: Final = warnings.showwarning
_INTERRUPTED = 130
_GENERIC = ("aggregator", "edge_client")  # names that a package of somebody else may have, too


def _show_version(context: click.Context, _: click.Parameter, wanted: object) -> None:
    if wanted:
        import hushsum

        click.echo(f"hushsum {hushsum.__version__}")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "Run a demonstration on this machine:   hushsum simulate",
        "Start an aggregator:                   hushsum serve --plan plan.toml --data DIR",
    ),
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Answers about data that never leaves the devices that hold it.

    Hash at the edge, add in the middle, noise once, query for ever.
    """


for command in (simulate, serve, send, plan, release, query, describe, drift, plot, view, audit, ledger, keys, admin):
    cli.add_command(command)
plan.add_command(advise)


def main() -> NoReturn:
    """Runs the command line; exits with 0, 1 for what went wrong, or 2 for how it was called."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would tell of lost connections is told in our own words
    warnings.showwarning = _show_warning
    for name in _GENERIC:
        if (foreign := _foreign(name)) is not None:
            _end(f"{foreign} shadows Hushsum's package {name}: remove its directory from PYTHONPATH", 1)
    try:
        status = cli.main(prog_name="hushsum", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end("interrupted", _INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise
        _end(expected, 1)
    sys.exit(status if isinstance(status, int) else 0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours is a line on standard error, as an error is; others stay as Python shows them."""
    if any(base.__name__ == "HushsumWarning" for base in category.__mro__):  # by name: its module need not be loaded
        click.echo(f"hushsum: warning: {message}", err=True)
    else:
        _python_shows(message, category, filename, lineno, file, line)


def _foreign(name: str) -> str | None:
    """Where a package of this name lies that is another than ours; None: it is ours, or not there."""
    found = find_spec(name)
    if found is None or found.origin is None or Path(found.origin).parents[1] == Path(__file__).parents[1]:
        return None
    return found.origin


def _expected(error: Exception) -> str | None:
    """One line for an error that is no bug of ours; None for one that is."""
    from hushsum.errors import HushsumError

    if isinstance(error, HushsumError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError):
        return install_hint(error)
    return None


def _end(sentence: str, status: int) -> NoReturn:
    click.echo(f"hushsum: {sentence}", err=True)
    sys.exit(status)
