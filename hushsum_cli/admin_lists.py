"""`hushsum admin plans | windows | ledger`: what a running aggregator keeps."""

from typing import TYPE_CHECKING, Final

import click

from hushsum_cli.operation import ask, operates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs, print_table, utc_text

if TYPE_CHECKING:
    from hushsum.schedule import Schedule
    from hushsum_proto.credentials import Credentials
    from hushsum_proto.messages import LedgerPage, WindowsPage
    from hushsum_simulator.console import Console

STATES: Final = ("open", "closing", "sealed", "released", "withheld", "skipped")
_LIMIT_MAX: Final = 1_000_000


@click.command(short_help="List the plans in the aggregator's store.", epilog=examples("hushsum admin plans"))
@operates
@as_json_option
def plans(*, service: str, credentials: "Credentials", as_json: bool) -> None:
    """List all plans in a running aggregator's store, in order of registration.

    The plan that is being collected is marked. Plans of one population share a ledger.
    """
    found = ask(service, credentials, lambda console: console.plans())
    if as_json:
        print_json(
            [
                {
                    "plan_id": each.plan_id.hex(),
                    "name": each.name,
                    "mode": each.mode,
                    "population": each.population,
                    "partitions": each.partitions,
                    "first_window": each.first_window,
                    "signed_by": each.signed_by or None,
                    "collected_here": each.collected_here,
                }
                for each in found
            ]
        )
        return
    rows = [
        [
            each.name,
            each.plan_id.hex()[:12],
            each.mode,
            each.population or "the only one",
            str(each.partitions),
            str(each.first_window),
            each.signed_by or "nobody",
            "yes" if each.collected_here else "",
        ]
        for each in found
    ]
    columns = ["name", "plan", "mode", "population", "partitions", "first\nwindow", "signed by", "collected\nhere"]
    print_table(columns, rows)


@click.command(
    short_help="List windows, newest first.",
    epilog=examples("hushsum admin windows --state sealed", "hushsum admin windows --before 498691 --limit 100"),
)
@operates
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only windows in this state. Repeatable."
)
@click.option("--before", type=int, help="Only windows with a lower index.")
@click.option(
    "--limit",
    type=click.IntRange(1, _LIMIT_MAX),
    default=20,
    show_default=True,
    help="Maximum number of windows to show.",
)
@as_json_option
def windows(
    *, service: str, credentials: "Credentials", states: tuple[str, ...], before: int | None, limit: int, as_json: bool
) -> None:
    """List the windows of a running aggregator, newest first, with their times and states.

    The states are open, closing (being sealed), sealed (waiting for release), released, withheld (too few clients),
    and skipped (never opened by a gateway).
    """

    async def question(console: "Console") -> "tuple[Schedule | None, WindowsPage]":
        page = await console.windows(limit, before=before, states=states)
        return await _schedule(console), page

    schedule, page = ask(service, credentials, question)
    spans = [
        (None, None) if schedule is None else (schedule.start_ms(window), schedule.end_ms(window))
        for window, _ in page.windows
    ]
    if as_json:
        shown = [
            {"window": window, "start_ms": start, "end_ms": end, "state": state}
            for (window, state), (start, end) in zip(page.windows, spans, strict=True)
        ]
        print_json({"windows": shown, "more": page.more})
        return
    rows = [
        [str(window), _time(start), _time(end), state]
        for (window, state), (start, end) in zip(page.windows, spans, strict=True)
    ]
    print_table(["window", "from (UTC)", "to (UTC)", "state"], rows)
    if not rows:
        click.echo("no matching window" if states or before is not None else "no window yet")
    elif page.more:
        click.echo(f"more windows: --before {page.windows[-1][0]}")


@click.command(
    short_help="Show spent and remaining budget.", epilog=examples("hushsum admin ledger --limit 100 --json")
)
@operates
@click.option(
    "--limit",
    type=click.IntRange(1, _LIMIT_MAX),
    default=20,
    show_default=True,
    help="Maximum number of spends to show.",
)
@as_json_option
def ledger(*, service: str, credentials: "Credentials", limit: int, as_json: bool) -> None:
    """Show the ledger of the plan's population: limits, spent and remaining budget, and spends, newest first."""
    from fractions import Fraction

    from hushsum_cli.spends import ledger_json, print_spends

    page = ask(service, credentials, lambda console: console.ledger(limit))
    if as_json:
        limits = {"population": page.population, "unit": page.unit, "relation": page.relation}
        limits |= {"epsilon": page.epsilon_total, "delta": page.delta_total}
        spent = {"epsilon": page.epsilon_spent, "delta": page.delta_spent}
        left = {"epsilon": page.epsilon_left, "delta": page.delta_left}
        told = ledger_json(limits, spent, left, page.spends, page.statement)
        print_json({**told, "spends_total": page.spends_total})
        return
    print_pairs(_totals(page))
    if page.spends:
        print_spends(page.spends, Fraction(page.delta_total))
    if len(page.spends) < page.spends_total:
        click.echo(f"{len(page.spends)} of {page.spends_total} spends shown; use --limit for more\n")
    click.echo(page.statement)


def _totals(page: "LedgerPage") -> list[tuple[str, str]]:
    return [
        ("population", page.population or "the only one"),
        ("accounted for", f"unit {page.unit} under {page.relation}"),
        ("ε", f"{page.epsilon_spent} spent, {page.epsilon_left} left of {page.epsilon_total}"),
        ("δ", f"{page.delta_spent} spent, {page.delta_left} left of {page.delta_total}"),
    ]


async def _schedule(console: "Console") -> "Schedule | None":
    """When windows begin and end; None where the process that is asked shows no plan, as a worker."""
    from hushsum_simulator.errors import ServiceError

    try:
        return (await console.plan()).window
    except ServiceError:
        return None


def _time(time_ms: int | None) -> str:
    return "" if time_ms is None else utc_text(time_ms)
