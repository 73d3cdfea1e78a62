"""The fold of one partition: a pure, deterministic state machine from log entries to counters (DESIGN: the one flow).

From its state and the entries alone; a batch equals its entries one by one, and two runs over the same entries agree
whatever was checkpointed in between. It knows no clock: a window closes by a seal among the entries, and the first seal
of a window, or of a later one, closes it. What stands before is in, what stands after is late.

For a plan one kind of entry counts; whatever else stands in its log is of the wrong mode.

- A delta counts once by its id. What is said of one by what a fold remembers of its stream is one law, which
:class:`Fold` asks of its memory and :class:`aggregator.workers.remote.RemoteFolds` of the latest checkpoint of a fold
that runs elsewhere, so that both say the same of the same moment. - A silo's noised delta counts once for a client and
window, whatever a second one holds: each carries the noise of its client, so that one more would be another draw about
the same records. That a client takes part is public: how many do is the number of contributions, each of which is 1. -
A batch of reports is nobody's: its stream is drawn for it alone and holds nothing else, and no verdict names a client.
What is remembered of one is its id, eight bytes of digest and its window. - The id of a cohort's sum is of its plan,
window and round alone, so that it takes the place of a delta's: its stream belongs to no client, and holds nothing
else. How many cohorts and submissions are in a window is kept where other plans have their clients: one contribution a
cohort.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import lt
from typing import Final

import numpy as np

from aggregator.fold.batch import BatchFold, FoldArrays
from aggregator.fold.state import (
    Checkpoint,
    FoldMark,
    FoldState,
    ManyVerdicts,
    OpenWindow,
    OpenWindows,
    RememberedKind,
    StreamUse,
    Verdict,
    VerdictKind,
    Verdicts,
)
from aggregator.fold.streams import Observation, StreamState, StreamTable, TallyTable
from hushsum.delta import Delta, DeltaHeader, DeltaId, Run, digest, read_header
from hushsum.delta_batch import reader_of
from hushsum.errors import DeltaError, HushsumError, Reason
from hushsum.families import Increments
from hushsum.local.batches import ReportBatch
from hushsum.local.batches import unpack as unpack_reports
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


def kind_counted(plan: Plan) -> type[DeltaEntry | CohortSumEntry | ReportsEntry]:
    """The kind that counts; in form ``silo`` a delta's bytes are those of a noised whole one."""
    if plan.privacy.mode == SECURE:
        return CohortSumEntry
    return ReportsEntry if takes_reports(plan) else DeltaEntry


def takes_reports(plan: Plan) -> bool:
    """Whether its clients send randomised reports, which are nobody's."""
    return plan.privacy.reports is not None


def is_silo(plan: Plan) -> bool:
    """Whether each client sends one noised whole delta a window."""
    return plan.privacy.is_silo


#: What an id that was bound to something else is refused with.
REFUSALS: Final = {
    Observation.ID_REUSED: Reason.ID_REUSED,
    Observation.ID_OF_ANOTHER_WINDOW: Reason.ID_OF_ANOTHER_WINDOW,
}


def recall(
    stream: StreamState | None, mark: FoldMark, sequence: int, digest: bytes, window: int
) -> tuple[RememberedKind, Reason | None]:
    """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

    *late* is said only while an id that had been counted would still be known: it promises that the records were not
    counted and never will be. Where the fold cannot know, it says *unknown*.

    Args:
        stream: The state of the delta's stream; None where there is none.
        mark: How far the fold had come at that very moment.
        sequence: The delta's number in its stream.
        digest: 8 bytes of it.
        window: Its window.
    """
    if stream is not None:
        found = stream.observe(sequence, digest, window)
        if found in REFUSALS:
            return RememberedKind.REFUSED, REFUSALS[found]
        use = stream.use_of(sequence)
        if use is not None:
            return (RememberedKind.REFUSED, use.reason) if use.reason else (RememberedKind.COUNTED, None)
        if found is Observation.DUPLICATE:
            return RememberedKind.OUT_OF_REACH, None
    late = mark.forgotten_through < window <= mark.closed_through
    return (RememberedKind.LATE if late else RememberedKind.UNKNOWN), None


_Verdict = tuple[VerdictKind, Reason | None]


class ReportFold:
    """Folds the batches of reports of one partition.

    Args:
        plan: Of the fold.
        partition: Of the fold, of
        partitions: P.
        streams: Of the fold.
        window: The sum of an open window.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        partitions: int,
        streams: StreamTable,
        window: Callable[[int], OpenWindow],
    ) -> None:
        self._plan, self._partition, self._partitions = plan, partition, partitions
        self._streams, self._window = streams, window
        self._shuffle_min = plan.privacy.shuffle_min

    def verdict(self, entry: ReportsEntry, position: int, closed_through: int) -> Verdict:
        """Counts one, or says why not.

        Args:
            entry: The batch.
            position: Where it stands.
            closed_through: Every window up to this one is closed.
        """
        try:
            header = read_header(entry.batch)
        except DeltaError as error:
            return Verdict(VerdictKind.REFUSED, error.reason, None, None, None, position)
        kind, reason = self._fold(entry, header, closed_through)
        return Verdict(kind, reason, header.id, None, header.window, position)

    def _fold(self, entry: ReportsEntry, header: DeltaHeader, closed_through: int) -> _Verdict:
        if (foreign := self._foreign(header)) is not None:
            return VerdictKind.REFUSED, foreign
        key, sign = (NOBODY, header.id.stream), digest(entry.batch)
        stream = self._streams.get(key) or StreamState()
        found = stream.observe(header.id.sequence, sign, header.window)
        if found is not Observation.NEW:
            return (VerdictKind.REFUSED, REFUSALS[found]) if found in REFUSALS else (VerdictKind.DUPLICATE, None)
        if header.window <= closed_through:
            return VerdictKind.LATE, None
        try:
            batch = self._allowed(entry)
        except DeltaError as error:
            return VerdictKind.REFUSED, error.reason  # of this copy alone: found again in any other like it
        self._window(header.window).add_reports(batch)
        stream.record(header.id.sequence, sign, header.window)
        self._streams.put(key, stream)
        return VerdictKind.COUNTED, None

    def _foreign(self, header: DeltaHeader) -> Reason | None:
        """Why it does not belong here, whatever it holds."""
        if partition_of_sum(header.id, self._partitions) != self._partition:
            return Reason.WRONG_PARTITION
        if header.plan_id != self._plan.id:
            return Reason.WRONG_PLAN
        if not takes_reports(self._plan):
            return Reason.WRONG_MODE
        return Reason.MALFORMED if header.id.sequence else None  # a stream is drawn for one batch

    def _allowed(self, entry: ReportsEntry) -> ReportBatch:
        """The batch, once nothing speaks against it.

        What the plan says of its amplified guarantee holds for shuffled batches of so many reports alone.

        Raises:
            DeltaError: Why it may not count.
        """
        if self._shuffle_min and not entry.shuffled:
            raise DeltaError(Reason.UNSHUFFLED, "reports that did not come through the plan's shuffler")
        batch = unpack_reports(entry.batch, self._plan)
        if len(batch.reports) < self._shuffle_min:
            came = f"{len(batch.reports)} shuffled reports"
            raise DeltaError(Reason.TOO_FEW_REPORTS, f"{came}, expected {self._shuffle_min} or more")
        return batch


class SiloFold:
    """Counts the noised whole deltas of one partition.

    Args:
        plan: Of the fold.
        streams: Of the fold.
        contributions: Of the fold.
        window: The sum of an open window.
    """

    def __init__(
        self, plan: Plan, streams: StreamTable, contributions: TallyTable, window: Callable[[int], OpenWindow]
    ) -> None:
        self._plan, self._streams, self._contributions, self._window = plan, streams, contributions, window

    def add(
        self, entry: DeltaEntry, header: DeltaHeader, stream: StreamState, sign: bytes
    ) -> tuple[VerdictKind, Reason | None]:
        """Counts what has a new id and an open window, if it is its client's first; remembers the id in either case.

        Args:
            entry: What stands in the log.
            header: Of its delta.
            stream: The state of its stream.
            sign: The digest of its delta.
        """
        reason = None
        if self._contributions.get(header.window, entry.client_id):
            reason = Reason.SECOND_DELTA
        else:
            try:
                delta = unpack_vector(entry.delta, self._plan)
            except DeltaError as error:
                return VerdictKind.REFUSED, error.reason  # of its bytes alone: found again in any other copy
            self._contributions.add(header.window, entry.client_id, 1)
            self._window(header.window).add_all(delta.counters, delta.counts)
        stream.record(header.id.sequence, sign, header.window, reason)
        self._streams.put((entry.client_id, header.id.stream), stream)
        return (VerdictKind.COUNTED, None) if reason is None else (VerdictKind.REFUSED, reason)


#: Whose the streams are that belong to no client: those of cohort sums, and of batches of reports.
NOBODY: Final = ""
_COHORT: Final = "cohort:"


def contributor_of(round: bytes) -> str:  # noqa: A002  the word for it
    """The name under which a cohort's submissions are kept."""
    return _COHORT + round.hex()


class SumFold:
    """Folds the cohort sums of one partition.

    Args:
        plan: Of the fold.
        partition: Of the fold, of
        partitions: P.
        streams: Of the fold.
        contributions: Of the fold.
        window: The sum of an open window.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        partitions: int,
        streams: StreamTable,
        contributions: TallyTable,
        window: Callable[[int], OpenWindow],
    ) -> None:
        self._plan, self._partition, self._partitions = plan, partition, partitions
        self._streams, self._contributions, self._window = streams, contributions, window

    def verdict(self, entry: CohortSumEntry, position: int, closed_through: int) -> Verdict:
        """Counts one, or says why not.

        Args:
            entry: The sum.
            position: Where it stands.
            closed_through: Every window up to this one is closed.
        """
        id = entry.id
        kind, reason = self._fold(entry, id, closed_through)
        return Verdict(kind, reason, id, None, entry.window, position)

    def _fold(self, entry: CohortSumEntry, id: DeltaId, closed_through: int) -> tuple[VerdictKind, Reason | None]:
        if (foreign := self._foreign(entry, id)) is not None:
            return VerdictKind.REFUSED, foreign
        key, sign = (NOBODY, id.stream), digest(entry.sum)
        stream = self._streams.get(key) or StreamState()
        found = stream.observe(id.sequence, sign, entry.window)
        if found is not Observation.NEW:
            return (VerdictKind.REFUSED, REFUSALS[found]) if found in REFUSALS else (VerdictKind.DUPLICATE, None)
        if entry.window <= closed_through:
            return VerdictKind.LATE, None
        reason = self._add(entry)
        if reason is not None:
            return VerdictKind.REFUSED, reason  # of its bytes alone: found again in any other copy
        stream.record(id.sequence, sign, entry.window)
        self._streams.put(key, stream)
        return VerdictKind.COUNTED, None

    def _foreign(self, entry: CohortSumEntry, id: DeltaId) -> Reason | None:
        """Why it does not belong here, whatever it holds."""
        if partition_of_sum(id, self._partitions) != self._partition:
            return Reason.WRONG_PARTITION
        if entry.plan_id != self._plan.id:
            return Reason.WRONG_PLAN
        return None if kind_counted(self._plan) is CohortSumEntry else Reason.WRONG_MODE

    def _add(self, entry: CohortSumEntry) -> Reason | None:
        """Adds what the plan allows."""
        words, cohort = self._plan.words, self._plan.privacy.cohort
        assert cohort is not None, "a secure plan has cohorts"
        if len(entry.sum) != words.bytes:
            return Reason.WRONG_SHAPE
        if not cohort.survivors_min <= entry.submissions <= cohort.size:
            return Reason.IMPOSSIBLE_COUNTS
        try:
            counters, counts = words.centred(words.unpack(entry.sum))
        except HushsumError:
            return Reason.MALFORMED
        self._window(entry.window).add_all(counters, counts)
        self._contributions.add(entry.window, contributor_of(entry.round), entry.submissions)
        return None


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
        self._takes_deltas, self._is_anonymous = kind_counted(plan) is DeltaEntry, takes_reports(plan)
        self._tallies = self._bound is not None or plan.window.min_clients > 0
        self.position = state.position
        self.closed_through = state.closed_through
        self.forgotten_through = state.forgotten_through
        self._windows = OpenWindows(plan.counters_shape, state.windows)
        self._window = self._windows.of
        self._seals: list[int] = []  # until the checkpoint that stores them
        self._streams = StreamTable(state.streams)
        self._contributions = TallyTable(state.contributions)
        self._retained: list[Verdict] | None = [] if retain_verdicts else None
        self._stored = (self.position, self.closed_through, self.forgotten_through)
        self._reader = reader_of(plan)
        self._sums = SumFold(plan, partition, partitions, self._streams, self._contributions, self._window)
        self._reports = ReportFold(plan, partition, partitions, self._streams, self._window)
        self._silos = SiloFold(plan, self._streams, self._contributions, self._window) if is_silo(plan) else None
        tallies = self._contributions if self._tallies else None
        memory = FoldArrays(self._streams, tallies, self._window, self._is_foreign, self._verdict)
        self._batches = None if self._reader is None else BatchFold(plan, self._reader, memory)

    def apply(self, entries: Sequence[tuple[int, LogEntry | RefusedEntry]], end: int) -> Verdicts:
        """Folds the entries from :attr:`position` to before ``end``, which becomes it.

        Args:
            entries: (position, entry) each; positions rise, and there may be gaps between them.
            end: Of the stretch of the log that these are all the entries of.

        Returns:
            One verdict for each entry that is no seal, in their order.
        """
        rising = [self.position - 1, *(position for position, _ in entries), end]
        assert all(map(lt, rising, rising[1:])), f"positions do not rise from {self.position} to below {end}"
        if {type(entry) for _, entry in entries} == {DeltaEntry}:
            verdicts = Verdicts([*self._run(DeltaEntry, entries)])
        else:
            verdicts = Verdicts([part for kind, run in groupby(entries, _kind) for part in self._run(kind, run)])
        self.position = end
        self._streams.settle()
        self._contributions.settle()
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
        )
        self._seals.clear()
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

    def recall(self, client_id: str, id: DeltaId, digest: bytes, window: int) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that this fold has passed: see :func:`aggregator.fold.fold.recall`."""
        mark = FoldMark(self.position, self.closed_through, self.forgotten_through)
        return recall(self._streams.get((client_id, id.stream)), mark, id.sequence, digest, window)

    def stream_uses(self) -> Iterator[StreamUse]:
        """Each stream that is remembered, with the latest window that it touched."""
        return self._streams.uses()

    def contributed(self, client_id: str, window: int) -> int:
        """Records of a client that are counted in a window: they grow until it is forgotten. 0 without a tally."""
        return self._contributions.get(window, client_id)

    def _run(
        self, kind: type, entries: Iterable[tuple[int, LogEntry | RefusedEntry]]
    ) -> Iterator[ManyVerdicts | Verdict]:
        """Folds consecutive entries of one kind."""
        if kind is DeltaEntry and self._batches is not None:
            positions, deltas = zip(*entries, strict=True)
            yield self._batches.apply(positions, deltas, self.closed_through)
            return
        for position, entry in entries:
            if isinstance(entry, SealEntry):
                self._seal(entry)
            elif isinstance(entry, CohortSumEntry):
                yield self._sums.verdict(entry, position, self.closed_through)
            elif isinstance(entry, ReportsEntry):
                yield self._reports.verdict(entry, position, self.closed_through)
            else:
                yield self._verdict(entry, position)

    def _seal(self, entry: SealEntry) -> None:
        if entry.plan_id != self._plan.id or entry.window <= self.closed_through:
            return  # only the first seal counts
        # Seals are appended in the order of the windows, so an older window that is not closed was open nowhere.
        self._windows.close(entry.window)
        self.closed_through = entry.window
        self._seals.append(entry.window)

    def _verdict(self, entry: DeltaEntry | RefusedEntry, position: int) -> Verdict:
        if isinstance(entry, RefusedEntry):
            return Verdict(VerdictKind.REFUSED, entry.reason, None, None, None, position)
        if flaw_of(entry.client_id):  # whoever vouched for it: not every store takes such text
            return Verdict(VerdictKind.REFUSED, Reason.MALFORMED, None, None, None, position)
        whose = None if self._is_anonymous else entry.client_id
        try:
            header = read_header(entry.delta)
        except DeltaError as error:
            return Verdict(VerdictKind.REFUSED, error.reason, None, whose, None, position)
        kind, reason = self._fold(entry, header)
        return Verdict(kind, reason, header.id, whose, header.window, position)

    def _fold(self, entry: DeltaEntry, header: DeltaHeader) -> tuple[VerdictKind, Reason | None]:
        if self._is_foreign(entry.client_id):
            return VerdictKind.REFUSED, Reason.WRONG_PARTITION
        if header.plan_id != self._plan.id:
            return VerdictKind.REFUSED, Reason.WRONG_PLAN
        if not self._takes_deltas:
            return VerdictKind.REFUSED, Reason.WRONG_MODE
        key, sign = (entry.client_id, header.id.stream), digest(entry.delta)
        stream = self._streams.get(key)
        found = Observation.NEW if stream is None else stream.observe(header.id.sequence, sign, header.window)
        if found is not Observation.NEW:
            return (VerdictKind.REFUSED, REFUSALS[found]) if found in REFUSALS else (VerdictKind.DUPLICATE, None)
        if header.window <= self.closed_through:
            return VerdictKind.LATE, None
        stream = stream or StreamState()
        return self._add(entry, stream, sign) if self._silos is None else self._silos.add(entry, header, stream, sign)

    def _add(self, entry: DeltaEntry, stream: StreamState, sign: bytes) -> tuple[VerdictKind, Reason | None]:
        """Counts a new delta for an open window, and remembers its id, unless its bytes alone refuse it."""
        try:
            delta = Delta.unpack(entry.delta, self._plan)
        except DeltaError as error:
            return VerdictKind.REFUSED, error.reason
        if self._reader is not None:
            self._reader.learn(delta)
        reason = self._contribute(delta.window, entry.client_id, delta.records)
        if reason is None:
            self._window(delta.window).add(delta, self._count_scale)
        stream.record(delta.id.sequence, sign, delta.window, reason)
        self._streams.put((entry.client_id, delta.id.stream), stream)
        return (VerdictKind.COUNTED, None) if reason is None else (VerdictKind.REFUSED, reason)

    def _contribute(self, window: int, client_id: str, records: int) -> Reason | None:
        """Charges the client's bound over all its streams and classes; a delta beyond it is refused whole."""
        if self._bound is not None and self._contributions.get(window, client_id) + records > self._bound:
            return Reason.TOO_MANY_RECORDS
        self._tally(window, client_id, records)
        return None

    def _tally(self, window: int, client_id: str, records: int) -> None:
        """Adds to what a client has in a window, where the plan bounds that or asks for a number of clients."""
        if self._tallies:
            self._contributions.add(window, client_id, records)

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
