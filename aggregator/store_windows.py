"""The windows' part of the store: what has come of each. Functions on a connection, inside its transaction."""

import sqlite3

from aggregator.errors import StoreError, WindowOrderError
from aggregator.windows import MOVES, WindowState


def plan_number(db: sqlite3.Connection, plan_id: bytes) -> int:
    """The number under which a plan's rows are kept.

    Raises:
        StoreError: It is not registered here.
    """
    row = db.execute("SELECT number FROM plans WHERE id = ?", (plan_id,)).fetchone()
    if row is None:
        raise StoreError(f"store: plan {plan_id.hex()[:12]} is not registered here")
    return int(row[0])


def first_window(db: sqlite3.Connection, plan_id: bytes) -> int:
    """The window in which the plan was registered."""
    row = db.execute("SELECT first_window FROM plans WHERE number = ?", (plan_number(db, plan_id),)).fetchone()
    return int(row[0])


def open_windows(db: sqlite3.Connection, plan_id: bytes, first: int, last: int) -> None:
    """Adds the windows that are not there; the others stay as they are."""
    plan = plan_number(db, plan_id)
    start = max(first, first_window(db, plan_id))
    db.executemany(
        "INSERT OR IGNORE INTO windows VALUES (?, ?, ?)",
        [(plan, window, WindowState.OPEN) for window in range(start, last + 1)],
    )


def states(db: sqlite3.Connection, plan_id: bytes, first: int, last: int) -> dict[int, str]:
    """State by window from ``first`` to ``last``."""
    rows = db.execute(
        "SELECT window, state FROM windows WHERE plan = (SELECT number FROM plans WHERE id = ?) "
        "AND window BETWEEN ? AND ? ORDER BY window",
        (plan_id, first, last),
    )
    return dict(rows.fetchall())


def unfinished(db: sqlite3.Connection, plan_id: bytes) -> dict[int, str]:
    """State by window of those that wait for their outcome."""
    plan = plan_number(db, plan_id)
    rows = db.execute(
        "SELECT window, state FROM windows WHERE plan = ? AND state IN ('open', 'closing', 'sealed') ORDER BY window",
        (plan,),
    )
    return dict(rows.fetchall())


def mark_closing(db: sqlite3.Connection, plan_id: bytes, window: int) -> None:
    """Moves a window from open to closing, and every older one that was opened by nobody to skipped."""
    plan = plan_number(db, plan_id)
    state = _state(db, plan, window)
    if state is None or state is WindowState.SKIPPED:
        raise WindowOrderError(f"window {window} cannot be sealed: no gateway has had it open")
    if state is not WindowState.OPEN:
        return
    older = db.execute(
        "SELECT window, state FROM windows WHERE plan = ? AND window < ? AND state IN ('open', 'closing') LIMIT 1",
        (plan, window),
    ).fetchone()
    if older is not None:
        raise WindowOrderError(f"window {window} cannot be sealed yet: window {older[0]} is {older[1]}")
    # Below an older window that was closed nothing is missing: this was done there before.
    row = db.execute("SELECT max(window) FROM windows WHERE plan = ? AND window < ?", (plan, window)).fetchone()
    start = first_window(db, plan_id) if row[0] is None else row[0] + 1
    db.executemany(
        "INSERT OR IGNORE INTO windows VALUES (?, ?, ?)",
        [(plan, absent, WindowState.SKIPPED) for absent in range(start, window)],
    )
    move(db, plan, window, WindowState.CLOSING)


def mark_sealed(db: sqlite3.Connection, plan: int) -> None:
    """Moves on the windows that every partition has closed."""
    db.execute(
        "UPDATE windows SET state = 'sealed' WHERE plan = ? AND state = 'closing' "
        "AND window <= (SELECT min(closed_through) FROM partitions WHERE plan = ?)",
        (plan, plan),
    )


def check_next_outcome(db: sqlite3.Connection, plan: int, window: int) -> None:
    """Allows an outcome for the oldest window that has none, once it is sealed.

    Raises:
        WindowOrderError: It is another, or not sealed.
    """
    oldest = db.execute(
        "SELECT window, state FROM windows WHERE plan = ? AND state IN ('open', 'closing', 'sealed') "
        "ORDER BY window LIMIT 1",
        (plan,),
    ).fetchone()
    if oldest != (window, WindowState.SEALED):
        came = "no window waits for one" if oldest is None else f"window {oldest[0]} is next, and is {oldest[1]}"
        raise WindowOrderError(f"window {window} cannot have its outcome now: {came}")


def move(db: sqlite3.Connection, plan: int, window: int, to: WindowState) -> None:
    """Moves a window on, by :data:`aggregator.windows.MOVES` alone."""
    state = _state(db, plan, window)
    assert to in MOVES[state], f"window {window} cannot go from {state} to {to}"
    db.execute("UPDATE windows SET state = ? WHERE plan = ? AND window = ?", (to, plan, window))


def _state(db: sqlite3.Connection, plan: int, window: int) -> WindowState | None:
    row = db.execute("SELECT state FROM windows WHERE plan = ? AND window = ?", (plan, window)).fetchone()
    return None if row is None else WindowState(row[0])
