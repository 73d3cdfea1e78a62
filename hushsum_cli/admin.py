"""`hushsum admin`: what an operator asks of a running aggregator, on its own machine alone."""

from typing import TYPE_CHECKING, TypeVar

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hushsum_proto.messages import ServiceStatus
    from simulator.console import Console

T = TypeVar("T")

_service = click.option(
    "--at",
    "service",
    metavar="HOST:PORT",
    default="127.0.0.1:7443",
    show_default=True,
    help="The aggregator, on this machine.",
)


@click.group(short_help="Seal, release, or look at a running aggregator.")
def admin() -> None:
    """Seal and release windows, or look at a running aggregator. It answers on its own machine alone."""


@admin.command(short_help="Close a window.", epilog=examples("hushsum admin seal --window 498691"))
@_service
@click.option("--window", type=int, help="Its index. Default: the oldest open one.")
@as_json_option
def seal(*, service: str, window: int | None, as_json: bool) -> None:
    """Close a window: what is in the log before the seal counts, what comes after is late."""
    sealed = _ask(service, lambda console: console.seal(window))
    if as_json:
        print_json({"window": sealed})
    else:
        click.echo(f"window {sealed} is sealed")


@admin.command(short_help="Draw the outcome of a sealed window.", epilog=examples("hushsum admin release"))
@_service
@click.option("--window", type=int, help="Its index. Default: the oldest sealed one without an outcome.")
@as_json_option
def release(*, service: str, window: int | None, as_json: bool) -> None:
    """Draw the noise of a sealed window once, charge the ledger, and publish what came of it.

    That is a release; or, where too few clients were in the window by the plan's test, that it is withheld for ever.
    """
    released = _ask(service, lambda console: console.release(window))
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


@admin.command(short_help="Show windows and budget.", epilog=examples("hushsum admin status --json"))
@_service
@as_json_option
def status(*, service: str, as_json: bool) -> int:
    """Show the plan, the windows and the budget of a running aggregator. Exits with 1 when releasing has stopped."""
    shown = _ask(service, lambda console: console.status())
    if as_json:
        print_json(
            {
                "plan_id": shown.plan_id.hex(),
                "plan_name": shown.plan_name,
                "partitions": shown.partitions,
                "windows": [{"window": window, "state": state} for window, state in shown.windows],
                "epsilon_total": shown.epsilon_total,
                "epsilon_spent": shown.epsilon_spent,
                "epsilon_left": shown.epsilon_left,
                "delta_total": shown.delta_total,
                "delta_spent": shown.delta_spent,
                "delta_left": shown.delta_left,
                "statement": shown.statement,
                "releasing_stopped": shown.releasing_stopped,
                "role": shown.role,
                "releaser": {"process": shown.releaser, "address": shown.releaser_address},
                "folds": [
                    {"partition": each.partition, "position": each.position, "lag": each.lag, "stopped": each.stopped}
                    for each in shown.folds
                ],
            }
        )
    else:
        pairs = [
            ("plan", f"{shown.plan_name} ({shown.plan_id.hex()[:12]})"),
            ("role", shown.role),
            ("releaser", f"{shown.releaser}, at {shown.releaser_address}" if shown.releaser else "none now"),
            ("partitions", f"{shown.partitions}{_behind(shown)}"),
            ("ε", f"{shown.epsilon_spent} spent, {shown.epsilon_left} left of {shown.epsilon_total}"),
            ("δ", f"{shown.delta_spent} spent, {shown.delta_left} left of {shown.delta_total}"),
            ("in words", shown.statement),
            *((f"window {window}", state) for window, state in shown.windows),
            *((f"partition {each.partition} stopped", each.stopped) for each in shown.folds if each.stopped),
        ]
        print_pairs([*pairs, ("releasing stopped", shown.releasing_stopped)] if shown.releasing_stopped else pairs)
    return 1 if shown.releasing_stopped else 0


def _behind(status: "ServiceStatus") -> str:
    """What lies beyond the latest checkpoints, where anything does."""
    behind = [f"{each.lag} in {each.partition}" for each in status.folds if each.lag]
    return f", not stored yet: {', '.join(behind)}" if behind else ", all of the log is stored"


def _ask(service: str, question: "Callable[[Console], Awaitable[T]]") -> T:
    import asyncio

    from simulator.console import Console

    async def ask() -> T:
        async with Console(service) as console:
            return await question(console)

    return asyncio.run(ask())
