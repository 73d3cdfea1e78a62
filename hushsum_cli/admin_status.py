"""`hushsum admin status`: a running aggregator at a glance, once or for as long as somebody watches."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from hushsum_cli.operation import ask, operates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, pairs_table, plain_console, print_json, print_pairs

if TYPE_CHECKING:
    from hushsum_proto.credentials import Credentials
    from hushsum_proto.messages import ServiceStatus
    from hushsum_simulator.console import Console

_EVERY_S: Final = 2.0
_WINDOWS_WATCHED: Final = 10  # so that a table that is drawn in place fits its terminal


@click.command(
    short_help="Show plan, windows and budget.",
    epilog=examples("hushsum admin status --json", "hushsum admin status --watch"),
)
@operates
@click.option("--watch", is_flag=True, help="Refresh every 2 seconds, until Ctrl-C.")
@as_json_option
def status(*, service: str, credentials: "Credentials", watch: bool, as_json: bool) -> int:
    """Show the plan, windows and budget of a running aggregator. Exits with status 1 if releasing has stopped."""
    if watch and as_json:
        raise click.UsageError("--watch cannot be combined with --json: run the command repeatedly instead")
    if watch:
        return _watch(service, credentials)
    shown = ask(service, credentials, lambda console: console.status())
    if as_json:
        print_json(_fields(shown))
    else:
        print_pairs(_pairs(shown))
    return 1 if shown.releasing_stopped else 0


def _watch(service: str, credentials: "Credentials") -> int:
    """Shows the status until somebody ends that with Ctrl-C, which is no failure; not to be let in at first is one."""
    with suppress(KeyboardInterrupt):
        ask(service, credentials, _follow)
    return 0


async def _follow(asked: "Console") -> None:
    import asyncio

    from rich.live import Live

    from hushsum_simulator.errors import ServiceError

    shown, problem = await asked.status(), ""
    console = plain_console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            table = pairs_table([*_pairs(shown, windows=_WINDOWS_WATCHED), *([("now", problem)] if problem else [])])
            if console.is_terminal:
                live.update(table, refresh=True)
            else:  # nothing can be drawn in place
                console.print(table)
            await asyncio.sleep(_EVERY_S)
            try:
                shown, problem = await asked.status(), ""
            except ServiceError as error:  # it may be back soon: what was true last stays on the screen
                problem = str(error)


def _pairs(shown: "ServiceStatus", *, windows: int | None = None) -> list[tuple[str, str]]:
    """Rows for people, with at most so many of the newest windows."""
    pairs = [
        ("plan", f"{shown.plan_name} ({shown.plan_id.hex()[:12]})"),
        ("role", shown.role),
        ("releaser", f"{shown.releaser}, at {shown.releaser_address}" if shown.releaser else "none now"),
        ("partitions", f"{shown.partitions}{_behind(shown)}"),
        ("ε", f"{shown.epsilon_spent} spent, {shown.epsilon_left} left of {shown.epsilon_total}"),
        ("δ", f"{shown.delta_spent} spent, {shown.delta_left} left of {shown.delta_total}"),
        ("guarantee", shown.statement),
        *((f"window {window}", state) for window, state in shown.windows[-(windows or len(shown.windows)) :]),
        *((f"partition {each.partition} stopped", each.stopped) for each in shown.folds if each.stopped),
    ]
    return [*pairs, ("releasing stopped", shown.releasing_stopped)] if shown.releasing_stopped else pairs


def _fields(shown: "ServiceStatus") -> dict[str, object]:
    """All of it, for machines."""
    return {
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


def _behind(status: "ServiceStatus") -> str:
    """What lies beyond the latest checkpoints, where anything does."""
    behind = [f"{each.lag} in {each.partition}" for each in status.folds if each.lag]
    return f", lag: {', '.join(behind)}" if behind else ", complete"
