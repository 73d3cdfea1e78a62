"""Batches of reports in a fold: each counts once, whoever appends it how often, and none that its plan does not allow.

A batch is nobody's: its stream is drawn for it alone and holds nothing else, and no verdict names a client. What is
remembered of one is its id, eight bytes of digest and its window.
"""

from collections.abc import Callable

from aggregator.fold.kinds import takes_reports
from aggregator.fold.open_window import OpenWindow
from aggregator.fold.recall import REFUSALS
from aggregator.fold.stream_table import StreamTable
from aggregator.fold.streams import Observation, StreamState
from aggregator.fold.sums import NOBODY
from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum.delta import DeltaHeader, digest, read_header
from hushsum.errors import DeltaError, Reason
from hushsum.local.batches import ReportBatch, unpack
from hushsum.plan import Plan
from hushsum_proto.entries import ReportsEntry, partition_of_sum

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
        batch = unpack(entry.batch, self._plan)
        if len(batch.reports) < self._shuffle_min:
            came = f"{len(batch.reports)} shuffled reports"
            raise DeltaError(Reason.TOO_FEW_REPORTS, f"{came}, expected {self._shuffle_min} or more")
        return batch
