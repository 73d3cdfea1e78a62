"""The sum of a cohort on its way into the log: appended under one id until its fate is known, and counted once.

The answer is the gateway's law for deltas (WIRE: answers): *counted* by a read of the store that began after the append
was durable and says ``open``; once the window is not open, what the fold says after it has passed the entry. Until one
of them is known nobody is told anything.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.fold.fold import NOBODY
from aggregator.fold.state import RememberedKind
from aggregator.ingest.group_commit import CommitResult, GroupCommitter
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import SETTLE_S, FoldReader
from aggregator.logs import FailureLog, journal
from aggregator.model import NewEntry
from aggregator.runtime import TRANSIENT, Backoff, Runtime, within
from aggregator.windows import OVER, WindowState
from hushsum.delta import digest
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry, partition_of_sum
from hushsum_proto.rounds import RoundResult

_FATES: Final = {
    RememberedKind.COUNTED: RoundResult.COUNTED,
    RememberedKind.LATE: RoundResult.LATE,
    RememberedKind.REFUSED: RoundResult.ABORTED,
}

_journal = journal("secure sums")


@dataclass(frozen=True)
class SumSubmitter:
    """Brings sums into the log.

    Attributes:
        window_tracker: Which windows are open.
        commits: The way into the log.
        folds: What they say of windows that are not open.
        runtime: Time.
    """

    window_tracker: WindowTracker
    commits: GroupCommitter
    folds: FoldReader
    runtime: Runtime

    async def land(self, entry: CohortSumEntry) -> RoundResult:
        """What became of a sum: counted, late, aborted where the folds refused it, or unknown.

        It is offered again, the same bytes under the same id, while its fate is open; once the window is over the folds
        alone are asked. Unknown: they did not say in time, or the service stops.
        """
        partition = partition_of_sum(entry.id, self.commits.partitions)
        appended = NewEntry(partition, entry.window, entry_to_bytes(entry))
        backoff, trouble = Backoff(), FailureLog(_journal)
        while True:
            became = await self._append(appended)
            if isinstance(became, CommitResult):
                if became.state is WindowState.OPEN:
                    return RoundResult.COUNTED
                if became.state is not None:
                    return await self._settled(entry, partition, became.position)
            elif became.reason is ServiceReason.WINDOW_NOT_OPEN:
                return RoundResult.LATE
            elif became.reason is ServiceReason.SHUTTING_DOWN:
                return RoundResult.UNKNOWN
            else:
                trouble.failed(self.runtime.monotonic(), "a sum is not in the log yet", AggregatorError(became.detail))
            if self.window_tracker.state(entry.window) in OVER:
                return await self._settled(entry, partition, None)
            await self.runtime.sleep(backoff.next_s())

    async def _append(self, appended: NewEntry) -> CommitResult | Refusal:
        told: asyncio.Future[CommitResult | Refusal] = asyncio.get_running_loop().create_future()

        def tell(became: CommitResult | Refusal) -> None:
            if not told.done():  # whoever waited may be gone
                told.set_result(became)

        refusal = self.commits.offer(appended, tell)
        return await told if refusal is None else refusal

    async def _settled(self, entry: CohortSumEntry, partition: int, position: int | None) -> RoundResult:
        """What the folds say, once they have passed the entry."""
        try:
            return await within(SETTLE_S, self._word(entry, partition, position), runtime=self.runtime)
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning("the folds do not say what became of a sum", window=entry.window, error=str(error))
        except AggregatorError as error:
            _journal.error("the folds cannot say what became of a sum", window=entry.window, error=str(error))
        return RoundResult.UNKNOWN

    async def _word(self, entry: CohortSumEntry, partition: int, position: int | None) -> RoundResult:
        if position is not None:
            await self.folds.passed(partition, position)
        kind, reason = await self.folds.recall(partition, NOBODY, entry.id, digest(entry.sum), entry.window)
        if reason is not None:
            _journal.error("the folds refused a sum", window=entry.window, reason=reason.value)
        return _FATES.get(kind, RoundResult.UNKNOWN)
