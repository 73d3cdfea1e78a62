"""Stores under test: opened, with a plan and the releaser's lease, and folds that work on them."""

import uuid
from collections.abc import Sequence

from aggregator.fold.fold import Fold
from aggregator.fold.state import Checkpoint
from aggregator.model import ReceiptsMark
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store
from aggregator.store.transaction import SqliteDatabase, Transaction
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING, Spend
from hushsum.releases import spend_of
from hushsum_proto.entries import LogEntry, SealEntry
from tests.aggregator.deltas import client_of, entry, tally, tally_plan
from tests.aggregator.histories import FIRST
from tests.doubles import MemoryStore

W = FIRST
PARTITIONS = 2
PLAN = tally_plan(records_per_client=3, total_epsilon=2)  # enough for two windows
MARK = ReceiptsMark(b"receipts in test", 1, bytes(32))  # what :func:`prepared` binds the store to
FENCE = 1  # of the lease that :func:`prepared` takes


async def postgres_store(dsn: str, *, schema: str | None = None, pool: int = 4) -> Store:
    """A store in a schema of its own."""
    settings = PostgresSettings(dsn, schema=schema or fresh_schema(), pool=pool)
    return Store(await PostgresDatabase.open(settings, SystemRuntime()))


def sqlite_of(store: Store) -> SqliteDatabase:
    """The database of a store that is a file."""
    assert not isinstance(store, MemoryStore)
    assert isinstance(store.database, SqliteDatabase)
    return store.database


def fresh_schema() -> str:
    return f"test_{uuid.uuid4().hex}"


async def prepared(store: Store) -> None:
    """Registers the plan, and takes the lease of its releaser."""
    await store.register(PLAN, PARTITIONS, W)
    assert await store.acquire_lease(PLAN.id, "test", "localhost:1", 10) is not None
    if not isinstance(store, MemoryStore):
        await store.database.write(lower_fence)  # fences follow the clock; a small one is known to every test
    await store.bind_receipts(PLAN.id, MARK, fence=FENCE)


async def lower_fence(tx: Transaction) -> None:
    """Makes :data:`FENCE` the fence of every lease."""
    await tx.execute("UPDATE leases SET fence = $1", FENCE)


def spend(window: int, plan: Plan = PLAN) -> Spend:
    return spend_of(plan, kind=TUMBLING, window=window)


DIGEST = b"d" * 32  # the store compares it, and looks no further


async def reserved(store: Store, window: int = W, key: bytes = b"k" * 32) -> bytes:
    """The key that the store gives to a window, which is offered this one."""
    return await store.reserve_outcome(PLAN, TUMBLING, window, DIGEST, Given(key), fence=FENCE)


async def committed(store: Store, window: int, data: bytes, *, withheld: bool = False) -> None:
    await reserved(store, window)
    await store.commit_outcome(PLAN, TUMBLING, window, data, fence=FENCE, withheld=withheld)


class Given:
    """A source that gives one key, once."""

    def __init__(self, key: bytes) -> None:
        self.left = [key]

    def read(self, size: int) -> bytes:
        key = self.left.pop()
        assert len(key) == size
        return key


class Folding:
    """A fold that works on a store."""

    def __init__(self, store: Store, partition: int, fold: Fold, fence: int) -> None:
        self.store, self.partition, self.fold, self.fence = store, partition, fold, fence

    @classmethod
    async def of(cls, store: Store, partition: int, *, retain_verdicts: bool = False) -> "Folding":
        claimed = await store.claim_partition(PLAN, partition, "test")
        assert claimed is not None
        fold = Fold(PLAN, partition, PARTITIONS, claimed.state, retain_verdicts=retain_verdicts)
        return cls(store, partition, fold, claimed.fence)

    async def apply(self, *entries: LogEntry) -> Checkpoint:
        self.take(*entries)
        change = self.fold.checkpoint()
        await self.store.checkpoint(PLAN, self.partition, change, fence=self.fence)
        return change

    def take(self, *entries: LogEntry) -> None:
        """Folds, and stores nothing."""
        self.fold.apply([*enumerate(entries, self.fold.position)], self.fold.position + len(entries))

    def delta(self, number: int, window: int = W, sequence: int = 0, records: int = 1) -> LogEntry:
        client = client_of(self.partition, PARTITIONS)
        return entry(client, tally(PLAN, number, window, 2**63 + 5, sequence, records))


def seal(window: int = W) -> SealEntry:
    return SealEntry(PLAN.id, window, 0)


async def sealed(store: Store, windows: Sequence[int] = (W,)) -> None:
    """Opens, closes and seals windows in every partition."""
    await store.open_windows(PLAN.id, windows[0], windows[-1])
    folds = [await Folding.of(store, partition) for partition in range(PARTITIONS)]
    for folding in folds:
        await folding.apply(folding.delta(7 + folding.partition, windows[0]))
    for window in windows:
        await store.mark_closing(PLAN.id, window, fence=FENCE)
        for folding in folds:
            await folding.apply(seal(window))
