"""The numbers of a run in local mode."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from hushsum_simulator.demo.evaluation import Residual
from hushsum_simulator.demo.summary import (
    NOISE_ALONE,
    Check,
    Row,
    Summary,
    error_ratio,
    percent,
    residual_checks,
    residual_rows,
    upper_numeral,
)

_ROUNDING: Final = 1e-5  # both are reported in six digits
_ERROR_MAX: Final = 6.0  # times what was expected: errors at queries near each other are correlated
_COPIES: Final = "copies of what was durable before the kill"


@dataclass(frozen=True, kw_only=True)
class LocalSummary(Summary):
    """The numbers of one run in local mode, after those of every run.

    Attributes:
        form: ``report`` or ``silo``.
        randomiser: Of reports; empty for ``silo``.
        sketch: The shape of the plan's counters, for people.
        shuffle_min: The plan's; 0: no shuffler.
        shuffler_restarts: How often it was killed and started again.
        shuffled_batches: Batches that left it.
        amplified_epsilon: Of the release; None where nothing is proven, and without a shuffler.
        amplified_delta: The δ at which that holds.
        reports_sent: Reports that devices made, of unusable records too.
        reports_acknowledged: Of those, the reports of devices that have all acknowledgements.
        reports_counted: The release's own exact number.
        report_bytes: Of one report.
        report_bytes_max: The bound on it: ⌈log2(R·K)/8⌉ + 1.
        submissions_acknowledged: Noised sums that silos know to be durable.
        submissions_released: In the sum, by the release.
        submission_bytes: Of one noised sum, packed.
        noise_variance_ratio: Of silos, see :class:`~hushsum_simulator.demo.evaluation.Residual`, as of the next three.
        names_found: Clients with their name in a file, the output or the metrics of a service.
        bytes_searched: The size of all those.
        names_control: Whether the same search found what is known to be there.
        account_spent: The largest ε that a device's own account has spent.
        account_left: The smallest that one has left.
        central_relative_error: The same records, released by one trusted server at the same ε.
        central_sketch: The shape of its counters.
    """

    form: str = "report"
    randomiser: str = ""
    sketch: str = ""
    shuffle_min: int = 0
    shuffler_restarts: int = 0
    shuffled_batches: int = 0
    amplified_epsilon: float | None = None
    amplified_delta: float = 0.0
    reports_sent: int = 0
    reports_acknowledged: int = 0
    reports_counted: int = 0
    report_bytes: int = 0
    report_bytes_max: int = 0
    submissions_acknowledged: int = 0
    submissions_released: int = 0
    submission_bytes: int = 0
    noise_variance_ratio: float = 1.0
    noise_variance_z: float = 0.0
    noise_mean_z: float = 0.0
    client_z: float = 0.0
    names_found: int = 0
    bytes_searched: int = 0
    names_control: bool = False
    account_spent: float = 0.0
    account_left: float = 0.0
    central_relative_error: float | None = None
    central_sketch: str = ""

    @property
    def is_silo(self) -> bool:
        return self.form != "report"

    @property
    @override
    def title(self) -> str:
        return "Records that nobody saw"

    @property
    @override
    def all_well(self) -> str:
        if self.is_silo:
            return NOISE_ALONE
        return "Nothing was lost, nothing was counted twice, and the service knows of no report whose it is."

    @property
    def residual(self) -> Residual:
        return Residual(self.noise_variance_ratio, self.noise_variance_z, self.noise_mean_z, self.client_z)

    @property
    def reports_lost(self) -> int:
        """Acknowledged, and not in the release."""
        return max(0, self.reports_acknowledged - self.reports_counted)

    @property
    def reports_doubled(self) -> int:
        """In the release, and never acknowledged: counted twice, or sent by no device."""
        return max(0, self.reports_counted - self.reports_acknowledged)

    @override
    def checks(self) -> Iterator[Check]:
        yield from self._silo_checks() if self.is_silo else self._report_checks()
        what, expected = "submissions" if self.is_silo else "batches", self.expected_relative_error
        yield self.deltas_lost == 0, f"{self.deltas_lost} {what} were lost: sent, and not counted"
        yield self.deltas_double_counted == 0, f"{self.deltas_double_counted} {what} were counted twice"
        yield self.restarts > 0, "the server was never killed: nothing was put to the test"
        yield self.kill_led_to_resends, f"of the {what} none was sent again: the kill put nothing to the test"
        yield self.duplicates_dropped > 0, "no duplicate came to the server: the kill put nothing to the test"
        yield (
            abs(self.account_spent - self.epsilon_spent) <= _ROUNDING * self.epsilon,
            f"the ledger says that ε = {self.epsilon_spent:g} is spent, a device's own account {self.account_spent:g}",
        )
        yield self.epsilon_spent <= self.epsilon, f"more than ε = {self.epsilon:g} is spent"
        yield self.epsilon_spent > 0, "nothing was spent by the population's ledger"
        if self.mean_relative_error is not None and expected is not None:
            yield (
                self.mean_relative_error <= _ERROR_MAX * expected,
                f"answers err by {self.mean_relative_error:.3g}, and say themselves that it is {expected:.3g}",
            )

    def _report_checks(self) -> Iterator[Check]:
        sent, known, counted = self.reports_sent, self.reports_acknowledged, self.reports_counted
        yield known == sent, f"of {sent:,} reports {known:,} were acknowledged"
        yield counted >= known, f"{self.reports_lost:,} reports were lost: acknowledged, and not in the release"
        yield counted <= known, f"{self.reports_doubled:,} reports were counted twice, or are of nobody"
        yield (
            self.report_bytes <= self.report_bytes_max,
            f"a report has {self.report_bytes} bytes, and may have {self.report_bytes_max}",
        )
        yield self.names_found == 0, f"{self.names_found} clients' names stand in what the service keeps or tells"
        yield self.names_control, "the search for names missed what is surely there: it looked at nothing"
        if self.shuffle_min:
            yield self.shuffler_restarts > 0, "the shuffler was never killed: nothing was put to the test"
            yield self.shuffled_batches > 0, "no batch left the shuffler"

    def _silo_checks(self) -> Iterator[Check]:
        known, released = self.submissions_acknowledged, self.submissions_released
        yield known == self.clients, f"{self.clients} clients submit, and {known} know that theirs is counted"
        yield released == known, f"the release has {released} submissions, and the clients know of {known}"
        yield from residual_checks(self.residual, "sum")

    @override
    def rows(self) -> Iterable[Row]:
        ratio = error_ratio(self, self.central_relative_error)
        beside = "" if ratio is None else f"; this release errs × {ratio:.1f} as much"
        server = f"one trusted server, {self.central_sketch}{beside}"
        return [
            *(self._silo_rows() if self.is_silo else self._report_rows()),
            *self.answer_rows(),
            ("error, central", percent(self.central_relative_error), server),
            *self.ledger_rows(),
            *self._account_rows(),
        ]

    def _report_rows(self) -> list[Row]:
        unusable = f"{self.records_dropped:,} more could not be used: each sent a report that tells nothing"
        searched = f"in {self.bytes_searched / 1e6:,.1f} MB of files, output and metrics, while it ran and after"
        return [
            ("records", f"{self.records:,}", unusable if self.records_dropped else f"of {self.clients:,} clients"),
            ("reports sent", f"{self.reports_sent:,}", f"one for each record, {self.randomiser}, {self.sketch}"),
            ("  acknowledged", f"{self.reports_acknowledged:,}", "as their devices know"),
            ("  counted", f"{self.reports_counted:,}", "the release's own exact number"),
            ("  lost", f"{self.reports_lost:,}", ""),
            ("  double counted", f"{self.reports_doubled:,}", ""),
            ("batches sent", f"{self.deltas_sent:,}", "each with a random number of its own, and no name"),
            ("  sent again", f"{self.deltas_resent:,}", "after the kill, for want of an answer"),
            *self._restart_rows(),
            ("bytes per record", f"{self.bytes_per_record:.2f}", "packed, with batches' headers and resends"),
            ("  of a report", f"{self.report_bytes}", f"a report alone; the limit is {self.report_bytes_max}"),
            ("seconds", f"{self.seconds:.1f}", ""),
            ("clients' names found", f"{self.names_found:,}", searched),
        ]

    def _restart_rows(self) -> list[Row]:
        killed = f"SIGKILL; batches durable, and nobody was told of: {self.unacknowledged_at_kill}"
        if not self.shuffle_min:
            return [
                ("  duplicates dropped", f"{self.duplicates_dropped:,}", _COPIES),
                ("restarts", f"{self.restarts}", killed),
            ]
        return [
            ("shuffler restarts", f"{self.shuffler_restarts}", killed),
            ("  batches shuffled", f"{self.shuffled_batches}", f"of at least {self.shuffle_min:,} reports each"),
            ("server restarts", f"{self.restarts}", "SIGKILL with a shuffled batch that it had not answered"),
            ("  duplicates dropped", f"{self.duplicates_dropped}", "the shuffler sent the same bytes again"),
        ]

    def _silo_rows(self) -> list[Row]:
        killed = f"SIGKILL; what was durable, and nobody was told of: {self.unacknowledged_at_kill}"
        average = self.deltas_sent and f"{self.records / self.deltas_sent:,.0f} records each, on average"
        records = self.dropped or f"in {self.clients:,} clients' spools, and nowhere else"
        names = "in the service's files: who takes part is not hidden, and each submits once"
        return [
            ("records", f"{self.records:,}", records),
            ("submissions sent", f"{self.deltas_sent:,}", f"noised sums, {self.sketch}; of {average}"),
            ("  sent again", f"{self.deltas_resent:,}", "after the kill, for want of an answer, in the same bytes"),
            ("  duplicates dropped", f"{self.duplicates_dropped:,}", _COPIES),
            ("  acknowledged", f"{self.submissions_acknowledged:,}", f"the release has {self.submissions_released}"),
            ("  lost", f"{self.deltas_lost:,}", ""),
            ("  double counted", f"{self.deltas_double_counted:,}", ""),
            ("bytes per client", f"{self.submission_bytes:,}", "a noised sum, whatever the client holds"),
            ("bytes per record", f"{self.bytes_per_record:,.0f}", "resends too"),
            ("restarts", f"{self.restarts}", killed),
            ("seconds", f"{self.seconds:.1f}", ""),
            *residual_rows(self.residual, "all clients' noise", f"{self.clients}"),
            ("clients' names found", f"{self.names_found:,}", names),
        ]

    def _account_rows(self) -> list[Row]:
        """What devices have spent by their own accounts, and the guarantee behind a shuffler."""
        own = f"at most, by a device's own account; {self.account_left:g} are left there"
        rows = [("  of a device", f"{self.account_spent:g}", own)]
        if not self.shuffle_min:
            return rows
        least = f"{self.shuffle_min:,}"
        if self.amplified_epsilon is None:
            return [*rows, ("ε, shuffled", "none", f"{least} reports are too few for anything to be proven")]
        delta = upper_numeral(self.amplified_delta)
        who = f"δ = {delta}, against who sees nothing before the shuffler, where {least} are honest"
        return [*rows, ("ε, shuffled", f"{self.amplified_epsilon:.3g}", who)]
