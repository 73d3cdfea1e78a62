"""What takes deltas, and secure sums, in a process that collects, put together: commits, gateway, reception, rounds."""

from dataclasses import dataclass
from typing import Final

from aggregator.callers.client_limits import SendLimits, send_limits_of
from aggregator.callers.client_streams import ClientStreams
from aggregator.callers.rate_limits import Forgetting, RateLimits
from aggregator.charges import Charges
from aggregator.commits import CommitLimits, Commits
from aggregator.config import Config
from aggregator.fold_view import Folds
from aggregator.gateway import Gateway
from aggregator.openings import Openings
from aggregator.ports import Log, Runtime, Store, Tracer
from aggregator.reception import Reception
from aggregator.secure.claims import RoundClaims
from aggregator.secure.landing import Landing
from aggregator.secure.limits import RoundSettings
from aggregator.secure.metrics import SumMetrics
from aggregator.secure.running import Running
from aggregator.secure.sums import SecureSums, SumsPorts
from aggregator.server.collection import Collection
from aggregator.server.large import LargeDeltas
from aggregator.shufflers import shufflers_of
from aggregator.submissions import submissions_of
from aggregator.watching.metrics import Metrics
from aggregator.watching.tracing import NO_TRACES, of_commits
from hushsum.directory import Directory
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL

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
    tracer: Tracer = NO_TRACES


@dataclass(frozen=True)
class Front:
    """What takes what clients send.

    Attributes:
        gateway: Takes deltas.
        reception: Opens sessions.
        collection: Serves both.
        sends: How much one client may send.
        limits: All that remembers who has sent how much.
        sums: Takes parts in secure sums; None where the plan is of another mode.
    """

    gateway: Gateway
    reception: Reception
    collection: Collection
    sends: SendLimits
    limits: tuple[Forgetting, ...]
    sums: SecureSums | None


def front_of(plan: Plan, config: Config, clients: Directory | None, parts: FrontParts) -> Front:
    """A gateway, whose writer has been started, and what stands before and beside it.

    Args:
        plan: What is collected.
        config: Limits.
        clients: The directory of clients that the plan names, if it names one.
        parts: The rest of the process.
    """
    sends = send_limits_of(config, plan, parts.runtime)
    reports = RateLimits(config.client_rate, config.client_burst)
    commits = _commits_of(plan, config, parts)
    store, is_local = parts.store, plan.privacy.local is not None
    # A secure window is charged by its first round; until then its clients are told whether it could be.
    charges = Charges(
        lambda window: store.charge_collection(plan, window) if is_local else store.check_collection(plan, window),
        parts.runtime,
    )
    gateway = Gateway(
        plan,
        openings=parts.openings,
        commits=commits,
        folds=parts.folds,
        runtime=parts.runtime,
        metrics=parts.metrics,
        pending_entries_max=config.pending_entries_max,
        submissions=submissions_of(
            plan,
            limits=reports,
            shufflers=shufflers_of(config.shufflers, plan),
            runtime=parts.runtime,
            sends=sends,
        ),
        streams=_streams_of(config, parts),
        charges=charges if is_local else None,
    )
    reception = Reception(
        plan,
        openings=parts.openings,
        runtime=parts.runtime,
        in_flight_max=config.in_flight_max,
    )
    large = LargeDeltas(
        gateway,
        runtime=parts.runtime,
        delta_bytes_max=plan.upload_bytes_max,
        held_bytes_max=config.pending_bytes_max,
        metrics=parts.metrics,
        sends=sends,
    )
    collection = Collection(
        gateway,
        reception,
        large=large,
        runtime=parts.runtime,
        metrics=parts.metrics,
        sessions_max=config.sessions_max,
        sends=sends,
    )
    sums = None if plan.privacy.cohort is None else _sums_of(plan, config, clients, commits, charges, parts)
    return Front(gateway, reception, collection, sends, (sends, reports), sums)


def _streams_of(config: Config, parts: FrontParts) -> ClientStreams:
    """From what the folds here remember on: a start gives nobody a fresh allowance."""
    streams = ClientStreams(config.client_streams_max)
    streams.restore(parts.folds.stream_uses(), parts.openings.is_over)
    return streams


def _commits_of(plan: Plan, config: Config, parts: FrontParts) -> Commits:
    shuffle = None if plan.privacy.reports is None else OsEntropy()
    limits, tracer = _commit_limits(plan, config), of_commits(parts.tracer, plan)
    commits = Commits(parts.log, parts.openings, parts.runtime, limits, parts.metrics, shuffle=shuffle, tracer=tracer)
    commits.start()
    return commits


def _sums_of(
    plan: Plan, config: Config, clients: Directory | None, commits: Commits, charges: Charges, parts: FrontParts
) -> SecureSums:
    settings = RoundSettings(config.secure_step_s, config.secure_upload_s, config.manual)
    settings.check(plan)
    running = Running(
        plan,
        Landing(parts.openings, commits, parts.folds, parts.runtime),
        RoundClaims(plan, parts.store, parts.runtime),
        runtime=parts.runtime,
        entropy=OsEntropy(),
        metrics=SumMetrics(parts.metrics.registry),
        settings=settings,
        directory=clients,
    )
    running.tracer = parts.tracer
    return SecureSums(plan, SumsPorts(parts.openings, charges, parts.runtime, OsEntropy()), running, clients)


def _commit_limits(plan: Plan, config: Config) -> CommitLimits:
    # Were one entry larger than all that may wait, it would never get into the log.
    largest = plan.upload_bytes_max if plan.privacy.cohort is None else plan.words.bytes
    least = 0 if plan.privacy.mode == CENTRAL else 2 * largest + _ENVELOPE_BYTES
    return CommitLimits(
        pending_entries_max=config.pending_entries_max,
        pending_bytes_max=max(config.pending_bytes_max, least),
        group_entries_max=config.group_entries_max,
        group_bytes_max=config.group_bytes_max,
    )
