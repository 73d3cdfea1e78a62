"""The fold of one partition: a pure, deterministic state machine from log entries to counters.

Its results depend on its state and the entries alone: a batch gives the same as its entries one by one, and two runs
over the same entries agree, wherever checkpoints were taken. It knows no clock: the first seal of a window, or of a
later one, among the entries closes the window. An entry before that seal counts, and an entry after it is late.

A plan counts one kind of entry; any other kind in its log is refused as of the wrong mode. All kinds pass one admission
routine (:meth:`Fold._admit`), which binds an id to the bytes and the window of its first use:

- A delta counts once by its id. One function gives the verdict on an id that the fold remembers:
  :func:`aggregator.fold.deduplication.recall`. A fold applies it to its memory, and
  :class:`aggregator.workers.remote.RemoteFolds` to the latest checkpoint of a fold that runs elsewhere, so that both
  give the same verdict at the same moment.
- A silo's noised delta counts once for a client and window, whatever a second one holds: each carries the noise of its
  client, so that one more would be another draw about the same records. That a client takes part is public: how many do
  is the number of contributions, each of which is 1.
- A batch of reports belongs to no client: its stream is drawn for it alone and holds nothing else, and no verdict names
  a client. What is remembered of one is its id, eight bytes of digest and its window.
- The id of a cohort's sum depends on its plan, window and round alone, and takes the place of a delta's: its stream
  belongs to no client, and holds nothing else. How many cohorts and submissions are in a window is kept where other
  plans have their clients: one contribution a cohort.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.fold.deduplication import REFUSALS, Observation, StreamState, StreamTable, recall
from aggregator.fold.state import (
    Checkpoint,
    ClientWindows,
    ContributionTable,
    FoldMark,
    FoldState,
    Int64,
    OpenWindows,
    StreamUse,
)
from aggregator.fold.verdicts import RememberedKind, Verdict, VerdictColumns, VerdictKind, Verdicts
from hushsum.delta import Delta, DeltaId, Run, digest, read_header
from hushsum.delta_decoder import Batch, DeltaReader, digests, reader_of
from hushsum.errors import DeltaError, HushsumError, Reason
from hushsum.families import Increments
from hushsum.local.report_batch import ReportBatch
from hushsum.local.report_batch import unpack as unpack_reports
from hushsum.local.silo import unpack as unpack_vector
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum_proto import many_entries
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.entries import (
    CohortSumEntry,
    DeltaEntry,
    LogEntry,
    RefusedEntry,
    ReportsEntry,
    SealEntry,
    partition_of,
    partition_of_sum,
)
from hushsum_proto.many_entries import DeltaColumns


def kind_counted(plan: Plan) -> type[DeltaEntry | CohortSumEntry | ReportsEntry]:
    """The kind that counts; in form ``silo`` a delta's bytes are those of a noised whole one."""
    if plan.privacy.mode == SECURE:
        return CohortSumEntry
    return ReportsEntry if plan.privacy.reports is not None else DeltaEntry


#: The owner of streams without a client: those of cohort sums, and of batches of reports.
NOBODY: Final = ""
_COHORT: Final = "cohort:"


def contributor_of(round: bytes) -> str:  # noqa: A002  the word for it
    """The name under which a cohort's submissions are kept."""
    return _COHORT + round.hex()


class _Header(NamedTuple):
    """What a verdict depends on besides the contents of an entry."""

    owner: str
    id: DeltaId
    plan_id: bytes
    window: int
    data: bytes  # the id is bound to these bytes


def _header(entry: DeltaEntry | CohortSumEntry | ReportsEntry) -> _Header:
    """The header of an entry; DeltaError if its bytes have none."""
    if isinstance(entry, CohortSumEntry):
        return _Header(NOBODY, entry.id, entry.plan_id, entry.window, entry.sum)
    owner, data = (NOBODY, entry.batch) if isinstance(entry, ReportsEntry) else (entry.client_id, entry.delta)
    header = read_header(data)
    return _Header(owner, header.id, header.plan_id, header.window, data)


_ROOM: Final = 1024  # slots, where they run out
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_CONTRIBUTIONS: Final = np.zeros((0, 2), np.int64)
_NO_WINDOW: Final = (0, 0, np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.bool_))


class Fold:
    """One partition's fold.

    No attribute holds a method of it: in a cycle, a fold that was given up would not be freed at once.

    Args:
        state: Where to go on from; None starts empty. Its arrays are the fold's from now on. Position and marks of the
            fold are as in :class:`aggregator.fold.state.FoldState`.
        retain_verdicts: Whether checkpoints carry one verdict for each delta.
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
        self._kind, self._is_anonymous = kind_counted(plan), plan.privacy.reports is not None
        self._is_silo = plan.privacy.is_silo
        self._shuffle_min = plan.privacy.shuffle_min
        self._windows_max = plan.window.windows_per_client
        asks = plan.window.min_clients > 0 or self._windows_max is not None
        self._counts_contributions = self._bound is not None or asks
        self.position = state.position
        self.closed_through = state.closed_through
        self.forgotten_through = state.forgotten_through
        self._windows = OpenWindows(plan.counters_shape, plan.count_counters, state.windows)
        self._window = self._windows.of
        self._seals: list[int] = []  # until the checkpoint that stores them
        self._streams = StreamTable(state.streams)
        self._contributions = ContributionTable(state.contributions)
        self._client_windows = ClientWindows(state.client_windows)
        self._retained: list[Verdict] | None = [] if retain_verdicts else None
        self._stored = self.mark
        self._reader = reader_of(plan)
        self._current: int | None = None  # the window of the last delta that the compiled loop added

    def apply(self, entries: Sequence[tuple[int, LogEntry | RefusedEntry]], end: int) -> Verdicts:
        """Folds the entries from :attr:`position` to before ``end``, which becomes it.

        Args:
            entries: (position, entry) each; positions rise, and there may be gaps between them.
            end: Of the stretch of the log that these are all the entries of.

        Returns:
            One verdict for each entry that is no seal, in their order.
        """
        columns = entries if isinstance(entries, DeltaColumns) else None
        positions = [position for position, _ in entries] if columns is None else columns.positions
        rising = np.concatenate(([self.position - 1], np.array(positions, np.int64), [end]))
        assert (np.diff(rising) > 0).all(), f"positions do not rise from {self.position} to below {end}"
        if columns is not None and self._reader is not None:
            verdicts = Verdicts([self._fold_together(self._reader, columns)])
        else:
            verdicts = Verdicts([part for kind, run in groupby(entries, _kind) for part in self._run(kind, run)])
        self.position = end
        self._streams.free_unused_rows()
        self._contributions.free_unused_rows()
        if self._retained is not None:
            self._retained += verdicts
        return verdicts

    def forget(self, window: int) -> None:
        """Forgets windows up to this one, after their outcomes: what remains is that they are closed.

        A stream goes with the last window that it touched; an older id of it then names a closed window, and is late.
        """
        assert window <= self.closed_through, "only a window that is closed can have an outcome"
        self.forgotten_through = max(self.forgotten_through, window)
        self._streams.forget(window)
        self._contributions.forget(window)

    def checkpoint(self) -> Checkpoint:
        """What changed since the last one; from here on it counts as stored, so a failure to store it is final."""
        counts, blocks = self._windows.take_touched()
        change = Checkpoint(
            position=self.position,
            closed_through=self.closed_through,
            forgotten_through=self.forgotten_through,
            counts=counts,
            blocks=blocks,
            streams=self._streams.take_changed(),
            contributions=self._contributions.take_changed(),
            verdicts=tuple(self._retained or ()),
            seals=tuple(self._seals),
            client_windows=self._client_windows.take_changed(),
        )
        self._seals.clear()
        if self._retained is not None:
            self._retained.clear()
        self._stored = self.mark
        return change

    @property
    def mark(self) -> FoldMark:
        """How far it has come."""
        return FoldMark(self.position, self.closed_through, self.forgotten_through)

    @property
    def changed(self) -> bool:
        """Whether a checkpoint would say anything new."""
        return self._stored != self.mark

    @property
    def must_checkpoint(self) -> bool:
        """Whether a window was closed or forgotten since the last checkpoint: others wait for it to be stored."""
        return self._stored[1:] != self.mark[1:]

    def recall(self, client_id: str, id: DeltaId, digest: bytes, window: int) -> tuple[RememberedKind, Reason | None]:
        """See :func:`aggregator.fold.deduplication.recall`."""
        key = client_id, id.stream
        stream = None if self._streams.is_above(key, id.sequence) else self._streams.get(key)
        return recall(stream, self.mark, id.sequence, digest, window)

    def stream_uses(self) -> Iterator[StreamUse]:
        return self._streams.uses()

    def contributed(self, client_id: str, window: int) -> int:
        """Records of a client that are counted in a window: they grow until it is forgotten. 0 if none are counted."""
        return self._contributions.get(window, client_id)

    def is_barred(self, client_id: str, window: int) -> bool:
        """Whether a client is counted in as many windows as the plan allows, and not in this one, which is open."""
        most = self._windows_max
        if most is None or window <= self.closed_through or self._contributions.get(window, client_id):
            return False
        return self._client_windows.get(client_id) >= most

    def _run(
        self, kind: type, entries: Iterable[tuple[int, LogEntry | RefusedEntry]]
    ) -> Iterator[VerdictColumns | Verdict]:
        if kind is DeltaEntry and self._reader is not None:
            deltas = [(position, entry) for position, entry in entries if isinstance(entry, DeltaEntry)]
            yield self._fold_together(self._reader, DeltaColumns.of(deltas))
            return
        for position, entry in entries:
            if isinstance(entry, SealEntry):
                self._seal(entry)
            else:
                yield self._verdict(entry, position)

    def _seal(self, entry: SealEntry) -> None:
        if entry.plan_id != self._plan.id or entry.window <= self.closed_through:
            return  # only the first seal counts
        # Seals are appended in the order of the windows, so an older window that is not closed was open nowhere.
        self._windows.close(entry.window)
        self.closed_through = entry.window
        self._seals.append(entry.window)

    # ------------------------------------------------------------------------------------------------ many at once

    def _fold_together(self, reader: DeltaReader, entries: DeltaColumns) -> VerdictColumns:
        """Folds many deltas in compiled loops, with the same counters, states and verdicts as one by one.

        The reader checks the deltas and writes down what they add; the tables give each the row of its stream; one loop
        then de-duplicates, counts contributions and adds. It stops before a delta that it cannot fold: one that is not
        usual, of another window, or without room for the slot of its id.
        """
        from aggregator.fold import loops  # numba is imported when the first compiled loop is wanted

        batch = reader.gathered(entries.data, entries.delta_spans)
        signs = digests(batch)
        codes = np.zeros(len(entries), np.uint8)
        others: dict[int, Verdict] = {}
        at = 0
        while at < len(entries):
            end, lessons = reader.read(batch, at), reader.lessons
            rows = self._rows(batch, entries, at, end)
            while at < end and lessons == reader.lessons:
                at, why = self._loop(at, end, batch, signs, rows, codes)
                if why == loops.UNUSUAL:
                    position, entry = entries[at]
                    others[at] = self._verdict(entry, position)
                    at += 1
                elif why == loops.OTHER_WINDOW:
                    self._current = int(batch.headers[at, 1])
                elif why == loops.NO_ROOM:
                    self._streams.make_room(_ROOM)
        return VerdictColumns(codes.tobytes(), entries, batch.streams, batch.headers, others)

    def _rows(self, batch: Batch, entries: DeltaColumns, first: int, last: int) -> tuple[Int64, Int64]:
        """The table rows of the deltas ``first`` to before ``last``: streams, and contributions; zeroes before."""
        count = last - first
        rows = np.zeros(last, np.int64)
        keys = entries.stream_keys(batch.streams, first, last)
        rows[first:] = self._streams.rows_of(keys, count, self._is_foreign)
        if not self._counts_contributions:
            return rows, _NO_ROWS
        contribution_rows = np.zeros(last, np.int64)
        windows = zip(batch.headers[first:last, 1].tolist(), entries.client_ids(first, last), strict=True)
        contribution_rows[first:] = self._contributions.rows_of(windows, count)
        return rows, contribution_rows

    def _loop(
        self,
        first: int,
        last: int,
        batch: Batch,
        signs: Int64,
        rows: tuple[Int64, Int64],
        codes: npt.NDArray[np.uint8],
    ) -> tuple[int, int]:
        """Runs the compiled loop over the deltas ``first`` to before ``last``, until one is not usual.

        The arrays of the tables are taken anew for each run: a table replaces its arrays by larger ones when it grows.

        Returns (the first delta that was not folded, the loop's code for why).
        """
        from aggregator.fold import loops

        streams, window = self._streams, _NO_WINDOW
        records = self._contributions.records if self._counts_contributions else _NO_CONTRIBUTIONS
        if self._current is not None and self._current > self.closed_through:
            of = self._window(self._current)
            window = (1, self._current, of.counters.reshape(-1), of.counts, of.touched)
        bound = -1 if self._bound is None else self._bound
        firsts = int(self._windows_max is not None)
        stopped: tuple[int, int] = loops.fold(
            first,
            last,
            (batch.states, batch.headers, batch.spans, batch.ready, signs),
            (rows[0], streams.heads, streams.slots, streams.used),
            (rows[1], records),
            (self.closed_through, int(self._counts_contributions), bound, self._count_scale, firsts),
            window,
            codes,
        )
        return stopped

    # ------------------------------------------------------------------------------------------------- one by one

    def _verdict(self, entry: DeltaEntry | CohortSumEntry | ReportsEntry | RefusedEntry, position: int) -> Verdict:
        """Counts an entry, or says why not."""
        if isinstance(entry, RefusedEntry):
            return Verdict(VerdictKind.REFUSED, entry.reason, None, None, None, position)
        client_id = entry.client_id if isinstance(entry, DeltaEntry) else None
        if client_id is not None and flaw_of(client_id):  # though it was authenticated: not every store takes such text
            return Verdict(VerdictKind.REFUSED, Reason.MALFORMED, None, None, None, position)
        if self._is_anonymous:
            client_id = None
        try:
            header = _header(entry)
        except DeltaError as error:
            return Verdict(VerdictKind.REFUSED, error.reason, None, client_id, None, position)
        kind, reason = self._admit(entry, header)
        return Verdict(kind, reason, header.id, client_id, header.window, position)

    def _admit(
        self, entry: DeltaEntry | CohortSumEntry | ReportsEntry, header: _Header
    ) -> tuple[VerdictKind, Reason | None]:
        """Counts an entry of the plan's kind with a new id and an open window, and remembers its id."""
        if (reason := self._misplaced(entry, header)) is not None:
            return VerdictKind.REFUSED, reason
        key, sequence, signature = (header.owner, header.id.stream), header.id.sequence, digest(header.data)
        stream = self._streams.get(key)
        found = Observation.NEW if stream is None else stream.observe(sequence, signature, header.window)
        if found is not Observation.NEW:
            return (VerdictKind.REFUSED, REFUSALS[found]) if found in REFUSALS else (VerdictKind.DUPLICATE, None)
        if header.window <= self.closed_through:
            return VerdictKind.LATE, None
        try:
            reason = self._count(entry, header.window)
        except DeltaError as error:
            return VerdictKind.REFUSED, error.reason  # of its bytes alone: found again in any other copy
        stream = stream or StreamState()
        stream.record(sequence, signature, header.window, reason)
        self._streams.put(key, stream)
        return (VerdictKind.COUNTED, None) if reason is None else (VerdictKind.REFUSED, reason)

    def _misplaced(self, entry: DeltaEntry | CohortSumEntry | ReportsEntry, header: _Header) -> Reason | None:
        """Why an entry does not belong into this partition or plan; its counters do not matter."""
        if isinstance(entry, DeltaEntry):
            is_foreign = self._is_foreign(entry.client_id)
        else:
            is_foreign = partition_of_sum(header.id, self._partitions) != self._partition
        if is_foreign:
            return Reason.WRONG_PARTITION
        if header.plan_id != self._plan.id:
            return Reason.WRONG_PLAN
        if not isinstance(entry, self._kind):
            return Reason.WRONG_MODE
        # The stream of a batch of reports is drawn for it alone.
        return Reason.MALFORMED if self._kind is ReportsEntry and header.id.sequence else None

    def _count(self, entry: DeltaEntry | CohortSumEntry | ReportsEntry, window: int) -> Reason | None:
        """Counts an entry of the plan's kind.

        Returns:
            Why it was refused, where that depends on what was counted before, and is remembered.

        Raises:
            DeltaError: The bytes of the entry alone refuse it.
        """
        if isinstance(entry, CohortSumEntry):
            return self._count_sum(entry, window)
        if isinstance(entry, ReportsEntry):
            return self._count_reports(entry, window)
        return self._count_silo(entry, window) if self._is_silo else self._count_delta(entry, window)

    def _count_delta(self, entry: DeltaEntry, window: int) -> Reason | None:
        delta = Delta.unpack(entry.delta, self._plan)
        if self._reader is not None:
            self._reader.learn(delta)
        # The bound is the client's, over all its streams and classes; a delta beyond it is refused whole.
        counted = self._contributions.get(window, entry.client_id)
        if self._bound is not None and counted + delta.records > self._bound:
            return Reason.TOO_MANY_RECORDS
        if self._windows_max is not None and not counted:
            if self.is_barred(entry.client_id, window):
                return Reason.TOO_MANY_WINDOWS
            self._client_windows.add(entry.client_id)
        if self._counts_contributions:
            self._contributions.add(window, entry.client_id, delta.records)
        self._window(window).add(delta, self._count_scale)
        return None

    def _count_silo(self, entry: DeltaEntry, window: int) -> Reason | None:
        if self._contributions.get(window, entry.client_id):
            return Reason.SECOND_DELTA
        delta = unpack_vector(entry.delta, self._plan)
        self._contributions.add(window, entry.client_id, 1)
        self._window(window).add_all(delta.counters, delta.counts)
        return None

    def _count_sum(self, entry: CohortSumEntry, window: int) -> Reason | None:
        words, cohort = self._plan.words, self._plan.privacy.cohort
        assert cohort is not None, "a secure plan has cohorts"
        if len(entry.sum) != words.bytes:
            raise DeltaError(Reason.WRONG_SHAPE, f"cohort sum of {len(entry.sum)} bytes, expected {words.bytes}")
        if not cohort.survivors_min <= entry.submissions <= cohort.size:
            expected = f"{cohort.survivors_min} to {cohort.size}"
            raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{entry.submissions} submissions, expected {expected}")
        try:
            counters, counts = words.centred(words.unpack(entry.sum))
        except HushsumError as error:
            raise DeltaError(Reason.MALFORMED, str(error)) from error
        self._window(window).add_all(counters, counts)
        self._contributions.add(window, contributor_of(entry.round), entry.submissions)
        return None

    def _count_reports(self, entry: ReportsEntry, window: int) -> Reason | None:
        # The amplified guarantee of the plan holds only for shuffled batches of so many reports.
        if self._shuffle_min and not entry.shuffled:
            raise DeltaError(Reason.UNSHUFFLED, "reports without a shuffler's signature, expected shuffled reports")
        batch = unpack_reports(entry.batch, self._plan)
        if len(batch.reports) < self._shuffle_min:
            came = f"{len(batch.reports)} shuffled reports"
            raise DeltaError(Reason.TOO_FEW_REPORTS, f"{came}, expected {self._shuffle_min} or more")
        self._window(window).add_reports(batch)
        return None

    def _is_foreign(self, client_id: str) -> bool:
        """Whether it is no client of this partition: another's, or none at all."""
        return partition_of(client_id, self._partitions) != self._partition or flaw_of(client_id) is not None


def _kind(entry: tuple[int, LogEntry | RefusedEntry]) -> type:
    return type(entry[1])


def warm_up() -> None:
    """Compiles the loops, or loads what was compiled before, so that the first deltas need not wait for that."""
    many_entries.warm_up()
    record = {"kind": "vector", "dim": 1, "lower": [0], "upper": [1]}
    sketch = {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "rows": 1, "buckets": 2}
    privacy, window = {"epsilon": 1, "total_epsilon": 1}, {"length": "1h", "lateness": "1s"}
    tables = {"name": "warm-up", "record": record, "sketch": sketch, "window": window}
    plan = Plan.from_fields({**tables, "privacy": privacy})
    run = Run(0, 1, Increments(np.zeros(1, np.int64), np.ones(1, np.int64)))
    deltas = [Delta(plan.id, 0, DeltaId(0, sequence), (run,)).pack(plan) for sequence in range(2)]
    Fold(plan, 0, 1).apply([*enumerate(DeltaEntry("warm-up", delta, 0) for delta in deltas)], len(deltas))
    plan = Plan.from_fields({**tables, "privacy": {**privacy, "mode": "local"}})
    reports = ReportBatch(plan.id, 0, DeltaId(0, 0), np.zeros(1, np.int64)).pack(plan)
    Fold(plan, 0, 1).apply([(0, ReportsEntry(reports, shuffled=False, arrived_ms=0))], 1)
