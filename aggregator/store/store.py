"""The store, durable when a write returns: in an SQLite file of one process, or in PostgreSQL for many."""

import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from aggregator.fold.verdicts import Verdict
from aggregator.runtime import Runtime
from aggregator.sqlite import SqliteFile
from aggregator.store import charges as store_charges
from aggregator.store import checkpoints as store_checkpoints
from aggregator.store import outcomes as store_outcomes
from aggregator.store import plans as store_plans
from aggregator.store import round_claims as store_claims
from aggregator.store import windows as store_windows
from aggregator.store.schema import STORE_FILE
from aggregator.store.transaction import Database, SqliteDatabase, SqliteTransaction, Work, run_to_end
from hushsum.plan import Plan
from hushsum.sketch import Sketch

T = TypeVar("T")
P = ParamSpec("P")
_Method = Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]


def _write(work: Work[P, T], *erased: str, certain: bool = False) -> _Method[P, T]:
    """A method that runs ``work`` in a transaction that writes; then erases deleted rows from these tables."""

    @functools.wraps(work)
    async def method(self: "Store", /, *arguments: P.args, **keywords: P.kwargs) -> T:
        result = await self.database.write(work, *arguments, **keywords)
        if erased:
            await self.database.erase(*erased, certain=certain)
        return result

    return method


def _read(work: Work[P, T]) -> _Method[P, T]:
    """A method that runs ``work`` in a transaction that reads one moment."""

    @functools.wraps(work)
    async def method(self: "Store", /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self.database.read(work, *arguments, **keywords)

    return method


def _look(work: Work[P, T]) -> _Method[P, T]:
    """A method that runs ``work``, which makes one query alone and waits for no write."""

    @functools.wraps(work)
    async def method(self: "Store", /, *arguments: P.args, **keywords: P.kwargs) -> T:
        return await self.database.look(work, *arguments, **keywords)

    return method


class Store:
    """State that outlives a process, besides the log: plans, windows, checkpoints, the ledger, outcomes.

    Each operation is declared once, with its documentation, as a function on a transaction in this package's other
    modules. The lists below make it a method without the transaction, and say what kind of transaction it needs.

    Fences: a process that claims a partition or takes the releaser's lease gets a number higher than any before. Every
    write of a fold or of a releaser names its number, and its transaction refuses it (FencedError) once a higher number
    was given out: a process that was paused past its lease writes nothing.

    Every method may raise StoreUnavailableError: the store cannot be reached now, and whether a write was committed is
    not known. Each can be repeated.

    Args:
        database: Holds the tables.
        exclusive: Whether only one process uses it, so that a lease is given to any process that asks.
    """

    def __init__(self, database: Database, *, exclusive: bool = False) -> None:
        self.database, self._exclusive = database, exclusive

    async def close(self) -> None:
        """Closes the database after the calls in progress."""
        await self.database.close()

    # Plans
    register = _write(store_plans.register)
    is_known = _look(store_plans.is_known)
    load_plan = _look(store_plans.load_plan)
    plan_named = _look(store_plans.plan_named)
    plans = _read(store_plans.plans)
    keep_plan_signature = _write(store_plans.keep_plan_signature)
    signed_plan = _look(store_plans.signed_plan)

    # Windows
    now_ms = _look(store_windows.now_ms)
    open_windows = _write(store_windows.open_windows)
    windows = _look(store_windows.windows)
    states = _look(store_windows.states)
    newest_windows = _look(store_windows.newest_windows)
    unfinished = _read(store_windows.unfinished)
    first_window = _look(store_windows.first_window)
    mark_closing = _write(store_windows.mark_closing)
    ask_to_forget = _write(store_windows.ask_to_forget)
    forget_asked = _look(store_windows.forget_asked)

    # The releaser's lease
    renew_lease = _write(store_windows.renew_lease)
    return_lease = _write(store_windows.return_lease)
    lease = _read(store_windows.lease)

    async def acquire_lease(self, plan_id: bytes, owner: str, address: str, seconds: float) -> int | None:
        """See :func:`aggregator.store.windows.acquire_lease`."""
        exclusive = self._exclusive
        return await self.database.write(
            store_windows.acquire_lease, plan_id, owner, address, seconds, exclusive=exclusive
        )

    # Folds
    claim_partition = _write(store_checkpoints.claim_partition)
    checkpoint = _write(store_checkpoints.checkpoint)
    fold_marks = _look(store_checkpoints.fold_marks)
    stream_memory = _look(store_checkpoints.stream_memory)
    sealed_window = _read(store_checkpoints.sealed_window)
    forget = _write(
        store_checkpoints.forget,
        *("blocks", "counts", "streams", "contributions", "reservations", "round_claims"),
        *("sequences", "sequence_parts"),
        certain=True,
    )

    # The ledger, and charges before the first submission
    account = _read(store_charges.account)
    spends_alike = _read(store_charges.spends_alike)
    count_spend = _write(store_charges.count_spend)
    check_collection = _read(store_charges.check_collection)
    charge_collection = _write(store_charges.charge_collection)

    # Claims of clients by rounds of secure sums
    claim_clients = _write(store_claims.claim_clients)
    release_clients = _write(store_claims.release_clients)

    # Outcomes and receipts
    reserve_outcome = _write(store_outcomes.reserve_outcome)
    commit_outcome = _write(store_outcomes.commit_outcome, "reservations")
    reserve_step = _write(store_outcomes.reserve_step)
    commit_step = _write(store_outcomes.commit_step, "reservations")  # the state before it goes with the counters
    publish = _write(store_outcomes.publish)
    remove_releases = _write(store_outcomes.remove_releases)
    mark_lost = _write(store_outcomes.mark_lost, "reservations", "streams", "contributions", certain=True)
    receipts_mark = _look(store_outcomes.receipts_mark)
    bind_receipts = _write(store_outcomes.bind_receipts)
    set_receipts = _write(store_outcomes.set_receipts)
    outcomes = _read(store_outcomes.outcomes)
    outcome = _read(store_outcomes.outcome)
    unpublished = _read(store_outcomes.unpublished)


async def open_sqlite_store(path: Path, runtime: Runtime) -> Store:
    """Opens the file, or creates it. Every lease is granted: the data folder is locked to this process.

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


async def read_sqlite_store(path: Path, runtime: Runtime) -> tuple[Store, bool]:
    """Opens an existing file that no other process writes, for reading alone; nothing of it is created or upgraded.

    Returns:
        The store, and whether it has all tables of this version: an older file is upgraded by a start.

    Raises:
        StoreError: The file is missing, damaged, not a store, or of a newer format.
    """
    connection = await runtime.blocking(STORE_FILE.open_alone, path)
    reader = SqliteFile(STORE_FILE, connection, runtime)
    try:
        await reader.check_pages()
        return Store(SqliteDatabase(reader, reader, runtime)), STORE_FILE.is_current(connection)
    except BaseException:
        await reader.close()
        raise


def memory_store(runtime: Runtime, *, exclusive: bool = False) -> Store:
    """A store in memory, for tests and simulations: the same SQL, without durability.

    Args:
        runtime: Its clock decides when leases expire.
        exclusive: Whether every lease is granted, as in a file, or held for its time, as in PostgreSQL.
    """
    database = SqliteFile(STORE_FILE, STORE_FILE.open_in_memory(), runtime)
    return Store(SqliteDatabase(database, database, runtime), exclusive=exclusive)


# For operators' tests and demos. What these return is exact, and nothing of it is private.


def read_sealed(path: Path, plan: Plan, window: int) -> Sketch | None:
    """The exact counters of a sealed window in a store's file that is not erased yet; None until it is sealed.

    Raises:
        StoreError: No store, a newer format, an unknown plan, or an erased window.
    """
    with STORE_FILE.looked_at(path) as db:
        sealed = run_to_end(store_checkpoints.sealed_window(SqliteTransaction(db, lambda: 0), plan, window))
    return None if sealed is None else sealed.sketch


def read_verdicts(path: Path, plan: Plan) -> list[tuple[int, Verdict]]:
    """(partition, verdict) of every delta that was folded and checkpointed, where the service retains verdicts.

    Raises:
        StoreError: No store, a newer format, or an unknown plan.
    """
    with STORE_FILE.looked_at(path) as db:
        return run_to_end(store_checkpoints.verdicts(SqliteTransaction(db, lambda: 0), plan.id))
