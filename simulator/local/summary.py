"""What a run in local mode came to, and the promises that it may have broken."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from simulator.secure.residual import LIMIT
from simulator.summary import Summary

_ROUNDING: Final = 1e-5  # both are told in six digits
_ERROR_MAX: Final = 6.0  # times what was expected: errors at queries near each other go together


@dataclass(frozen=True)
class LocalSummary(Summary):
    """The numbers of one run in local mode, after those of every run, whose deltas are batches or submissions.

    Attributes:
        form: ``report`` or ``silo``.
        randomiser: Of reports; empty for ``silo``.
        sketch: What the plan's counters are, for people.
        shuffle_min: The plan's; 0: no shuffler.
        shuffler_restarts: How often it was killed and started again.
        shuffled_batches: That left it.
        amplified_epsilon: Of the release; None where nothing is proven, and without a shuffler.
        amplified_delta: At which.
        reports_sent: That devices made, of unusable records too.
        reports_acknowledged: Of those, the ones that devices know to be durable.
        reports_counted: The release's own exact number.
        report_bytes: Of one report.
        report_bytes_max: What one may have: ⌈log2(R·K)/8⌉ + 1.
        submissions_acknowledged: Noised sums that silos know to be durable.
        submissions_released: In the sum, by the release.
        submission_bytes: Of one noised sum, packed.
        noise_variance_ratio: Of a silo's release without the exact sum: its variance over what it should be.
        noise_variance_z: How far that is from 1, in standard errors; as the next two.
        noise_mean_z: How far the mean of what is left is from 0.
        client_z: The largest part of one client's exact counters that is left.
        names_found: Clients whose name stands in a file, the output or the metrics of a service.
        bytes_searched: That were looked through for them.
        names_control: Whether what is surely there was found by the same search.
        account_spent: The most ε that a device's own account says is spent.
        account_left: The least that one has left.
        central_relative_error: The same records, released by one trusted server at the same ε.
        central_sketch: What its counters are.
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
    def reports_lost(self) -> int:
        """Acknowledged, and not in the release."""
        return max(0, self.reports_acknowledged - self.reports_counted)

    @property
    def reports_doubled(self) -> int:
        """In the release, and never acknowledged: counted twice, or of nobody."""
        return max(0, self.reports_counted - self.reports_acknowledged)

    @property
    def error_ratio(self) -> float | None:
        """The mean error over that of central mode; None where there is none."""
        if self.mean_relative_error is None or not self.central_relative_error:
            return None
        return self.mean_relative_error / self.central_relative_error

    def violations(self) -> list[str]:
        """One sentence for each promise that this run broke, or did not put to the test; empty when all held."""
        of_form = self._of_reports() if self.form == "report" else self._of_silos()
        return [sentence for holds, sentence in (*of_form, *self._of_all()) if not holds]

    def _of_all(self) -> Iterator[tuple[bool, str]]:
        what, expected = self._what, self.expected_relative_error
        yield self.deltas_lost == 0, f"{self.deltas_lost} {what} were lost: sent, and not counted"
        yield self.deltas_double_counted == 0, f"{self.deltas_double_counted} {what} were counted twice"
        yield self.restarts > 0, "the server was never killed: nothing was put to the test"
        yield self.deltas_resent > 0, f"of the {what} none was sent again: the kill put nothing to the test"
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

    def _of_reports(self) -> Iterator[tuple[bool, str]]:
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

    def _of_silos(self) -> Iterator[tuple[bool, str]]:
        known, released, beyond = self.submissions_acknowledged, self.submissions_released, f"more than {LIMIT:g}"
        yield known == self.clients, f"{self.clients} clients submit, and {known} know that theirs is counted"
        yield released == known, f"the release has {released} submissions, and the clients know of {known}"
        yield (
            abs(self.noise_variance_z) <= LIMIT,
            f"the noise's variance is {self.noise_variance_ratio:.4f} of what it should be, {beyond} std errors off",
        )
        yield abs(self.noise_mean_z) <= LIMIT, f"the noise's mean is {beyond} std errors from 0"
        yield (
            abs(self.client_z) <= LIMIT,
            f"a client's sum was lost, counted twice or changed: {beyond} std errors of it are left beside the noise",
        )

    @property
    def _what(self) -> str:
        return "batches" if self.form == "report" else "submissions"
