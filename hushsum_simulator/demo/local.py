"""Local mode: clients randomise each record, or noise their sum; server and shuffler are killed.

A shuffler stands between clients and server if the plan asks for one. Whether a service keeps the names of clients is
checked at the end: every byte of its files, output and metrics is searched for them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

import hushsum as hs
from aggregator.shuffler.pool import cut_ms
from hushsum.plan import Plan
from hushsum_simulator.data import Floats
from hushsum_simulator.demo.evaluation import (
    Accuracy,
    Residual,
    compare,
    in_bulk,
    measure,
    reconcile_number,
    residual_of,
)
from hushsum_simulator.demo.fleet import EndedClient, Fleet
from hushsum_simulator.demo.local_summary import LocalSummary
from hushsum_simulator.demo.mode import Mode, Numbers, Outcome, delivery_numbers, require_one_window
from hushsum_simulator.demo.services import (
    Server,
    Service,
    Shuffler,
    make_shuffler_key,
    open_window,
    release_window,
    seal_window,
)
from hushsum_simulator.errors import JourneyError, SettingsConflictError
from hushsum_simulator.plans import CENTRAL_SIZES, central_twin_of_local
from hushsum_simulator.scenario import Material
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

# What a fleet needs that is killed half way, in starts of a process: these show how busy the machine is.
_SPARE_STARTS: Final = 6
_SPARE_S: Final = (15.0, 90.0)
_WAIT_MAX_MS: Final = 120_000
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_CONTROL: Final = 256  # bytes of the plan: of a longer text SQLite may keep the parts in different places


class Local(Mode):
    """A run over fleet → proxy → (shuffler → proxy →) server; the server and the shuffler are killed."""

    summary = LocalSummary

    @override
    def announce(self) -> None:
        plan, sizes = self.plan, self.plan.report_sizes
        local, mechanism = plan.privacy.local, plan.privacy.mechanism
        if sizes is None:
            size = math.prod(plan.counters_shape)
            self.progress.step(
                f"{size:,} counters, each with noise of its own on every client: {plan.words.bytes:,} bytes from each"
            )
            return
        self.progress.step(
            f"{_shape(plan)}; a record becomes one of {sizes.rows * sizes.outputs:,} values, in {sizes.width} bytes, "
            f"none more than {float(mechanism.scale):.6g} times as likely as for another record ({mechanism.name})"
        )
        if local is not None and local.shuffle_min:
            self.progress.step(
                f"a shuffler stands before the server; what leaves it has at least {local.shuffle_min:,} reports"
            )

    @override
    async def run(self, folder: Path) -> Outcome:
        plan, progress = self.plan, self.progress
        async with AsyncExitStack() as stack:
            key = make_shuffler_key(folder) if plan.privacy.shuffle_min else None
            settings = {} if key is None else {"shufflers": str(key)}
            server, began = Server(folder, folder / "plan.json", self.settings.partitions, settings), time.monotonic()
            await stack.enter_async_context(server)
            started_s = time.monotonic() - began
            behind = await stack.enter_async_context(TcpProxy(server.address))
            shuffler = None if key is None else Shuffler(folder, key, behind.address)
            if shuffler is not None:
                await stack.enter_async_context(shuffler)
            front = shuffler or server
            proxy = await stack.enter_async_context(TcpProxy(front.address))
            window = await self._window(server, started_s, shuffled=shuffler is not None)
            fleet, unacknowledged = await self.deliver(front, proxy, folder=folder, window=window)
            shuffled, batches = None, 0
            if shuffler is not None:
                shuffled = shuffler.durable()
                batches = await self._forward(shuffler, behind, server, self._batch_bytes(fleet))
            services = [server] if shuffler is None else [shuffler, server]
            searched = await self._search(services)
            await seal_window(window, server.address, progress)
            withheld = "too little came by the plan's rule"
            released, release = await release_window(window, server.address, progress, withheld=withheld)
            verdicts = await server.verdicts(plan)
            searched |= await self._search(services)
            for each in services:
                await each.stop()
            searched |= await self._search(services, running=False)
        found = reconcile_number(fleet.totals.spooled, verdicts, shuffled=shuffled)
        numbers = {
            **delivery_numbers(fleet, unacknowledged, found, server.starts - 1),
            **_client_numbers(list(fleet.ended.values())),
            "shuffler_restarts": 0 if shuffler is None else shuffler.starts - 1,
            "shuffled_batches": batches,
            "names_found": len(searched.names),
            "bytes_searched": searched.bytes,
            "names_control": searched.control,
        }
        return Outcome(release, released, [each.stats for each in fleet.ended.values()], numbers)

    @override
    def compare(self, outcome: Outcome, counted: Material, queries: Floats, exact: Floats) -> tuple[Accuracy, Numbers]:
        plan, release, amplified = self.plan, outcome.release, outcome.release.amplified
        local, reports, sizes = plan.privacy.local, plan.privacy.reports, plan.report_sizes
        assert local is not None, "gathered for local mode"
        own_sizes = CENTRAL_SIZES if self.settings.plan is None and plan.family.name == "hashed" else {}
        twin = in_bulk(replace(counted, plan=central_twin_of_local(plan, own_sizes)))
        answer = release.kernel_sum(queries)
        residual = Residual() if reports else residual_of(counted, release, counted.shares)
        return compare(answer.value, answer.std_error, exact, twin.records), {
            "form": local.form,
            "randomiser": local.randomiser or "",
            "sketch": _shape(plan),
            "shuffle_min": local.shuffle_min,
            "amplified_epsilon": None if amplified is None else float(amplified.epsilon),
            "amplified_delta": 0.0 if amplified is None else float(amplified.delta),
            "reports_counted": int(release.count) if reports else 0,
            "report_bytes": 0 if sizes is None else sizes.width,
            "report_bytes_max": 0 if reports is None else reports.bytes_max,
            "submissions_released": release.submissions or 0,
            "submission_bytes": 0 if reports else plan.words.bytes,
            **asdict(residual),
            "central_relative_error": measure(hs.release(twin), twin, queries, exact).mean_relative,
            "central_sketch": _shape(twin.plan),
        }

    async def _window(self, server: Server, started_s: float, *, shuffled: bool) -> int:
        """The window of all records, where a process has just taken so long to start."""
        now_ms = time.time_ns() // 1_000_000
        if shuffled:
            return window_to_shuffle(self.plan, now_ms, started_s)
        if self.plan.privacy.is_silo:
            require_one_window(self.plan, now_ms)
        return await open_window(server.address)

    def _batch_bytes(self, fleet: Fleet) -> int:
        """Bytes of the reports in each batch that leaves the shuffler."""
        sizes = self.plan.report_sizes
        assert sizes is not None, "of reports"
        reports = sum(each.stats.reports for each in fleet.ended.values())
        return sizes.width * (reports // max(1, -(-reports // sizes.records_max)))

    async def _forward(self, shuffler: Shuffler, behind: TcpProxy, server: Server, size: int) -> int:
        """Lets the shuffler forward, kills the server with the first batch, and returns the number of batches."""
        progress = self.progress
        progress.step("everything is at the shuffler; it waits for the window's end, and half of the lateness")
        waiting = progress.bar("the window's end", None)
        behind.hold_replies(size)
        services = (server, shuffler)
        await _until(lambda: not shuffler.pooled(), services, math.inf, "")
        waiting(1)
        batches = shuffler.waiting()
        await _until(lambda: server.durable() > 0, services, _PATIENCE_S, "the server has no batch of the shuffler")
        await server.kill()
        behind.aim(None)
        behind.cut()
        progress.step(f"the window is cut into {batches} batches; killed the server with the first, unacknowledged")
        await server.start()
        behind.aim(server.address)
        behind.release_replies()
        await _until(lambda: not shuffler.waiting(), services, _PATIENCE_S, "the shuffler still has batches")
        progress.step("started it again; the shuffler has sent the same bytes once more, and is done")
        return batches

    async def _search(self, services: Iterable[Service], *, running: bool = True) -> "Searched":
        """Searches each service's files and output, and its metrics page while it runs."""
        names = [share.client_id for share in self.material.shares]
        found = Searched(frozenset(), 0, control=True)
        for each in services:
            page = await each.metrics_page() if running else b""
            paths = [each.data, each.output]
            found |= await asyncio.to_thread(search, paths, names, self.plan.bundle[:_CONTROL], page=page)
        return found


def _client_numbers(clients: Sequence[EndedClient]) -> dict[str, Any]:
    """The fields of a summary that the clients know."""
    accounts = [each.account for each in clients if each.account is not None]
    return {
        "reports_sent": sum(each.stats.reports for each in clients),
        "reports_acknowledged": sum(each.stats.reports for each in clients if each.is_acknowledged),
        "submissions_acknowledged": sum(each.stats.submissions_counted for each in clients),
        "account_spent": max((float(each.spent.epsilon) for each in accounts), default=0.0),
        "account_left": min((float(each.left.epsilon) for each in accounts), default=0.0),
    }


async def _until(done: Callable[[], bool], services: Sequence[Service], patience_s: float, otherwise: str) -> None:
    """Returns once it is done.

    Raises:
        JourneyError: Not within this time; the text begins with ``otherwise``.
        ServerError: A service has ended.
    """
    deadline = time.monotonic() + patience_s
    while not done():
        for each in services:
            each.check_running()
        if time.monotonic() > deadline:
            raise JourneyError(f"{otherwise} after {patience_s:.0f} s")
        await asyncio.sleep(_LOOK_S)


def window_to_shuffle(plan: Plan, now_ms: int, started_s: float) -> int:
    """The first window whose cut leaves the fleet enough time, where a process takes so long to start.

    Raises:
        SettingsConflictError: It is too far away.
    """
    schedule, window = plan.window, plan.window.index_at(now_ms)
    least, most = _SPARE_S
    spare_ms = 1000 * min(most, max(least, _SPARE_STARTS * started_s))
    while cut_ms(schedule, window) < now_ms + spare_ms:
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
    """The result of a search for clients' names.

    Attributes:
        names: Names that were found.
        bytes: Size of all that was searched.
        control: Whether bytes that are known to be there were found: if not, the search is worth nothing.
    """

    names: frozenset[str]
    bytes: int
    control: bool

    def __or__(self, other: "Searched") -> "Searched":
        return Searched(self.names | other.names, self.bytes + other.bytes, self.control and other.control)


def search(paths: Iterable[Path], names: Collection[str], control: bytes, *, page: bytes = b"") -> Searched:
    """Searches files, and all files of folders, for names in UTF-8.

    Args:
        paths: Of both; a file that vanishes meanwhile is left out.
        names: Of clients.
        control: Bytes that are known to be in one of the files.
        page: Further bytes to search.
    """
    found: set[str] = set()
    size, controlled = 0, False
    for content in (*_contents(paths), page):
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


def _shape(plan: Plan) -> str:
    """The shape of the plan's counters, for people."""
    fields = plan.family.to_fields()
    if "buckets" in fields:
        return f"{fields['rows']:,} rows of {fields['buckets']:,} buckets"
    return f"{fields.get('rows', 0):,} rows, {plan.family.name}"
