"""Looks into a service's files from another process, which may be using them: for its operator's tests and demos.

Everything here is exact, and none of it private.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aggregator.fold.state import Verdict
from aggregator.log.sqlite import LOG_FILE
from aggregator.sqlite import DatabaseKind
from aggregator.store import checkpoints as store_checkpoints
from aggregator.store.schema import STORE_FILE
from aggregator.store.transaction import SqliteTransaction, run_to_end
from hushsum.plan import Plan
from hushsum.sketch import Sketch

T = TypeVar("T")


def read_sealed(path: Path, plan: Plan, window: int) -> Sketch | None:
    """The exact counters of a sealed window that is not forgotten yet; None until it is sealed.

    Args:
        path: The store's file.
        plan: Whose.
        window: Which.

    Raises:
        StoreError: No store, a newer format, an unknown plan, or a window that is forgotten.
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
    """Entries ever appended to a log, seals among them.

    Raises:
        LogError: No log, or a newer format.
    """
    query = "SELECT coalesce(sum(position), 0) FROM ends"
    return _look(LOG_FILE, path, lambda db: int(db.execute(query).fetchone()[0]))


def _on(connection: sqlite3.Connection) -> SqliteTransaction:
    return SqliteTransaction(connection, lambda: 0)  # nothing that is only looked at needs the time


def _look(kind: DatabaseKind, path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    connection = kind.open_reading(path)
    try:
        connection.execute("BEGIN")  # one moment for all that is read
        return work(connection)
    except sqlite3.Error as error:
        raise kind.error(f"{kind.what} {path}: {error}") from error
    finally:
        connection.close()
