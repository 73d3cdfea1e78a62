"""What a run came to: the numbers of its table and of ``summary.json``, and the promises that it may have broken."""

import dataclasses
import json
from dataclasses import dataclass


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
