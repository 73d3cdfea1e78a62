"""What a deployed fleet came to, the promises that its service may have broken, and the table of both."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Final

from hushsum_simulator.deployment.verdicts import VerdictTally

#: What a client sends in a secure sum, and a silo.
SUBMISSIONS: Final = "submissions"
# Times what was expected, √(2/π)·σ at each query: were the errors of all queries one normal variable, it would be more
# once in 600,000 windows.
_ERROR_MAX: Final = 6.0
_ROUNDING: Final = 1e-5


@dataclass(frozen=True)
class WindowSummary:
    """One window.

    Attributes:
        window: Its index.
        filled: Whether the fleet added records to it, and did not only see it begin.
        tally: What was sent, and what became of it.
        records: Exact, of what is in its release.
        released: Whether there is a release; else the window is withheld.
        mean_relative_error: Of its answers; None where there is nothing to compare.
        expected_relative_error: What they say themselves that it may be.
        faults: What its noise does not explain: of its count, and of its counters.
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
        mode: ``central``, ``local`` or ``secure``.
        what: What was sent: deltas, batches of reports, or submissions.
        clients: That contributed,
        lives: and how often they were started.
        records: Usable, that they were to add.
        records_added: That they have.
        records_left_out: That never left their clients: their window passed without them.
        resent: Further sends of what had no answer.
        unanswered: Of which no client was told anything for good.
        duplicates: Entries that were dropped as copies.
        reports_sent: Mode local: that clients made of their records,
        reports_counted: and that are in the releases; 0 in other modes.
        accounts_wrong: Clients of whose submissions those that are spent are not those counted and those lost.
        windows: Each by itself.
        seconds: Of the fleet's run.
        mean_relative_error: Of the answers of all windows together.
        expected_relative_error: What it may be.
        queries: That were compared.
        epsilon: Of the plan.
        delta: Of the plan.
        unit: Of the plan.
        epsilon_spent: By the population's ledger.
        epsilon_left: The same.
        windows_charged: Outcomes before and after the ledger was asked.
        plan_id: In hexadecimal.
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
        """Of all windows."""
        return sum((each.tally for each in self.windows), VerdictTally())

    def violations(self) -> list[str]:
        """One sentence for each promise that was broken; empty where all held."""
        total, what = self.total, self.what
        least, most = self._expected_spend()
        checks = [
            (total.sent > 0, f"no {what} were sent: nothing was put to the test"),
            (
                self.records_added == self.records,
                f"{self.records_added:,} records were added, expected each of {self.records:,} once",
            ),
            (total.lost == 0, f"{total.lost} {what} were lost: told as counted, and not in their release"),
            (total.doubled == 0, f"{total.doubled} {what} were counted twice, or are of nobody"),
            (total.wrong == 0, f"{total.wrong} {what} were counted in another window than they were sent for"),
            (self.unanswered == 0, f"{self.unanswered} {what} have no answer"),
            (
                self.reports_counted == self.reports_sent,
                f"the releases hold {self.reports_counted:,} reports, and {self.reports_sent:,} were sent",
            ),
            # Windows are open for longer than any outage of a demo; a round of a secure sum may end with its gateway.
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
        """What the ledger may say: of unit ``record`` the most that a window costs, of unit ``client`` their sum."""
        if self.unit == "client":
            first, last = self.windows_charged
            return first * self.epsilon, last * self.epsilon
        # Gaussian noise is told exactly, at the population's δ: no more than ε, and above 0.
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
        """One JSON object with a key for each number."""
        return json.dumps({**dataclasses.asdict(self), "total": dataclasses.asdict(self.total)}, indent=2) + "\n"


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
