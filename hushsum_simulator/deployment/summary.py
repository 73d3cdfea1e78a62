"""The numbers of a deployed fleet, the promises that its service has broken, and a table of both."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Final

from hushsum_simulator.deployment.verdicts import VerdictTally

#: What clients of secure sums and silos send.
SUBMISSIONS: Final = "submissions"
# Times the expected error, √(2/π)·σ at each query: if the errors of all queries were one normal variable, it would be
# exceeded once in 600,000 windows.
_ERROR_MAX: Final = 6.0
_ROUNDING: Final = 1e-5


@dataclass(frozen=True)
class WindowSummary:
    """One window.

    Attributes:
        filled: Whether the fleet added records to it, and was not merely running when it began.
        records: Exact number in its release.
        released: Else the window is withheld.
        mean_relative_error: Of its answers; None if there is nothing to compare.
        expected_relative_error: By the answers' own standard errors.
        faults: Deviations of its count and counters that noise does not explain.
    """

    window: int
    filled: bool
    tally: VerdictTally
    records: int
    released: bool
    mean_relative_error: float | None = None
    expected_relative_error: float | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeploymentSummary:
    """The numbers of a deployment.

    Attributes:
        what: What was sent: deltas, batches of reports, or submissions.
        lives: How often clients were started.
        records: Usable records of all clients.
        records_added: Those that were added.
        records_left_out: Those that never left their clients, since their window ended before.
        resent: How often a delta without an answer was sent again.
        unanswered: Of what was sent, how much has no definitive answer.
        duplicates: Entries that were dropped as copies.
        reports_sent: Mode local: reports that clients made of their records.
        reports_counted: Mode local: reports in the releases.
        accounts_wrong: Clients with another number of charged submissions than of counted and lost ones.
        seconds: Duration of the fleet's run.
        mean_relative_error: Of the answers of all windows together.
        expected_relative_error: By the answers' own standard errors.
        queries: That were compared.
        windows_charged: Outcomes before and after the ledger was read.
    """

    mode: str
    what: str
    clients: int
    lives: int
    records: int
    records_added: int
    records_left_out: int
    resent: int
    unanswered: int
    duplicates: int
    reports_sent: int
    reports_counted: int
    accounts_wrong: int
    windows: tuple[WindowSummary, ...]
    seconds: float
    mean_relative_error: float | None
    expected_relative_error: float | None
    queries: int
    epsilon: float
    delta: float
    unit: str
    epsilon_spent: float
    epsilon_left: float
    windows_charged: tuple[int, int]
    plan_id: str

    @property
    def total(self) -> VerdictTally:
        return sum((each.tally for each in self.windows), VerdictTally())

    def violations(self) -> list[str]:
        """A sentence for each broken promise."""
        total, what = self.total, self.what
        least, most = self._expected_spend()
        checks = [
            (total.sent > 0, f"no {what} were sent: nothing was put to the test"),
            (
                self.records_added == self.records,
                f"{self.records_added:,} records were added, expected each of {self.records:,} once",
            ),
            (total.lost == 0, f"{total.lost} {what} were lost: in no release, and no client was told so"),
            (total.doubled == 0, f"{total.doubled} {what} were counted twice, or are of nobody"),
            (total.wrong == 0, f"{total.wrong} {what} were counted in another window than they were sent for"),
            (self.unanswered == 0, f"{self.unanswered} {what} have no answer"),
            (
                self.reports_counted == self.reports_sent,
                f"the releases hold {self.reports_counted:,} reports, and {self.reports_sent:,} were sent",
            ),
            # Windows stay open longer than any outage of a demo; but a round of a secure sum may end with its gateway.
            (
                total.dropped == 0 or what == SUBMISSIONS,
                f"{total.dropped} {what} were told late, or refused: expected none, a window is open for long enough",
            ),
            (
                2 * total.counted >= total.sent or what != SUBMISSIONS,
                f"{total.counted} of {total.sent} {what} are in a sum, expected half of them at least",
            ),
            (
                self.accounts_wrong == 0,
                f"{self.accounts_wrong} clients have spent other submissions than were counted and lost",
            ),
            (
                least - _ROUNDING <= self.epsilon_spent <= most + _ROUNDING,
                f"the ledger says that ε = {self.epsilon_spent:g} is spent, expected {least:g} to {most:g}",
            ),
        ]
        return [sentence for holds, sentence in checks if not holds] + self._of_windows()

    def _expected_spend(self) -> tuple[float, float]:
        """The range of the ledger's ε: of unit ``record`` the cost of a window, of ``client`` the sum over windows."""
        if self.unit == "client":
            first, last = self.windows_charged
            return first * self.epsilon, last * self.epsilon
        # For Gaussian noise it is the exact ε at the population's δ: above 0, and at most ε.
        return (self.epsilon if self.delta == 0 else 2 * _ROUNDING), self.epsilon

    def _of_windows(self) -> list[str]:
        sentences = []
        for each in self.windows:
            if each.filled and not each.released and each.tally.sent:
                sentences.append(
                    f"window {each.window} is withheld, and {each.tally.sent} {self.what} were sent for it"
                )
            if each.filled and each.tally.sent and not each.tally.counted:
                sentences.append(f"window {each.window} counts none of {each.tally.sent} {self.what}")
            sentences += [f"the release of window {each.window} {fault}" for fault in each.faults]
            error, expected = each.mean_relative_error, each.expected_relative_error
            if error is not None and expected is not None and error > _ERROR_MAX * expected:
                sentences.append(
                    f"answers of window {each.window} err by {error:.3g}, and say themselves that it is {expected:.3g}"
                )
        return sentences

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "total": dataclasses.asdict(self.total)}, indent=2) + "\n"


_COLUMNS = 150  # also in a log that is no terminal


def print_summary(summary: DeploymentSummary) -> None:
    """Prints the table on standard output."""
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
    for each in summary.windows:
        console.print(f"  {_line(summary, each)}", markup=False)
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


def _line(summary: DeploymentSummary, window: WindowSummary) -> str:
    dropped = "spent, in no sum" if summary.what == SUBMISSIONS else "told late"
    outcome = "released" if window.released else "withheld"
    if window.released and window.mean_relative_error is not None:
        error, expected = window.mean_relative_error, window.expected_relative_error
        outcome = f"error {_percent(error)}, expected {_percent(expected)}"
    tally = window.tally
    return (
        f"window {window.window}: {tally.sent:,} {summary.what}, {tally.counted:,} counted, {tally.lost} lost, "
        f"{tally.doubled} doubled, {tally.wrong} wrong, {tally.dropped} {dropped}; {outcome}"
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"
