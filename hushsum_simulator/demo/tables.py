"""The table at the end of a run, in each mode."""

from fractions import Fraction
from pathlib import Path
from typing import Final

from hushsum.privacy.numerals import numeral
from hushsum_simulator.demo.summary import LocalSummary, SecureSummary, Summary

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
        return _SECURE_TITLE, _SECURE_ALL_WELL
    if isinstance(summary, LocalSummary):
        return _LOCAL_TITLE, _local_all_well(summary)
    return "One record's whole journey", "Nothing was lost, nothing was counted twice, and every counter is equal."


def _rows(summary: Summary) -> list[tuple[str, str, str]]:
    if isinstance(summary, LocalSummary):
        happened, beside = _what_happened_to_reports(summary), _local_beside_central(summary)
        return [*happened, *_answers(summary), *beside, *_ledger(summary), *_accounts(summary)]
    if isinstance(summary, SecureSummary):
        happened, beside = _what_happened_to_cohorts(summary), _secure_beside_central(summary)
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


Row = tuple[str, str, str]

_SECURE_TITLE = "A sum that nobody saw the parts of"
_SECURE_ALL_WELL = (
    "Nothing was lost, nothing was counted twice, and what the release has beside the exact sum is the plan's noise."
)


def _what_happened_to_cohorts(summary: SecureSummary) -> list[Row]:
    """Who took part, and what became of each."""
    aborted = "begun again without those that had vanished" if summary.rounds_aborted else ""
    return [
        ("records", f"{summary.records:,}", "in their clients' spools, and nowhere else"),
        ("clients", f"{summary.clients:,}", f"in {summary.cohorts} cohorts of up to {summary.cohort_size}"),
        ("  dropped", f"{summary.clients_dropped}", "vanished at a step of the round, and stayed away"),
        ("submissions spent", f"{summary.submissions_spent}", "masked vectors, on their way for good"),
        ("  counted", f"{summary.submissions_counted}", f"the release has {summary.submissions_released}"),
        ("  lost", f"{summary.submissions_lost}", "spent, and in no sum: cut off before all of it had come"),
        ("  asked afterwards", f"{summary.submissions_asked}", "of both: vanished before they were told"),
        ("  never spent", f"{summary.clients_unspent}", "vanished before their vector, or found no cohort"),
        ("rounds aborted", f"{summary.rounds_aborted}", aborted),
        ("bytes per client", f"{summary.upload_bytes_per_client:,.0f}", "sent: messages and masked vector"),
        ("  of them the vector", f"{summary.vector_bytes:,}", _beside(summary)),
        ("seconds", f"{summary.seconds:.1f}", f"the rounds took {summary.rounds_seconds:.1f}"),
        (
            "release − exact sum",
            _percent(summary.noise_variance_ratio),
            "of the variance that the plan's noise should have",
        ),
        ("  in std errors", f"{abs(summary.noise_variance_z):.1f}", "from 100 %; above 6 something is wrong"),
        ("  its mean", f"{abs(summary.noise_mean_z):.1f}", "standard errors from 0"),
        (
            "  of one client",
            f"{abs(summary.client_z):.1f}",
            f"the most left of any of {summary.clients} vectors, likewise",
        ),
    ]


def _secure_beside_central(summary: SecureSummary) -> list[Row]:
    """The same records, had one trusted server added them up and drawn the noise."""
    error, ratio = summary.central_relative_error, summary.error_ratio
    beside = "" if ratio is None else f"this release errs × {ratio:.2f} as much"
    noise = summary.noise_std_error / summary.central_noise_std_error if summary.central_noise_std_error else 1.0
    return [
        ("error, central", "none" if error is None else _percent(error), beside),
        ("noise, central", f"± {summary.central_noise_std_error:,.1f}", f"× {noise:.2f} here: {_why(summary)}"),
    ]


def _beside(summary: SecureSummary) -> str:
    beside = summary.upload_bytes_per_client / summary.vector_bytes - 1 if summary.vector_bytes else 0.0
    return f"packed; keys, shares and signatures {100 * beside:+.1f} %"


def _why(summary: SecureSummary) -> str:
    return "every cohort has the whole noise, and some to spare" if summary.cohorts > 1 else "some noise is to spare"


_LOCAL_TITLE: Final = "Records that nobody saw"
_OF_REPORTS: Final = "Nothing was lost, nothing was counted twice, and the service knows of no report whose it is."
_OF_SILOS: Final = (
    "Nothing was lost, nothing was counted twice, and what the release has beside the exact sum is the plan's noise."
)


def _local_all_well(summary: LocalSummary) -> str:
    """What is said where no promise was broken."""
    return _OF_REPORTS if summary.form == "report" else _OF_SILOS


def _what_happened_to_reports(summary: LocalSummary) -> list[Row]:
    """What was sent, and what became of it."""
    if summary.form == "report":
        return [*_reports(summary), *_batches(summary), *_wire(summary), *_names(summary)]
    return [*_submissions(summary), *_residual(summary), *_names(summary)]


def _local_beside_central(summary: LocalSummary) -> list[Row]:
    """The same records, had one trusted server added them up and drawn the noise."""
    error, ratio = summary.central_relative_error, summary.error_ratio
    beside = "" if ratio is None else f"; this release errs × {ratio:.1f} as much"
    return [("error, central", _percent(error), f"one trusted server, {summary.central_sketch}{beside}")]


def _accounts(summary: LocalSummary) -> list[Row]:
    """What devices have spent by their own books, and what a shuffler adds."""
    own = f"at most, by a device's own account; {summary.account_left:g} are left there"
    rows = [("  of a device", f"{summary.account_spent:g}", own)]
    if not summary.shuffle_min:
        return rows
    least = f"{summary.shuffle_min:,}"
    if summary.amplified_epsilon is None:
        return [*rows, ("ε, shuffled", "none", f"{least} reports are too few for anything to be proven")]
    delta = numeral(Fraction(str(summary.amplified_delta)), up=True)
    who = f"δ = {delta}, against who sees nothing before the shuffler, where {least} are honest"
    return [*rows, ("ε, shuffled", f"{summary.amplified_epsilon:.3g}", who)]


def _reports(summary: LocalSummary) -> list[Row]:
    dropped = f"{summary.records_dropped:,} more could not be used: each sent a report that tells nothing"
    return [
        ("records", f"{summary.records:,}", dropped if summary.records_dropped else f"of {summary.clients:,} clients"),
        ("reports sent", f"{summary.reports_sent:,}", f"one for each record, {summary.randomiser}, {summary.sketch}"),
        ("  acknowledged", f"{summary.reports_acknowledged:,}", "as their devices know"),
        ("  counted", f"{summary.reports_counted:,}", "the release's own exact number"),
        ("  lost", f"{summary.reports_lost:,}", ""),
        ("  double counted", f"{summary.reports_doubled:,}", ""),
    ]


def _batches(summary: LocalSummary) -> list[Row]:
    killed = f"SIGKILL; batches durable, and nobody was told of: {summary.unacknowledged_at_kill}"
    rows = [
        ("batches sent", f"{summary.deltas_sent:,}", "each with a random number of its own, and no name"),
        ("  sent again", f"{summary.deltas_resent:,}", "after the kill, for want of an answer"),
    ]
    if not summary.shuffle_min:
        copies = "copies of what was durable before the kill"
        return [
            *rows,
            ("  duplicates dropped", f"{summary.duplicates_dropped:,}", copies),
            ("restarts", f"{summary.restarts}", killed),
        ]
    return [
        *rows,
        ("shuffler restarts", f"{summary.shuffler_restarts}", killed),
        ("  batches shuffled", f"{summary.shuffled_batches}", f"of at least {summary.shuffle_min:,} reports each"),
        ("server restarts", f"{summary.restarts}", "SIGKILL with a shuffled batch that it had not answered"),
        ("  duplicates dropped", f"{summary.duplicates_dropped}", "the shuffler sent the same bytes again"),
    ]


def _wire(summary: LocalSummary) -> list[Row]:
    limit = f"a report alone; the limit is {summary.report_bytes_max}"
    return [
        ("bytes per record", f"{summary.bytes_per_record:.2f}", "packed, with batches' headers and resends"),
        ("  of a report", f"{summary.report_bytes}", limit),
        ("seconds", f"{summary.seconds:.1f}", ""),
    ]


def _names(summary: LocalSummary) -> list[Row]:
    where = f"in {summary.bytes_searched / 1e6:,.1f} MB of files, output and metrics, while it ran and after"
    if summary.form != "report":
        where = "in the service's files: who takes part is not hidden, and each submits once"
    return [("clients' names found", f"{summary.names_found:,}", where)]


def _submissions(summary: LocalSummary) -> list[Row]:
    killed = f"SIGKILL; what was durable, and nobody was told of: {summary.unacknowledged_at_kill}"
    beside = summary.deltas_sent and f"{summary.records / summary.deltas_sent:,.0f} records each, on average"
    dropped = f"{summary.records_dropped:,} dropped for a missing value" if summary.records_dropped else ""
    return [
        ("records", f"{summary.records:,}", dropped or f"in {summary.clients:,} clients' spools, and nowhere else"),
        ("submissions sent", f"{summary.deltas_sent:,}", f"noised sums, {summary.sketch}; of {beside}"),
        ("  sent again", f"{summary.deltas_resent:,}", "after the kill, for want of an answer, in the same bytes"),
        ("  duplicates dropped", f"{summary.duplicates_dropped:,}", "copies of what was durable before the kill"),
        ("  acknowledged", f"{summary.submissions_acknowledged:,}", f"the release has {summary.submissions_released}"),
        ("  lost", f"{summary.deltas_lost:,}", ""),
        ("  double counted", f"{summary.deltas_double_counted:,}", ""),
        ("bytes per client", f"{summary.submission_bytes:,}", "a noised sum, whatever the client holds"),
        ("bytes per record", f"{summary.bytes_per_record:,.0f}", "resends too"),
        ("restarts", f"{summary.restarts}", killed),
        ("seconds", f"{summary.seconds:.1f}", ""),
    ]


def _residual(summary: LocalSummary) -> list[Row]:
    left = "of the variance that all clients' noise should have"
    return [
        ("release − exact sum", _percent(summary.noise_variance_ratio), left),
        ("  in std errors", f"{abs(summary.noise_variance_z):.1f}", "from 100 %; above 6 something is wrong"),
        ("  its mean", f"{abs(summary.noise_mean_z):.1f}", "standard errors from 0"),
        ("  of one client", f"{abs(summary.client_z):.1f}", f"the most left of any of {summary.clients}, likewise"),
    ]
