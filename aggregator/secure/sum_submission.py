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
from aggregator.ingest.group_commit import Commits, Committed
from aggregator.ingest.window_tracker import Openings
from aggregator.interfaces import SETTLE_S, FoldView
from aggregator.logs import Spell, journal
from aggregator.model import Appended
from aggregator.runtime import TRANSIENT, Backoff, Runtime, within
from aggregator.windows import OVER, WindowState
from hushsum.delta import digest
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry, partition_of_sum
from hushsum_proto.rounds import Fate

_FATES: Final = {
    RememberedKind.COUNTED: Fate.COUNTED,
    RememberedKind.LATE: Fate.LATE,
    RememberedKind.REFUSED: Fate.ABORTED,
}

_journal = journal("secure sums")


@dataclass(frozen=True)
class Landing:
    """Brings sums into the log.

    Attributes:
        openings: Which windows are open.
        commits: The way into the log.
        folds: What they say of windows that are not open.
        runtime: Time.
    """

    openings: Openings
    commits: Commits
    folds: FoldView
    runtime: Runtime

    async def land(self, entry: CohortSumEntry) -> Fate:
        """What became of a sum: counted, late, aborted where the folds refused it, or unknown.

        It is offered again, the same bytes under the same id, while its fate is open; once the window is over the folds
        alone are asked. Unknown: they did not say in time, or the service stops.
        """
        partition = partition_of_sum(entry.id, self.commits.partitions)
        appended = Appended(partition, entry.window, entry_to_bytes(entry))
        backoff, trouble = Backoff(), Spell(_journal)
        while True:
            became = await self._append(appended)
            if isinstance(became, Committed):
                if became.state is WindowState.OPEN:
                    return Fate.COUNTED
                if became.state is not None:
                    return await self._settled(entry, partition, became.position)
            elif became.reason is ServiceReason.WINDOW_NOT_OPEN:
                return Fate.LATE
            elif became.reason is ServiceReason.SHUTTING_DOWN:
                return Fate.UNKNOWN
            else:
                trouble.failed(self.runtime.monotonic(), "a sum is not in the log yet", AggregatorError(became.detail))
            if self.openings.state(entry.window) in OVER:
                return await self._settled(entry, partition, None)
            await self.runtime.sleep(backoff.next_s())

    async def _append(self, appended: Appended) -> Committed | Refusal:
        told: asyncio.Future[Committed | Refusal] = asyncio.get_running_loop().create_future()

        def tell(became: Committed | Refusal) -> None:
            if not told.done():  # whoever waited may be gone
                told.set_result(became)

        refusal = self.commits.offer(appended, tell)
        return await told if refusal is None else refusal

    async def _settled(self, entry: CohortSumEntry, partition: int, position: int | None) -> Fate:
        """What the folds say, once they have passed the entry."""
        try:
            return await within(SETTLE_S, self._word(entry, partition, position), runtime=self.runtime)
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning("the folds do not say what became of a sum", window=entry.window, error=str(error))
        except AggregatorError as error:
            _journal.error("the folds cannot say what became of a sum", window=entry.window, error=str(error))
        return Fate.UNKNOWN

    async def _word(self, entry: CohortSumEntry, partition: int, position: int | None) -> Fate:
        if position is not None:
            await self.folds.passed(partition, position)
        kind, reason = await self.folds.recall(partition, NOBODY, entry.id, digest(entry.sum), entry.window)
        if reason is not None:
            _journal.error("the folds refused a sum", window=entry.window, reason=reason.value)
        return _FATES.get(kind, Fate.UNKNOWN)
