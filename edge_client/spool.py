"""The spool: an SQLite file in which every delta is bound to its id before it is sent, and kept until it is answered.

What a commit returned survives power loss (WAL with ``synchronous=FULL``, read back before each transaction). One
client at a time has the file, under a lock that the operating system takes back when the process ends, however it ends.
A copy of the file must never be used beside it, or after it: it would give the same ids to other bytes.
"""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from edge_client import memo, spool_file
from edge_client.books import Books
from edge_client.changes import Bound, Change, Result
from edge_client.draft import Draft, Level, write_counts
from edge_client.errors import SpoolError
from edge_client.tallies import REPORTS
from hushsum.delta import read_header
from hushsum.entropy import Entropy
from hushsum.plan import Plan

T = TypeVar("T")
_HEADER_BYTES: Final = 64  # no delta's header is longer
_HELD: Final = f"SELECT coalesce(sum({spool_file.ROOM}), 0) FROM {{table}}"  # noqa: S608  the constant ROOM alone


class Spool:
    """An open spool. Its methods block; they may be called from any thread.

    Args:
        path: The file; it is made at its first use.
        client_id: Whose deltas these are. None: the one that the file names; at its first use, a random one.
        entropy: Of the stream number and of a random client id.
        bytes_max: Bytes that may be set aside for what is unanswered (:class:`edge_client.changes.Add`).

    Attributes:
        client_id: Whose deltas these are.

    Raises:
        SpoolInUseError: Somebody else has it open.
        SpoolError: It is damaged, newer, or belongs to another client.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, client_id: str | None, entropy: Entropy, bytes_max: int
    ) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._books: Books | None = None
        self._database = spool_file.open_locked(self._path)
        try:
            with self._using(), self._transaction():
                stream, self.client_id, next_sequence = spool_file.identify(self._database, client_id, entropy)
                held = self._number(_HELD.format(table="deltas"))
                self._tallies = Counter(dict(self._database.execute("SELECT name, count FROM tallies")))
        except BaseException:
            self._database.close()
            raise
        self._level = Level(stream, next_sequence, held, bytes_max)

    @property
    def stream(self) -> int:
        """The stream number of all its deltas, 0 to 2⁶⁴ − 1, drawn once."""
        return self._level.stream

    @property
    def tallies(self) -> Mapping[str, int]:
        """Counts by name over the spool's whole life; a new mapping after each change."""
        return self._tallies

    @property
    def plan(self) -> bytes | None:
        """The canonical bytes of the plan that the spool belongs to."""
        with self._using():
            row = self._database.execute("SELECT bytes FROM plan").fetchone()
        return None if row is None else bytes(row[0])

    @property
    def signature(self) -> bytes | None:
        """The signature that the plan came with; None where it had none."""
        with self._using():
            return spool_file.signature_in(self._database)

    @property
    def is_empty(self) -> bool:
        """Whether every delta has its answer."""
        return self._level.bytes == 0

    def keep_plan(self, plan: bytes, signature: bytes | None = None) -> None:
        """Binds the spool to a plan, once and for ever, and to the signature that it came with."""
        with self._using(), self._transaction():
            self._database.execute("INSERT INTO plan (only, bytes) VALUES (1, ?)", (plan,))
            if signature is not None:
                spool_file.keep_signature(self._database, signature)

    def keep_signature(self, signature: bytes) -> None:
        """Keeps a signature of the plan that the spool is bound to."""
        with self._using(), self._transaction():
            spool_file.keep_signature(self._database, signature)

    def keep_rounds(self) -> None:
        """For a plan whose device keeps books: takes the file to format 3, and counts what waits in it.

        To be called once, before the first commit.
        """
        self.change(lambda database, _: spool_file.make_room_for_rounds(database))

    def keep_books(self, plan: Plan) -> Books:
        """What this device has spent under its plan; after :meth:`keep_rounds`, and as that.

        Raises:
            SpoolError: A spend cannot be read.
        """
        with self._using():
            self._books = Books(plan, self._database.execute("SELECT window, spend FROM rounds ORDER BY window"))
        return self._books

    def keep_memo(self, entropy: Entropy) -> bytes:
        """For a plan that memoises: makes room for reports; the secret that their keys are made with. As above."""
        drawn = entropy.read(memo.KEY_BYTES)
        with self._using(), self._transaction():
            for table in memo.TABLES:
                self._database.execute(table)
            self._database.execute("INSERT OR IGNORE INTO memo_key (only, secret) VALUES (1, ?)", (drawn,))
            (secret,) = self._database.execute("SELECT secret FROM memo_key").fetchone()
        # Each report as if its record had been a new one: how many were is the records' to say.
        self._level = replace(self._level, memo=memo.REPORT_BYTES * self._tallies[REPORTS])
        return bytes(secret)

    def change(self, work: Callable[[sqlite3.Connection, Counter[str]], T], *, weigh: bool = True) -> T:
        """Makes one change to the tables of rounds (:mod:`edge_client.secure.rounds`); durable when it returns.

        Args:
            work: Gets the database inside a transaction, and the counts to which it adds what it has changed.
            weigh: Whether it may change how many bytes wait; to look takes a time that depends on what waits.

        Raises:
            SpoolError: The file cannot be written; nothing was changed.
        """
        counts: Counter[str] = Counter()
        with self._using():
            with self._transaction():
                result = work(self._database, counts)
                write_counts(self._database, counts)
                held = self._weight() if weigh else self._level.bytes
            self._level = replace(self._level, bytes=held)
            self._tallies = self._tallies + counts
        return result

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """What a query finds in the tables of rounds."""
        with self._using():
            return self._database.execute(query, values).fetchall()

    def unanswered(self) -> tuple[int, ...]:
        """The numbers of all deltas in the spool (``lanes``), ascending."""
        with self._using():
            rows = self._database.execute("SELECT sequence FROM deltas ORDER BY sequence").fetchall()
        return tuple(int(sequence) for (sequence,) in rows)

    def streams(self) -> dict[int, int]:
        """The stream of each delta in the spool, by its number: of batches of reports, which have one each."""
        with self._using():
            rows = self._database.execute("SELECT sequence, substr(bytes, 1, ?) FROM deltas", (_HEADER_BYTES,))
            return {int(number): read_header(bytes(head)).id.stream for number, head in rows}

    def load(self, first: int, limit: int, bytes_max: int) -> tuple[Bound, ...]:
        """At most so many deltas from a number on, ascending; no more once they have so many bytes."""
        query = "SELECT sequence, bytes FROM deltas WHERE sequence >= ? ORDER BY sequence LIMIT ?"
        loaded: list[Bound] = []
        with self._using():
            for sequence, data in self._database.execute(query, (first, limit)):
                loaded.append(Bound(sequence, bytes(data)))
                bytes_max -= len(data)
                if bytes_max <= 0:
                    break
        return tuple(loaded)

    def commit(self, changes: Sequence[Change]) -> list[Result]:
        """Makes all changes in one transaction; durable when it returns.

        Returns:
            For each change what was bound (nothing for a removal), or the error that refused it alone: it has then
            changed nothing.

        Raises:
            SpoolError: The file cannot be written; nothing was changed.
        """
        with self._using():
            draft = Draft(self._level, self._database.execute, self._books)
            results = [draft.take(change) for change in changes]
            with self._transaction():
                draft.write(self._database)
            draft.note_in()
            self._level = draft.level
            self._tallies = self._tallies + draft.counts
        return results

    def erase_answered(self) -> bool:
        """Folds the write-ahead log, where answered deltas still are, into the file, and empties it.

        Returns:
            Whether that was done; it fails on a full disk, and may be tried again.
        """
        with self._lock:
            return self._fold_log()

    def close(self) -> None:
        """Folds the write-ahead log into the file, erases it, and gives the file back."""
        with self._lock:
            self._fold_log()  # a full disk: the log then stays beside the file, and the next opening reads it
            self._database.close()

    def _fold_log(self) -> bool:
        with suppress(sqlite3.Error):
            busy, _, _ = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
        return False

    def _weight(self) -> int:
        return self._number(_HELD.format(table="deltas")) + self._number(_HELD.format(table="pending"))

    def _number(self, query: str, *values: object) -> int:
        row = self._database.execute(query, values).fetchone()
        return 0 if row is None else int(row[0])

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One caller at a time; SQLite's errors are told as the spool's."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise SpoolError(f"spool {self._path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        spool_file.require_durable(self._database, self._path)
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
