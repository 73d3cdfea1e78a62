"""The state of a fold, its changes and its verdicts: the values that go into the store and come out of it."""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from hushsum.delta import Delta, DeltaId, apply
from hushsum.errors import Reason
from hushsum.local.report_batch import ReportBatch


class VerdictKind(enum.StrEnum):
    """The fold's verdict on an entry; stored and counted under these names."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"
    LATE = "late"
    REFUSED = "refused"


class Verdict(NamedTuple):
    """The verdict on one delta, cohort sum or batch of reports, or on bytes in the log that are none.

    Attributes:
        reason: For REFUSED alone.
        id: None where it could not be read.
        client_id: None where the entry could not be read, and of a cohort sum or reports, which belong to no client.
        window: None where it could not be read.
        position: Of the entry, in its partition.
    """

    kind: VerdictKind
    reason: Reason | None
    id: DeltaId | None
    client_id: str | None
    window: int | None
    position: int


#: What a code of a :class:`ManyVerdicts` says.
Outcome = tuple[VerdictKind, Reason | None]
OUTCOMES: Final[tuple[Outcome, ...]] = (
    (VerdictKind.COUNTED, None),
    (VerdictKind.DUPLICATE, None),
    (VerdictKind.LATE, None),
    (VerdictKind.REFUSED, Reason.ID_REUSED),
    (VerdictKind.REFUSED, Reason.ID_OF_ANOTHER_WINDOW),
    (VerdictKind.REFUSED, Reason.TOO_MANY_RECORDS),
)


class ManyVerdicts(NamedTuple):
    """Verdicts of deltas that were folded together, in columns; they become values when they are read.

    Attributes:
        codes: Indices into :data:`OUTCOMES`, a byte each.
        headers: (n, 2): sequence numbers and windows.
        others: By place, those that were folded one by one.
    """

    codes: bytes
    positions: Sequence[int]
    clients: Sequence[str]
    streams: npt.NDArray[np.uint64]
    headers: npt.NDArray[np.int64]
    others: Mapping[int, Verdict]

    def values(self) -> Iterator[Verdict]:
        ids, headers = self.streams.tolist(), self.headers.tolist()
        columns = zip(self.codes, self.positions, self.clients, ids, headers, strict=True)
        for place, (code, position, client_id, stream, (sequence, window)) in enumerate(columns):
            other = self.others.get(place)
            if other is None:
                kind, reason = OUTCOMES[code]
                other = Verdict(kind, reason, DeltaId(stream, sequence), client_id, window, position)
            yield other


class Verdicts(Sequence[Verdict]):
    """Verdicts on some entries, in their order: counting them is cheap, and reading one is not."""

    def __init__(self, parts: Sequence[ManyVerdicts | Verdict]) -> None:
        self._parts = parts
        self._values: list[Verdict] | None = None

    def kinds(self) -> Counter[VerdictKind]:
        """How many of each kind."""
        found: Counter[VerdictKind] = Counter()
        for part in self._parts:
            if isinstance(part, Verdict):
                found[part.kind] += 1
                continue
            for code, (kind, _) in enumerate(OUTCOMES):
                found[kind] += part.codes.count(code)
            for other, code in ((other, part.codes[place]) for place, other in part.others.items()):
                found[OUTCOMES[code][0]] -= 1
                found[other.kind] += 1
        return +found

    def __len__(self) -> int:
        return sum(1 if isinstance(part, Verdict) else len(part.codes) for part in self._parts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Verdict]: ...
    def __getitem__(self, index: int | slice) -> Verdict | Sequence[Verdict]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return self._all() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"Verdicts({self._all()!r})"

    def _all(self) -> list[Verdict]:
        if self._values is None:
            parts = ((part,) if isinstance(part, Verdict) else part.values() for part in self._parts)
            self._values = list(chain.from_iterable(parts))
        return self._values


class RememberedKind(enum.StrEnum):
    """What the fold remembers of a delta whose window it has closed."""

    COUNTED = "counted"
    REFUSED = "refused"
    LATE = "late"
    OUT_OF_REACH = "out_of_reach"  # an id so old that it was answered before; whatever its bytes, it never counts again
    UNKNOWN = "unknown"  # that knowledge is forgotten: it may have been counted


Counters = npt.NDArray[np.int64]
BLOCK: Final = 4096  # counters in a block: what a checkpoint writes or leaves alone as one
NOTHING_CLOSED: Final = -(2**63)  # below every window


@dataclass(frozen=True)
class WindowSum:
    """The counters of a window in one partition, (classes, ...) int64, and its count counters, (classes,) int64."""

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
        forgotten_through: Of every window up to this one all is forgotten, but that it is closed.
        windows: Sums of the windows that are not closed.
        streams: Packed stream states.
        contributions: Records by client and window, where the plan bounds them or asks for a number of clients; of a
            secure plan submissions, by cohort and window; of noised whole deltas 1, by client and window.
    """

    position: int = 0
    closed_through: int = NOTHING_CLOSED
    forgotten_through: int = NOTHING_CLOSED
    windows: Mapping[int, WindowSum] = field(default_factory=dict)
    streams: Mapping[StreamKey, bytes] = field(default_factory=dict)
    contributions: Mapping[Contribution, int] = field(default_factory=dict)


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
    """What changed since the last checkpoint: stored in one transaction, it makes the stored state the fold's.

    Attributes:
        position: As in :class:`FoldState`.
        closed_through: As in :class:`FoldState`. The blocks of a window up to here will never change again.
        forgotten_through: As in :class:`FoldState`: stream states whose last window is not above it, and contributions
            to windows not above it, are deleted.
        blocks: Those that were touched.
        counts: Count counters of the touched windows, (classes,).
        streams: Those that changed, packed, with the last window that each touched.
        verdicts: One for each delta, where they are retained.
        seals: Windows that a seal of their own has closed: they were open, whatever a restored store knows of them.
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


class OpenWindow:
    """A window's sum, and which of its blocks the next checkpoint must write.

    Attributes:
        counters: (classes, ...) int64.
        counts: (classes,) int64.
        touched: (classes, blocks).
    """

    def __init__(self, sums: WindowSum) -> None:
        self.counters, self.counts = sums.counters, sums.counts
        assert self.counters.flags.c_contiguous, "a copy would be counted instead"
        classes, blocks = len(self.counts), -(-self.counters[0].size // BLOCK)
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

    def __init__(self, shape: tuple[int, ...], sums: Mapping[int, WindowSum]) -> None:
        self._shape = shape
        self._open = {window: OpenWindow(of) for window, of in sums.items()}
        self._closed: dict[int, OpenWindow] = {}

    def of(self, window: int) -> OpenWindow:
        """The sum of an open window: zeroes where nothing has come to it."""
        if window not in self._open:
            sums = WindowSum(np.zeros(self._shape, np.int64), np.zeros(self._shape[:1], np.int64))
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
