"""A trust mode as the runner sees it, and the steps that modes share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from edge_client import Counts
from edge_client.participation.scheduler import windows_at
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.messages import Released
from hushsum_simulator.data import Floats
from hushsum_simulator.demo.evaluation import Accuracy, Reconciliation
from hushsum_simulator.demo.fleet import Delivery, Fleet
from hushsum_simulator.demo.services import Server, Shuffler
from hushsum_simulator.demo.summary import Summary
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_RUN_MS: Final = 300_000
Numbers = Mapping[str, Any]  # fields of a summary: numbers, texts, None


@dataclass(frozen=True)
class Outcome:
    """What is left when the processes of a run have ended.

    Attributes:
        released: The operator's answer, with the population's ledger.
        stats: What became of each client's records.
        inside: The clients in the release, where some drop out: it is compared with the records of these. None: all.
        numbers: The fields of the summary that follow from what the clients and processes did.
    """

    release: Release
    released: Released
    stats: Sequence[Counts]
    numbers: Numbers
    inside: frozenset[str] | None = None


class Mode(ABC):
    """One run in one trust mode: the mode of the plan of ``material``."""

    summary: ClassVar[type[Summary]]

    def __init__(self, settings: RunSettings, material: Material, progress: Progress) -> None:
        self.settings = settings
        self.material = material
        self.plan = material.plan
        self.progress = progress

    def announce(self) -> None:  # noqa: B027  a mode may have nothing to say
        """Shows what is about to run."""

    @abstractmethod
    async def run(self, folder: Path) -> Outcome:
        """Starts the processes and the clients, and returns when an analyst has the release.

        Args:
            folder: For all files of the run; it has plan.json, and an empty folder ``spools``.

        Raises:
            HushsumError: A step failed, and the run says nothing.
        """

    @abstractmethod
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        """Compares the release with the truth.

        ``exact`` (m,) are the kernel sums at ``queries`` (m, d) of ``counted``, the records that the release should
        hold.

        Returns:
            The errors of the release, and the fields of the summary that follow from the comparison.
        """

    async def deliver(
        self, service: Server | Shuffler, proxy: TcpProxy, *, folder: Path, window: int
    ) -> tuple[Fleet, int]:
        """Lets a fleet send all records to a service that is killed half way.

        Returns:
            The fleet, which has all answers; the number of messages that were durable and unacknowledged at the kill.
        """
        plan, shares = self.plan, self.material.shares
        # Every event time lies in the window that the service named: an hour that ends in mid-run does no harm.
        time_ms = plan.window.start_ms(window)
        fleet = Fleet(plan, shares, target=proxy.address, folder=folder / "spools", time_ms=time_ms)
        self.progress.step(
            f"{len(shares)} clients with {fleet.expected:,} {fleet.messages} to send; window {window} is open"
        )
        return fleet, await Delivery(fleet, service, proxy, self.progress).run()


def delivery_numbers(fleet: Fleet, unacknowledged: int, found: Reconciliation, restarts: int) -> dict[str, Any]:
    """The fields of a summary about messages that were delivered over a kill."""
    return {
        "deltas_sent": fleet.totals.spooled,
        "deltas_resent": sum(each.stats.deltas_resent for each in fleet.ended.values()),
        "duplicates_dropped": found.duplicates,
        "deltas_counted": found.counted,
        "deltas_lost": found.lost,
        "deltas_double_counted": found.double_counted,
        "restarts": restarts,
        "unacknowledged_at_kill": unacknowledged,
    }


def require_one_window(plan: Plan, now_ms: int) -> None:
    """Refuses a time, in ms since 1970 UTC, at which clients take part in two windows, or soon would.

    Raises:
        JourneyError: It is one; a run is about one window.
    """
    windows = {*windows_at(plan.window, now_ms), *windows_at(plan.window, now_ms + _RUN_MS)}
    if len(windows) > 1:
        raise JourneyError(
            f"windows {min(windows)} and {max(windows)} are open in the next {_RUN_MS // 60_000} minutes, and "
            "clients participate in all open windows: try again later, or use a plan with longer windows"
        )
