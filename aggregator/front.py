"""What takes deltas in a process that collects, put together: commits, gateway and reception."""

from dataclasses import dataclass

from aggregator.commits import CommitLimits, Commits
from aggregator.config import Config
from aggregator.fold_view import Folds
from aggregator.gateway import Gateway
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Log, Runtime
from aggregator.reception import Reception
from hushsum.plan import Plan


@dataclass(frozen=True)
class FrontParts:
    """What it stands on."""

    log: Log
    openings: Openings
    folds: Folds
    runtime: Runtime
    metrics: Metrics


def front_of(plan: Plan, config: Config, parts: FrontParts) -> tuple[Gateway, Reception]:
    """A gateway, whose writer has been started, and the reception before it.

    Args:
        plan: What is collected.
        config: Limits.
        parts: The rest of the process.
    """
    commits = Commits(parts.log, parts.openings, parts.runtime, _commit_limits(config), parts.metrics)
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
    return gateway, reception


def _commit_limits(config: Config) -> CommitLimits:
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=config.pending_bytes_max,
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )
