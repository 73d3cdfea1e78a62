"""The fold of one partition: a pure, deterministic state machine from log entries to counters (DESIGN: the one flow).

From its state and the entries alone; a batch equals its entries one by one, and two runs over the same entries agree
whatever was checkpointed in between. It knows no clock: a window closes by a seal among the entries, and the first seal
of a window, or of a later one, closes it. What stands before is in, what stands after is late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from aggregator.fold_state import BLOCK, Block, Checkpoint, Contribution, FoldState, StreamKey, WindowSum
from aggregator.streams import Observation, StreamState
from aggregator.verdicts import Remembered, RememberedKind, Verdict, VerdictKind
from hushsum.delta import Delta, DeltaHeader, DeltaId, apply, digest, read_header
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum.privacy.spec import PUBLIC
from hushsum_proto.entries import DeltaEntry, LogEntry, SealEntry, partition_of

__all__ = [
    "Checkpoint",
    "Fold",
    "FoldState",
    "MalformedEntry",
    "Remembered",
    "RememberedKind",
    "Verdict",
    "VerdictKind",
]

_REFUSALS: Final = {
    Observation.ID_REUSED: Reason.ID_REUSED,
    Observation.ID_OF_ANOTHER_WINDOW: Reason.ID_OF_ANOTHER_WINDOW,
}


@dataclass(frozen=True)
class MalformedEntry:
    """Bytes in the log that are no entry of any known format: refused, counted and passed."""

    detail: str


class _OpenWindow:
    """A window's sum, and which of its blocks the next checkpoint must write."""

    def __init__(self, sums: WindowSum) -> None:
        self.counters, self.counts = sums.counters, sums.counts
        classes, blocks = len(self.counts), -(-self.counters[0].size // BLOCK)
        self.touched: npt.NDArray[np.bool_] = np.zeros((classes, blocks), np.bool_)
        self._edges = np.arange(blocks + 1) * BLOCK

    def add(self, delta: Delta, count_scale: int) -> None:
        apply(delta, self.counters, self.counts, count_scale)
        for run in delta.runs:
            # Indices increase, so that a block's are those between its two edges.
            places = np.searchsorted(run.increments.indices, self._edges)
            self.touched[run.class_index] |= places[1:] > places[:-1]

    def close(self) -> None:
        self.counters.setflags(write=False)
        self.counts.setflags(write=False)

    def take_blocks(self, window: int) -> list[Block]:
        flat = self.counters.reshape(len(self.counts), -1)
        blocks = [
            Block(window, int(row), int(number), flat[row, number * BLOCK : (number + 1) * BLOCK].copy())
            for row, number in np.argwhere(self.touched)
        ]
        self.touched[:] = False
        return blocks


class Fold:
    """One partition's fold.

    Args:
        plan: What is collected.
        partition: Which of ``partitions`` it folds.
        partitions: P.
        state: Where to go on from; None starts empty. Its arrays are the fold's from now on.
        retain_verdicts: Whether checkpoints carry one verdict for each delta.

    Attributes:
        position: Of the next entry.
        closed_through: Every window up to this one is closed.
        forgotten_through: Of every window up to this one all is forgotten.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        partitions: int,
        state: FoldState | None = None,
        *,
        retain_verdicts: bool = False,
    ) -> None:
        state = FoldState() if state is None else state
        assert 0 <= partition < partitions
        assert state.forgotten_through <= state.closed_through
        assert all(window > state.closed_through for window in state.windows)
        self._plan, self._partition, self._partitions = plan, partition, partitions
        self._count_scale = plan.privacy.mechanism.count_scale
        self._bound = plan.privacy.records_per_client
        self._tallies = self._bound is not None or plan.window.min_clients > 0
        self._presence_is_public = plan.privacy.participation == PUBLIC
        self.position = state.position
        self.closed_through = state.closed_through
        self.forgotten_through = state.forgotten_through
        self._windows = {window: _OpenWindow(sums) for window, sums in state.windows.items()}
        self._closed: dict[int, _OpenWindow] = {}  # until the checkpoint that stores them
        self._streams = {key: StreamState.from_bytes(data) for key, data in state.streams.items()}
        self._contributions = dict(state.contributions)
        self._changed_streams: set[StreamKey] = set()
        self._changed_contributions: set[Contribution] = set()
        self._retained: list[Verdict] | None = [] if retain_verdicts else None
        self._stored = (self.position, self.closed_through, self.forgotten_through)

    def apply(self, entries: Sequence[tuple[int, LogEntry | MalformedEntry]]) -> list[Verdict]:
        """Folds consecutive entries, from :attr:`position` on.

        Args:
            entries: (position, entry) each.

        Returns:
            One verdict for each entry that is no seal, in their order.
        """
        verdicts: list[Verdict] = []
        for position, entry in entries:
            assert position == self.position, f"entry {position} where {self.position} comes next"
            if isinstance(entry, SealEntry):
                self._seal(entry)
            else:
                verdicts.append(self._verdict(entry))
            self.position += 1
        if self._retained is not None:
            self._retained += verdicts
        return verdicts

    def forget(self, window: int) -> None:
        """Forgets windows up to this one, after their outcomes: what remains is that they are closed.

        A stream goes with the last window that it touched; an older id of it then names a closed window, and is late.
        """
        assert window <= self.closed_through, "only a window that is closed can have an outcome"
        self.forgotten_through = max(self.forgotten_through, window)
        for key in [key for key, state in self._streams.items() if state.last_window <= window]:
            del self._streams[key]
        for contribution in [each for each in self._contributions if each.window <= window]:
            del self._contributions[contribution]
        self._changed_streams &= self._streams.keys()
        self._changed_contributions &= self._contributions.keys()

    def checkpoint(self) -> Checkpoint:
        """What changed since the last one; from here on it counts as stored, so a failure to store it is final."""
        touched = {
            window: sums for window, sums in (*self._closed.items(), *self._windows.items()) if sums.touched.any()
        }
        change = Checkpoint(
            position=self.position,
            closed_through=self.closed_through,
            forgotten_through=self.forgotten_through,
            counts={window: sums.counts.copy() for window, sums in touched.items()},
            blocks=tuple(block for window, sums in touched.items() for block in sums.take_blocks(window)),
            streams={key: _packed(self._streams[key]) for key in self._changed_streams},
            contributions={key: self._contributions[key] for key in self._changed_contributions},
            verdicts=tuple(self._retained or ()),
        )
        self._closed.clear()
        self._changed_streams.clear()
        self._changed_contributions.clear()
        if self._retained is not None:
            self._retained.clear()
        self._stored = (self.position, self.closed_through, self.forgotten_through)
        return change

    @property
    def changed(self) -> bool:
        """Whether a checkpoint would say anything new."""
        return self._stored != (self.position, self.closed_through, self.forgotten_through)

    @property
    def must_checkpoint(self) -> bool:
        """Whether a window was closed or forgotten since the last checkpoint: others wait for it to be stored."""
        return self._stored[1:] != (self.closed_through, self.forgotten_through)

    def remembered(self, client_id: str, id: DeltaId) -> Remembered | None:
        """How an id was used; None where nothing is remembered of it."""
        stream = self._streams.get(StreamKey(client_id, id.stream))
        use = None if stream is None else stream.use_of(id.sequence)
        if use is None:
            return None
        kind = VerdictKind.COUNTED if use.reason is None else VerdictKind.REFUSED
        return Remembered(kind, use.digest, use.window, use.reason)

    def recall(self, client_id: str, id: DeltaId, digest: bytes, window: int) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that this fold has passed, and whose window is no longer open.

        *late* is said only while an id that had been counted would still be known: it promises that the records were
        not counted and never will be. Where the fold cannot know, it says *unknown*.
        """
        stream = self._streams.get(StreamKey(client_id, id.stream))
        if stream is not None:
            found = stream.observe(id.sequence, digest, window)
            if found in _REFUSALS:
                return RememberedKind.REFUSED, _REFUSALS[found]
            use = stream.use_of(id.sequence)
            if use is not None:
                return (RememberedKind.REFUSED, use.reason) if use.reason else (RememberedKind.COUNTED, None)
            if found is Observation.DUPLICATE:
                return RememberedKind.OUT_OF_REACH, None
        forgotten = window <= self.forgotten_through
        late = not forgotten and window <= self.closed_through
        return (RememberedKind.LATE if late else RememberedKind.UNKNOWN), None

    def contributed(self, client_id: str, window: int) -> int:
        """Records of a client that are counted in a window: they grow until it is forgotten. 0 without a tally."""
        return self._contributions.get(Contribution(window, client_id), 0)

    def _seal(self, entry: SealEntry) -> None:
        if entry.plan_id != self._plan.id or entry.window <= self.closed_through:
            return  # only the first seal counts
        # Seals are appended in the order of the windows, so an older window that is not closed was open nowhere.
        for window in sorted(window for window in self._windows if window <= entry.window):
            self._closed[window] = self._windows.pop(window)
            self._closed[window].close()
        self.closed_through = entry.window

    def _verdict(self, entry: DeltaEntry | MalformedEntry) -> Verdict:
        if isinstance(entry, MalformedEntry):
            return Verdict(VerdictKind.REFUSED, Reason.MALFORMED, None, None, None, self.position)
        try:
            header = read_header(entry.delta)
        except DeltaError as error:
            return Verdict(VerdictKind.REFUSED, error.reason, None, entry.client_id, None, self.position)
        kind, reason = self._fold(entry, header)
        return Verdict(kind, reason, header.id, entry.client_id, header.window, self.position)

    def _fold(self, entry: DeltaEntry, header: DeltaHeader) -> tuple[VerdictKind, Reason | None]:
        if partition_of(entry.client_id, self._partitions) != self._partition:
            return VerdictKind.REFUSED, Reason.WRONG_PARTITION
        if header.plan_id != self._plan.id:
            return VerdictKind.REFUSED, Reason.WRONG_PLAN
        key, sign = StreamKey(entry.client_id, header.id.stream), digest(entry.delta)
        stream = self._streams.get(key)
        found = Observation.NEW if stream is None else stream.observe(header.id.sequence, sign, header.window)
        if found is not Observation.NEW:
            return (VerdictKind.REFUSED, _REFUSALS[found]) if found in _REFUSALS else (VerdictKind.DUPLICATE, None)
        if header.window <= self.closed_through:
            return VerdictKind.LATE, None
        return self._add(entry, header, key, sign)

    def _add(
        self, entry: DeltaEntry, header: DeltaHeader, key: StreamKey, sign: bytes
    ) -> tuple[VerdictKind, Reason | None]:
        """Counts a new delta for an open window, and remembers its id, unless its bytes alone refuse it."""
        if self._presence_is_public:
            # That its client takes part is public; what it sent must not decide whether it is one of the clients.
            # (A gateway lets no bytes come here that no client of this format writes.)
            self._tally(Contribution(header.window, entry.client_id), 0)
        try:
            delta = Delta.unpack(entry.delta, self._plan)
        except DeltaError as error:
            return VerdictKind.REFUSED, error.reason
        reason = self._contribute(Contribution(delta.window, entry.client_id), delta.records)
        if reason is None:
            self._window(delta.window).add(delta, self._count_scale)
        self._streams.setdefault(key, StreamState()).record(delta.id.sequence, sign, delta.window, reason)
        self._changed_streams.add(key)
        return (VerdictKind.COUNTED, None) if reason is None else (VerdictKind.REFUSED, reason)

    def _contribute(self, contribution: Contribution, records: int) -> Reason | None:
        """Charges the client's bound over all its streams and classes; a delta beyond it is refused whole."""
        if self._bound is not None and self._contributions.get(contribution, 0) + records > self._bound:
            return Reason.TOO_MANY_RECORDS
        self._tally(contribution, records)
        return None

    def _tally(self, contribution: Contribution, records: int) -> None:
        """Adds to what a client has in a window, where the plan bounds that or asks for a number of clients."""
        if self._tallies:
            self._contributions[contribution] = self._contributions.get(contribution, 0) + records
            self._changed_contributions.add(contribution)

    def _window(self, window: int) -> _OpenWindow:
        if window not in self._windows:
            shape = self._plan.counters_shape
            self._windows[window] = _OpenWindow(WindowSum(np.zeros(shape, np.int64), np.zeros(shape[:1], np.int64)))
        return self._windows[window]


def _packed(stream: StreamState) -> tuple[int, bytes]:
    return stream.last_window, stream.to_bytes()
