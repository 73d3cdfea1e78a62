"""`hushsum ledger`: what an analyst's ledger says."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

if TYPE_CHECKING:
    from hushsum.privacy.account import Limits
    from hushsum.privacy.claimed_event import ClaimedEvent
    from hushsum.privacy.event import Event, Spend
    from hushsum.privacy.relation import Cost


@click.group(short_help="Look at an analyst's ledger.")
def ledger() -> None:
    """Look at the ledger of whoever releases in process (hs.Ledger). A service's own: `hushsum admin status`."""


@ledger.command(short_help="Show spends, and what is left.", epilog=examples("hushsum ledger show ledger.db"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def show(*, file: Path, as_json: bool) -> None:
    """Show every spend of a ledger, what they tell together in plain words, and what is left."""
    from hushsum.privacy.ledger import Ledger

    with Ledger(file, read_only=True) as opened:
        limits, spends, statement = opened.limits, opened.events(), opened.statement()
        spent, left = opened.spent, opened.left
    if as_json:
        print_json(
            {
                "limits": _limits_json(limits),
                "spent": _cost_json(spent, up=True),
                "left": None if left is None else _cost_json(left, up=False),
                "spends": [spend.to_fields() for spend in spends],
                "statement": statement,
            }
        )
        return
    if limits is not None:
        print_table(_columns(limits), [_row(limits, item) for item in spends])
    click.echo(statement)


def _columns(limits: "Limits") -> list[str]:
    from hushsum.privacy.numerals import numeral

    epsilon = f"ε at the\ntotal δ,\n{numeral(limits.delta, up=False)}" if limits.delta else "ε"
    return ["plan", "kind\nwindow", "unit\nrelation", "mechanism\nscale", epsilon, "δ"]  # narrow, for 80 characters


def _row(limits: "Limits", spend: "Spend") -> list[str]:
    from hushsum.privacy.numerals import numeral

    window = "" if spend.window is None else str(spend.window)
    alone = spend.loss.cost(limits.delta)
    cost = ["none", "none"] if alone is None else [numeral(value, up=True) for value in alone]
    events = "\n".join(f"{event.mechanism}\n{_scale(event)}" for event in spend.events)
    return [spend.plan_id[:12], f"{spend.kind}\n{window}", f"{spend.unit}\n{spend.relation}", events, *cost]


def _scale(event: "Event | ClaimedEvent") -> str:
    from hushsum.privacy.claimed_event import ClaimedEvent
    from hushsum.privacy.local_mode import RANDOMISERS
    from hushsum.privacy.mechanism import DISCRETE_GAUSSIAN
    from hushsum.privacy.numerals import numeral

    if isinstance(event, ClaimedEvent):  # of the first version, which did not keep it
        return ""
    if event.mechanism in RANDOMISERS:
        return f"λ = {numeral(event.scale, up=True)}"
    return f"{'σ²' if event.mechanism == DISCRETE_GAUSSIAN else 'b'} = {numeral(event.scale, up=False)}"


def _limits_json(limits: "Limits | None") -> dict[str, str] | None:
    if limits is None:
        return None
    names = {"population": limits.population, "unit": limits.unit, "relation": limits.relation}
    return {**names, **_cost_json(limits.cost, up=False)}


def _cost_json(cost: "Cost", *, up: bool) -> dict[str, str]:
    from hushsum.privacy.numerals import numeral

    return {"epsilon": numeral(cost.epsilon, up=up), "delta": numeral(cost.delta, up=up)}
