"""`hushsum admin`: what an operator asks of a running aggregator."""

from typing import TYPE_CHECKING

import click

from hushsum_cli.admin_lists import ledger, plans, windows
from hushsum_cli.admin_status import status
from hushsum_cli.admin_store import backup, begin_receipts_copy, end_receipts_copy, mark_lost, restore, verify
from hushsum_cli.operation import ask, operates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json
from hushsum_cli.tokens import tokens

if TYPE_CHECKING:
    from hushsum_proto.credentials import Credentials


@click.group(short_help="Seal windows, release them, and inspect a running aggregator.")
def admin() -> None:
    """Seal windows, release them, and inspect a running aggregator: its windows, plans and ledger.

    With authentication, a token or certificate with scope admin is required. Without it, an aggregator accepts these
    commands only from its own machine. backup, restore, verify, mark-lost, begin-receipts-copy, end-receipts-copy and
    tokens work on files and databases, and ask no service.
    """


@admin.command(
    short_help="Seal windows.",
    epilog=examples("hushsum admin seal", "hushsum admin seal --window 498691 --early"),
)
@operates
@click.option("--window", type=int, help="Index of the window.  [default: every window past its end and lateness]")
@click.option("--early", is_flag=True, help="Seal --window before its end; deltas that arrive later are lost.")
@as_json_option
def seal(*, service: str, credentials: "Credentials", window: int | None, early: bool, as_json: bool) -> None:
    """Seal windows: deltas in the log before the seal are counted, later ones are late.

    Without --window, seals every window past its end and lateness, oldest first. Fails if there is none.
    """
    if early and window is None:
        raise click.UsageError("--early requires --window")
    if window is None:
        sealed = ask(service, credentials, lambda console: console.seal_due())
    else:
        sealed = [ask(service, credentials, lambda console: console.seal(window, early=early))]
    if as_json:
        print_json({"windows": sealed})
    else:
        for each in sealed:
            click.echo(f"window {each} sealed")


@admin.command(short_help="Release a sealed window.", epilog=examples("hushsum admin release"))
@operates
@click.option("--window", type=int, help="Index of the window.  [default: the oldest sealed window without an outcome]")
@as_json_option
def release(*, service: str, credentials: "Credentials", window: int | None, as_json: bool) -> None:
    """Release a sealed window: charge the ledger, draw the noise and publish the outcome.

    The outcome is final: a release, or withheld if the window has fewer clients than the plan's min_clients.
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
        what = "withheld (too few clients):" if released.release.withheld else "released:"
        click.echo(
            f"window {released.release.window} is {what} ε = {released.epsilon_spent} spent, "
            f"{released.epsilon_left} left"
        )


for command in (
    status,
    plans,
    windows,
    ledger,
    tokens,
    backup,
    restore,
    verify,
    mark_lost,
    begin_receipts_copy,
    end_receipts_copy,
):
    admin.add_command(command)
