"""`hushsum ledger`: what an analyst's ledger says."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json
from hushsum_cli.spends import ledger_json, print_spends

if TYPE_CHECKING:
    from hushsum.privacy.accountant import Limits
    from hushsum.privacy.relations import Cost


@click.group(short_help="Inspect a ledger file.")
def ledger() -> None:
    """Inspect the ledger file of in-process releases (hs.Ledger). For a service, see `hushsum admin ledger`."""


@ledger.command(short_help="Show spends and remaining budget.", epilog=examples("hushsum ledger show ledger.db"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def show(*, file: Path, as_json: bool) -> None:
    """Show all spends of a ledger, the total guarantee in plain words, and the remaining budget."""
    from hushsum.privacy.ledger import Ledger

    with Ledger(file, read_only=True) as opened:
        limits, spends, statement = opened.limits, opened.events(), opened.statement()
        spent, left = opened.spent, opened.left
    if as_json:
        told_left = None if left is None else _cost_json(left, up=False)
        print_json(ledger_json(_limits_json(limits), _cost_json(spent, up=True), told_left, spends, statement))
        return
    if limits is not None:
        print_spends(spends, limits.delta)
    click.echo(statement)


def _limits_json(limits: "Limits | None") -> dict[str, str] | None:
    if limits is None:
        return None
    names = {"population": limits.population, "unit": limits.unit, "relation": limits.relation}
    return {**names, **_cost_json(limits.cost, up=False)}


def _cost_json(cost: "Cost", *, up: bool) -> dict[str, str]:
    from hushsum.privacy.exact_numbers import numeral

    return {"epsilon": numeral(cost.epsilon, up=up), "delta": numeral(cost.delta, up=up)}
