"""What one transaction of a spool holds of a silo's submissions: its spends, and what became of earlier ones."""

import sqlite3
from collections import Counter
from typing import Final

from edge_client.books import Charges
from edge_client.changes import Submit
from edge_client.errors import AccountError, NoPartError
from edge_client.spool_file import Rows
from edge_client.tallies import COUNTED, SUBMISSIONS_COUNTED, SUBMISSIONS_LOST
from edge_client.turn_tables import require_part, write_spend

_NAME_BYTES: Final = 8


def name_of(number: int) -> bytes:
    """How the table of spends names the delta with this number."""
    return number.to_bytes(_NAME_BYTES, "big")


def number_in(name: bytes) -> int:
    """The number of the delta with this name."""
    return int.from_bytes(name, "big")


class Submitted:
    """The submissions of one transaction.

    Args:
        rows: What a query finds in the file as it was before.
        charges: The spends of this transaction.
    """

    def __init__(self, rows: Rows, charges: Charges) -> None:
        self._find = rows
        self._charges = charges
        self._spends: dict[int, tuple[bytes, bytes, int]] = {}
        self._answers: list[tuple[str, bytes]] = []

    def holds(self, window: int) -> bool:
        """Whether this transaction submits for the window."""
        return window in self._spends

    def take(self, change: Submit, number: int) -> None:
        """Notes a submission that gets this number.

        Raises:
            NoPartError: This device does not take part in the window, or not any more, or its account does not pay.
        """
        require_part(lambda query, *values: self._find(query, values), change.window)
        if self.holds(change.window):
            raise NoPartError(change.window, "it is spent")
        try:
            spend = self._charges.charge(change.window)
        except AccountError as error:
            raise NoPartError(change.window, str(error)) from error
        self._spends[change.window] = (name_of(number), spend.to_bytes(), change.upto)

    def answered(self, number: int, answer: str) -> None:
        """Notes what became of the submission with this number."""
        self._answers.append((answer, name_of(number)))

    def write(self, database: sqlite3.Connection, counts: Counter[str]) -> None:
        """Writes what was noted; the caller holds a transaction."""
        for window, (name, spend, upto) in self._spends.items():
            write_spend(window, name, spend, upto, database, counts)
        query = "UPDATE rounds SET fate = ? WHERE round = ? AND fate IS NULL"
        for answer, name in self._answers:
            first = database.execute(query, (answer, name)).rowcount == 1
            counts[SUBMISSIONS_COUNTED if answer in COUNTED else SUBMISSIONS_LOST] += first
