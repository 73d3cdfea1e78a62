"""What a run came to in each mode, and the promises that it may have broken.

These are the numbers of its table and of ``summary.json``.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hushsum_simulator.demo.evaluation import LIMIT


@dataclass(frozen=True)
class Summary:
    """The numbers of one run.

    Attributes:
        records: Usable records that the clients contributed.
        records_dropped: Records that were left out on the device, each alone, for a NaN or an infinity.
        deltas_sent: Different deltas that were sent.
        deltas_resent: Further sends of those.
        duplicates_dropped: Entries of the log that the fold dropped because their id had been counted.
        deltas_counted: Ids that were counted.
        deltas_lost: Ids that were sent and not counted.
        deltas_double_counted: Ids that were counted more than once, or that nobody had sent.
        counters_equal: Whether every folded counter equals that of a sketch built in bulk from the same records; None
            in secure and local mode, where noise is in every counter before anybody else sees it.
        bytes_per_record: Packed bytes that the clients sent, resends too, a record; in secure mode, protocol bytes.
        restarts: How often the server was killed and started again.
        seconds: Of the whole run.
        mean_relative_error: Mean of |f̂ − f|/f over the queries with f above the floor; None where there is none.
        expected_relative_error: What it should be, over the same queries; None where one row alone does not show it.
        epsilon_spent: By the population's ledger, after the release.
        epsilon_left: The same.
        clients: That contributed.
        queries: Above the floor, which the errors are means of.
        queries_held_out: All of them.
        error_floor: The least kernel sum of a query that counts, in records.
        mean_kernel_sum: Mean exact kernel sum over those queries, in records; 0 where there is none.
        noise_std_error: The part of an answer's standard error that is noise, in records.
        epsilon: Of the plan.
        delta: Of the plan.
        unit: Of the plan: what the promise protects.
        records_per_client: The plan's contribution bound; None for unit ``record``.
        unacknowledged_at_kill: Deltas that were durable, and that nobody had been told of, when the server was killed.
        seed: Of the run's choices.
        plan_id: In hexadecimal.
        mode: ``central``, ``secure`` or ``local``; what follows is 0 but in secure mode.
        clients_dropped: That vanished, and never came back.
        cohorts: Whose sums are in the release.
        rounds_aborted: Rounds that ended without a sum, whether or not they cost anybody anything.
        submissions_spent: Clients that have spent their window: their masked vector was sent.
        upload_bytes_per_client: Protocol bytes of a client, its messages and its masked vector, without what the
            connection adds: mean over those that are counted.
    """

    records: int
    records_dropped: int
    deltas_sent: int
    deltas_resent: int
    duplicates_dropped: int
    deltas_counted: int
    deltas_lost: int
    deltas_double_counted: int
    counters_equal: bool | None
    bytes_per_record: float
    restarts: int
    seconds: float
    mean_relative_error: float | None
    expected_relative_error: float | None
    epsilon_spent: float
    epsilon_left: float
    clients: int
    queries: int
    queries_held_out: int
    error_floor: float
    mean_kernel_sum: float
    noise_std_error: float
    epsilon: float
    delta: float
    unit: str
    records_per_client: int | None
    unacknowledged_at_kill: int
    seed: int
    plan_id: str
    mode: str = "central"
    clients_dropped: int = 0
    cohorts: int = 0
    rounds_aborted: int = 0
    submissions_spent: int = 0
    upload_bytes_per_client: float = 0.0

    def violations(self) -> list[str]:
        """One sentence for each promise that this run broke, or did not put to the test; empty when all held."""
        checks = (
            (self.deltas_lost == 0, f"{self.deltas_lost} deltas were lost: sent, and not counted"),
            (self.deltas_double_counted == 0, f"{self.deltas_double_counted} deltas were counted twice, or never sent"),
            (bool(self.counters_equal), "the folded counters differ from those of the same records in bulk"),
            (self.restarts > 0, "the server was never killed: nothing was put to the test"),
            (self.deltas_resent > 0, "no delta was sent again: the kill put nothing to the test"),
            (self.duplicates_dropped > 0, "no duplicate came: the kill put nothing to the test"),
        )
        return [sentence for holds, sentence in checks if not holds]

    def to_json(self) -> str:
        """One JSON object with a key for each number."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"


@dataclass(frozen=True)
class SecureSummary(Summary):
    """The numbers of one run in secure mode, after those of every run.

    Attributes:
        dropout_rate: That was asked for.
        cohort_size: N.
        clients_unspent: That vanished before their vector, or found no cohort: nothing of theirs was sent.
        submissions_counted: Vectors in the sum, as the service has told their clients.
        submissions_lost: Spent, and in no sum: told likewise.
        submissions_asked: Of both, clients that had vanished untold: they came back, and asked afterwards, when all
            rounds were over and before the window was sealed.
        submissions_released: Vectors in the sum, by the release.
        stayed_uncounted: Clients that never vanished, and whose records are in no sum.
        noise_variance_ratio: Variance of what is left of the release without the exact sum, over what the plan and the
            number of submissions say.
        noise_variance_z: How far that is from 1, in standard errors; as the next two.
        noise_mean_z: How far the mean of what is left is from 0.
        client_z: The largest part of one client's vector that is left.
        vector_bytes: Of one packed vector, as the plan has it.
        rounds_seconds: From the first client that entered to the last that was told.
        central_relative_error: The same records, released by one trusted server at the same ε and δ.
        central_noise_std_error: The part of its answers' standard error that is noise, in records.
    """

    dropout_rate: float = 0.0
    cohort_size: int = 0
    clients_unspent: int = 0
    submissions_counted: int = 0
    submissions_lost: int = 0
    submissions_asked: int = 0
    submissions_released: int = 0
    stayed_uncounted: int = 0
    noise_variance_ratio: float = 1.0
    noise_variance_z: float = 0.0
    noise_mean_z: float = 0.0
    client_z: float = 0.0
    vector_bytes: int = 0
    rounds_seconds: float = 0.0
    central_relative_error: float | None = None
    central_noise_std_error: float = 0.0

    @property
    def error_ratio(self) -> float | None:
        """The mean error over that of central mode; None where there is none."""
        if self.mean_relative_error is None or not self.central_relative_error:
            return None
        return self.mean_relative_error / self.central_relative_error

    def violations(self) -> list[str]:
        """One sentence for each promise that this run broke, or did not put to the test; empty when all held."""
        counted, lost, spent = self.submissions_counted, self.submissions_lost, self.submissions_spent
        of_all = f"of {self.clients} clients {spent} have spent their window and {self.clients_unspent} have not"
        beyond = f"more than {LIMIT:g} standard errors"
        checks = (
            (
                counted == self.submissions_released,
                f"the release has {self.submissions_released} submissions, and the clients know of {counted}",
            ),
            (counted + lost == spent, f"{spent} submissions are spent, but {counted} are counted and {lost} lost"),
            (spent + self.clients_unspent == self.clients, f"{of_all}: these do not add up"),
            (self.stayed_uncounted == 0, f"{self.stayed_uncounted} clients that never vanished are in no sum"),
            (
                abs(self.noise_variance_z) <= LIMIT,
                f"the noise's variance is {self.noise_variance_ratio:.4f} of what it should be, {beyond} from it",
            ),
            (abs(self.noise_mean_z) <= LIMIT, f"the noise's mean is {beyond} from 0"),
            (
                abs(self.client_z) <= LIMIT,
                f"a client's vector was lost, counted twice or changed: {beyond} of it are left beside the noise",
            ),
            (
                self.clients_dropped > 0 or self.dropout_rate == 0,
                "no client vanished: nothing was put to the test",
            ),
        )
        return [sentence for holds, sentence in checks if not holds]


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
