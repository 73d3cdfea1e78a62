"""``check``: waits for the outcomes of the fleet's windows, and compares them with the fleet's journal.

The journal determines what each release must hold. The counters of the release are compared with those of exactly these
records: the difference is noise, or a fault. Every counter's noise is independent and of a known variance, so three
numbers are decisive: the count, the multiple of the exact counters that the release holds, and the size of its noise.
"""

import asyncio
import dataclasses
import importlib.util
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum import query
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.privacy.mechanisms import DISCRETE_LAPLACE
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_proto.messages import ServiceStatus
from hushsum_simulator.data import ExactSums, Floats
from hushsum_simulator.demo.evaluation import Accuracy, asked, compare, draw
from hushsum_simulator.demo.services import Operator
from hushsum_simulator.demo.summary import Row, percent, print_rows
from hushsum_simulator.deployment.journal import Account, FleetJournal
from hushsum_simulator.deployment.prepare import Say, dealt, prepared, source_of
from hushsum_simulator.deployment.settings import (
    DeploymentSettings,
    operator_credentials,
    write_public,
)
from hushsum_simulator.deployment.verdicts import (
    VerdictTally,
    by_id,
    by_number,
    by_submission,
    counted_batches,
    retained,
    submitted,
    told_windows,
)
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Quiet
from hushsum_simulator.scenario import Material, RunSettings

#: What clients of secure sums and silos send.
SUBMISSIONS: Final = "submissions"
# Times the expected error, √(2/π)·σ at each query: if the errors of all queries were one normal variable, it would be
# exceeded once in 600,000 windows.
_ERROR_MAX: Final = 6.0
_SPEND_ROUNDING: Final = 1e-5


@dataclass(frozen=True)
class WindowSummary:
    """One window.

    Attributes:
        filled: Whether the fleet added records to it, and was not merely running when it began.
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
        mean_relative_error: Of the answers of all windows together.
        expected_relative_error: By the answers' own standard errors.
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
            (total.sent > 0, f"no {what} were sent: nothing was tested"),
            (
                self.records_added == self.records,
                f"{self.records_added:,} records were added, expected each of {self.records:,} once",
            ),
            (total.lost == 0, f"{total.lost} {what} were lost: they are in no release, and no client was informed"),
            (total.doubled == 0, f"{total.doubled} {what} were counted twice, or belong to no client"),
            (total.wrong == 0, f"{total.wrong} {what} were counted in another window than they were sent for"),
            (self.unanswered == 0, f"{self.unanswered} {what} have no answer"),
            (
                self.reports_counted == self.reports_sent,
                f"the releases contain {self.reports_counted:,} reports, but {self.reports_sent:,} were sent",
            ),
            # Windows stay open longer than any outage of a demo; but a round of a secure sum may end with its gateway.
            (
                total.dropped == 0 or what == SUBMISSIONS,
                f"{total.dropped} {what} were late or refused, expected none: windows are open for long enough",
            ),
            (
                2 * total.counted >= total.sent or what != SUBMISSIONS,
                f"{total.counted} of {total.sent} {what} are in a sum, expected at least half of them",
            ),
            (
                self.accounts_wrong == 0,
                f"{self.accounts_wrong} clients have charged other submissions than the counted and lost ones",
            ),
            (
                least - _SPEND_ROUNDING <= self.epsilon_spent <= most + _SPEND_ROUNDING,
                f"the ledger states that ε = {self.epsilon_spent:g} is spent, expected {least:g} to {most:g}",
            ),
        ]
        return [sentence for holds, sentence in checks if not holds] + self._of_windows()

    def _expected_spend(self) -> tuple[float, float]:
        """The range of the ledger's ε: of unit ``record`` the cost of a window, of ``client`` the sum over windows."""
        if self.unit == "client":
            first, last = self.windows_charged
            return first * self.epsilon, last * self.epsilon
        # For Gaussian noise it is the exact ε at the population's δ: above 0, and at most ε.
        return (self.epsilon if self.delta == 0 else 2 * _SPEND_ROUNDING), self.epsilon

    def _of_windows(self) -> list[str]:
        sentences = []
        for each in self.windows:
            if each.filled and not each.released and each.tally.sent:
                sentences.append(
                    f"window {each.window} is withheld, although {each.tally.sent} {self.what} were sent for it"
                )
            if each.filled and each.tally.sent and not each.tally.counted:
                sentences.append(f"window {each.window} counts none of {each.tally.sent} {self.what}")
            sentences += [f"the release of window {each.window} {fault}" for fault in each.faults]
            error, expected = each.mean_relative_error, each.expected_relative_error
            if error is not None and expected is not None and error > _ERROR_MAX * expected:
                sentences.append(
                    f"answers of window {each.window} have an error of {error:.3g}, and state {expected:.3g}"
                )
        return sentences

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "total": dataclasses.asdict(self.total)}, indent=2) + "\n"


_COLUMNS = 150  # also in a log that is no terminal


def print_summary(summary: DeploymentSummary) -> None:
    """Prints the table on standard output."""
    console = print_rows(f"A deployed fleet, mode {summary.mode}", _rows(summary), _COLUMNS)
    for each in summary.windows:
        console.print(f"  {_line(summary, each)}", markup=False)
    if not summary.violations():
        console.print("[green]Nothing was lost or counted twice, and everything is in its window.[/green]")


def _rows(summary: DeploymentSummary) -> list[Row]:
    total, what = summary.total, summary.what
    rows = [
        ("records", f"{summary.records_added:,}", f"of {summary.clients:,} clients, started {summary.lives:,} times"),
        (f"{what} sent", f"{total.sent:,}", f"and {summary.resent:,} again, because no answer had arrived"),
        ("  counted", f"{total.counted:,}", ""),
        ("  lost", f"{total.lost:,}", ""),
        ("  double counted", f"{total.doubled:,}", ""),
        ("  in a wrong window", f"{total.wrong:,}", ""),
    ]
    if what == SUBMISSIONS:
        rows.append(("  unknown", f"{total.untold:,}", "charged, with no known result"))
        rows.append(
            (
                "  spent, in no sum",
                f"{total.dropped:,}",
                "of rounds that ended with their gateway, or without these clients",
            )
        )
        rows.append(("records left out", f"{summary.records_left_out:,}", "never sent: their clients were in no round"))
    else:
        rows.append(("  late", f"{total.dropped:,}", "or refused: their clients are informed"))
        rows.append(
            ("  duplicates dropped", f"{summary.duplicates:,}", "copies of deltas that were durable before a kill")
        )
    if summary.reports_sent:
        rows.append(("reports", f"{summary.reports_counted:,}", f"in the releases, of {summary.reports_sent:,} sent"))
    return [
        *rows,
        ("mean relative error", percent(summary.mean_relative_error), f"of {summary.queries:,} queries, all windows"),
        ("expected error", percent(summary.expected_relative_error), "of the hash and the noise together"),
        ("ε spent", f"{summary.epsilon_spent:g}", f"per {summary.unit} and window"),
        ("ε left", f"{summary.epsilon_left:g}", "of the population's ledger"),
        ("seconds", f"{summary.seconds:.1f}", ""),
    ]


def _line(summary: DeploymentSummary, window: WindowSummary) -> str:
    dropped = "spent, in no sum" if summary.what == SUBMISSIONS else "late"
    outcome = "released" if window.released else "withheld"
    if window.released and window.mean_relative_error is not None:
        error, expected = window.mean_relative_error, window.expected_relative_error
        outcome = f"error {percent(error)}, expected {percent(expected)}"
    tally = window.tally
    return (
        f"window {window.window}: {tally.sent:,} {summary.what}, {tally.counted:,} counted, {tally.lost} lost, "
        f"{tally.doubled} doubled, {tally.wrong} wrong, {tally.dropped} {dropped}; {outcome}"
    )


# Allowed standard errors of one number, and how often a service without a fault exceeds them. Of one normal variable
# P(|Z| > 6) = 2e-9; of one Laplace variable P(|X| > 10σ) = exp(-10·√2) = 7e-7. Sums over thousands of counters are
# normal, with a kurtosis of 6 at most for each counter (discrete Laplace).
_NORMAL_MAX: Final = 6.0
_LAPLACE_MAX: Final = 10.0
_SQUARES_VARIANCE: Final = 5.0  # Var(X²)/Var(X)² of Laplace noise; less for all others
_COUNTERS_MIN: Final = 2000  # sums of fewer are not normal so far out
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Contents:
    """What a window's release must hold.

    Attributes:
        least: Their least number (mode local: of reports).
        most: Their largest number.
        is_certain: Whether they are exactly these: with secure sums and silos it may hold records of clients that do
            not know their result.
    """

    inside: Material
    least: int
    most: int
    is_certain: bool = True


def count_fault(release: Release, contents: Contents) -> str:
    """What is wrong with the release's count, as the end of a sentence; empty if nothing is.

    False alarms: none for reports, which are counted exactly; at most 7e-7 a window for others.
    """
    found, least, most = release.count, contents.least, contents.most
    expected = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    if release.plan.privacy.reports is not None:
        return "" if least <= found <= most else f"contains {found:,.0f} reports, expected {expected}"
    error = query.count_std_error(release.plan, draws=release.draws, counters=release.counters)
    is_laplace = release.plan.privacy.mechanism.name == DISCRETE_LAPLACE
    allowed = (_LAPLACE_MAX if is_laplace else _NORMAL_MAX) * error + _ROUNDING
    if least - allowed <= found <= most + allowed:
        return ""
    return f"counts {found:,.0f} records ± {error:.3g}, expected {expected}"


def counter_faults(release: Release, inside: Material) -> list[str]:
    """What is wrong with the counters of a release (not of reports) that must hold exactly these records.

    False alarms: at most 1e-8 a window.
    """
    plan = release.plan
    exact = Sketch(plan)
    exact.add(inside.counted[np.isfinite(inside.counted).all(axis=1)])
    truth = exact.counters.astype(np.float64).ravel()
    noise = release.counters.astype(np.float64).ravel() - truth
    variance = query.noise_variance(plan, draws=release.draws)
    faults = []
    length = float(truth @ truth)
    if length > 0:
        multiple, error = 1 + float(noise @ truth) / length, math.sqrt(variance / length)
        if abs(multiple - 1) > _NORMAL_MAX * error + _ROUNDING:
            faults.append(f"contains {multiple:.3g} ± {error:.2g} times the counted records, expected 1")
    if variance > 0 and noise.size >= _COUNTERS_MIN:
        ratio, error = float(noise @ noise) / (noise.size * variance), math.sqrt(_SQUARES_VARIANCE / noise.size)
        if abs(ratio - 1) > _NORMAL_MAX * error:
            faults.append(f"has {ratio:.3g} ± {error:.2g} times the variance of its plan's noise, expected 1")
    return faults


def contents_of(
    material: Material, journal: FleetJournal, verdicts: Sequence[Verdict], window: int, release: Release | None
) -> Contents:
    """What a window's release (None: it is withheld) must hold of the fleet's records.

    ``verdicts`` are those that the service retained, in mode central.
    """
    privacy = material.plan.privacy
    if privacy.mode == CENTRAL:
        inside = material.parts(counted_batches(journal, verdicts, window))
        return Contents(inside, usable(inside), usable(inside))
    if privacy.reports is not None:
        added = (each for account in journal.accounts.values() for each in account.added)
        reports = sum(each.reports for each in added if each.window == window)
        return Contents(material.parts(_batches(journal, window)), reports, reports)
    return _of_submissions(material, journal, window, release)


def usable(material: Material) -> int:
    """How many records a sketch accepts."""
    return int(np.isfinite(material.counted).all(axis=1).sum())


def _of_submissions(material: Material, journal: FleetJournal, window: int, release: Release | None) -> Contents:
    """It holds clients with the result ``counted``, and as many without a result as it has more submissions."""
    counted, untold = submitted(journal, window)
    found = 0 if release is None else release.submissions or 0
    if found >= len(counted | untold):
        counted, untold = counted | untold, set()
    elif found <= len(counted):
        untold = set()
    batches = _batches(journal, window)
    inside = material.parts({name: places for name, places in batches.items() if name in counted})
    more = material.parts({name: places for name, places in batches.items() if name in untold})
    missing = sum(_left_out(journal.accounts[name]) for name in counted | untold)
    sure = usable(inside)
    return Contents(inside, max(0, sure - missing), sure + usable(more), not (untold or missing))


def _left_out(account: Account) -> int:
    """Records that a client left out of its submissions, without those of windows for which it made none."""
    never = sum(added.records for added in account.added if added.window not in account.results)
    return max(0, account.tallies.records_unspent + account.tallies.records_absent - never)


def _batches(journal: FleetJournal, window: int) -> Mapping[str, list[int]]:
    return {
        name: [added.batch for added in account.added if added.window == window]
        for name, account in journal.accounts.items()
    }


@dataclass(frozen=True, eq=False)
class Found:
    """The answers of the service.

    Attributes:
        outcomes: Of every window its release, or None if it is withheld.
        verdicts: Those that it retained.
        status: With the population's ledger.
        charged: The numbers of outcomes before and after the status was fetched.
    """

    outcomes: Mapping[int, Release | None]
    verdicts: Sequence[Verdict]
    status: ServiceStatus
    charged: tuple[int, int]

    def submissions(self) -> dict[int, int]:
        return {window: 0 if each is None else each.submissions or 0 for window, each in self.outcomes.items()}


class _Answers(NamedTuple):
    """The answers (m,) of one release, their standard errors, the part of these that is noise, and the exact sums."""

    values: Floats
    std_errors: Floats
    noise: float
    exact: Floats


class Comparison:
    """Compares the fleet's journal with the answers of the service.

    Attributes:
        latest: The last release that holds records, with their exact sums; None if there is none.
    """

    def __init__(self, material: Material, journal: FleetJournal, found: Found) -> None:
        self._material, self._journal, self._found = material, journal, found
        self._plan = material.plan
        self._submits = self._plan.privacy.mode != CENTRAL and self._plan.privacy.reports is None
        self._answers: list[_Answers] = []
        self.latest: tuple[Release, ExactSums] | None = None
        tallies = self._tallies()
        windows = sorted({*tallies, *found.outcomes})
        self._windows = tuple(self._window(window, tallies.get(window, VerdictTally())) for window in windows)

    def summary(self) -> DeploymentSummary:
        plan, privacy, status, found = self._plan, self._plan.privacy, self._found.status, self._found
        accounts, releases = self._journal.accounts.values(), found.outcomes.values()
        together, of_reports = self._together(), privacy.reports is not None
        return DeploymentSummary(
            mode=privacy.mode,
            what="deltas" if privacy.mode == CENTRAL else "batches" if of_reports else SUBMISSIONS,
            clients=len(accounts),
            lives=sum(each.lives for each in accounts),
            records=usable(self._material),
            records_added=sum(self._added_once(name) for name in self._journal.accounts),
            records_left_out=sum(each.tallies.records_unspent + each.tallies.records_absent for each in accounts),
            resent=sum(each.tallies.deltas_resent for each in accounts),
            unanswered=sum(_unanswered(each, submits=self._submits) for each in accounts),
            duplicates=sum(each.kind is VerdictKind.DUPLICATE for each in found.verdicts),
            reports_sent=sum(added.reports for account in accounts for added in account.added),
            reports_counted=sum(int(each.count) for each in releases if each is not None) if of_reports else 0,
            accounts_wrong=sum(map(_is_wrong, accounts)) if self._submits else 0,
            windows=self._windows,
            seconds=self._journal.seconds,
            mean_relative_error=together.mean_relative,
            expected_relative_error=together.expected_relative,
            queries=together.queries,
            epsilon=float(privacy.epsilon),
            delta=float(privacy.delta),
            unit=privacy.unit,
            epsilon_spent=float(Fraction(status.epsilon_spent)),
            epsilon_left=float(Fraction(status.epsilon_left)),
            windows_charged=found.charged,
            plan_id=plan.hex_id,
        )

    def _tallies(self) -> dict[int, VerdictTally]:
        if self._plan.privacy.mode == CENTRAL:
            return by_id(self._journal, self._found.verdicts)
        if self._plan.privacy.reports is not None:
            return by_number(self._journal, self._found.verdicts)
        return by_submission(self._journal, self._found.submissions())

    def _window(self, window: int, tally: VerdictTally) -> WindowSummary:
        release, filled = self._found.outcomes.get(window), window in self._journal.window_range
        contents = contents_of(self._material, self._journal, self._found.verdicts, window, release)
        inside = contents.inside
        records = len(inside.counted)
        summary = WindowSummary(window, filled, tally, records, released=release is not None)
        if release is None:
            return summary
        faults = [count_fault(release, contents)]
        if contents.is_certain and self._plan.privacy.reports is None:
            faults += counter_faults(release, inside)
        summary = replace(summary, faults=tuple(filter(None, faults)))
        if not records:
            return summary
        truth = ExactSums(self._plan, inside.labelled)
        self.latest = (release, truth)
        queries, exact = asked(inside, truth, Quiet())
        answer = release.kernel_sum(queries)
        draws = release.draws if self._plan.privacy.reports is None else int(release.count)
        noise = query.noise_std_error(self._plan, draws=draws)
        self._answers.append(_Answers(answer.value, answer.std_error, noise, exact))
        accuracy = compare(answer.value, answer.std_error, exact, records)
        mean, expected = accuracy.mean_relative, accuracy.expected_relative
        return replace(summary, mean_relative_error=mean, expected_relative_error=expected)

    def _together(self) -> Accuracy:
        """All windows: answers add up, noise is independent, and the errors of the hash are not."""
        if not self._answers:
            return Accuracy(None, None, 0, 0.0, 0.0)
        least = min(len(each.exact) for each in self._answers)
        hashing = sum(np.sqrt(np.maximum(0.0, each.std_errors[:least] ** 2 - each.noise**2)) for each in self._answers)
        noise = math.sqrt(sum(each.noise**2 for each in self._answers))
        return compare(
            np.sum([each.values[:least] for each in self._answers], axis=0),
            np.hypot(hashing, noise),
            np.sum([each.exact[:least] for each in self._answers], axis=0),
            sum(each.records for each in self._windows),
        )

    def _added_once(self, name: str) -> int:
        """Records of a client that added each of its batches once; else 0."""
        added = self._journal.accounts[name].added
        batches = [len(share.batches) for share in self._material.shares if share.client_id == name]
        if [list(range(count)) for count in batches] != [[each.batch for each in added]]:
            return 0
        return sum(each.records for each in added)


def _unanswered(account: Account, *, submits: bool) -> int:
    if submits:
        return sum(not result for result in account.results.values())
    told = account.tallies
    answered = told.acknowledged + told.counted + told.late + told.unknown + sum(told.refused.values())
    return told.deltas - answered


def _is_wrong(account: Account) -> bool:
    tallies = account.tallies
    told = tallies.submissions_counted + tallies.submissions_lost
    return not tallies.submissions_spent == told == len(account.results)


def check(settings: DeploymentSettings, say: Say) -> list[str]:
    """Compares, prints the table, writes summary.json, the releases and density.png.

    Returns:
        A sentence for each broken promise.

    Raises:
        HushsumError: A file is missing, or the service does not answer.
        OSError: A folder cannot be written.
    """
    plan, journal = prepared(settings), FleetJournal.load(settings.sent_file)
    if journal.plan_id != plan.hex_id:
        raise JourneyError(f"{settings.sent_file}: of plan {journal.plan_id[:12]}, expected {plan.hex_id[:12]}")
    material = dealt(settings, plan, source_of(settings))
    windows = sorted({*journal.window_range, *told_windows(journal)})
    end_ms = plan.window.end_ms(windows[-1]) + plan.window.lateness_ms
    say(f"waiting for the outcomes of {len(windows)} windows, the last in {max(0, end_ms / 1000 - time.time()):.0f} s")
    found = asyncio.run(_ask(settings, plan, windows, end_ms))
    compared = Comparison(material, journal, found)
    summary = compared.summary()
    write_public(settings.reports / "summary.json", summary.to_json().encode())
    for window, release in found.outcomes.items():
        if release is not None:
            release.save(settings.reports / f"release-{window}.hush")
    if compared.latest is not None and importlib.util.find_spec("matplotlib") is not None:
        shown = RunSettings(data=Path(settings.data) if settings.data else None, out=settings.reports)
        draw(shown, *compared.latest, Quiet())
    print_summary(summary)
    return summary.violations()


async def _ask(settings: DeploymentSettings, plan: Plan, windows: Sequence[int], end_ms: int) -> Found:
    patience_s = max(0.0, end_ms / 1000 - time.time()) + settings.deadline_s
    analyst = Operator(settings.gateways, credentials=operator_credentials(settings, "reader"), patience_s=patience_s)
    outcomes = {window: (await analyst.outcome(window))[1] for window in windows}
    before = await analyst.outcomes()
    administrator = Operator(
        settings.gateways, credentials=operator_credentials(settings, "admin"), patience_s=patience_s
    )
    status = await administrator.status()
    after = await analyst.outcomes()
    by_verdicts = plan.privacy.mode != SECURE and not plan.privacy.is_silo
    verdicts = await retained(settings, plan) if by_verdicts else []
    return Found(outcomes, verdicts, status, (before, after))
