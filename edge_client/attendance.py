"""In which windows a client takes part, as its spool knows it: the presences of one transaction.

A client under public participation binds one presence delta a window while it runs there. The window's records are
taken only while that presence *stands*: until the service has answered it with anything but that it was counted.

What a transaction does for presences takes no more steps for a spool that is full of records, but to take the window's
own records along.
"""

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final

from edge_client.lanes import presence_number
from edge_client.spool_file import ROOM
from edge_client.tallies import answer_name
from hushsum.delta import read_header
from hushsum.errors import Reason
from hushsum_proto.answers import Status

#: Rows that a query finds. Any: the values of a row are those of its query.
Rows = Callable[[str, tuple[object, ...]], Iterable[Any]]

#: Made at the first start under a plan with public participation; other spools never have it.
TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS presences"
    " (sequence INTEGER PRIMARY KEY, window INTEGER NOT NULL, state INTEGER NOT NULL)"
)
INDEX: Final = "CREATE INDEX IF NOT EXISTS presences_by_window ON presences (window)"

# Stored numbers, never reused; 0 stands for no presence.
_STANDS: Final = 1
_OVER: Final = 2
_EARLY: Final = 3  # by the service's clock; another one is bound when this device comes by again

_COUNTED: Final = frozenset({Status.ACKNOWLEDGED.value, Status.COUNTED.value})
_TOO_EARLY: Final = answer_name(Status.REFUSED, Reason.WINDOW_IN_FUTURE)
#: No delta's header is longer.
HEADER_BYTES: Final = 64
_WINDOWS_KEPT: Final = 1024  # before those of now: a clock that is set back finds where this client has been


class Holdings:
    """The numbers of deltas of records by window, as ranges; a number that has left the spool stays in its range."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[range]] = {}
        self._latest: int | None = None

    @classmethod
    def found(cls, rows: Rows) -> "Holdings":
        """Those of all deltas in the file."""
        holdings = cls()
        query = "SELECT sequence, substr(bytes, 1, ?) FROM deltas WHERE sequence >= 0 ORDER BY sequence"
        for sequence, head in rows(query, (HEADER_BYTES,)):
            holdings.note(read_header(bytes(head)).window, range(sequence, sequence + 1))
        return holdings

    def note(self, window: int, numbers: range) -> None:
        """Deltas of a window, numbered above all earlier ones."""
        ranges = self._ranges.setdefault(window, [])
        if ranges and self._latest == window:  # no other window's are in between
            ranges[-1] = range(ranges[-1].start, numbers.stop)
        else:
            ranges.append(numbers)
        self._latest = window

    def of(self, window: int) -> list[range]:
        """Where the window's deltas are, as far as they are in the spool."""
        return self._ranges.get(window, [])

    def forget(self, windows: Iterable[int]) -> None:
        """Nobody asks for these windows any more."""
        for window in windows:
            self._ranges.pop(window, None)


class Attendance:
    """The presences of a spool while one transaction is put together.

    Args:
        rows: What a query finds in the file as it was before.
        holdings: Where the deltas of records are in it.

    Attributes:
        left: Windows of long ago whose presences are answered, and now forgotten.
    """

    def __init__(self, rows: Rows, holdings: Holdings) -> None:
        self._rows = rows
        self._holdings = holdings
        self.left: list[int] = []
        self._states: dict[int, int] = {}  # by window: of its latest presence, where this transaction changes it
        self._taken: list[tuple[int, int]] = []
        self._answered: list[tuple[int, int]] = []

    def stands(self, window: int) -> bool:
        """Whether this client takes part in the window."""
        return self._state(window) == _STANDS

    def take(self, windows: range) -> list[tuple[int, int]]:
        """(number, window) of a new presence for each window that needs one."""
        taken = []
        for window in windows:
            if self._state(window) in (0, _EARLY):
                sequence = self._next()
                self._taken.append((sequence, window))
                self._states[window] = _STANDS
                taken.append((presence_number(sequence), window))
        if taken:
            self._leave(windows.start - _WINDOWS_KEPT)
        return taken

    def answered(self, number: int, answer: str) -> list[tuple[int, int]]:
        """Notes the answer of a presence; (sequence, bytes set aside) of each delta of records that it takes along."""
        if answer in _COUNTED:
            return []
        sequence = -1 - number
        state = _EARLY if answer == _TOO_EARLY else _OVER
        self._answered.append((state, sequence))
        ((window,),) = self._rows("SELECT window FROM presences WHERE sequence = ?", (sequence,))
        self._states[window] = state
        return self._records_of(window)

    def write(self, database: sqlite3.Connection) -> None:
        """Writes what was noted; the caller holds a transaction."""
        if self.left:  # never the highest number, lest it be given again: windows are left as others are taken
            database.executemany("DELETE FROM presences WHERE window = ?", [(window,) for window in self.left])
        if self._taken:
            rows = [(sequence, window, _STANDS) for sequence, window in self._taken]
            database.executemany("INSERT INTO presences (sequence, window, state) VALUES (?, ?, ?)", rows)
        if self._answered:
            database.executemany("UPDATE presences SET state = ? WHERE sequence = ?", self._answered)

    def _state(self, window: int) -> int:
        if window not in self._states:
            query = "SELECT state FROM presences WHERE window = ? ORDER BY sequence DESC LIMIT 1"
            self._states[window] = next((state for (state,) in self._rows(query, (window,))), 0)
        return self._states[window]

    def _next(self) -> int:
        if self._taken:
            return self._taken[-1][0] + 1
        ((highest,),) = self._rows("SELECT coalesce(max(sequence), -1) FROM presences", ())
        return int(highest) + 1

    def _leave(self, floor: int) -> None:
        """Notes the windows below this one in which every presence is answered."""
        query = (
            "SELECT DISTINCT window FROM presences AS old WHERE window < ? AND NOT EXISTS (SELECT 1 FROM presences JOIN"
            " deltas ON deltas.sequence = -1 - presences.sequence WHERE presences.window = old.window)"
        )
        for (window,) in self._rows(query, (floor,)):
            self.left.append(window)
            self._states[window] = 0

    def _records_of(self, window: int) -> list[tuple[int, int]]:
        """Those in the file: what this transaction adds comes after its removals, and finds the new state."""
        query = f"SELECT sequence, {ROOM} FROM deltas WHERE sequence >= ? AND sequence < ?"  # noqa: S608  the constant ROOM alone
        ranges = self._holdings.of(window)
        return [row for numbers in ranges for row in self._rows(query, (numbers.start, numbers.stop))]
