"""Puts the sum of a cohort into the log: it is offered under one id until its result is known, and counted once.

The answer is the gateway's law for deltas: *counted* by a read of the store that began after the append
was durable and says ``open``; once the window is not open, the verdict of the fold after it has passed the entry. Until
one of them is known no client gets a result.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.fold.fold import NOBODY
from aggregator.fold.verdicts import RememberedKind
from aggregator.ingest.group_commit import CommitResult, GroupCommitter
from aggregator.ingest.inflight import VerdictResolver
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.logs import FailureLog, journal
from aggregator.model import NewEntry
from aggregator.runtime import TRANSIENT, Backoff, Runtime
from aggregator.windows import OVER, WindowState
from hushsum.delta import digest
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry, partition_of_sum
from hushsum_proto.rounds import RoundResult

_RESULTS: Final = {
    RememberedKind.COUNTED: RoundResult.COUNTED,
    RememberedKind.LATE: RoundResult.LATE,
    RememberedKind.REFUSED: RoundResult.ABORTED,
}

_journal = journal("secure sums")


@dataclass(frozen=True)
class SumSubmitter:
    """Submits the sums of one plan."""

    window_tracker: WindowTracker
    commits: GroupCommitter
    resolver: VerdictResolver
    runtime: Runtime

    async def submit(self, entry: CohortSumEntry) -> RoundResult:
        """The result of a sum: counted, late, aborted where the folds refused it, or unknown.

        It is offered again, the same bytes under the same id, while its result is open; once the window is over only
        the folds are asked. Unknown: they did not answer in time, or the service stops.
        """
        partition = partition_of_sum(entry.id, self.commits.partitions)
        offered = NewEntry(partition, entry.window, entry_to_bytes(entry))
        backoff, trouble = Backoff(), FailureLog(_journal)
        while True:
            answer = await self._append(offered)
            if isinstance(answer, CommitResult):
                if answer.state is WindowState.OPEN:
                    return RoundResult.COUNTED
                if answer.state is not None:
                    return await self._resolve(entry, partition, answer.position)
            elif answer.reason is ServiceReason.WINDOW_NOT_OPEN:
                return RoundResult.LATE
            elif answer.reason is ServiceReason.SHUTTING_DOWN:
                return RoundResult.UNKNOWN
            else:
                trouble.failed(
                    self.runtime.monotonic(), "cohort sum not yet in the log", AggregatorError(answer.detail)
                )
            if self.window_tracker.state(entry.window) in OVER:
                return await self._resolve(entry, partition, None)
            await self.runtime.sleep(backoff.next_s())

    async def _append(self, offered: NewEntry) -> CommitResult | Refusal:
        future: asyncio.Future[CommitResult | Refusal] = asyncio.get_running_loop().create_future()

        def on_commit(answer: CommitResult | Refusal) -> None:
            if not future.done():  # the round may have been cancelled
                future.set_result(answer)

        refusal = self.commits.offer(offered, on_commit)
        return await future if refusal is None else refusal

    async def _resolve(self, entry: CohortSumEntry, partition: int, position: int | None) -> RoundResult:
        """The verdict of the folds, once they have passed the entry."""
        try:
            kind, reason = await self.resolver.verdict(
                partition, NOBODY, entry.id, digest(entry.sum), entry.window, position
            )
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning("verdict on the cohort sum not available yet", window=entry.window, error=str(error))
            return RoundResult.UNKNOWN
        except AggregatorError as error:
            _journal.error("verdict on the cohort sum unknown", window=entry.window, error=str(error))
            return RoundResult.UNKNOWN
        if reason is not None:
            _journal.error("cohort sum rejected by the fold", window=entry.window, reason=reason.value)
        return _RESULTS.get(kind, RoundResult.UNKNOWN)
