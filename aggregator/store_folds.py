"""The folds' part of the store: checkpoints, and the sums that they leave. Functions on a connection."""

import sqlite3
from collections.abc import Iterator

import numpy as np

from aggregator.errors import StaleCheckpointError, StoreError
from aggregator.fold_state import BLOCK, Checkpoint, Contribution, Counters, FoldState, StreamKey, WindowSum
from aggregator.records import SealedWindow
from aggregator.store_schema import pack, unpack
from aggregator.store_windows import mark_sealed, plan_number
from aggregator.verdicts import Verdict, VerdictKind
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum.sketch import Sketch


def load(db: sqlite3.Connection, plan: Plan, partition: int) -> FoldState | None:
    """The state of one partition's fold; None where the plan or the partition is not registered."""
    row = db.execute(
        "SELECT plan, position, closed_through, forgotten_through FROM partitions "
        "WHERE plan = (SELECT number FROM plans WHERE id = ?) AND partition = ?",
        (plan.id, partition),
    ).fetchone()
    if row is None:
        return None
    number, position, closed, forgotten = row
    scope = (number, partition)
    open_windows = db.execute(
        "SELECT window FROM counts WHERE plan = ? AND partition = ? AND window > ?", (*scope, closed)
    ).fetchall()
    streams = db.execute("SELECT client_id, stream, data FROM streams WHERE plan = ? AND partition = ?", scope)
    contributions = db.execute(
        "SELECT window, client_id, records FROM contributions WHERE plan = ? AND partition = ?", scope
    )
    return FoldState(
        position=position,
        closed_through=closed,
        forgotten_through=forgotten,
        windows={window: _sum(db, plan, number, window, partition) for (window,) in open_windows},
        streams={StreamKey(client, int.from_bytes(stream, "big")): data for client, stream, data in streams},
        contributions={Contribution(window, client): records for window, client, records in contributions},
    )


def checkpoint(db: sqlite3.Connection, plan_id: bytes, partition: int, change: Checkpoint) -> None:
    """Makes what is stored what the fold is."""
    plan = plan_number(db, plan_id)
    row = db.execute(
        "SELECT position, closed_through, forgotten_through FROM partitions WHERE plan = ? AND partition = ?",
        (plan, partition),
    ).fetchone()
    if row is None:
        raise StoreError(f"store: partition {partition} does not exist")
    if change.position < row[0] or change.closed_through < row[1]:
        raise StaleCheckpointError(
            f"partition {partition}: a checkpoint at position {change.position}, but {row[0]} is stored: "
            "another worker owns this partition"
        )
    sealed = [block.window for block in change.blocks if block.window <= row[1]]
    assert not sealed, f"counters of window {sealed[0]} would change after its seal"
    _write_sums(db, plan, partition, change)
    _write_memory(db, plan, partition, change)
    if change.forgotten_through > row[2]:
        scope = (plan, partition, change.forgotten_through)
        db.execute("DELETE FROM streams WHERE plan = ? AND partition = ? AND last_window <= ?", scope)
        db.execute("DELETE FROM contributions WHERE plan = ? AND partition = ? AND window <= ?", scope)
    db.execute(
        "UPDATE partitions SET position = ?, closed_through = ?, forgotten_through = ? "
        "WHERE plan = ? AND partition = ?",
        (change.position, change.closed_through, change.forgotten_through, plan, partition),
    )
    mark_sealed(db, plan)


def sealed_window(db: sqlite3.Connection, plan: Plan, window: int) -> SealedWindow | None:
    """The sum of a window over all partitions and its number of clients, once it is sealed in every one."""
    number = plan_number(db, plan.id)
    partitions = db.execute(
        "SELECT partition, closed_through, forgotten_through FROM partitions WHERE plan = ?", (number,)
    ).fetchall()
    if any(window <= forgotten for _, _, forgotten in partitions):
        raise StoreError(f"store: the counters of window {window} are forgotten")
    if any(window > closed for _, closed, _ in partitions):
        return None
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.counters_shape[0], np.int64)
    clients = 0
    for partition, _, _ in partitions:
        part = _sum(db, plan, number, window, partition)
        counters += part.counters
        counts += part.counts
        clients += _clients(db, number, window, partition)
    return SealedWindow(Sketch.of_counters(plan, counters, counts), clients)


def forget(db: sqlite3.Connection, plan_id: bytes, window: int) -> None:
    """Erases the counters of windows up to this one.

    Raises:
        StoreError: One of them has no published outcome yet.
    """
    plan = plan_number(db, plan_id)
    waiting = db.execute(
        "SELECT window FROM windows WHERE plan = ? AND window <= ? AND state IN ('open', 'closing', 'sealed') "
        "UNION ALL SELECT window FROM outcomes WHERE plan = ? AND window <= ? AND NOT published LIMIT 1",
        (plan, window, plan, window),
    ).fetchone()
    if waiting is not None:
        raise StoreError(f"store: window {waiting[0]} cannot be forgotten, its outcome is not published")
    db.execute("DELETE FROM blocks WHERE plan = ? AND window <= ?", (plan, window))
    db.execute("DELETE FROM counts WHERE plan = ? AND window <= ?", (plan, window))


def verdicts(db: sqlite3.Connection, plan_id: bytes) -> Iterator[tuple[int, Verdict]]:
    """(partition, verdict) of every delta whose verdict was retained."""
    rows = db.execute(
        "SELECT partition, kind, reason, client_id, stream, sequence, window, position FROM verdicts "
        "WHERE plan = ? ORDER BY partition, position",
        (plan_number(db, plan_id),),
    )
    for partition, kind, reason, client_id, stream, sequence, window, position in rows:
        id = None if stream is None else DeltaId(int.from_bytes(stream, "big"), sequence)
        cause = None if reason is None else Reason(reason)
        yield partition, Verdict(VerdictKind(kind), cause, id, client_id, window, position)


def _sum(db: sqlite3.Connection, plan: Plan, number: int, window: int, partition: int) -> WindowSum:
    counters = np.zeros(plan.counters_shape, np.int64)
    counts = np.zeros(plan.counters_shape[0], np.int64)
    flat = counters.reshape(len(counts), -1)
    scope = (number, window, partition)
    for row, block, data in db.execute(
        "SELECT class, block, data FROM blocks WHERE plan = ? AND window = ? AND partition = ?", scope
    ):
        place = flat[row, block * BLOCK : (block + 1) * BLOCK]
        _fill(place, data)
    found = db.execute("SELECT data FROM counts WHERE plan = ? AND window = ? AND partition = ?", scope).fetchone()
    if found is not None:
        _fill(counts, found[0])
    return WindowSum(counters, counts)


def _clients(db: sqlite3.Connection, number: int, window: int, partition: int) -> int:
    """A client belongs to one partition, so that those of all partitions may be added up."""
    query = "SELECT count(*) FROM contributions WHERE plan = ? AND partition = ? AND window = ?"
    return int(db.execute(query, (number, partition, window)).fetchone()[0])


def _fill(place: Counters, data: bytes) -> None:
    values = unpack(data)
    if values.shape != place.shape:
        raise StoreError(f"store: {len(values)} counters where {len(place)} belong: it is damaged")
    place[:] = values


def _write_sums(db: sqlite3.Connection, plan: int, partition: int, change: Checkpoint) -> None:
    db.executemany(
        "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (plan, window, partition, class, block) DO UPDATE SET data = excluded.data",
        (
            (plan, block.window, partition, block.class_index, block.number, pack(block.values))
            for block in change.blocks
        ),
    )
    db.executemany(
        "INSERT INTO counts VALUES (?, ?, ?, ?) "
        "ON CONFLICT (plan, window, partition) DO UPDATE SET data = excluded.data",
        [(plan, window, partition, pack(counts)) for window, counts in change.counts.items()],
    )


def _write_memory(db: sqlite3.Connection, plan: int, partition: int, change: Checkpoint) -> None:
    db.executemany(
        "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (plan, partition, client_id, stream) "
        "DO UPDATE SET last_window = excluded.last_window, data = excluded.data",
        [
            (plan, partition, key.client_id, key.stream.to_bytes(8, "big"), last_window, data)
            for key, (last_window, data) in change.streams.items()
        ],
    )
    db.executemany(
        "INSERT INTO contributions VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (plan, partition, window, client_id) DO UPDATE SET records = excluded.records",
        [(plan, partition, key.window, key.client_id, records) for key, records in change.contributions.items()],
    )
    db.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                plan,
                partition,
                verdict.position,
                verdict.kind,
                verdict.reason,
                verdict.client_id,
                None if verdict.id is None else verdict.id.stream.to_bytes(8, "big"),
                None if verdict.id is None else verdict.id.sequence,
                verdict.window,
            )
            for verdict in change.verdicts
        ],
    )
