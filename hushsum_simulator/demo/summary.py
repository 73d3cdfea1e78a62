"""The numbers of a run, the promises that it may have broken, and its table."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hushsum.privacy.exact_numbers import numeral
from hushsum_simulator.demo.evaluation import LIMIT, Residual

if TYPE_CHECKING:
    from rich.console import Console

_TEN_PERCENT: Final = 0.1
NOISE_ALONE: Final = (
    "Nothing was lost, nothing was counted twice, and the release differs from the exact sum only by the plan's noise."
)
Row = tuple[str, str, str]  # name, value, remark
Check = tuple[bool, str]  # whether a promise was kept, and what is said where it was not


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The numbers of one run in central mode, and those of other modes that are common to all.

    They are the keys of ``summary.json``. A delta is a batch of reports or a noised sum in local mode.

    Attributes:
        records: Usable records that the clients contributed.
        records_dropped: Records that were left out on the device for a NaN or an infinity.
        deltas_sent: Different deltas that were sent.
        deltas_resent: Further sends of those.
        duplicates_dropped: Entries of the log that the fold dropped because their id had been counted.
        deltas_counted: Ids that were counted.
        deltas_lost: Ids that were sent and not counted.
        deltas_double_counted: Ids that were counted more than once, or never sent.
        counters_equal: Whether every folded counter equals that of a sketch built in bulk from the same records; None
            in secure and local mode, where noise is in every counter before it leaves the clients.
        bytes_per_record: Packed bytes that the clients sent, resends too, a record; in secure mode, protocol bytes.
        restarts: How often the server was killed and started again.
        mean_relative_error: Mean of |f̂ − f|/f over the queries with f above the floor; None where there is none.
        expected_relative_error: What it should be, over the same queries; None where one row alone does not show it.
        epsilon_spent: By the population's ledger, after the release.
        queries: Number of queries above the floor, which the errors are means of.
        error_floor: The least kernel sum of a query that counts, in records.
        mean_kernel_sum: Mean exact kernel sum over those queries, in records; 0 where there is none.
        noise_std_error: The part of an answer's standard error that is noise, in records.
        unit: Of the plan: ``record`` or ``client``.
        records_per_client: The plan's contribution bound; None for unit ``record``.
        unacknowledged_at_kill: Deltas that were durable and not acknowledged when the server was killed.
        mode: ``central``, ``secure`` or ``local``; what follows is 0 but in secure mode.
        clients_dropped: Clients that vanished, and never came back.
        cohorts: Number of cohorts with a sum in the release.
        rounds_aborted: Rounds that ended without a sum, whether or not they cost anybody anything.
        submissions_spent: Clients that have spent their window: their masked vector was sent.
        upload_bytes_per_client: Mean protocol bytes of the clients that are counted: their messages and masked vector,
            without what the connection adds.
    """

    records: int
    records_dropped: int
    deltas_sent: int = 0
    deltas_resent: int = 0
    duplicates_dropped: int = 0
    deltas_counted: int = 0
    deltas_lost: int = 0
    deltas_double_counted: int = 0
    counters_equal: bool | None = None
    bytes_per_record: float
    restarts: int = 0
    seconds: float = 0.0
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
    unacknowledged_at_kill: int = 0
    seed: int
    plan_id: str
    mode: str = "central"
    clients_dropped: int = 0
    cohorts: int = 0
    rounds_aborted: int = 0
    submissions_spent: int = 0
    upload_bytes_per_client: float = 0.0

    @property
    def title(self) -> str:
        """Of its table."""
        return "Collection from end to end"

    @property
    def all_well(self) -> str:
        """The line below a table without violations."""
        return "Nothing was lost, nothing was counted twice, and every counter is equal."

    @property
    def kill_led_to_resends(self) -> bool:
        """Whether the service took in deltas that it had already.

        ``deltas_resent`` alone does not show it: it also counts sends that broke off before anything left the device.
        What was durable and unanswered when the service was gone is sent again, since a run ends with all answers.
        """
        return self.deltas_resent > 0 and self.unacknowledged_at_kill > 0

    def violations(self) -> list[str]:
        """One sentence for each promise that this run broke, or did not put to the test; empty when all held."""
        return [sentence for kept, sentence in self.checks() if not kept]

    def checks(self) -> Iterable[Check]:
        return (
            (self.deltas_lost == 0, f"{self.deltas_lost} deltas were lost: sent, but not counted"),
            (self.deltas_double_counted == 0, f"{self.deltas_double_counted} deltas were counted twice, or never sent"),
            (bool(self.counters_equal), "the folded counters differ from those of the same records in bulk"),
            (self.restarts > 0, "the server was never killed, so the test proves nothing"),
            (self.kill_led_to_resends, "no delta was resent, so the kill tested nothing"),
            (self.duplicates_dropped > 0, "no duplicate arrived, so the kill tested nothing"),
        )

    def rows(self) -> Iterable[Row]:
        """The table of the run."""
        equal = "yes" if self.counters_equal else "NO"
        killed = f"SIGKILL with {self.unacknowledged_at_kill} durable deltas that were not acknowledged"
        return [
            ("records", f"{self.records:,}", self.dropped),
            ("deltas sent", f"{self.deltas_sent:,}", f"by {self.clients:,} clients"),
            ("  sent again", f"{self.deltas_resent:,}", "after the kill, because no answer had arrived"),
            (
                "  duplicates dropped",
                f"{self.duplicates_dropped:,}",
                "copies of deltas that were durable before the kill",
            ),
            ("  counted", f"{self.deltas_counted:,}", "by id"),
            ("  lost", f"{self.deltas_lost:,}", ""),
            ("  double counted", f"{self.deltas_double_counted:,}", ""),
            ("counters equal", equal, "all of them, to a sketch of the same records in bulk"),
            ("bytes per record", f"{self.bytes_per_record:,.0f}", "packed, resends too"),
            ("restarts", f"{self.restarts}", killed),
            ("seconds", f"{self.seconds:.1f}", ""),
            *self.answer_rows(),
            *self.price_rows(),
            *self.ledger_rows(),
        ]

    @property
    def dropped(self) -> str:
        return f"{self.records_dropped:,} dropped for a missing value" if self.records_dropped else ""

    def answer_rows(self) -> list[Row]:
        floor = f"{self.error_floor:,.0f}" if self.error_floor >= 10 else f"{self.error_floor:.2g}"
        queries = f"of {self.queries:,} held-out queries with f above {floor}, a thousandth of the records"
        expected = percent(self.expected_relative_error), "of the hash and the noise together"
        if self.expected_relative_error is None and self.mean_relative_error is not None:
            expected = "unknown", "a single row does not show its error"
        promise = f"ε = {self.epsilon:g}" + (f", δ = {upper_numeral(self.delta)}" if self.delta else "")
        return [
            ("mean relative error", percent(self.mean_relative_error), queries),
            ("expected error", *expected),
            ("noise of an answer", f"± {self.noise_std_error:,.1f}", f"records, only from {promise}"),
        ]

    def ledger_rows(self) -> list[Row]:
        return [
            ("ε spent", f"{self.epsilon_spent:g}", f"per {self.unit} and window"),
            ("ε left", f"{self.epsilon_left:g}", "of the population's ledger"),
        ]

    def price_rows(self) -> list[Row]:
        """The price of unit ``client``: the noise grows with M, and each client still brings M records at most."""
        bound = self.records_per_client
        if bound is None or not self.mean_kernel_sum:
            return []
        noise = self.noise_std_error / self.mean_kernel_sum
        needed = self.clients * noise / _TEN_PERCENT
        digits = 10 ** max(0, len(f"{needed:.0f}") - 2)
        rounded = -(-needed // digits) * digits
        remark = "the noise of unit record, for at most that many records of each client"
        return [
            ("price of unit client", f"× {bound}", remark),
            ("  noise/mean answer", f"{100 * noise:,.0f} %", f"10 % needs about {rounded:,.0f} clients like these"),
        ]

    def to_json(self) -> str:
        """One JSON object with a key for each number."""
        return json.dumps(dataclasses.asdict(self), indent=2, allow_nan=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class NoisedSummary(Summary):
    """The numbers of a run in which the release less the exact sum is examined, after those of every run.

    Attributes:
        submissions_released: Vectors or noised sums in the sum, by the release.
        noise_variance_ratio: See :class:`~hushsum_simulator.demo.evaluation.Residual`, as of the next three.
        central_relative_error: The same records, released by one trusted server at the same ε and δ.
    """

    submissions_released: int = 0
    noise_variance_ratio: float = 1.0
    noise_variance_z: float = 0.0
    noise_mean_z: float = 0.0
    client_z: float = 0.0
    central_relative_error: float | None = None

    @property
    def residual(self) -> Residual:
        return Residual(self.noise_variance_ratio, self.noise_variance_z, self.noise_mean_z, self.client_z)


def print_rows(title: str, rows: Iterable[Row], width: int | None = None) -> "Console":
    """Prints a table on standard output; the console is for more of it. By default it is as wide as the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.ROUNDED, show_header=False, title=title, title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, width=width)
    console.print(table)
    return console


def print_summary(summary: Summary, out: Path) -> None:
    """Prints a run's table on standard output, and the folder of its files."""
    console = print_rows(summary.title, summary.rows())
    if not summary.violations():
        console.print(f"[green]{summary.all_well}[/green]")
    console.print(f"density.png, release.hush, plan.json and summary.json are in {out}", markup=False)


def percent(share: float | None) -> str:
    """Text of a share; None is "none"."""
    return "none" if share is None else f"{100 * share:.2f} %"


def upper_numeral(delta: float) -> str:
    """A short decimal that is no less."""
    return numeral(Fraction(str(delta)), up=True)


def error_ratio(summary: Summary, central_relative_error: float | None) -> float | None:
    """The mean error over that of central mode; None where there is none."""
    if summary.mean_relative_error is None or not central_relative_error:
        return None
    return summary.mean_relative_error / central_relative_error


def residual_checks(residual: Residual, vector: str) -> list[Check]:
    """A release less the exact sum is noise alone; ``vector`` is what a client has submitted."""
    beyond = f"more than {LIMIT:g} standard errors"
    variance = f"the variance of the noise is {residual.noise_variance_ratio:.4f} × the stated one, {beyond} away"
    changed = f"a client's {vector} was lost, counted twice or changed: {beyond} of it remain beside the noise"
    return [
        (abs(residual.noise_variance_z) <= LIMIT, variance),
        (abs(residual.noise_mean_z) <= LIMIT, f"the noise's mean is {beyond} from 0"),
        (abs(residual.client_z) <= LIMIT, changed),
    ]


def residual_rows(residual: Residual, noise: str, vectors: str) -> list[Row]:
    """The rows of :func:`residual_checks`; ``noise`` and ``vectors`` name what they are about."""
    return [
        ("release − exact sum", percent(residual.noise_variance_ratio), f"of the stated variance of {noise}"),
        ("  in std errors", f"{abs(residual.noise_variance_z):.1f}", "from 100 %; above 6 something is wrong"),
        ("  its mean", f"{abs(residual.noise_mean_z):.1f}", "standard errors from 0"),
        ("  of one client", f"{abs(residual.client_z):.1f}", f"the largest remainder of any of {vectors}"),
    ]
