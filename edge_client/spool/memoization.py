"""Memoised reports: the same record sends the same report in every window, for as long as the plan lives.

A report is kept whole (its row and its output) under a keyed digest of its record; the key is the spool's own. Where
one record comes several times in a window, its first, second and each further coming there has a report of its own:
else two equal reports of a window would tell that their records are equal, which no ratio of likelihoods bounds.

Its promise beyond one window: an observer of many windows learns no more of a record that stays than from one report.
That a record stays, or goes, is visible; and one that comes back is recognised.

How often each record came is kept for the 1,024 newest windows that were added to. What comes for an older one is
refused: its numbers of comings would start again, and its reports be sent a second time in one window.

A reader of the spool's file has the keyed digests of its records and their key, and can try records until one fits.
"""

import hmac
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_client.errors import EventTimeError
from edge_client.spool.changes import DrawnReports, PackedDelta, Query
from hushsum.collection import label_list
from hushsum.families import Records, vectors
from hushsum.families.sets import Sets
from hushsum.labels import MEMO
from hushsum.plan import Plan


def rows_bytes(accepted: Records) -> Iterator[bytes]:
    """Of each accepted record, as it is hashed."""
    if isinstance(accepted, Sets):
        for start, stop in zip(accepted.starts[:-1], accepted.starts[1:], strict=True):
            yield accepted.ids[start:stop].tobytes()
        return
    rows = accepted + np.float32(0)  # -0 is hashed as 0 is
    for row in rows:
        yield row.tobytes()


def own_bytes(records: Any, n: int) -> Callable[[int], bytes]:
    """A function that gives the bytes of a record, usable or not, by its number below ``n``."""
    starts = getattr(records, "indptr", None)
    if starts is not None:
        return lambda number: _bytes(records.indices[starts[number] : starts[number + 1]])
    typed = vectors.typed(records)
    rows = vectors.rows_of(typed)
    items = typed if rows is None else rows
    try:
        several = len(items) == n
    except TypeError:
        several = False
    return lambda number: _bytes(items[number] if several else records)


def _bytes(item: Any) -> bytes:
    """The bytes of any object. One that cannot be read as numbers is identified by its type alone."""
    try:
        array = np.asarray(item)
    except Exception:  # noqa: BLE001 -- an unusable record may raise anything when it is looked at
        return type(item).__name__.encode()
    if array.dtype == np.object_:
        return type(item).__name__.encode()
    return array.dtype.str.encode() + repr(array.shape).encode() + array.tobytes()


KEY_BYTES: Final = 32
#: Made at the first start under a plan that memoises; other spools never have them.
TABLES: Final = (
    (
        "CREATE TABLE IF NOT EXISTS memo (record BLOB NOT NULL, coming INTEGER NOT NULL, report INTEGER NOT NULL,"
        " PRIMARY KEY (record, coming)) WITHOUT ROWID"
    ),
    (
        "CREATE TABLE IF NOT EXISTS memo_windows (window INTEGER NOT NULL, record BLOB NOT NULL,"
        " comings INTEGER NOT NULL, PRIMARY KEY (window, record)) WITHOUT ROWID"
    ),
    # The windows of that table, which has too many rows to be asked for them.
    "CREATE TABLE IF NOT EXISTS memo_kept (window INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS memo_key (only INTEGER PRIMARY KEY CHECK (only = 1), secret BLOB NOT NULL)",
)
#: What one memoised report counts for in a spool's limit on bytes.
REPORT_BYTES: Final = 128
#: Windows in which it is known how often a record came: the newest of those that were added to.
WINDOWS_KEPT: Final = 1024


def keys_of(plan: Plan, records: Any, labels: object, secret: bytes) -> tuple[bytes, ...]:
    """32 bytes for each of n records, in their order: equal for records that are hashed alike and have equal labels.

    An unusable record has a key of its own bytes, so that it comes back as others do.

    Raises:
        RecordError: The array cannot be used at all.
    """
    accepted, kept = plan.family.accept(records)
    named = None if labels is None else [each if isinstance(each, str) else None for each in label_list(labels)]
    classes = plan.collection.class_indices(named, len(kept))
    hashed = iter(rows_bytes(accepted))
    raw = own_bytes(records, len(kept))
    keys = []
    for number, usable in enumerate(kept):
        content = next(hashed) if usable else b""
        if usable and classes[number] >= 0:
            content = b"\1" + int(classes[number]).to_bytes(8, "big") + content
        else:
            content = b"\0" + _text(None if named is None else named[number]) + b"\0" + (content or raw(number))
        keys.append(hmac.digest(secret, MEMO + content, "sha256"))
    return tuple(keys)


def _text(label: str | None) -> bytes:
    return b"" if label is None else label.encode(errors="surrogatepass")


@dataclass(frozen=True)
class RecalledReports:
    """The reports of one add, some of them known.

    Attributes:
        deltas: Batches of them.
        fresh: (record, coming, report) of those to keep.
        comings: How often each record has now come in the window.
    """

    deltas: tuple[PackedDelta, ...]
    fresh: tuple[tuple[bytes, int, int], ...]
    comings: dict[bytes, int]


class ReportMemo:
    """The memo of a spool while one transaction is put together; ``query`` reads the file as it was before."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._reports: dict[tuple[bytes, int], int] = {}
        self._comings: dict[tuple[int, bytes], int] = {}
        self._windows: set[int] | None = None  # that are kept; read once they are asked for

    def recall(self, window: int, drawn: DrawnReports) -> RecalledReports:
        """The reports that count: those that are kept, and where there is none the one that was drawn.

        Raises:
            EventTimeError: What had come in this window before is forgotten, or would be.
        """
        self._check(window)
        comings: Counter[bytes] = Counter()
        fresh = []
        reports = np.array(drawn.reports, dtype=np.int64)
        for place, record in enumerate(drawn.keys):
            if record not in comings:
                comings[record] = self._comings_of(window, record)
            coming = comings[record]
            comings[record] += 1
            known = self._report_of(record, coming)
            if known is None:
                fresh.append((record, coming, int(reports[place])))
            else:
                reports[place] = known
        return RecalledReports(drawn.split(reports), tuple(fresh), dict(comings))

    def keep(self, window: int, recalled: RecalledReports) -> None:
        """Keeps the reports of an add, once it is sure that it is taken."""
        self._reports.update({(record, coming): report for record, coming, report in recalled.fresh})
        self._comings.update({(window, record): comings for record, comings in recalled.comings.items()})
        self._kept_windows().add(window)

    def write(self, database: sqlite3.Connection) -> None:
        """Writes what was kept; the caller holds a transaction."""
        if not self._comings:
            return
        # No OR IGNORE: a report that was there would have been recalled.
        rows = [(record, coming, report) for (record, coming), report in self._reports.items()]
        database.executemany("INSERT INTO memo (record, coming, report) VALUES (?, ?, ?)", rows)
        database.executemany(
            "INSERT INTO memo_windows (window, record, comings) VALUES (?, ?, ?)"
            " ON CONFLICT (window, record) DO UPDATE SET comings = excluded.comings",
            [(window, record, comings) for (window, record), comings in self._comings.items()],
        )
        kept = sorted(self._kept_windows())[-WINDOWS_KEPT:]
        database.executemany("INSERT OR IGNORE INTO memo_kept (window) VALUES (?)", [(window,) for window in kept])
        database.execute("DELETE FROM memo_kept WHERE window < ?", kept[:1])
        database.execute("DELETE FROM memo_windows WHERE window < ?", kept[:1])

    def _kept_windows(self) -> set[int]:
        if self._windows is None:
            self._windows = {int(window) for (window,) in self._query("SELECT window FROM memo_kept")}
        return self._windows

    def _check(self, window: int) -> None:
        kept = self._kept_windows()
        if window in kept or len(kept) < WINDOWS_KEPT:
            return
        oldest = sorted(kept)[-WINDOWS_KEPT]
        if window < oldest:
            raise EventTimeError(
                f"window {window}: got records of this window, expected {oldest} or later: {WINDOWS_KEPT:,} later "
                "windows have records, and the sent reports of this one are no longer stored; this batch was not added"
            )

    def _comings_of(self, window: int, record: bytes) -> int:
        noted = self._comings.get((window, record))
        if noted is not None:
            return noted
        query = "SELECT comings FROM memo_windows WHERE window = ? AND record = ?"
        return next((int(comings) for (comings,) in self._query(query, window, record)), 0)

    def _report_of(self, record: bytes, coming: int) -> int | None:
        noted = self._reports.get((record, coming))
        if noted is not None:
            return noted
        query = "SELECT report FROM memo WHERE record = ? AND coming = ?"
        return next((int(report) for (report,) in self._query(query, record, coming)), None)
