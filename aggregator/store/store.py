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
from aggregator.sqlite import SqliteFile
from aggregator.store import checkpoints as store_checkpoints
from aggregator.store import collection as store_collection
from aggregator.store import outcomes as store_outcomes
from aggregator.store import plans as store_plans
from aggregator.store import receipts as store_receipts
from aggregator.store import windows as store_windows
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.schema import STORE_FILE
from aggregator.store.transaction import Database, SqliteDatabase
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import Spend
from hushsum.signed_plan import SignedPlan


class Store:
    """What outlives a process beside the log: plans, windows, checkpoints, the ledger, outcomes.

    Fences: who claims a partition, or takes the releaser's lease, gets a number that is higher than any before. Every
    write of a fold or of a releaser names its number, and is refused, inside its transaction, once a higher one was
    given out (FencedError): a process that slept through its time writes nothing.

    Every method may raise StoreUnavailableError: the store cannot be reached now, and of a write it is not known
    whether it was done. Each can be repeated.

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
        """Registers a plan once: its bytes, its P, its first window, its population's limits.

        Raises:
            StoreError: The plan is stored with another P.
            BudgetError: Its limits are above its population's, or its spends could not be added up.
        """
        await self._database.write(store_plans.register, plan, partitions, first_window)

    async def load_plan(self, plan_id: bytes) -> Plan | None:
        """The plan of an id."""
        return await self._database.look(store_plans.load_plan, plan_id)

    async def plan_named(self, name: str) -> Plan | None:
        """The stored plan of that name: what a ``plan.toml`` became at the first start."""
        return await self._database.look(store_plans.plan_named, name)

    async def plans(self) -> list[RegisteredPlan]:
        """Every plan, in the order in which they were registered."""
        return await self._database.read(store_plans.plans)

    async def keep_plan_signature(self, signed: SignedPlan) -> None:
        """Stores the signature of a registered plan, in place of an earlier one; nobody has verified it here.

        Raises:
            StoreError: The plan is not registered.
        """
        await self._database.write(store_plans.keep_signature, signed)

    async def signed_plan(self, plan_id: bytes) -> SignedPlan | None:
        """The plan of an id with the signature that was kept of it; None where there is none."""
        return await self._database.look(store_plans.signed_plan, plan_id)

    async def account(self, population: str) -> Account:
        """The limits of a registered population, as its plans fixed them, and all its spends."""
        return await self._database.read(store_plans.account, population)

    async def spends_alike(self, population: str) -> tuple[Limits, list[tuple[bytes, int]]]:
        """The same limits, and the bytes of one spend of each sort, with how many there are of it.

        Those of a sort differ by their windows alone, so that a total takes no longer for many of them.
        """
        return await self._database.read(store_plans.spends_alike, population)

    async def count_spend(self, plan_id: bytes, spend: Spend, *, fence: int) -> None:
        """Adds a spend that a receipt proves, unless it is there; no limit can refuse it.

        ``plan_id`` is that of the releaser whose fence it is; the spend may be another plan's.
        """
        await self._database.write(store_plans.count_spend, plan_id, spend, fence=fence)

    # --------------------------------------------------------------------------------------------------- windows

    async def open_windows(self, plan_id: bytes, first: int, last: int) -> None:
        """Records the fact that a gateway had these windows open (those that exist already stay as they are)."""
        await self._database.write(store_windows.open_windows, plan_id, first, last)

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        """State by window, as :class:`aggregator.windows.WindowState` names them: all there ever were."""
        return await self.states(plan_id, -(2**63), 2**63 - 1)

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        """State by window from ``first`` to ``last``: one short read, never held up by a checkpoint.

        This is the read that an acknowledgement needs. Nothing may be appended for a window that it does not call open.
        """
        return await self._database.look(store_windows.states, plan_id, first, last)

    async def newest_windows(self, plan_id: bytes, before: int | None, limit: int) -> list[tuple[int, str]]:
        """(window, state) of the newest windows, the newest first, whatever the store's age.

        Args:
            plan_id: Whose.
            before: Only windows before this one; None: from the newest on.
            limit: The most.
        """
        return await self._database.look(store_windows.newest, plan_id, before, limit)

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        """State by window of those that have no outcome and are not skipped: few, whatever the store's age."""
        return await self._database.read(store_windows.unfinished, plan_id)

    async def first_window(self, plan_id: bytes) -> int:
        """The window in which the plan was registered."""
        return await self._database.look(store_windows.first_window, plan_id)

    async def mark_closing(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """Before the first seal is appended: from here on no gateway acknowledges for the window.

        In the same transaction every window before it that no gateway has opened becomes ``skipped``: no outcome, no
        charge. A window that is closing, sealed or released already stays as it is.

        Raises:
            WindowOrderError: It was never open, or an older one is open or closing.
        """
        await self._database.write(store_outcomes.mark_closing, plan_id, window, fence=fence)

    # ----------------------------------------------------------------------------------------------------- lease

    async def acquire_lease(self, plan_id: bytes, owner: str, address: str, seconds: float) -> int | None:
        """Makes one process the plan's releaser, by the store's own clock.

        Args:
            plan_id: Of what.
            owner: Who asks; a name of this process alone.
            address: Where its administration listens, ``host:port``, for those who ask another process.
            seconds: How long it holds without being renewed.

        Returns:
            Its fence; None while somebody else's lease holds.
        """
        return await self._database.write(
            store_windows.acquire, plan_id, owner, address, seconds, exclusive=self._exclusive
        )

    async def renew_lease(self, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
        """Holds it for longer, and tells what every process's status shows (why releasing has stopped, or nothing).

        Raises:
            FencedError: Another process has it.
        """
        await self._database.write(store_windows.renew, plan_id, seconds, note, fence=fence)

    async def return_lease(self, plan_id: bytes, *, fence: int) -> None:
        """Lets another process take it at once; nothing where it is another's already."""
        await self._database.write(store_windows.give_back, plan_id, fence=fence)

    async def lease(self, plan_id: bytes) -> Lease | None:
        """Who releases, as last heard; None where nobody ever did."""
        return await self._database.read(store_windows.lease, plan_id)

    # ----------------------------------------------------------------------------------------------------- folds

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        """Takes a partition over from whoever had it: gives out its next fence, and loads its fold, in one transaction.

        None where the plan or the partition is not registered.
        """
        return await self._database.write(store_checkpoints.claim, plan, partition, owner)

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        """Counters (touched blocks alone), stream states, verdicts to retain and position, in one transaction.

        A window that is ``closing`` becomes ``sealed`` in the transaction that closes it in the last partition.

        Raises:
            FencedError: Another worker has claimed the partition.
            StaleCheckpointError: Its position is before the stored one.
        """
        await self._database.write(store_checkpoints.checkpoint, plan.id, partition, change, fence=fence)

    async def fold_marks(self, plan_id: bytes) -> dict[int, FoldMark]:
        """How far each partition's fold has come in its latest checkpoint: no replay starts before its position."""
        return await self._database.look(store_checkpoints.marks, plan_id)

    async def stream_memory(self, plan_id: bytes, partition: int, client_id: str, stream: int) -> StreamMemory:
        """What the latest checkpoint of a partition holds of one stream, and how far it had come: one moment."""
        return await self._database.look(store_checkpoints.stream_memory, plan_id, partition, client_id, stream)

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        """The sum and the number of clients (and cohorts) of a window over all partitions, of one moment.

        None until every partition has stored its sealed counters.

        Raises:
            StoreError: The window's counters are forgotten.
        """
        return await self._database.read(store_checkpoints.sealed_window, plan, window)

    async def ask_to_forget(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """Tells every fold, wherever it runs, that windows up to this one have their published outcome."""
        await self._database.write(store_windows.ask_to_forget, plan_id, window, fence=fence)

    async def forget_asked(self, plan_id: bytes) -> int | None:
        """The last window that folds were asked to forget."""
        return await self._database.look(store_windows.forget_asked, plan_id)

    async def forget(self, plan: Plan, window: int, *, fence: int) -> None:
        """Erases the counters of windows up to ``window``, which all have their published outcome (or were skipped).

        Their stream states and contributions went with the checkpoints of :meth:`Folds.forget`, so that what is stored
        is always what the fold holds. When it returns, nobody can read any of it from the store's tables, not even who
        began before; SQLite leaves nothing in its files either.

        Raises:
            StoreUnavailableError: Somebody still reads an older moment; it is to be tried again.
        """
        await self._database.write(store_checkpoints.forget, plan.id, window, fence=fence)
        await self._database.erase(
            "blocks", "counts", "streams", "contributions", "reservations", "round_claims", certain=True
        )

    # -------------------------------------------------------------------------------------------------- outcomes

    async def check_collection(self, plan: Plan, window: int) -> None:
        """Asks whether :meth:`charge_collection` would be allowed, and writes nothing.

        Raises:
            BudgetError: The ledger's limits do not allow it.
            WindowOrderError: The window is not open.
            StoreError: The plan is central, or not registered.
        """
        await self._database.read(store_collection.check_collection, plan, window)

    async def charge_collection(self, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
        """Charges what a window of a secure or local plan costs, before the first submission to it is taken.

        That is where these spend privacy (PRIVACY: ledger): what was taken was noised by its client, and is out.

        One transaction. Charged once, whoever asks how often; what was charged stays, whatever is collected. It needs
        no fence: every gateway asks before it takes anything.

        Args:
            plan: Whose window it is.
            window: Open, and begun by the store's clock.
            members: Of the round of a secure sum that is about to ask for vectors: in the same transaction it is fixed
                that theirs belong to no other round of the window. None: for a local plan.

        Raises:
            BudgetError: The ledger's limits do not allow it: nothing may be collected for the window.
            WindowNotBegunError: It begins later.
            WindowOrderError: The window is not open.
            ClaimLostError: Members have been claimed by another round since :meth:`claim_clients`. Nothing is charged.
            StoreError: The plan is central, or not registered.
        """
        await self._database.write(store_collection.charge_collection, plan, window, members)

    async def claim_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
        """Notes that these clients are in this round of a secure sum, whichever gateway they were in before.

        Asked again for the same round it counts nothing more.

        Returns:
            Those that may be in no further round of this window: another one may have their vector, or they were drawn
            as often as a plan's promise counts, at whatever gateways.
        """
        return await self._database.write(store_collection.claim_clients, plan_id, window, members)

    async def release_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> None:
        """Notes that nothing of the vectors of these members of a round came: they may be in another round."""
        await self._database.write(store_collection.release_clients, plan_id, window, members)

    async def reserve_outcome(
        self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
    ) -> bytes:
        """Charges what a release of the window costs, and fixes the key of all randomness of its outcome.

        One transaction, before anything is drawn or decided; what it writes has the same size whatever was collected.
        Asked again, by whomever, it gives back the same key and charges nothing. A window of a secure or local plan
        costs nothing here: :meth:`charge_collection` has charged it, or nobody came, and it spends nothing. But where
        a restored store has lost that charge and something came, it is charged here, past the limits if need be.

        Args:
            plan: Whose window it is.
            kind: ``tumbling``.
            window: The oldest sealed one without an outcome.
            digest: :meth:`SealedWindow.digest` of what the outcome will be drawn from.
            entropy: Of the key; read once the charge is allowed.
            fence: Of the releaser's lease.

        Returns:
            The key of a :class:`hushsum.entropy.KeyedEntropy`. Who knows it knows the noise.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            BudgetError: The ledger's limits do not allow what a release costs. Nothing is fixed.
            StoreError: The outcome was charged for other counters: the store is damaged.
        """
        return await self._database.write(
            store_outcomes.reserve_outcome, plan, kind, window, digest, entropy, fence=fence
        )

    async def commit_outcome(
        self, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
    ) -> None:
        """Stores a reserved outcome (``committed``), erases its key, marks its window's state: one transaction.

        The charge of a withheld window becomes that of its test alone; that of a local plan stays what it is, for its
        submissions were accepted: they have left the devices. No window of a secure plan is withheld.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            StoreError: It was not reserved.
        """
        await self._database.write(
            store_outcomes.commit_outcome, plan, kind, window, data, fence=fence, withheld=withheld
        )
        await self._database.erase("reservations", certain=False)

    async def publish(self, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int) -> None:
        """Lets everybody see an outcome, and keeps how far the receipts reach now, its own among them: both or neither.

        Raises:
            StoreError: There is no such outcome, or the receipts are not those that the store is bound to.
        """
        await self._database.write(store_outcomes.publish, plan_id, kind, window, receipts=receipts, fence=fence)

    async def receipts_mark(self) -> ReceiptsMark | None:
        """The receipts that this store is bound to, and how far it knows them, of all its plans.

        None before anything could be released. Its id is empty where an older version may have released something: then
        there are receipts, and which ones is not known.
        """
        return await self._database.look(store_receipts.mark)

    async def bind_receipts(self, plan_id: bytes, found: ReceiptsMark, *, fence: int) -> ReceiptsMark:
        """Binds the store to these receipts for ever, unless it is bound; what it is bound to then.

        ``plan_id`` is that of the releaser whose fence it is.
        """
        return await self._database.write(store_receipts.bind, plan_id, found, fence=fence)

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        """All outcomes in the order of their windows, published or not, without their bytes: what a list is made of."""
        return await self._database.read(store_outcomes.outcomes, plan_id)

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        """One published outcome; None where there is none, or it is not published yet."""
        return await self._database.read(store_outcomes.outcome, plan_id, kind, window)

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        """Outcomes that are committed and not yet published."""
        return await self._database.read(store_outcomes.unpublished, plan_id)


async def open_sqlite_store(path: Path, runtime: Runtime) -> Store:
    """Opens the file, and makes it where it is not there. Whoever has its folder has every lease that is asked for.

    Raises:
        StoreError: Not a store, a newer format, or no durability here.
    """
    writer = SqliteFile(STORE_FILE, await runtime.blocking(STORE_FILE.open_writing, path), runtime)
    try:
        reader = SqliteFile(STORE_FILE, await runtime.blocking(STORE_FILE.open_reading, path), runtime)
    except BaseException:
        await writer.close()
        raise
    return Store(SqliteDatabase(writer, reader, runtime), exclusive=True)


def memory_store(runtime: Runtime, *, exclusive: bool = False) -> Store:
    """A store that is gone with its process, for tests and simulations: the same SQL, of which nothing is durable.

    Args:
        runtime: Its clock, by which leases run out.
        exclusive: Whether a lease is given to whoever asks, as by a file, or held for its time, as by PostgreSQL.
    """
    database = SqliteFile(STORE_FILE, STORE_FILE.open_in_memory(), runtime)
    return Store(SqliteDatabase(database, database, runtime), exclusive=exclusive)


async def open_postgres_store(dsn: str, runtime: Runtime, *, pool: int = 10, schema: str = "hushsum") -> Store:
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
    return Store(await PostgresDatabase.open(settings, runtime))
