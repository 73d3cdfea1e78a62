"""A run in local mode: clients randomise, a service counts what it cannot read; the release beside the truth.

The server is killed on the way. A shuffler stands, if asked for, between the fleet and the server, as a process of its
own with a key that is made for the run. Whether the service has kept who contributed is looked up at the end: every
byte of its files is searched for every client's name.
"""

import asyncio
import math
import sqlite3
import tempfile
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import hushsum as hs
from aggregator import offline
from aggregator.errors import AggregatorError
from aggregator.fold.state import VerdictKind
from aggregator.shuffler.pool import KIND, cut_ms
from edge_client import EdgeWarning
from hushsum import query
from hushsum.directory import DirectoryKey, Role, toml_of
from hushsum.entropy import OsEntropy
from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.signatures import SigningKey
from hushsum_simulator.data import ClientRecords, ExactSums, Floats
from hushsum_simulator.demo.evaluation import (
    Accuracy,
    Counters,
    Residual,
    asked,
    compare,
    draw,
    examine,
    excess_of,
    in_bulk,
)
from hushsum_simulator.demo.fleet import LocalFleet, Told, Totals, kill_untold, streaming
from hushsum_simulator.demo.secure import require_one_window
from hushsum_simulator.demo.services import Console, Server, Service, close_window
from hushsum_simulator.demo.summary import LocalSummary
from hushsum_simulator.errors import JourneyError, SettingsConflictError
from hushsum_simulator.plans import CENTRAL_SIZES, central_twin_of_local
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings, gather
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

_ID: Final = "shuffler-1"
_SPARE_MS: Final = 15_000  # of a fleet that is killed half way
_WAIT_MAX_MS: Final = 120_000
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 60.0


def made_key(folder: Path) -> Path:
    """Makes its key; returns the directory file that says whose it is."""
    key = SigningKey.generate(OsEntropy())
    key.save(folder / "shuffler.pem")
    directory = folder / "shufflers.toml"
    directory.write_text(toml_of(DirectoryKey(_ID, Role.SHUFFLER, key.verify_key)), encoding="utf-8")
    return directory


class Shuffler(Service):
    """A running shuffler.

    Args:
        folder: With its key.
        directory: See :func:`made_key`.
        upstream: Where its batches go, ``host:port``.
    """

    def __init__(self, folder: Path, directory: Path, upstream: str) -> None:
        key = str(folder / "shuffler.pem")
        settings = {"role": "shuffler", "upstream": upstream, "shufflers": str(directory), "shuffler_key": key}
        super().__init__(folder, "shuffler", settings)

    def taken(self) -> int:
        """Batches of devices that are durable here."""
        return self._count("ids")

    def waiting(self) -> int:
        """Batches that leave, and have no answer yet."""
        return self._count("outgoing")

    def pooled(self) -> int:
        """Windows that are not cut yet."""
        return self._count("pools")

    async def forwarded(self) -> None:
        """Returns once all that it took is with the aggregator.

        Raises:
            JourneyError: It does not get there.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while self.pooled() or self.waiting():
            self.check_running()
            if time.monotonic() > deadline:
                raise JourneyError(f"the shuffler still has {self.waiting()} batches after {_PATIENCE_S:.0f} s")
            await asyncio.sleep(_LOOK_S)

    def _count(self, table: str) -> int:
        try:
            connection = KIND.open_reading(self.data / "shuffler.db")
        except AggregatorError:
            return 0  # it is just made
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608  the name of a table of ours
        except sqlite3.Error as error:
            raise JourneyError(f"the shuffler's file cannot be read: {error}") from error
        finally:
            connection.close()


def window_to_shuffle(plan: Plan, now_ms: int) -> int:
    """The first window whose cut leaves the fleet enough time.

    Raises:
        SettingsConflictError: Nobody would wait for it.
    """
    schedule, window = plan.window, plan.window.index_at(now_ms)
    while cut_ms(schedule, window) < now_ms + _SPARE_MS:
        window += 1
    wait_ms = cut_ms(schedule, window) - now_ms
    if wait_ms > _WAIT_MAX_MS:
        raise SettingsConflictError(
            f"a shuffler forwards when a window is over, and the plan's next one is so in {wait_ms / 60_000:.0f} "
            'minutes: take windows of seconds for a run, such as window.length = "10s" and window.lateness = "8s"'
        )
    return window


@dataclass(frozen=True)
class Searched:
    """What a search has come to.

    Attributes:
        names: Of how many clients the name was found.
        bytes: That were looked through.
        control: Whether what is surely there was found: else nothing was looked at.
    """

    names: frozenset[str]
    bytes: int
    control: bool

    def __or__(self, other: "Searched") -> "Searched":
        """Both; each must have found its control."""
        return Searched(self.names | other.names, self.bytes + other.bytes, self.control and other.control)


def search(paths: Iterable[Path], names: Collection[str], control: bytes, *, beside: bytes = b"") -> Searched:
    """Reads files, and those of folders, whole.

    Args:
        paths: Of both; what vanishes meanwhile was of no use to anybody.
        names: As text; SQLite, journals and pages of metrics keep it as UTF-8.
        control: Bytes that are known to be in one of them.
        beside: What else is to be searched, such as a page of metrics.
    """
    found: set[str] = set()
    size, controlled = 0, False
    for content in (*_contents(paths), beside):
        size += len(content)
        controlled = controlled or control in content
        found |= {name for name in names if name.encode() in content}
    return Searched(frozenset(found), size, controlled)


def _contents(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                try:
                    yield file.read_bytes()
                except FileNotFoundError:  # a write-ahead log whose last connection was closed
                    continue


_ASK_S: Final = 10.0
_CONTROL: Final = 256  # bytes of the plan: of a longer one SQLite keeps no more than so many in one place for sure
_FORWARD_S: Final = 15.0  # after the cut, in which the first batch is at the aggregator


@dataclass(frozen=True)
class LocalJourney:
    """What a run leaves behind.

    Attributes:
        told: What each client knows at its end.
        totals: Of the clients; of batches of reports, or of submissions.
        counted: How many of these were counted where the fleet sends them, each id once.
        double_counted: Ids that were counted more than once.
        duplicates: Entries of the server's log that it dropped as copies.
        untold: What was durable and not acknowledged when what the fleet sends to was killed.
        restarts: Starts of the server after a kill.
        shuffler_restarts: Of the shuffler.
        forwarded: Batches that left the shuffler; 0 without one.
        searched: For the clients' names: the service's files while it ran, and when it had stopped.
        release: As an analyst has loaded it.
        epsilon_spent: By the population's ledger; exact text, as is what follows.
        epsilon_left: Of its limit.
    """

    told: Mapping[str, Told]
    totals: Totals
    counted: int
    double_counted: int
    duplicates: int
    untold: int
    restarts: int
    shuffler_restarts: int
    forwarded: int
    searched: Searched
    release: Release
    epsilon_spent: str
    epsilon_left: str


async def travel_local(
    plan: Plan, shares: Sequence[ClientRecords], *, folder: Path, partitions: int, progress: Progress
) -> LocalJourney:
    """Runs the whole journey on loopback.

    Args:
        plan: Of mode ``local``; where it has ``shuffle_min``, a shuffler is started before the server.
        shares: Who has which records.
        folder: An empty one, for everything that is written on the way.
        partitions: P of the server's log.
        progress: Is told how it goes.

    Raises:
        HushsumError: A step failed; the run says nothing then.
    """
    (folder / "plan.json").write_bytes(plan.bundle)
    (folder / "spools").mkdir()
    async with AsyncExitStack() as stack:
        site = await _started(plan, stack, folder, partitions)
        window = await _window(plan, site)
        fleet = LocalFleet(
            plan,
            shares,
            target=site.relay.address,
            folder=folder / "spools",
            time_ms=plan.window.start_ms(window),
        )
        progress.step(f"{len(shares)} clients with {fleet.expected:,} {fleet.what} to send; window {window} is open")
        untold = await _contribute(fleet, site, progress)
        taken, forwarded = 0, 0
        if site.shuffler is not None:
            taken = site.shuffler.taken()
            forwarded = await _forward(site, _batch_bytes(plan, fleet), progress)
        names = [share.client_id for share in shares]
        searched = await asyncio.to_thread(_searched, site, names, plan)
        released, release = await close_window(
            window, site.server.address, progress, withheld="too little came by the plan's rule"
        )
        verdicts = await asyncio.to_thread(offline.read_verdicts, site.server.data / "store.db", plan)
        searched |= await asyncio.to_thread(_searched, site, names, plan)
        for each in site.services:
            await each.stop()
        searched |= await asyncio.to_thread(_searched, site, names, plan, running=False)
    counted = Counter((verdict.client_id, verdict.id) for _, verdict in verdicts if verdict.kind is VerdictKind.COUNTED)
    journey = LocalJourney(
        told=fleet.told,
        totals=fleet.totals,
        counted=len(counted),
        double_counted=sum(times > 1 for times in counted.values()),
        duplicates=sum(verdict.kind is VerdictKind.DUPLICATE for _, verdict in verdicts),
        untold=untold,
        restarts=site.server.starts - 1,
        shuffler_restarts=0,
        forwarded=forwarded,
        searched=searched,
        release=release,
        epsilon_spent=released.epsilon_spent,
        epsilon_left=released.epsilon_left,
    )
    if site.shuffler is None:
        return journey
    return replace(journey, counted=taken, shuffler_restarts=site.shuffler.starts - 1)


@dataclass(frozen=True)
class _Site:
    """What runs.

    Attributes:
        relay: What the fleet connects to.
        server: The aggregator.
        shuffler: Between the two; or None.
        behind: Between the shuffler and the aggregator.
    """

    relay: TcpProxy
    server: Server
    shuffler: Shuffler | None
    behind: TcpProxy

    @property
    def front(self) -> Service:
        """What the fleet sends to."""
        return self.shuffler or self.server

    @property
    def services(self) -> list[Service]:
        """All of them, the first that is to be stopped first."""
        return [each for each in (self.shuffler, self.server) if each is not None]

    def logged(self) -> int:
        """What is durable where the fleet sends it."""
        if self.shuffler is not None:
            return self.shuffler.taken()
        return offline.log_size(self.server.data / "log.db")


async def _started(plan: Plan, stack: AsyncExitStack, folder: Path, partitions: int) -> _Site:
    shuffled = plan.privacy.shuffle_min > 0
    directory = made_key(folder) if shuffled else None
    settings = {} if directory is None else {"shufflers": str(directory)}
    relay, behind = await stack.enter_async_context(TcpProxy()), await stack.enter_async_context(TcpProxy())
    server = await stack.enter_async_context(Server(folder, folder / "plan.json", partitions, settings))
    shuffler = None
    if directory is not None:
        behind.aim(server.address)
        shuffler = await stack.enter_async_context(Shuffler(folder, directory, behind.address))
    site = _Site(relay, server, shuffler, behind)
    relay.aim(site.front.address)
    return site


async def _window(plan: Plan, site: _Site) -> int:
    """The window that all records are of."""
    now_ms = time.time_ns() // 1_000_000
    if site.shuffler is not None:
        return window_to_shuffle(plan, now_ms)
    if plan.privacy.reports is None:
        require_one_window(plan, now_ms)
    async with Console(site.server.address) as console:
        return (await console.welcome()).window


async def _contribute(fleet: LocalFleet, site: _Site, progress: Progress) -> int:
    """Everything is sent and answered, over a kill half way; how much was durable then that nobody was told of."""
    name = "server" if site.shuffler is None else "shuffler"
    async with streaming(fleet, site.front, site.logged, progress) as stream:
        await stream.half()
        untold = await kill_untold(stream, fleet, site.relay, site.front, size=fleet.large)
        progress.step(f"killed the {name}: what was durable, and nobody knew, of its {fleet.what}: {untold}")
        await site.front.start()
        site.relay.aim(site.front.address)
        progress.step("started it again; the fleet sends what it has no answer for once more")
        await stream.end()
    return untold


def _batch_bytes(plan: Plan, fleet: LocalFleet) -> int:
    """Of the reports in each batch that leaves the shuffler."""
    sizes = plan.report_sizes
    assert sizes is not None, "of reports"
    reports = sum(told.tallies.reports for told in fleet.told.values())
    return sizes.width * (reports // max(1, -(-reports // sizes.records_max)))


async def _forward(site: _Site, size: int, progress: Progress) -> int:
    """The shuffler cuts and forwards; the server dies with the first batch. How many batches it was."""
    assert site.shuffler is not None, "called for one"
    shuffler, log = site.shuffler, site.server.data / "log.db"
    progress.step("everything is at the shuffler; it waits for the window's end, and half of the lateness")
    waiting = progress.bar("the window's end", None)
    site.behind.hold_replies(size)
    while shuffler.pooled():
        site.server.check_running()
        shuffler.check_running()
        await asyncio.sleep(_LOOK_S)
    waiting(1)
    batches, deadline = shuffler.waiting(), time.monotonic() + _FORWARD_S
    while not offline.log_size(log):
        if time.monotonic() > deadline:
            break  # its connection was not open: it needs a reply first
        await asyncio.sleep(_LOOK_S)
    if offline.log_size(log):
        await site.server.kill()
        site.behind.aim(None)
        site.behind.cut()
        progress.step(
            f"the window is cut, batches: {batches}; killed the server with the first of them, and nobody was told"
        )
        await site.server.start()
        site.behind.aim(site.server.address)
    site.behind.release_replies()
    await shuffler.forwarded()
    progress.step("started it again; the shuffler has sent the same bytes once more, and is done")
    return batches


def _searched(site: _Site, names: Sequence[str], plan: Plan, *, running: bool = True) -> Searched:
    """Each service's files and output, and what its page of metrics says."""
    found = [_of_service(each, names, plan, running=running) for each in site.services]
    return found[0] if len(found) == 1 else found[0] | found[1]


def _of_service(service: Service, names: Sequence[str], plan: Plan, *, running: bool) -> Searched:
    page = b""
    if running:
        with urllib.request.urlopen(f"http://{service.metrics}/metrics", timeout=_ASK_S) as answer:
            page = answer.read()
    return search([service.data, service.output], names, plan.bundle[:_CONTROL], beside=page)


_NO_RESIDUAL = Residual(1.0, 0.0, 0.0, 0.0)


def simulate_local(settings: RunSettings, progress: Progress) -> LocalSummary:
    """Runs the main job in local mode, and writes the same files as in central mode.

    Raises:
        HushsumError: A step failed, and there is nothing to sum up.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    _tell(material.plan, progress)
    journey = _travel(material, settings, progress)
    truth = ExactSums(material.plan, material.labelled)
    queries, exact = asked(material, truth, progress)
    accuracy = errors_of(journey.release, queries, exact, truth.records)
    twin = _twin(material, settings)
    central = errors_of(hs.release(in_bulk(twin)), queries, exact, truth.records)
    residual = _NO_RESIDUAL if material.plan.privacy.reports else residual_of(material, journey.release)
    draw(settings, journey.release, truth, progress)
    summary = LocalSummary(
        **_of_every_run(settings, material, journey, accuracy, time.monotonic() - began),
        **_of_mode(material.plan, journey),
        noise_variance_ratio=residual.variance_ratio,
        noise_variance_z=residual.variance_z,
        noise_mean_z=residual.mean_z,
        client_z=residual.client_z,
        central_relative_error=central.mean_relative,
        central_sketch=_sketch(twin.plan),
    )
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    journey.release.save(settings.out / "release.hush")
    return summary


def errors_of(release: Release, queries: Floats, exact: Floats, records: int) -> Accuracy:
    """How far answers are from the truth, and how far they say themselves that they may be.

    Args:
        release: What an analyst has.
        queries: (m, d).
        exact: (m,), their exact kernel sums.
        records: All of them.
    """
    answer = release.kernel_sum(queries)
    return compare(answer.value, answer.std_error, exact, records)


def residual_of(material: Material, release: Release) -> Residual:
    """What is left of a release of silos when the exact sums of all clients are taken out of it."""
    plan = material.plan
    make = {share.client_id: partial(_vector, material, share.client_id) for share in material.shares}
    left = _flat(release.counters, release.counts)
    for vector in make.values():
        left = left - vector()
    silos = max(1, release.submissions or 0)
    variance = query.noise_variance(plan, silos)
    return examine(left, list(make.values()), variance, excess=excess_of(plan) / silos)


def _vector(material: Material, client: str) -> Counters:
    sketch = in_bulk(material.only({client}))
    return _flat(sketch.counters, sketch.counts)


def _flat(counters: Counters, counts: Counters) -> Counters:
    return np.concatenate([counters.reshape(-1), counts])


def _tell(plan: Plan, progress: Progress) -> None:
    local, mechanism, sizes = plan.privacy.local, plan.privacy.mechanism, plan.report_sizes
    assert local is not None, "gathered for local mode"
    if sizes is None:
        size = math.prod(plan.counters_shape)
        progress.step(
            f"{size:,} counters, each with noise of its own on every client: {plan.words.bytes:,} bytes from each"
        )
        return
    progress.step(
        f"{_sketch(plan)}; a record becomes one of {sizes.rows * sizes.outputs:,} values, in {sizes.width} bytes, none "
        f"more than {float(mechanism.scale):.6g} times as likely as for another record ({mechanism.name})"
    )
    if local.shuffle_min:
        progress.step(f"a shuffler stands before the server; what leaves it has at least {local.shuffle_min:,} reports")


def _travel(material: Material, settings: RunSettings, progress: Progress) -> LocalJourney:
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in the summary
        folder, partitions = Path(name), settings.partitions
        return asyncio.run(
            travel_local(material.plan, material.shares, folder=folder, partitions=partitions, progress=progress)
        )


def _twin(material: Material, settings: RunSettings) -> Material:
    """The same records under a plan of central mode: as a run makes it for itself, or of the user's sketch."""
    own = settings.plan is None and material.plan.family.name == "hashed"
    return replace(material, plan=central_twin_of_local(material.plan, CENTRAL_SIZES if own else {}))


def _sketch(plan: Plan) -> str:
    fields = plan.family.to_fields()
    if "buckets" in fields:
        return f"{fields['rows']:,} rows of {fields['buckets']:,} buckets"
    return f"{fields.get('rows', 0):,} rows, {plan.family.name}"


def _of_every_run(
    settings: RunSettings, material: Material, journey: LocalJourney, accuracy: Accuracy, seconds: float
) -> dict[str, Any]:  # Any: numbers and texts of a summary, which checks nothing
    plan, totals, release = material.plan, journey.totals, journey.release
    of_noise = release.submissions if plan.privacy.reports is None else int(release.count)
    return {
        "mode": plan.privacy.mode,
        "records": totals.records,
        "records_dropped": totals.records_dropped,
        "deltas_sent": totals.deltas,
        "deltas_resent": totals.resent,
        "duplicates_dropped": journey.duplicates,
        "deltas_counted": journey.counted,
        "deltas_lost": max(0, totals.deltas - journey.counted),
        "deltas_double_counted": journey.double_counted + max(0, journey.counted - totals.deltas),
        "counters_equal": None,
        "bytes_per_record": totals.bytes_sent / max(totals.records, 1),
        "restarts": journey.restarts,
        "seconds": seconds,
        "mean_relative_error": accuracy.mean_relative,
        "expected_relative_error": accuracy.expected_relative,
        "epsilon_spent": float(Fraction(journey.epsilon_spent)),
        "epsilon_left": float(Fraction(journey.epsilon_left)),
        "clients": len(material.shares),
        "queries": accuracy.queries,
        "queries_held_out": len(material.queries),
        "error_floor": accuracy.floor,
        "mean_kernel_sum": accuracy.mean_kernel_sum,
        "noise_std_error": query.noise_std_error(plan, of_noise),
        "epsilon": float(plan.privacy.epsilon),
        "delta": float(plan.privacy.delta),
        "unit": plan.privacy.unit,
        "records_per_client": plan.privacy.records_per_client,
        "unacknowledged_at_kill": journey.untold,
        "seed": settings.seed,
        "plan_id": plan.hex_id,
    }


def _of_mode(plan: Plan, journey: LocalJourney) -> dict[str, Any]:  # Any: as above
    local, release, told = plan.privacy.local, journey.release, list(journey.told.values())
    if local is None:
        raise PlanError("privacy.mode", plan.privacy.mode, "'local'")
    reports, sizes, cost = plan.privacy.reports, plan.report_sizes, release.amplified
    silo = reports is None
    return {
        "form": local.form,
        "randomiser": local.randomiser or "",
        "sketch": _sketch(plan),
        "shuffle_min": local.shuffle_min,
        "shuffler_restarts": journey.shuffler_restarts,
        "shuffled_batches": journey.forwarded,
        "amplified_epsilon": None if cost is None else float(cost.epsilon),
        "amplified_delta": 0.0 if cost is None else float(cost.delta),
        "reports_sent": sum(each.tallies.reports for each in told),
        "reports_acknowledged": sum(each.tallies.reports for each in told if each.acknowledged),
        "reports_counted": 0 if silo else int(release.count),
        "report_bytes": 0 if sizes is None else sizes.width,
        "report_bytes_max": 0 if reports is None else reports.bytes_max,
        "submissions_acknowledged": sum(each.tallies.submissions_counted for each in told) if silo else 0,
        "submissions_released": release.submissions or 0,
        "submission_bytes": plan.words.bytes if silo else 0,
        "names_found": len(journey.searched.names),
        "bytes_searched": journey.searched.bytes,
        "names_control": journey.searched.control,
        "account_spent": max((float(each.spent.epsilon) for each in told), default=0.0),
        "account_left": min((float(each.left.epsilon) for each in told), default=0.0),
    }
