"""The store on SQL, durable when it returns: in an SQLite file of one process, or in PostgreSQL for many."""

from pathlib import Path

from aggregator.fold.state import Checkpoint, FoldMark
from aggregator.model import (
    ClaimedFold,
    Lease,
    Outcome,
    ReceiptsMark,
    RegisteredPlan,
    RoundMembers,
    SealedWindow,
    StoredOutcome,
    StreamMemory,
)
from aggregator.runtime import Runtime
from aggregator.sqlite import SqliteFile as DatabaseFile
from aggregator.store import checkpoints as store_folds
from aggregator.store import collection as store_collection
from aggregator.store import outcomes as store_outcomes
from aggregator.store import plans as store_plans
from aggregator.store import receipts as store_receipts
from aggregator.store import windows as store_leases
from aggregator.store import windows as store_windows
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.schema import STORE_FILE
from aggregator.store.transaction import Database, SqliteDatabase
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import Spend
from hushsum.signed_plan import SignedPlan


class SqlStore:
    """A store.

    Args:
        database: Its tables.
        exclusive: Whether one process alone uses it, so that a lease is given to whoever asks.
    """

    def __init__(self, database: Database, *, exclusive: bool = False) -> None:
        self._database, self._exclusive = database, exclusive

    @property
    def database(self) -> Database:
        """Its tables."""
        return self._database

    async def close(self) -> None:
        """Closes it, after what is under way."""
        await self._database.close()

    # ----------------------------------------------------------------------------------------------------- plans

    async def register(self, plan: Plan, partitions: int, first_window: int) -> None:
        """Registers a plan once; another time only P is compared."""
        await self._database.write(store_plans.register, plan, partitions, first_window)

    async def load_plan(self, plan_id: bytes) -> Plan | None:
        """The plan of an id."""
        return await self._database.look(store_plans.load_plan, plan_id)

    async def plan_named(self, name: str) -> Plan | None:
        """The plan of a name."""
        return await self._database.look(store_plans.plan_named, name)

    async def plans(self) -> list[RegisteredPlan]:
        """Every plan, in the order in which they were registered."""
        return await self._database.read(store_plans.plans)

    async def keep_plan_signature(self, signed: SignedPlan) -> None:
        """Stores the signature of a registered plan, in place of an earlier one."""
        await self._database.write(store_plans.keep_signature, signed)

    async def signed_plan(self, plan_id: bytes) -> SignedPlan | None:
        """The plan of an id with its signature."""
        return await self._database.look(store_plans.signed_plan, plan_id)

    async def account(self, population: str) -> Account:
        """A population's limits and spends."""
        return await self._database.read(store_plans.account, population)

    async def spends_alike(self, population: str) -> tuple[Limits, list[tuple[bytes, int]]]:
        """A population's limits, and one spend of each sort with how many there are of it."""
        return await self._database.read(store_plans.spends_alike, population)

    async def count_spend(self, plan_id: bytes, spend: Spend, *, fence: int) -> None:
        """Adds a spend that a receipt proves."""
        await self._database.write(store_plans.count_spend, plan_id, spend, fence=fence)

    # --------------------------------------------------------------------------------------------------- windows

    async def open_windows(self, plan_id: bytes, first: int, last: int) -> None:
        """Records that a gateway has these windows open."""
        await self._database.write(store_windows.open_windows, plan_id, first, last)

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        """State of every window there ever was."""
        return await self.states(plan_id, -(2**63), 2**63 - 1)

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        """State by window from ``first`` to ``last``."""
        return await self._database.look(store_windows.states, plan_id, first, last)

    async def newest_windows(self, plan_id: bytes, before: int | None, limit: int) -> list[tuple[int, str]]:
        """(window, state) of the newest windows before one, the newest first."""
        return await self._database.look(store_windows.newest, plan_id, before, limit)

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        """State by window of those that wait for their outcome."""
        return await self._database.read(store_windows.unfinished, plan_id)

    async def first_window(self, plan_id: bytes) -> int:
        """The window in which the plan was registered."""
        return await self._database.look(store_windows.first_window, plan_id)

    async def mark_closing(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """From here on no gateway acknowledges for the window; older ones that nobody opened are skipped."""
        await self._database.write(store_outcomes.mark_closing, plan_id, window, fence=fence)

    # ----------------------------------------------------------------------------------------------------- lease

    async def acquire_lease(self, plan_id: bytes, owner: str, address: str, seconds: float) -> int | None:
        """Makes a process the plan's releaser; None while another is."""
        return await self._database.write(
            store_leases.acquire, plan_id, owner, address, seconds, exclusive=self._exclusive
        )

    async def renew_lease(self, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
        """Holds the lease for longer."""
        await self._database.write(store_leases.renew, plan_id, seconds, note, fence=fence)

    async def return_lease(self, plan_id: bytes, *, fence: int) -> None:
        """Lets another process take the lease at once."""
        await self._database.write(store_leases.give_back, plan_id, fence=fence)

    async def lease(self, plan_id: bytes) -> Lease | None:
        """Who releases, as last heard."""
        return await self._database.read(store_leases.lease, plan_id)

    # ----------------------------------------------------------------------------------------------------- folds

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        """Takes a partition over, with its next fence and its fold's state."""
        return await self._database.write(store_folds.claim, plan, partition, owner)

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        """Makes what is stored what the fold is."""
        await self._database.write(store_folds.checkpoint, plan.id, partition, change, fence=fence)

    async def fold_marks(self, plan_id: bytes) -> dict[int, FoldMark]:
        """How far each partition's fold has come."""
        return await self._database.look(store_folds.marks, plan_id)

    async def stream_memory(self, plan_id: bytes, partition: int, client_id: str, stream: int) -> StreamMemory:
        """What is stored of one stream."""
        return await self._database.look(store_folds.stream_memory, plan_id, partition, client_id, stream)

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        """Sum and number of clients of a window over all partitions, once every one has stored it as sealed."""
        return await self._database.read(store_folds.sealed_window, plan, window)

    async def ask_to_forget(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """Tells every fold that windows up to this one have their published outcome."""
        await self._database.write(store_leases.ask_to_forget, plan_id, window, fence=fence)

    async def forget_asked(self, plan_id: bytes) -> int | None:
        """The last window that folds were asked to forget."""
        return await self._database.look(store_leases.forget_asked, plan_id)

    async def forget(self, plan: Plan, window: int, *, fence: int) -> None:
        """Erases the counters of windows up to this one, and with them what was deleted of streams and clients."""
        await self._database.write(store_folds.forget, plan.id, window, fence=fence)
        await self._database.erase(
            "blocks", "counts", "streams", "contributions", "reservations", "round_claims", certain=True
        )

    # -------------------------------------------------------------------------------------------------- outcomes

    async def check_collection(self, plan: Plan, window: int) -> None:
        """Asks whether a window of a secure or local plan could be charged now."""
        await self._database.read(store_collection.check_collection, plan, window)

    async def charge_collection(self, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
        """Charges a window of a secure or local plan before its first submission; once."""
        await self._database.write(store_collection.charge_collection, plan, window, members)

    async def claim_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
        """Notes that clients are in a round; those that may be in no further one are given back."""
        return await self._database.write(store_collection.claim_clients, plan_id, window, members)

    async def release_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> None:
        """Notes that nothing of the vectors of members of a round came."""
        await self._database.write(store_collection.release_clients, plan_id, window, members)

    async def reserve_outcome(
        self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
    ) -> bytes:
        """Charges an outcome and fixes the key of all its randomness, both or neither; once."""
        return await self._database.write(
            store_outcomes.reserve_outcome, plan, kind, window, digest, entropy, fence=fence
        )

    async def commit_outcome(
        self, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
    ) -> None:
        """Stores an outcome and erases its key; where something prevents that for now, `forget` does it."""
        await self._database.write(
            store_outcomes.commit_outcome, plan, kind, window, data, fence=fence, withheld=withheld
        )
        await self._database.erase("reservations", certain=False)

    async def publish(self, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int) -> None:
        """Lets everybody see an outcome, and keeps how far the receipts reach."""
        await self._database.write(store_outcomes.publish, plan_id, kind, window, receipts=receipts, fence=fence)

    async def receipts_mark(self) -> ReceiptsMark | None:
        """The receipts that this store is bound to, and how far it knows them."""
        return await self._database.look(store_receipts.mark)

    async def bind_receipts(self, plan_id: bytes, found: ReceiptsMark, *, fence: int) -> ReceiptsMark:
        """Binds the store to these receipts, unless it is bound."""
        return await self._database.write(store_receipts.bind, plan_id, found, fence=fence)

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        """All outcomes, without their bytes."""
        return await self._database.read(store_outcomes.outcomes, plan_id)

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        """One published outcome."""
        return await self._database.read(store_outcomes.outcome, plan_id, kind, window)

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        """Outcomes that nobody may see yet."""
        return await self._database.read(store_outcomes.unpublished, plan_id)


async def open_sqlite_store(path: Path, runtime: Runtime) -> SqlStore:
    """Opens the file, and makes it where it is not there. Whoever has its folder has every lease that is asked for.

    Raises:
        StoreError: Not a store, a newer format, or no durability here.
    """
    writer = DatabaseFile(STORE_FILE, await runtime.blocking(STORE_FILE.open_writing, path), runtime)
    try:
        reader = DatabaseFile(STORE_FILE, await runtime.blocking(STORE_FILE.open_reading, path), runtime)
    except BaseException:
        await writer.close()
        raise
    return SqlStore(SqliteDatabase(writer, reader, runtime), exclusive=True)


def memory_store(runtime: Runtime, *, exclusive: bool = False) -> SqlStore:
    """A store that is gone with its process, for tests and simulations: the same SQL, of which nothing is durable.

    Args:
        runtime: Its clock, by which leases run out.
        exclusive: Whether a lease is given to whoever asks, as by a file, or held for its time, as by PostgreSQL.
    """
    database = DatabaseFile(STORE_FILE, STORE_FILE.open_in_memory(), runtime)
    return SqlStore(SqliteDatabase(database, database, runtime), exclusive=exclusive)


async def open_postgres_store(dsn: str, runtime: Runtime, *, pool: int = 10, schema: str = "hushsum") -> SqlStore:
    """Connects; makes or upgrades the tables where that is needed.

    Args:
        dsn: ``postgresql://user:password@host:port/database?sslmode=verify-full``; a secret.
        runtime: Time, to wait for a server that is starting.
        pool: The most connections.
        schema: Of the tables; made where it is not there.

    Raises:
        StoreUnavailableError: It cannot be reached.
        StoreError: It refuses, does not keep what it commits, only reads, or has tables of a newer version.
    """
    settings = PostgresSettings(dsn, schema=schema, pool=pool)
    return SqlStore(await PostgresDatabase.open(settings, runtime))
