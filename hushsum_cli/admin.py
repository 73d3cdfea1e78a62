"""`hushsum admin`: what an operator asks of a running aggregator."""

from typing import TYPE_CHECKING

import click

from hushsum_cli.admin_lists import ledger, plans, windows
from hushsum_cli.admin_status import status
from hushsum_cli.operation import ask, operates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json
from hushsum_cli.tokens import tokens

if TYPE_CHECKING:
    from hushsum_proto.credentials import Credentials


@click.group(short_help="Seal, release, or look at a running aggregator.")
def admin() -> None:
    """Seal and release windows, or look at a running aggregator: its windows, its plans, its ledger.

    An aggregator without authentication answers its operator on its own machine alone; one with it answers whoever
    shows a token, or a certificate, of scope admin.
    """


@admin.command(
    short_help="Close windows.",
    epilog=examples("hushsum admin seal", "hushsum admin seal --window 498691 --early"),
)
@operates
@click.option("--window", type=int, help="Its index. Default: every window past its end and lateness.")
@click.option("--early", is_flag=True, help="Close --window also before its end: what is on its way is lost.")
@as_json_option
def seal(*, service: str, credentials: "Credentials", window: int | None, early: bool, as_json: bool) -> None:
    """Close windows: what is in the log before the seal counts, what comes after is late.

    Without --window these are the windows past their end and lateness, the oldest first; it is an error if there is
    none.
    """
    if early and window is None:
        raise click.UsageError("--early closes one window: name it with --window")
    if window is None:
        sealed = ask(service, credentials, lambda console: console.seal_due())
    else:
        sealed = [ask(service, credentials, lambda console: console.seal(window, early=early))]
    if as_json:
        print_json({"windows": sealed})
    else:
        for each in sealed:
            click.echo(f"window {each} is sealed")


@admin.command(short_help="Draw the outcome of a sealed window.", epilog=examples("hushsum admin release"))
@operates
@click.option("--window", type=int, help="Its index. Default: the oldest sealed one without an outcome.")
@as_json_option
def release(*, service: str, credentials: "Credentials", window: int | None, as_json: bool) -> None:
    """Draw the noise of a sealed window once, charge the ledger, and publish what came of it.

    That is a release; or, where too few clients were in the window by the plan's test, that it is withheld for ever.
    """
    released = ask(service, credentials, lambda console: console.release(window))
    if as_json:
        print_json(
            {
                "window": released.release.window,
                "outcome": "withheld" if released.release.withheld else "released",
                "bytes": released.release.size_bytes,
                "epsilon_spent": released.epsilon_spent,
                "epsilon_left": released.epsilon_left,
            }
        )
    else:
        what = "withheld: too few clients, by the plan's test;" if released.release.withheld else "released:"
        click.echo(
            f"window {released.release.window} is {what} ε = {released.epsilon_spent} spent, "
            f"{released.epsilon_left} left"
        )


for command in (status, plans, windows, ledger, tokens):
    admin.add_command(command)
