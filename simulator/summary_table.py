"""The table at the end of a run."""

from fractions import Fraction
from pathlib import Path
from typing import Final

from hushsum.privacy.numerals import numeral
from simulator.local import table as local_table
from simulator.local.summary import LocalSummary
from simulator.secure import table as secure_table
from simulator.secure.summary import SecureSummary
from simulator.summary import Summary

_TEN_PERCENT: Final = 0.1


def print_summary(summary: Summary, out: Path) -> None:
    """Prints a run's numbers on standard output, and where its files are."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    broken = summary.violations()
    title, all_well = _words(summary)
    table = Table(box=box.ROUNDED, show_header=False, title=title, title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for name, value, remark in _rows(summary):
        table.add_row(name, value, remark)
    console = Console(highlight=False)
    console.print(table)
    if not broken:
        console.print(f"[green]{all_well}[/green]")
    console.print(f"density.png, release.hush, plan.json and summary.json are in {out}", markup=False)


def _words(summary: Summary) -> tuple[str, str]:
    """The table's title, and what is said below it where all is well."""
    if isinstance(summary, SecureSummary):
        return secure_table.TITLE, secure_table.ALL_WELL
    if isinstance(summary, LocalSummary):
        return local_table.TITLE, local_table.all_well(summary)
    return "One record's whole journey", "Nothing was lost, nothing was counted twice, and every counter is equal."


def _rows(summary: Summary) -> list[tuple[str, str, str]]:
    if isinstance(summary, LocalSummary):
        happened, beside = local_table.what_happened(summary), local_table.beside_central(summary)
        return [*happened, *_answers(summary), *beside, *_ledger(summary), *local_table.accounts(summary)]
    if isinstance(summary, SecureSummary):
        happened, beside = secure_table.what_happened(summary), secure_table.beside_central(summary)
        return [*happened, *_answers(summary), *beside, *_price(summary), *_ledger(summary)]
    return [*_what_happened(summary), *_answers(summary), *_price(summary), *_ledger(summary)]


def _what_happened(summary: Summary) -> list[tuple[str, str, str]]:
    equal = "yes" if summary.counters_equal else "NO"
    return [
        ("records", f"{summary.records:,}", _dropped(summary)),
        ("deltas sent", f"{summary.deltas_sent:,}", f"by {summary.clients:,} clients"),
        ("  sent again", f"{summary.deltas_resent:,}", "after the kill, for want of an answer"),
        ("  duplicates dropped", f"{summary.duplicates_dropped:,}", "copies of what was durable before the kill"),
        ("  counted", f"{summary.deltas_counted:,}", "by id"),
        ("  lost", f"{summary.deltas_lost:,}", ""),
        ("  double counted", f"{summary.deltas_double_counted:,}", ""),
        ("counters equal", equal, "all of them, to a sketch of the same records in bulk"),
        ("bytes per record", f"{summary.bytes_per_record:,.0f}", "packed, resends too"),
        ("restarts", f"{summary.restarts}", f"SIGKILL with {summary.unacknowledged_at_kill} deltas nobody was told of"),
        ("seconds", f"{summary.seconds:.1f}", ""),
    ]


def _answers(summary: Summary) -> list[tuple[str, str, str]]:
    return [
        ("mean relative error", _percent(summary.mean_relative_error), _queries(summary)),
        ("expected error", *_expected(summary)),
        ("noise of an answer", f"± {summary.noise_std_error:,.1f}", f"records, from {_promise(summary)} alone"),
    ]


def _ledger(summary: Summary) -> list[tuple[str, str, str]]:
    return [
        ("ε spent", f"{summary.epsilon_spent:g}", f"per {summary.unit} and window"),
        ("ε left", f"{summary.epsilon_left:g}", "of the population's ledger"),
    ]


def _promise(summary: Summary) -> str:
    return f"ε = {summary.epsilon:g}" + (
        f", δ = {numeral(Fraction(str(summary.delta)), up=True)}" if summary.delta else ""
    )


def _dropped(summary: Summary) -> str:
    return f"{summary.records_dropped:,} dropped for a missing value" if summary.records_dropped else ""


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"


def _expected(summary: Summary) -> tuple[str, str]:
    if summary.expected_relative_error is None and summary.mean_relative_error is not None:
        return "unknown", "one row alone does not show how far it is off"
    return _percent(summary.expected_relative_error), "of the hash and the noise together"


def _queries(summary: Summary) -> str:
    floor = f"{summary.error_floor:,.0f}" if summary.error_floor >= 10 else f"{summary.error_floor:.2g}"
    return f"of {summary.queries:,} held-out queries with f above {floor}, a thousandth of the records"


def _price(summary: Summary) -> list[tuple[str, str, str]]:
    """What unit ``client`` costs: the noise grows with M while each client still brings M records at most."""
    bound = summary.records_per_client
    if bound is None or not summary.mean_kernel_sum:
        return []
    noise = summary.noise_std_error / summary.mean_kernel_sum
    needed = summary.clients * noise / _TEN_PERCENT
    digits = 10 ** max(0, len(f"{needed:.0f}") - 2)
    rounded = -(-needed // digits) * digits
    return [
        ("price of unit client", f"× {bound}", "the noise of unit record, for at most so many records of each client"),
        ("  noise/mean answer", f"{100 * noise:,.0f} %", f"10 % needs about {rounded:,.0f} clients like these"),
    ]
