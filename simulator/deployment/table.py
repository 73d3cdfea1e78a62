"""The table at the end of ``check``, and its lines of windows."""

from simulator.deployment.summary import SUBMISSIONS, DeploymentSummary, WindowSummary

_COLUMNS = 150  # of a log that is no terminal, too


def print_summary(summary: DeploymentSummary) -> None:
    """Prints a deployment's numbers on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=_COLUMNS)
    table = Table(
        box=box.ROUNDED, show_header=False, title=f"A deployed fleet, mode {summary.mode}", title_style="bold"
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for row in _rows(summary):
        table.add_row(*row)
    console.print(table)
    for line in _windows(summary):
        console.print(f"  {line}", markup=False)
    if not summary.violations():
        console.print("[green]Nothing was lost, nothing was counted twice, and all is in its own window.[/green]")


def _rows(summary: DeploymentSummary) -> list[tuple[str, str, str]]:
    total, what = summary.total, summary.what
    rows = [
        ("records", f"{summary.records_added:,}", f"of {summary.clients:,} clients, started {summary.lives:,} times"),
        (f"{what} sent", f"{total.sent:,}", f"and {summary.resent:,} again, for want of an answer"),
        ("  counted", f"{total.counted:,}", ""),
        ("  lost", f"{total.lost:,}", ""),
        ("  double counted", f"{total.doubled:,}", ""),
        ("  in a wrong window", f"{total.wrong:,}", ""),
    ]
    if what == SUBMISSIONS:
        rows.append(("  untold", f"{total.untold:,}", "spent, and nobody says what became of them"))
        rows.append(
            ("  spent, in no sum", f"{total.dropped:,}", "of rounds that ended with their gateway, or without them")
        )
        rows.append(("records left out", f"{summary.records_left_out:,}", "never sent: their clients were in no round"))
    else:
        rows.append(("  told late", f"{total.dropped:,}", "or refused: their clients know"))
        rows.append(("  duplicates dropped", f"{summary.duplicates:,}", "copies of what was durable before a kill"))
    if summary.reports_sent:
        rows.append(("reports", f"{summary.reports_counted:,}", f"in the releases, of {summary.reports_sent:,} sent"))
    return [
        *rows,
        ("mean relative error", _percent(summary.mean_relative_error), f"of {summary.queries:,} queries, all windows"),
        ("expected error", _percent(summary.expected_relative_error), "of the hash and the noise together"),
        ("ε spent", f"{summary.epsilon_spent:g}", f"per {summary.unit} and window"),
        ("ε left", f"{summary.epsilon_left:g}", "of the population's ledger"),
        ("seconds", f"{summary.seconds:.1f}", ""),
    ]


def _windows(summary: DeploymentSummary) -> list[str]:
    """A line a window."""
    dropped = "spent, in no sum" if summary.what == SUBMISSIONS else "told late"
    lines = []
    for each in summary.windows:
        tally = each.tally
        lines.append(
            f"window {each.window}: {tally.sent:,} {summary.what}, {tally.counted:,} counted, {tally.lost} lost, "
            f"{tally.doubled} doubled, {tally.wrong} wrong, {tally.dropped} {dropped}; {_outcome(each)}"
        )
    return lines


def _outcome(window: WindowSummary) -> str:
    if not window.released:
        return "withheld"
    if window.mean_relative_error is None:
        return "released"
    return f"error {_percent(window.mean_relative_error)}, expected {_percent(window.expected_relative_error)}"


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"
