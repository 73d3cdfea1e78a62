"""What secure sums alone read and write in a spool's tables of turns, each inside a transaction of its caller's."""

import sqlite3
from collections import Counter

from edge_client.tallies import SUBMISSIONS_COUNTED, SUBMISSIONS_LOST
from edge_client.turn_tables import require_part, rows_of
from hushsum_proto.rounds import Fate


def count_attempt(window: int, database: sqlite3.Connection, _: Counter[str]) -> int:
    """Counts one more attempt, and returns how many there were."""
    count = require_part(rows_of(database), window, attempts=1)
    database.execute("UPDATE attempts SET count = count + 1 WHERE window = ?", (window,))
    return count + 1


def write_fate(window: int, fate: Fate, database: sqlite3.Connection, counts: Counter[str]) -> bool:
    """Writes what became of a submission, and returns whether this is the first word on it."""
    query = "UPDATE rounds SET fate = ? WHERE window = ? AND fate IS NULL"
    first = database.execute(query, (fate.value, window)).rowcount == 1
    counts[SUBMISSIONS_COUNTED if fate is Fate.COUNTED else SUBMISSIONS_LOST] += first
    return first


def draw_key(seed: bytes, database: sqlite3.Connection, _: Counter[str]) -> None:
    """Keeps a key, where there is none yet."""
    database.execute("INSERT OR IGNORE INTO identity_key (only, seed) VALUES (1, ?)", (seed,))
