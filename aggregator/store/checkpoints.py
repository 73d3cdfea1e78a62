"""Store operations of folds: checkpoints, and the sums of windows. Functions on a transaction."""

import numpy as np

from aggregator.errors import FencedError, StaleCheckpointError, StoreError
from aggregator.fold.state import BLOCK, Checkpoint, Contribution, Counters, FoldMark, FoldState, StreamKey, WindowSum
from aggregator.fold.verdicts import Verdict, VerdictKind
from aggregator.model import ClaimedFold, SealedWindow, StreamMemory
from aggregator.store.schema import pack, unpack
from aggregator.store.transaction import NEXT_FENCE, Row, Transaction
from aggregator.store.windows import check_forgettable, locked_plan, mark_sealed, plan_number
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum.sketch import Sketch


async def claim_partition(tx: Transaction, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
    """Takes a partition over: issues its next fence and loads its fold, in one transaction.

    None if the plan or the partition is not registered.
    """
    row = await tx.fetch_row(
        f"UPDATE partitions SET fence = {NEXT_FENCE.format(now='$4')}, owner = $3 "  # noqa: S608  nothing but a constant is put in
        "WHERE plan = (SELECT number FROM plans WHERE id = $1) AND partition = $2 "
        "RETURNING plan, fence, position, closed_through, forgotten_through",
        plan.id,
        partition,
        owner,
        await tx.now_ms(),
    )
    if row is None:
        return None
    number, fence, position, closed, forgotten = row
    scope = (number, partition)
    open_windows = await tx.fetch(
        'SELECT "window" FROM counts WHERE plan = $1 AND partition = $2 AND "window" > $3', *scope, closed
    )
    streams = tx.rows("SELECT client_id, stream, data FROM streams WHERE plan = $1 AND partition = $2", *scope)
    tallies = tx.rows(
        'SELECT "window", client_id, records FROM contributions WHERE plan = $1 AND partition = $2', *scope
    )
    clients = tx.rows("SELECT client_id, windows FROM client_windows WHERE plan = $1 AND partition = $2", *scope)
    state = FoldState(
        position=position,
        closed_through=closed,
        forgotten_through=forgotten,
        windows={window: await _sum(tx, plan, number, window, partition) for (window,) in open_windows},
        streams={StreamKey(client, int.from_bytes(stream, "big")): data async for client, stream, data in streams},
        contributions={Contribution(window, client): count async for window, client, count in tallies},
        client_windows={client: count async for client, count in clients},
    )
    return ClaimedFold(fence, state)


async def checkpoint(tx: Transaction, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
    """Stores counters (changed blocks only), stream states, retained verdicts and the position, in one transaction.

    A ``closing`` window becomes ``sealed`` in the transaction that closes it in the last partition.

    Raises:
        FencedError: Another worker has claimed the partition.
        StaleCheckpointError: Its position is before the stored one.
    """
    number = await plan_number(tx, plan.id)
    closed, forgotten = await _check(tx, number, partition, change, fence)
    await _write_sums(tx, number, partition, change)
    await _write_memory(tx, number, partition, change)
    if change.forgotten_through > forgotten:
        scope = (number, partition, change.forgotten_through)
        await tx.execute("DELETE FROM streams WHERE plan = $1 AND partition = $2 AND last_window <= $3", *scope)
        await tx.execute('DELETE FROM contributions WHERE plan = $1 AND partition = $2 AND "window" <= $3', *scope)
    await tx.execute(
        "UPDATE partitions SET position = $3, closed_through = $4, forgotten_through = $5 "
        "WHERE plan = $1 AND partition = $2",
        number,
        partition,
        change.position,
        change.closed_through,
        change.forgotten_through,
    )
    if change.closed_through > closed:
        # Last, and under the lock: of partitions that close at once, the last transaction here sees the others.
        await plan_number(tx, plan.id, lock=True)
        await mark_sealed(tx, number, change.seals)


async def fold_marks(tx: Transaction, plan_id: bytes) -> dict[int, FoldMark]:
    """How far each partition's fold was in its latest checkpoint: no replay starts before its position."""
    rows = await tx.fetch(
        "SELECT partition, position, closed_through, forgotten_through FROM partitions "
        "WHERE plan = (SELECT number FROM plans WHERE id = $1)",
        plan_id,
    )
    return {partition: FoldMark(*mark) for partition, *mark in rows}


async def stream_memory(tx: Transaction, plan_id: bytes, partition: int, client_id: str, stream: int) -> StreamMemory:
    """What a partition's latest checkpoint holds of one stream, and how far it was: one query, so one moment."""
    row = await tx.fetch_row(
        "SELECT (SELECT data FROM streams AS s WHERE s.plan = p.plan AND s.partition = p.partition "
        "AND s.client_id = $3 AND s.stream = $4), position, closed_through, forgotten_through FROM partitions AS p "
        "WHERE p.plan = (SELECT number FROM plans WHERE id = $1) AND p.partition = $2",
        plan_id,
        partition,
        client_id,
        stream.to_bytes(8, "big"),
    )
    if row is None:
        raise StoreError(f"store: partition {partition} does not exist")
    data, *mark = row
    return StreamMemory(data, FoldMark(*mark))


async def sealed_window(tx: Transaction, plan: Plan, window: int) -> SealedWindow | None:
    """A window's sum over all partitions and its number of clients (and cohorts), of one moment.

    None until every partition has stored its sealed counters.

    Raises:
        StoreError: The window's counters are forgotten.
    """
    number = await plan_number(tx, plan.id)
    partitions = await tx.fetch(
        "SELECT partition, closed_through, forgotten_through FROM partitions WHERE plan = $1", number
    )
    if any(window <= forgotten for _, _, forgotten in partitions):
        raise StoreError(f"store: the counters of window {window} are erased")
    if any(window > closed for _, closed, _ in partitions):
        return None
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.count_counters, np.int64)
    contributors, contributed = 0, 0
    for partition, _, _ in partitions:
        part = await _sum(tx, plan, number, window, partition)
        counters += part.counters
        counts += part.counts
        more, their = await _contributors(tx, number, window, partition)
        contributors, contributed = contributors + more, contributed + their
    sketch = Sketch.of_counters(plan, counters, counts)
    if plan.privacy.mode == SECURE:
        return SealedWindow(sketch, clients=contributed, cohorts=contributors)
    return SealedWindow(sketch, clients=contributors)


async def forget(tx: Transaction, plan: Plan, window: int, *, fence: int) -> None:
    """Erases the counters of windows up to this one, and the rounds that clients were in.

    Stream states and contributions of these windows went with the checkpoints of
    :meth:`aggregator.interfaces.Folds.forget`, so that the store always equals the fold. Once the store's method
    returns, nothing can read any of it from the tables, not even a session that began before; SQLite leaves nothing in
    its files either.

    Raises:
        StoreError: One of them has no published outcome yet.
        StoreUnavailableError: A session still reads an older moment; it is to be tried again.
    """
    number = await locked_plan(tx, plan.id, fence)
    await check_forgettable(tx, number, window)
    await tx.execute('DELETE FROM blocks WHERE plan = $1 AND "window" <= $2', number, window)
    await tx.execute('DELETE FROM counts WHERE plan = $1 AND "window" <= $2', number, window)
    await tx.execute('DELETE FROM round_claims WHERE plan = $1 AND "window" <= $2', number, window)


async def verdicts(tx: Transaction, plan_id: bytes) -> list[tuple[int, Verdict]]:
    """(partition, verdict) of every delta whose verdict was retained."""
    rows = await tx.fetch(
        'SELECT partition, kind, reason, client_id, stream, sequence, "window", position FROM verdicts '
        "WHERE plan = $1 ORDER BY partition, position",
        await plan_number(tx, plan_id),
    )
    return [(partition, _verdict(*fields)) for partition, *fields in rows]


def _verdict(
    kind: str,
    reason: str | None,
    client_id: str | None,
    stream: bytes | None,
    sequence: int,
    window: int | None,
    position: int,
) -> Verdict:
    id = None if stream is None else DeltaId(int.from_bytes(stream, "big"), sequence)
    cause = None if reason is None else Reason(reason)
    return Verdict(VerdictKind(kind), cause, id, client_id, window, position)


async def _check(tx: Transaction, plan: int, partition: int, change: Checkpoint, fence: int) -> tuple[int, int]:
    """Checks a checkpoint's fence and position; returns how far its partition was closed and forgotten."""
    row = await tx.fetch_row(
        "SELECT fence, owner, position, closed_through, forgotten_through FROM partitions "
        "WHERE plan = $1 AND partition = $2",
        plan,
        partition,
        lock=True,
    )
    if row is None:
        raise StoreError(f"store: partition {partition} does not exist")
    current, owner, position, closed, forgotten = row
    if current != fence:
        raise FencedError(f"partition {partition}: claimed by {owner} (fence {current}, own fence {fence})")
    if change.position < position or change.closed_through < closed:
        raise StaleCheckpointError(
            f"partition {partition}: a checkpoint at position {change.position}, but {position} is stored: "
            "another worker owns this partition"
        )
    sealed = [block.window for block in change.blocks if block.window <= closed]
    assert not sealed, f"counters of window {sealed[0]} would change after its seal"
    return closed, forgotten


async def _sum(tx: Transaction, plan: Plan, number: int, window: int, partition: int) -> WindowSum:
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.count_counters, np.int64)
    flat = counters.reshape(len(counters), -1)
    scope = (number, window, partition)
    async for row, block, data in tx.rows(
        'SELECT class, block, data FROM blocks WHERE plan = $1 AND "window" = $2 AND partition = $3', *scope
    ):
        _fill(flat[row, block * BLOCK : (block + 1) * BLOCK], data)
    found = await tx.fetch_row('SELECT data FROM counts WHERE plan = $1 AND "window" = $2 AND partition = $3', *scope)
    if found is not None:
        _fill(counts, found[0])
    return WindowSum(counters, counts)


async def _contributors(tx: Transaction, number: int, window: int, partition: int) -> tuple[int, int]:
    """The number of clients, or cohorts, and the records that they contributed.

    Each belongs to one partition, so that the numbers of all partitions may be added up.
    """
    query = (
        "SELECT count(*), coalesce(sum(records), 0) FROM contributions "
        'WHERE plan = $1 AND partition = $2 AND "window" = $3'
    )
    row = await tx.fetch_row(query, number, partition, window)
    assert row is not None
    return int(row[0]), int(row[1])


def _fill(place: Counters, data: bytes) -> None:
    values = unpack(data)
    if values.shape != place.shape:
        raise StoreError(f"store: {len(values)} counters where {len(place)} belong: the store is damaged")
    place[:] = values


async def _write_sums(tx: Transaction, plan: int, partition: int, change: Checkpoint) -> None:
    await tx.execute_many(
        'INSERT INTO blocks (plan, "window", partition, class, block, data) VALUES ($1, $2, $3, $4, $5, $6) '
        'ON CONFLICT (plan, "window", partition, class, block) DO UPDATE SET data = excluded.data',
        (
            (plan, block.window, partition, block.class_index, block.number, pack(block.values))
            for block in change.blocks
        ),
    )
    await tx.execute_many(
        'INSERT INTO counts (plan, "window", partition, data) VALUES ($1, $2, $3, $4) '
        'ON CONFLICT (plan, "window", partition) DO UPDATE SET data = excluded.data',
        ((plan, window, partition, pack(counts)) for window, counts in change.counts.items()),
    )


async def _write_memory(tx: Transaction, plan: int, partition: int, change: Checkpoint) -> None:
    await tx.execute_many(
        "INSERT INTO streams (plan, partition, client_id, stream, last_window, data) VALUES ($1, $2, $3, $4, $5, $6) "
        "ON CONFLICT (plan, partition, client_id, stream) "
        "DO UPDATE SET last_window = excluded.last_window, data = excluded.data",
        (
            (plan, partition, key.client_id, key.stream.to_bytes(8, "big"), last_window, data)
            for key, (last_window, data) in change.streams.items()
        ),
    )
    await tx.execute_many(
        'INSERT INTO contributions (plan, partition, "window", client_id, records) VALUES ($1, $2, $3, $4, $5) '
        'ON CONFLICT (plan, partition, "window", client_id) DO UPDATE SET records = excluded.records',
        ((plan, partition, key.window, key.client_id, records) for key, records in change.contributions.items()),
    )
    await tx.execute_many(
        "INSERT INTO client_windows (plan, partition, client_id, windows) VALUES ($1, $2, $3, $4) "
        "ON CONFLICT (plan, partition, client_id) DO UPDATE SET windows = excluded.windows",
        ((plan, partition, client_id, count) for client_id, count in change.client_windows.items()),
    )
    await tx.execute_many(
        'INSERT INTO verdicts (plan, partition, position, kind, reason, client_id, stream, sequence, "window") '
        "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        ((plan, partition, *_verdict_row(verdict)) for verdict in change.verdicts),
    )


def _verdict_row(verdict: Verdict) -> Row:
    return (
        verdict.position,
        verdict.kind,
        verdict.reason,
        verdict.client_id,
        None if verdict.id is None else verdict.id.stream.to_bytes(8, "big"),
        None if verdict.id is None else verdict.id.sequence,
        verdict.window,
    )
