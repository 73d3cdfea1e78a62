"""What takes deltas, and secure sums, in a process that collects, put together: commits, gateway, reception, rounds."""

from dataclasses import dataclass
from typing import Final

from aggregator.commits import CommitLimits, Commits
from aggregator.config import Config
from aggregator.fold_view import Folds
from aggregator.gateway import Gateway
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Log, Runtime, Store
from aggregator.reception import Reception
from aggregator.secure.client_directory import ClientDirectory
from aggregator.secure.landing import Landing
from aggregator.secure.limits import RoundSettings
from aggregator.secure.metrics import SumMetrics
from aggregator.secure.running import Running
from aggregator.secure.sums import SecureSums, SumsPorts
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan

_ENVELOPE_BYTES: Final = 4096


@dataclass(frozen=True)
class FrontParts:
    """What it stands on."""

    log: Log
    store: Store
    openings: Openings
    folds: Folds
    runtime: Runtime
    metrics: Metrics


@dataclass(frozen=True)
class Front:
    """What takes what clients send.

    Attributes:
        gateway: Takes deltas.
        reception: Opens sessions.
        sums: Takes parts in secure sums; None where the plan is of another mode.
    """

    gateway: Gateway
    reception: Reception
    sums: SecureSums | None


def front_of(plan: Plan, config: Config, clients: ClientDirectory, parts: FrontParts) -> Front:
    """A gateway, whose writer has been started, and what stands before and beside it.

    Args:
        plan: What is collected.
        config: Limits.
        clients: The directory of clients that the plan names.
        parts: The rest of the process.
    """
    commits = Commits(parts.log, parts.openings, parts.runtime, _commit_limits(plan, config), parts.metrics)
    commits.start()
    gateway = Gateway(
        plan,
        openings=parts.openings,
        commits=commits,
        folds=parts.folds,
        runtime=parts.runtime,
        metrics=parts.metrics,
        pending_entries_max=config.pending_entries_max,
    )
    reception = Reception(
        plan,
        parts.log.partitions,
        openings=parts.openings,
        folds=parts.folds,
        runtime=parts.runtime,
        in_flight_max=config.in_flight_max,
    )
    secure = plan.privacy.cohort is not None
    return Front(gateway, reception, _sums_of(plan, config, clients, commits, parts) if secure else None)


def _sums_of(plan: Plan, config: Config, clients: ClientDirectory, commits: Commits, parts: FrontParts) -> SecureSums:
    settings = RoundSettings(config.secure_step_s, config.secure_upload_s, config.manual)
    settings.check(plan)
    running = Running(
        plan,
        Landing(parts.openings, commits, parts.folds, parts.runtime),
        runtime=parts.runtime,
        entropy=OsEntropy(),
        metrics=SumMetrics(parts.metrics.registry),
        settings=settings,
        directory=clients.directory,
    )
    return SecureSums(plan, SumsPorts(parts.openings, parts.store, parts.runtime), running, clients.directory)


def _commit_limits(plan: Plan, config: Config) -> CommitLimits:
    # A cohort's sum is one entry: were it larger than all that may wait, it would never get into the log.
    least = 0 if plan.privacy.cohort is None else 2 * plan.words.bytes + _ENVELOPE_BYTES
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=max(config.pending_bytes_max, least),
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )
