"""Cohort sums in a fold: each counts once, whoever appends it how often, and none that its plan does not allow.

The id of a sum is of its plan, window and round alone, so that it takes the place of a delta's: its stream belongs to
no client, and holds nothing else. What a window is released with, how many cohorts and submissions are in it, is kept
where other plans have their clients: one contribution a cohort.
"""

from collections.abc import Callable
from typing import Final

from aggregator.fold.kinds import kind_counted
from aggregator.fold.open_window import OpenWindow
from aggregator.fold.recall import REFUSALS
from aggregator.fold.stream_table import StreamTable
from aggregator.fold.streams import Observation, StreamState
from aggregator.fold.tally_table import TallyTable
from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum.delta import DeltaId, digest
from hushsum.errors import HushsumError, Reason
from hushsum.plan import Plan
from hushsum_proto.entries import CohortSumEntry, partition_of_sum

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
