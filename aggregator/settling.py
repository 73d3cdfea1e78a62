"""The fold's word: what becomes of a delta whose window is no longer open, once its fold has passed it."""

from typing import Final

from aggregator import refusals
from aggregator.errors import AggregatorError
from aggregator.flights import Flight
from aggregator.fold.verdicts import RememberedKind
from aggregator.fold_view import SETTLE_S, FoldView
from aggregator.journal import Spell, journal
from aggregator.ports import Runtime
from aggregator.refusals import FAILED, NOT_YET, refused, unavailable
from aggregator.retries import TRANSIENT, within
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status

STATUSES: Final = {
    RememberedKind.COUNTED: Status.COUNTED,
    RememberedKind.LATE: Status.LATE,
    RememberedKind.OUT_OF_REACH: Status.UNKNOWN,
    RememberedKind.UNKNOWN: Status.UNKNOWN,
}

_journal = journal("gateway")


class Settling:
    """Asks the folds of one plan.

    Args:
        plan: What is collected.
        folds: What they remember, here or elsewhere.
        runtime: Time.
    """

    def __init__(self, plan: Plan, folds: FoldView, runtime: Runtime) -> None:
        self._plan = plan
        self._folds = folds
        self._runtime = runtime
        self._unsettled = Spell(_journal)

    async def answer(self, flight: Flight, position: int | None) -> Answer:
        """The fold's word on a delta, or *unavailable* where it does not say in time: never an exception.

        Args:
            flight: Which.
            position: Where it was appended; None: it was not.
        """
        try:
            answer = await within(SETTLE_S, self._word(flight, position), runtime=self._runtime)
        except (TimeoutError, AggregatorError) as error:
            passes = isinstance(error, (TimeoutError, *TRANSIENT))
            self._unsettled.failed(self._runtime.monotonic(), "the folds do not answer", error, passes=passes)
            return unavailable(flight.key.id, NOT_YET if passes else FAILED)
        self._unsettled.worked(self._runtime.monotonic(), "the folds answer again")
        return answer

    async def _word(self, flight: Flight, position: int | None) -> Answer:
        if position is not None:
            await self._folds.passed(flight.partition, position)
        kind, reason = await self._folds.recall(
            flight.partition, flight.key.client_id, flight.key.id, flight.digest, flight.window
        )
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            return refused(flight.key.id, refusals.of_fold(reason, flight.key.id, self._plan))
        return Answer(flight.key.id, STATUSES[kind])
