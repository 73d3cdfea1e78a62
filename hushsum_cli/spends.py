"""Spends as people and machines read them: one table and one JSON for an analyst's ledger and for a service's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hushsum_cli.output import print_table

if TYPE_CHECKING:
    from fractions import Fraction

    from hushsum.privacy.events import ClaimedEvent, Event, Spend


def print_spends(spends: Iterable["Spend"], total_delta: "Fraction") -> None:
    """A table of spends, each with its mechanisms and what it costs alone.

    Args:
        spends: In the order of the rows.
        total_delta: The δ of the limits, at which zCDP is converted.
    """
    from hushsum.privacy.exact_numbers import numeral

    epsilon = f"ε at the\ntotal δ,\n{numeral(total_delta, up=False)}" if total_delta else "ε"
    columns = ["plan", "kind\nwindow", "unit\nrelation", "mechanism\nscale", epsilon, "δ"]  # narrow, for 80 characters
    print_table(columns, [_row(total_delta, spend) for spend in spends])


def ledger_json(
    limits: dict[str, str] | None,
    spent: dict[str, str],
    left: dict[str, str] | None,
    spends: Iterable["Spend"],
    statement: str,
) -> dict[str, object]:
    """A ledger for machines: ``spends`` hold every field of each."""
    return {
        "limits": limits,
        "spent": spent,
        "left": left,
        "spends": [spend.to_fields() for spend in spends],
        "statement": statement,
    }


def _row(total_delta: "Fraction", spend: "Spend") -> list[str]:
    from hushsum.privacy.exact_numbers import numeral

    window = "" if spend.window is None else str(spend.window)
    alone = spend.loss.cost(total_delta)
    cost = ["none", "none"] if alone is None else [numeral(value, up=True) for value in alone]
    events = "\n".join(f"{event.mechanism}\n{_scale(event)}" for event in spend.events)
    return [spend.plan_id[:12], f"{spend.kind}\n{window}", f"{spend.unit}\n{spend.relation}", events, *cost]


def _scale(event: "Event | ClaimedEvent") -> str:
    from hushsum.privacy.events import ClaimedEvent
    from hushsum.privacy.exact_numbers import numeral
    from hushsum.privacy.local_mode import RANDOMISERS
    from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN

    if isinstance(event, ClaimedEvent):  # of the first version, which did not keep it
        return ""
    if event.mechanism in RANDOMISERS:
        return f"λ = {numeral(event.scale, up=True)}"
    return f"{'σ²' if event.mechanism == DISCRETE_GAUSSIAN else 'b'} = {numeral(event.scale, up=False)}"
