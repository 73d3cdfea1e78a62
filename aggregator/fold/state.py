"""The state of a fold: as the store keeps it, its changes between two checkpoints, and the tables that it counts in."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aggregator.fold.verdicts import Verdict
from hushsum.delta import Delta, apply
from hushsum.local.report_batch import ReportBatch

Counters = npt.NDArray[np.int64]
BLOCK: Final = 4096  # counters in a block: what a checkpoint writes or leaves alone as one
NOTHING_CLOSED: Final = -(2**63)  # below every window


@dataclass(frozen=True)
class WindowSum:
    """The counters of a window in one partition, (classes, ...) int64, and its count counters, (classes,) or (0,)."""

    counters: Counters
    counts: Counters


class StreamKey(NamedTuple):
    """A client's stream."""

    client_id: str
    stream: int


class StreamUse(NamedTuple):
    """A client's stream, and a window that it has a delta in. A stream without a client has an empty client id."""

    client_id: str
    stream: int
    window: int


class Contribution(NamedTuple):
    """One client in one window, or one cohort: their number is the number of clients."""

    window: int
    client_id: str


@dataclass(frozen=True)
class FoldState:
    """The whole state of a fold, as the store gives it back.

    Attributes:
        position: Of the next entry to fold.
        closed_through: Every window up to this one is closed here.
        forgotten_through: Every window up to this one is forgotten, except that it is closed.
        contributions: Records by client and window, where the plan bounds them or asks for a number of clients; of a
            secure plan submissions, by cohort and window; of noised whole deltas 1, by client and window.
        client_windows: In how many windows each client is counted, where the plan bounds that; never forgotten.
    """

    position: int = 0
    closed_through: int = NOTHING_CLOSED
    forgotten_through: int = NOTHING_CLOSED
    windows: Mapping[int, WindowSum] = field(default_factory=dict)
    streams: Mapping[StreamKey, bytes] = field(default_factory=dict)
    contributions: Mapping[Contribution, int] = field(default_factory=dict)
    client_windows: Mapping[str, int] = field(default_factory=dict)


class FoldMark(NamedTuple):
    """How far a fold has come, in its latest checkpoint (as in :class:`FoldState`)."""

    position: int
    closed_through: int
    forgotten_through: int


class Block(NamedTuple):
    """Counters ``number·BLOCK`` to below ``(number + 1)·BLOCK`` of one class of a window, flat; a copy."""

    window: int
    class_index: int
    number: int
    values: Counters


@dataclass(frozen=True)
class Checkpoint:
    """The changes of a fold since its last checkpoint.

    The store applies all of them in one transaction. Then its state equals the fold's, and a fold that is loaded from
    it goes on at ``position``.

    Attributes:
        position: The position of the next entry to fold.
        closed_through: Every window up to this one is closed: its counters will never change again.
        forgotten_through: Every window up to this one is forgotten. The store deletes the contributions to these
            windows, and the streams whose last window is one of them.
        blocks: Copies of the changed blocks of counters, with their new values.
        counts: The new count counters of each window with a changed block, (classes,).
        streams: The changed streams: the last window of each, and its packed state.
        contributions: The changed numbers of records, by window and client (see :class:`FoldState`).
        verdicts: One verdict for each delta, where the service retains them; else none.
        seals: The windows that were closed by a seal of their own, and not by a later window's. Such a window was open
            even if a store that was restored from a backup does not know it.
        client_windows: The changed numbers of windows by client (see :class:`FoldState`).
    """

    position: int
    closed_through: int
    forgotten_through: int
    blocks: tuple[Block, ...]
    counts: Mapping[int, Counters]
    streams: Mapping[StreamKey, tuple[int, bytes]]
    contributions: Mapping[Contribution, int]
    verdicts: tuple[Verdict, ...]
    seals: tuple[int, ...] = ()
    client_windows: Mapping[str, int] = field(default_factory=dict)


class OpenWindow:
    """A window's sum, and ``touched`` (classes, blocks): which of its blocks the next checkpoint must write."""

    def __init__(self, sums: WindowSum) -> None:
        self.counters, self.counts = sums.counters, sums.counts
        assert self.counters.flags.c_contiguous, "a copy would be counted instead"
        classes, blocks = len(self.counters), -(-self.counters[0].size // BLOCK)
        self.touched: npt.NDArray[np.bool_] = np.zeros((classes, blocks), np.bool_)
        self._edges = np.arange(blocks + 1) * BLOCK

    def add(self, delta: Delta, count_scale: int) -> None:
        apply(delta, self.counters, self.counts, count_scale)
        for run in delta.runs:
            # Indices increase, so that a block's are those between its two edges.
            places = np.searchsorted(run.increments.indices, self._edges)
            self.touched[run.class_index] |= places[1:] > places[:-1]

    def add_all(self, counters: Counters, counts: Counters) -> None:
        """Adds to every counter: those of all classes one after another, and (classes,) count counters; signed."""
        self.counters += counters.reshape(self.counters.shape)
        self.counts += counts
        self.touched[:] = True

    def add_reports(self, batch: ReportBatch) -> None:
        """Counts reports: each is the index of a counter, and they ascend."""
        batch.count_into(self.counters, self.counts)
        if len(batch.reports) < len(self._edges):
            self.touched[0, batch.reports // BLOCK] = True
            return
        places = np.searchsorted(batch.reports, self._edges)
        self.touched[0] |= places[1:] > places[:-1]

    def close(self) -> None:
        self.counters.setflags(write=False)
        self.counts.setflags(write=False)

    def take_blocks(self, window: int) -> list[Block]:
        """Copies of the blocks that were touched since the last call."""
        flat = self.counters.reshape(len(self.counters), -1)
        blocks = [
            Block(window, int(row), int(number), flat[row, number * BLOCK : (number + 1) * BLOCK].copy())
            for row, number in np.argwhere(self.touched)
        ]
        self.touched[:] = False
        return blocks


class OpenWindows:
    """The sums of a partition's open windows, and of those that were closed since they were last taken."""

    def __init__(self, shape: tuple[int, ...], count_counters: int, sums: Mapping[int, WindowSum]) -> None:
        self._shape, self._count_counters = shape, count_counters
        self._open = {window: OpenWindow(of) for window, of in sums.items()}
        self._closed: dict[int, OpenWindow] = {}

    def of(self, window: int) -> OpenWindow:
        """The sum of an open window: zeroes where nothing has come to it."""
        if window not in self._open:
            sums = WindowSum(np.zeros(self._shape, np.int64), np.zeros(self._count_counters, np.int64))
            self._open[window] = OpenWindow(sums)
        return self._open[window]

    def close(self, through: int) -> None:
        for window in sorted(window for window in self._open if window <= through):
            self._closed[window] = self._open.pop(window)
            self._closed[window].close()

    def take_touched(self) -> tuple[dict[int, Counters], tuple[Block, ...]]:
        """Copies of the count counters of windows, and of the blocks, that were touched since the last call."""
        touched = {window: of for window, of in (*self._closed.items(), *self._open.items()) if of.touched.any()}
        counts = {window: of.counts.copy() for window, of in touched.items()}
        blocks = tuple(block for window, of in touched.items() for block in of.take_blocks(window))
        self._closed.clear()
        return counts, blocks


Int64 = npt.NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)


class RowNumbers(dict[Key, int]):
    """Row numbers by key: a key without a row gets one when it is looked up, and is listed in :attr:`fresh`.

    Attributes:
        keys_of: The key of each row; None of a row that is free.
        fresh: Keys that got their row since :meth:`free_unused`.
    """

    def __init__(self, keys: Iterable[Key | None] = ()) -> None:
        self.keys_of: list[Key | None] = list(keys)
        super().__init__((key, row) for row, key in enumerate(self.keys_of) if key is not None)
        self.fresh: list[Key] = []
        self._free: list[int] = []

    def __missing__(self, key: Key) -> int:
        if self._free:
            row = self._free.pop()
            self.keys_of[row] = key
        else:
            row = len(self.keys_of)
            self.keys_of.append(key)
        self[key] = row
        self.fresh.append(key)
        return row

    def free_unused(self, is_used: Callable[[int], bool]) -> None:
        """Takes back the rows of fresh keys that were not used."""
        for key in self.fresh:
            row = self[key]
            if not is_used(row):
                del self[key]
                self.keys_of[row] = None
                self._free.append(row)
        self.fresh.clear()


def grown(array: Int64, rows: int, empty: Int64) -> Int64:
    """The array (n, k) itself, or one with room for at least ``rows`` rows, the new ones ``empty`` (k,)."""
    if rows <= len(array):
        return array
    larger = np.empty((max(rows, 2 * len(array), 16), len(empty)), np.int64)
    larger[: len(array)] = array
    larger[len(array) :] = empty
    return larger


_NOT_CONTRIBUTED: Final = np.array([-1, 0], np.int64)


class ContributionTable:
    """The number of records of each client in each window, where the plan bounds it or asks for a number of clients.

    Attributes:
        records: (rows or more, 2): the number of records, or −1 for a client without any in the window; and 1 if that
            has changed since the last checkpoint, else 0.
    """

    def __init__(self, contributions: Mapping[Contribution, int]) -> None:
        self._rows: RowNumbers[tuple[int, str]] = RowNumbers((key.window, key.client_id) for key in contributions)
        self.records: Int64 = grown(np.empty((0, 2), np.int64), len(contributions), _NOT_CONTRIBUTED)
        self.records[: len(contributions), 0] = list(contributions.values())

    def get(self, window: int, client_id: str) -> int:
        """Records of a client in a window; 0 where it is not in it."""
        row = self._rows.get((window, client_id))
        return 0 if row is None else max(int(self.records[row, 0]), 0)

    def add(self, window: int, client_id: str, records: int) -> None:
        """Counts a client in a window, with so many records more."""
        row = self.rows_of([(window, client_id)], 1)[0]
        self.records[row] = max(int(self.records[row, 0]), 0) + records, 1

    def rows_of(self, keys: Iterable[tuple[int, str]], count: int) -> Int64:
        """Row numbers in :attr:`records`, for the compiled loop, of ``count`` (window, client id) pairs.

        A pair without a row gets one. If nothing is counted in it, :meth:`free_unused_rows` takes it back.
        """
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, count)
        self.records = grown(self.records, len(self._rows.keys_of), _NOT_CONTRIBUTED)
        return rows

    def free_unused_rows(self) -> None:
        self._rows.free_unused(lambda row: bool(self.records[row, 0] >= 0))

    def take_changed(self) -> dict[Contribution, int]:
        changed = np.flatnonzero(self.records[: len(self._rows.keys_of), 1])
        self.records[changed, 1] = 0
        found = {}
        for row, records in zip(changed.tolist(), self.records[changed, 0].tolist(), strict=True):
            key = self._rows.keys_of[row]
            assert key is not None, "a contribution that is forgotten has not changed"
            found[Contribution(*key)] = records
        return found

    def forget(self, window: int) -> None:
        kept = [row for row, key in enumerate(self._rows.keys_of) if key is not None and key[0] > window]
        self._rows = RowNumbers(self._rows.keys_of[row] for row in kept)
        self.records = grown(self.records[kept], len(kept), _NOT_CONTRIBUTED)


class ClientWindows:
    """In how many windows each client is counted; a window's data is forgotten, and these numbers are not."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)
        self._changed: set[str] = set()

    def get(self, client_id: str) -> int:
        return self._counts.get(client_id, 0)

    def add(self, client_id: str) -> None:
        """Counts a client in one more window."""
        self._counts[client_id] = self.get(client_id) + 1
        self._changed.add(client_id)

    def take_changed(self) -> dict[str, int]:
        changed = {client_id: self._counts[client_id] for client_id in self._changed}
        self._changed.clear()
        return changed
