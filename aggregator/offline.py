"""Reads a service's files from another process, even while the service uses them: for operators' tests and demos.

All values are exact, and nothing here is private.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aggregator.fold.verdicts import Verdict
from aggregator.log.sqlite import LOG_FILE
from aggregator.sqlite import DatabaseKind
from aggregator.store import checkpoints as store_checkpoints
from aggregator.store.schema import STORE_FILE
from aggregator.store.transaction import SqliteTransaction, run_to_end
from hushsum.plan import Plan
from hushsum.sketch import Sketch

T = TypeVar("T")


def read_sealed(path: Path, plan: Plan, window: int) -> Sketch | None:
    """The exact counters of a sealed window in a store's file that is not erased yet; None until it is sealed.

    Raises:
        StoreError: No store, a newer format, an unknown plan, or an erased window.
    """
    sealed = _look(STORE_FILE, path, lambda db: run_to_end(store_checkpoints.sealed_window(_on(db), plan, window)))
    return None if sealed is None else sealed.sketch


def read_verdicts(path: Path, plan: Plan) -> list[tuple[int, Verdict]]:
    """(partition, verdict) of every delta that was folded and checkpointed, where the service retains verdicts.

    Raises:
        StoreError: No store, a newer format, or an unknown plan.
    """
    return _look(STORE_FILE, path, lambda db: run_to_end(store_checkpoints.verdicts(_on(db), plan.id)))


def log_size(path: Path) -> int:
    """The number of entries ever appended to a log, seals included.

    Raises:
        LogError: No log, or a newer format.
    """
    query = "SELECT coalesce(sum(position), 0) FROM ends"
    return _look(LOG_FILE, path, lambda db: int(db.execute(query).fetchone()[0]))


def _on(connection: sqlite3.Connection) -> SqliteTransaction:
    return SqliteTransaction(connection, lambda: 0)  # no read needs the time


def _look(kind: DatabaseKind, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    connection = kind.open_reading(path)
    try:
        connection.execute("BEGIN")  # all reads see one state
        return work(connection)
    except sqlite3.Error as error:
        raise kind.error(f"{kind.what} {path}: {error}") from error
    finally:
        connection.close()
