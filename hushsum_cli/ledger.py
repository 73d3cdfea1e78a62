"""`hushsum ledger`: what an analyst's ledger says."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

if TYPE_CHECKING:
    from hushsum.privacy.account import Limits
    from hushsum.privacy.event import Spend
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
        print_table(["plan", "kind", "window", "unit", "relation", "ε", "δ"], [_row(limits, item) for item in spends])
    click.echo(statement)


def _row(limits: "Limits", spend: "Spend") -> list[str]:
    from hushsum.privacy.numerals import numeral

    window = "" if spend.window is None else str(spend.window)
    alone = spend.loss.cost(limits.delta)
    cost = ["none", "none"] if alone is None else [numeral(value, up=True) for value in alone]
    return [spend.plan_id[:12], spend.kind, window, spend.unit, spend.relation, *cost]


def _limits_json(limits: "Limits | None") -> dict[str, str] | None:
    if limits is None:
        return None
    names = {"population": limits.population, "unit": limits.unit, "relation": limits.relation}
    return {**names, **_cost_json(limits.cost, up=False)}


def _cost_json(cost: "Cost", *, up: bool) -> dict[str, str]:
    from hushsum.privacy.numerals import numeral

    return {"epsilon": numeral(cost.epsilon, up=up), "delta": numeral(cost.delta, up=up)}
