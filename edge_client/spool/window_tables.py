"""What is read and written in a spool's tables of windows, each inside a transaction of its caller's."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from edge_client.errors import NoPartError
from edge_client.spool.changes import OVER, SPENT, TAKES_PART, UNPAID
from edge_client.stats import RECORDS_UNSPENT, SUBMISSIONS_COUNTED, SUBMISSIONS_LOST, SUBMISSIONS_SPENT
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum_proto.rounds import RoundResult

Rows = Callable[..., Iterable[tuple[object, ...]]]

_CLOSED: Final = "window NOT IN (SELECT window FROM attempts WHERE state = ?)"
#: A query that finds something as long as records of windows that are spent or over wait, and its value.
CLOSED_WAITS: Final = (f"SELECT 1 FROM pending WHERE {_CLOSED} LIMIT 1", TAKES_PART)  # noqa: S608  the constant above alone


def write_spend(
    window: int, name: bytes, spend: bytes, upto: int, database: sqlite3.Connection, counts: Counter[str]
) -> None:
    """Writes a spend, and closes its window; what waits stays, for to erase it takes a time that depends on it.

    Args:
        window: Its index.
        name: Of the round that takes the vector, or of the delta that a silo sends.
        spend: What is charged.
        upto: What is submitted of what waits: everything that came before.
        database: In a transaction.
        counts: To which it adds.
    """
    require_part(rows_of(database), window)
    database.execute(
        "INSERT INTO rounds (window, round, fate, spend, upto) VALUES (?, ?, NULL, ?, ?)",
        (window, name, spend, upto),
    )
    database.execute("UPDATE attempts SET state = ? WHERE window = ?", (SPENT, window))
    counts[SUBMISSIONS_SPENT] += 1


def require_part(rows: Rows, window: int, attempts: int = 0) -> int:
    """How many attempts a window has had, where it may be spent and has at least so many left."""
    row = next(iter(rows("SELECT state, count FROM attempts WHERE window = ?", window)), None)
    why = {
        SPENT: "it is spent: what it submits was sent, or was about to be",
        OVER: "it is over",
        UNPAID: "this device's account does not pay for it",
    }
    state, count = (0, 0) if row is None else map(integer, row)
    if any(rows("SELECT 1 FROM rounds WHERE window = ?", window)):
        state = SPENT
    if state != TAKES_PART:
        raise NoPartError(window, why.get(state, "this client did not run in it"))
    if count + attempts > ATTEMPTS_MAX:
        raise NoPartError(window, f"{count} rounds of it have failed, and no window may have more")
    return count


def rows_of(database: sqlite3.Connection) -> Rows:
    """What a query finds in a database."""
    return lambda query, *values: database.execute(query, values)


def erase_closed(database: sqlite3.Connection, counts: Counter[str]) -> None:
    """Erases what waits for windows that are spent or over, and counts the records of it that were not submitted."""
    query = (
        "SELECT coalesce(sum(records), 0) FROM pending LEFT JOIN rounds USING (window)"  # noqa: S608  the constant above alone
        f" WHERE {_CLOSED} AND (upto IS NULL OR number > upto)"
    )
    ((records,),) = database.execute(query, (TAKES_PART,))
    counts[RECORDS_UNSPENT] += records
    database.execute(f"DELETE FROM pending WHERE {_CLOSED}", (TAKES_PART,))  # noqa: S608  the constant above alone


def integer(value: object) -> int:
    """A number from a table."""
    assert isinstance(value, int)
    return value


def bytes_of(value: object) -> bytes:
    """Bytes from a table."""
    assert isinstance(value, bytes)
    return value


def count_attempt(window: int, database: sqlite3.Connection, _: Counter[str]) -> int:
    """Counts one more attempt, and returns how many there were."""
    count = require_part(rows_of(database), window, attempts=1)
    database.execute("UPDATE attempts SET count = count + 1 WHERE window = ?", (window,))
    return count + 1


def write_fate(window: int, result: RoundResult, database: sqlite3.Connection, counts: Counter[str]) -> bool:
    """Writes what became of a submission, and returns whether this is the first word on it."""
    query = "UPDATE rounds SET fate = ? WHERE window = ? AND fate IS NULL"
    first = database.execute(query, (result.value, window)).rowcount == 1
    counts[SUBMISSIONS_COUNTED if result is RoundResult.COUNTED else SUBMISSIONS_LOST] += first
    return first


def draw_key(seed: bytes, database: sqlite3.Connection, _: Counter[str]) -> None:
    """Keeps a key, where there is none yet."""
    database.execute("INSERT OR IGNORE INTO identity_key (only, seed) VALUES (1, ?)", (seed,))
