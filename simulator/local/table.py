"""The table at the end of a run in local mode."""

from fractions import Fraction
from typing import Final

from hushsum.privacy.numerals import numeral
from simulator.local.summary import LocalSummary

Row = tuple[str, str, str]

TITLE: Final = "Records that nobody saw"
_OF_REPORTS: Final = "Nothing was lost, nothing was counted twice, and the service knows of no report whose it is."
_OF_SILOS: Final = (
    "Nothing was lost, nothing was counted twice, and what the release has beside the exact sum is the plan's noise."
)


def all_well(summary: LocalSummary) -> str:
    """What is said where no promise was broken."""
    return _OF_REPORTS if summary.form == "report" else _OF_SILOS


def what_happened(summary: LocalSummary) -> list[Row]:
    """What was sent, and what became of it."""
    if summary.form == "report":
        return [*_reports(summary), *_batches(summary), *_wire(summary), *_names(summary)]
    return [*_submissions(summary), *_residual(summary), *_names(summary)]


def beside_central(summary: LocalSummary) -> list[Row]:
    """The same records, had one trusted server added them up and drawn the noise."""
    error, ratio = summary.central_relative_error, summary.error_ratio
    beside = "" if ratio is None else f"; this release errs × {ratio:.1f} as much"
    return [("error, central", _percent(error), f"one trusted server, {summary.central_sketch}{beside}")]


def accounts(summary: LocalSummary) -> list[Row]:
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


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"
