"""The inner half of a service on real files: log, store, receipts, folds and releaser, opened and killed at will."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

from aggregator.fold.verdicts import VerdictKind
from aggregator.interfaces import Receipts
from aggregator.log.sqlite import SqliteLog
from aggregator.model import NewEntry
from aggregator.release.receipts import ReceiptsFile
from aggregator.release.receipts_copy import CopiedReceipts
from aggregator.release.releaser import Releaser
from aggregator.runtime import Runtime
from aggregator.store.store import Store, open_sqlite_store, read_verdicts
from aggregator.store.transaction import SqliteDatabase
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from hushsum.entropy import Entropy, ReplayableEntropy
from hushsum.plan import Plan
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import partition_of
from tests.aggregator.deltas import client_of, entry, tally
from tests.doubles import ManualRuntime, RecordingObserver, Steps

PARTITIONS = 2
SETTINGS = WorkerSettings(checkpoint_entries=20, retain_verdicts=True)
LOG_STEPS = ("append", "forget")
STORE_STEPS = (
    *("bind_receipts", "mark_closing", "checkpoint"),
    *("reserve_outcome", "commit_outcome", "reserve_step", "commit_step", "publish", "forget"),
)
RECEIPTS_STEPS = ("begin", "write", "append")


class DiskSite:
    """Made by :meth:`open`; after :meth:`die` another one can be opened on the same folder.

    Attributes:
        window: The one that the runtime's clock stands in when the folder is new.
        fence: Of its releaser.
    """

    def __init__(
        self, folder: Path, plan: Plan, runtime: Runtime, log: SqliteLog, store: Store, receipts: ReceiptsFile
    ) -> None:
        self.folder, self.plan, self.runtime = folder, plan, runtime
        self.log, self.store, self.receipts = log, store, receipts
        self.observer = RecordingObserver()
        self.workers: WorkerPool
        self.new_releaser: partial[Releaser]
        self.releaser: Releaser
        self.window, self.fence = 0, 0

    @classmethod
    async def open(
        cls,
        folder: Path,
        plan: Plan,
        runtime: Runtime,
        *,
        steps: Steps | None = None,
        entropy: Entropy | None = None,
        fence: int | None = None,
        copied: bool = False,
        copy_name: str = "copy.jsonl",
    ) -> Self:
        """Opens everything that a service opens, in its order; calls that change something go through ``steps``.

        ``copied``: there is a copy of the receipts, in the file ``copy_name``.

        With the fence of another site it shares that one's lease; else the other one has lost it.
        """
        steps = steps or Steps()
        store = await open_sqlite_store(folder / "store.db", runtime)
        await store.register(plan, PARTITIONS, plan.window.index_at(runtime.now_ms()))
        log = await SqliteLog.open(folder / "log.db", plan.id, PARTITIONS, runtime)
        receipts = await ReceiptsFile.open(folder / "receipts.jsonl", runtime, ReplayableEntropy(b"receipts"))
        both: Receipts = steps.around(receipts, *RECEIPTS_STEPS)
        if copied:
            copy = await ReceiptsFile.open(folder / copy_name, runtime, ReplayableEntropy(b"copy"))
            both = CopiedReceipts(steps.around(receipts, *RECEIPTS_STEPS), steps.around(copy, *RECEIPTS_STEPS))
        site = cls(folder, plan, runtime, log, store, receipts)
        site.window = await store.first_window(plan.id)
        counted_log, counted_store = steps.around(log, *LOG_STEPS), steps.around(store, *STORE_STEPS)
        site.workers = WorkerPool(plan, counted_log, counted_store, runtime, site.observer, SETTINGS)
        site.new_releaser = partial(
            Releaser,
            plan,
            log=counted_log,
            store=counted_store,
            receipts=both,
            folds=site.workers,
            entropy=entropy or ReplayableEntropy(b"test"),
            runtime=runtime,
            observer=site.observer,
        )
        site.fence = fence or await store.acquire_lease(plan.id, "disk site", "", 10) or 0
        site.releaser = site.new_releaser(site.fence)
        return site

    @property
    def sqlite(self) -> SqliteDatabase:
        """The store's file."""
        assert isinstance(self.store.database, SqliteDatabase)
        return self.store.database

    async def start(self) -> None:
        """As a service starts."""
        await self.workers.start()
        await self.releaser.start()

    async def die(self) -> None:
        """Every task ends where it stands; nothing is saved."""
        await self.workers.lost(range(PARTITIONS))
        for _ in range(5):
            await asyncio.sleep(0)
        await self.log.close()
        await self.store.close()

    async def send(self, number: int, *, window: int | None = None, records: int = 1) -> bytes:
        """Appends delta ``number``, of a client of its own, as a gateway would."""
        at = self.window if window is None else window
        client = client_for(number)
        delta = tally(self.plan, number, at, stream=1, sequence=0, records=records)
        partition = partition_of(client, PARTITIONS)
        await self.log.append([NewEntry(partition, at, entry_to_bytes(entry(client, delta)))])
        return delta

    async def charge(self, window: int) -> None:
        """Charges a window as a gateway does; where it has not begun, the clock goes on to its start."""
        start_ms = self.plan.window.start_ms(window)
        if start_ms > self.runtime.now_ms():
            assert isinstance(self.runtime, ManualRuntime)
            await self.runtime.advance((start_ms - self.runtime.now_ms()) / 1000)
        await self.store.charge_collection(self.plan, window)

    def counted(self) -> Counter[str]:
        """How often each client was counted, by the retained verdicts that are stored."""
        verdicts = read_verdicts(self.folder / "store.db", self.plan)
        return Counter(str(verdict.client_id) for _, verdict in verdicts if verdict.kind is VerdictKind.COUNTED)

    def files(self) -> bytes:
        """All bytes of log and store."""
        return b"".join(path.read_bytes() for path in self.folder.iterdir() if ".db" in path.name)


def restore_store(folder: Path, copy: str = "store.old") -> None:
    """Puts a copy of a store that is closed in its place."""
    for name in ("store.db-wal", "store.db-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(folder / copy, folder / "store.db")


def client_for(number: int) -> str:
    """A client for each delta, of one partition after the other."""
    return client_of(number % PARTITIONS, PARTITIONS, number // PARTITIONS)


@asynccontextmanager
async def disk_site(
    folder: Path,
    plan: Plan,
    runtime: Runtime | None = None,
    *,
    entropy: Entropy | None = None,
    open_windows: int = 1,
    copied: bool = False,
) -> AsyncIterator[DiskSite]:
    """A running site, with some windows open from its first on."""
    site = await DiskSite.open(folder, plan, runtime or ManualRuntime(), entropy=entropy, copied=copied)
    await site.store.open_windows(plan.id, site.window, site.window + open_windows - 1)
    await site.start()
    try:
        yield site
    finally:
        await site.die()
