"""Where a run takes place: every process and every server, before anything happens to them."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

from aggregator.errors import LogError, LogUnavailableError, ReceiptsError, StoreError, StoreUnavailableError
from aggregator.interfaces import Log, Receipts
from aggregator.release.receipts_copy import CopiedReceipts, ReceiptsSink
from aggregator.store.store import Store, memory_store
from aggregator.store.transaction import run_to_end
from edge_client.spool.spool import Spool
from hushsum.plan import Plan
from tests.plans import small_plan
from tests.simulation.books import Books
from tests.simulation.devices import Device
from tests.simulation.hosts import Host, Site
from tests.simulation.log import SYNC_S, LogCopy, SimLog
from tests.simulation.loop import VirtualLoop
from tests.simulation.membership import Coordinator
from tests.simulation.network import Network
from tests.simulation.operations import ALONE, BUSY_S, CLUSTER, DEVICES, Schedule
from tests.simulation.receipts import SimReceipts
from tests.simulation.runtime import START_MS, WorldRuntime
from tests.simulation.store import SimStore, as_store
from tests.simulation.weather import Line

NUMBERS: Final = 256  # counters: deltas of a run
HEALED_S_MAX: Final = 120.0  # by then everything must be done
_COPY_S: Final = 1.0  # between two backups of the store
_RESTART_S: Final = 1.0
_SKEW_MS_MAX: Final = 10**9  # twelve days


@dataclass(frozen=True)
class Planted:
    """A bug: what stands between the processes and the world.

    Attributes:
        log_of: Wraps the log that each process gets.
        store_of: Wraps the store that each process gets.
        eager: Appends return before they are durable.
        receipts_of: Makes one of the two sinks of receipts.
        spool_of: Wraps the spool that each process of a device gets.
    """

    log_of: Callable[[Log], Log] = lambda log: log
    store_of: Callable[[Store], Store] = lambda store: store
    eager: bool = False
    receipts_of: Callable[[ReceiptsSink, ReceiptsSink], Receipts] = CopiedReceipts
    spool_of: Callable[[Spool], Spool] = lambda spool: spool


@cache
def tally_plan(*, bounded: bool, cumulative: bool = False, arrival: bool = False) -> Plan:
    """One row, so that a delta of one record is one counter; windows of four seconds."""
    privacy: dict[str, object] = {"total_epsilon": 1000}
    window: dict[str, object] = {"length": "4s", "lateness": "1s"}
    if bounded:
        privacy |= {"unit": "client", "records_per_client": 200}
        window["min_clients"] = 0 if cumulative else 3
    if arrival:
        window["time"] = "arrival"
        if bounded:  # fewer than a device adds at once
            privacy["records_per_client"] = 3
    if cumulative:
        window |= {"release": "cumulative", "horizon": 100}
        if bounded:  # by buffers, else by a tree
            window["windows_per_client"] = 50
            privacy |= {"delta": "0.000001", "total_delta": "0.000001", "noise": "gaussian"}
    return small_plan(sketch={"rows": 1, "buckets": NUMBERS}, privacy=privacy, window=window)


class Copy(NamedTuple):
    """A back-up: store, log, and how many lines each sink of receipts had."""

    at_s: float
    store: bytes
    log: LogCopy
    lines: dict[str, int]


class Stage:
    """Everything of one run.

    Attributes:
        loop: Its time.
        books: What is known of it.
        lines: To the servers, by name.
    """

    def __init__(self, schedule: Schedule, planted: Planted | None = None) -> None:
        self._schedule, seed = schedule, schedule.seed
        planted = planted or Planted()
        self._random = Random(f"world/{seed}")
        loop = self.loop = VirtualLoop(seed)  # type: ignore[abstract]  # what tasks and futures ask for is there
        plan = tally_plan(bounded=seed % 2 == 1, cumulative=schedule.cumulative, arrival=schedule.arrival)
        books = self.books = Books(plan)
        embedded = not schedule.cluster
        log_full = LogError if embedded else LogUnavailableError
        store_full = StoreError if embedded else StoreUnavailableError
        self.lines = {
            "log": Line(loop, "log", seed, lost=LogUnavailableError, full=log_full, embedded=embedded),
            "store": Line(loop, "store", seed, lost=StoreUnavailableError, full=store_full, embedded=embedded),
            **{
                name: Line(loop, name, seed, lost=LogUnavailableError, full=ReceiptsError, embedded=embedded)
                for name in ("receipts", "copy")
            },
        }
        self._log = SimLog(loop, self.lines["log"], schedule.partitions)
        self._log.eager = planted.eager
        self._inner = memory_store(WorldRuntime(loop), exclusive=embedded)
        run_to_end(self._inner.register(plan, schedule.partitions, plan.window.index_at(START_MS)))
        self._sinks = {name: SimReceipts(name, self.lines[name], books) for name in ("receipts", "copy")}
        self._network = Network(loop, seed, books.told)
        self._coordinator = Coordinator(loop, schedule.partitions)
        self._site = Site(
            loop,
            seed,
            plan,
            self._log,
            as_store(SimStore(self.lines["store"], self._inner, books)),
            planted.receipts_of(*self._sinks.values()),
            self._coordinator,
            self._network,
            books,
            planted.log_of,
            planted.store_of,
        )
        names = CLUSTER if schedule.cluster else ALONE
        self._hosts = {name: Host(self._site, name, name.partition("-")[0]) for name in names}
        self._spool_of = planted.spool_of
        self._devices = {f"device-{number}": self._device(number) for number in range(DEVICES)}
        self._next_number = 0
        self._copies: list[Copy] = []
        self._set_back: set[str] = set()  # sinks that are not what they were

    def close(self) -> None:
        """Ends what is still there."""
        self.loop.close()
        run_to_end(self._inner.close())

    def _device(self, number: int) -> Device:
        books = self.books
        # The last one shares its partition with nobody it can choose: with few devices some partition is often idle.
        client_id = f"client-{number}"
        device = Device(
            books.plan,
            self._network,
            number,
            client_id,
            packed=books.packed,
            bound=books.bound,
            settled=books.settle,
            spool_of=self._spool_of,
        )
        if self._schedule.arrival:  # its clock decides nothing
            device.skew_ms = Random(f"clock/{number}/{self._schedule.seed}").randint(-_SKEW_MS_MAX, _SKEW_MS_MAX)
        return device

    def _states(self) -> dict[int, str]:
        return run_to_end(self._inner.windows(self.books.plan.id))

    def _keep_copy(self) -> None:
        lines = {name: len(sink.kept) for name, sink in self._sinks.items()}
        self._copies.append(Copy(self.loop.time(), self._connection().serialize(), self._log.copied(), lines))
        if self.loop.time() < BUSY_S:
            self.loop.call_world(_COPY_S, self._keep_copy)

    def _connection(self) -> sqlite3.Connection:
        """The database in memory, whole."""
        database: Any = self._inner.database  # Any: a backup is taken behind the back of all that uses it
        connection: sqlite3.Connection = database.writer._connection
        return connection

    def _restart(self) -> None:
        """Whoever is down is started again."""
        for host in self._hosts.values():
            if not host.is_up:
                host.start()
        for device in self._devices.values():
            if device.process is None or not device.process.alive:
                device.start(self.loop, self._schedule.seed)
        self.loop.call_world(_RESTART_S * (0.5 + self._random.random()), self._restart)

    def _heal(self) -> None:
        """Nothing goes wrong from here on."""
        for line in self.lines.values():
            line.ambushes.clear()
            line.weather.clear()
            line.cut.clear()
        self._network.clear()
        self._coordinator.cut.clear()
        self._log.sync_s = SYNC_S
        for host in self._hosts.values():
            host.set_clock(0)
            if host.process is not None:
                host.process.fuse = None
                self.loop.resume(host.process)
