"""Deltas between their arrival and their answer: one entry an id, whoever sends it how often."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from aggregator import errors
from aggregator.errors import FAILED, NOT_YET, AggregatorError, RefusedError, refused, unavailable, used_before
from aggregator.fold.fold import NOBODY
from aggregator.fold.state import RememberedKind
from aggregator.interfaces import SETTLE_S, FoldReader
from aggregator.logs import FailureLog, journal
from aggregator.runtime import TRANSIENT, Runtime, within
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status


class DeltaKey(NamedTuple):
    """Whose delta, and which."""

    client_id: str
    id: DeltaId


class Submission(NamedTuple):
    """A delta as it came, with what identifies it."""

    key: DeltaKey
    partition: int
    window: int
    digest: bytes
    data: bytes


class InflightDelta:
    """A delta from its first look until its answer, or until the fold has passed it where that is here.

    Args:
        sent: As it came.
        here: Whether its fold is here.

    Attributes:
        answer: What its senders were told; None until then.
    """

    __slots__ = ("_future", "_listeners", "answer", "digest", "here", "key", "partition", "window")

    def __init__(self, sent: Submission, *, here: bool) -> None:
        self.key, self.partition, self.window, self.digest, _ = sent
        self.here = here
        self.answer: Answer | None = None
        self._listeners: list[Callable[[Answer], None]] = []
        self._future: asyncio.Future[Answer] | None = None

    def tell(self, listener: Callable[[Answer], None]) -> None:
        """Calls it with the answer, now or once that is known."""
        if self.answer is None:
            self._listeners.append(listener)
        else:
            listener(self.answer)

    def future(self) -> asyncio.Future[Answer]:
        """One future of the answer, however many ask for it."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            self.tell(self._future.set_result)
        return self._future

    def land(self, answer: Answer) -> None:
        """Gives the answer to all who wait for it."""
        self.answer = answer
        for listener in self._listeners:
            listener(answer)
        self._listeners.clear()


class _Unpassed(NamedTuple):
    position: int
    key: DeltaKey


class InflightTable:
    """What is on its way in one gateway.

    Args:
        folds: Those that a delta of a fold that is here waits for.
        partitions: P.
    """

    def __init__(self, folds: FoldReader, partitions: int) -> None:
        self._folds = folds
        self._inflight: dict[DeltaKey, InflightDelta] = {}
        self._numbers: Counter[str] = Counter()  # by client; what is nobody's is not counted
        self._unpassed: list[deque[_Unpassed]] = [deque() for _ in range(partitions)]

    def __len__(self) -> int:
        return len(self._inflight)

    def of(self, client_id: str) -> int:
        """How many are this client's; of what is nobody's, 0."""
        return self._numbers.get(client_id, 0)

    def find(self, sent: Submission) -> InflightDelta | None:
        """The same delta on its way.

        Raises:
            RefusedError: Its id is on its way with other bytes, or for another window.
        """
        inflight = self._inflight.get(sent.key)
        if inflight is None or (inflight.window, inflight.digest) == (sent.window, sent.digest):
            return inflight
        reason = Reason.ID_REUSED if inflight.window == sent.window else Reason.ID_OF_ANOTHER_WINDOW
        raise RefusedError(used_before(reason, sent.key.id))

    def add(self, inflight: InflightDelta) -> None:
        """A new one."""
        self._inflight[inflight.key] = inflight
        if inflight.key.client_id != NOBODY:
            self._numbers[inflight.key.client_id] += 1

    def answered(self, inflight: InflightDelta, answer: Answer, *, appended: bool = True) -> None:
        """Gives the answer; with it the flight is over, but where the fold is here and what was appended is to pass."""
        if not (inflight.here and appended):
            self._land(inflight.key)
        inflight.land(answer)

    def appended(self, inflight: InflightDelta, position: int) -> bool:
        """Keeps it until the fold has passed the position, where that is here.

        Returns:
            Whether :meth:`sweep` is to be begun for its partition.
        """
        if not inflight.here:
            return False
        unpassed = self._unpassed[inflight.partition]
        unpassed.append(_Unpassed(position, inflight.key))
        return len(unpassed) == 1

    async def sweep(self, partition: int) -> None:
        """Lets go of those that the fold has passed: from there on it knows their ids itself."""
        unpassed = self._unpassed[partition]
        while unpassed:
            last = max(each.position for each in unpassed)
            try:
                await self._folds.passed(partition, last)
            except AggregatorError:
                last = max(each.position for each in unpassed)  # it passes nothing more: nothing is gained by waiting
            while unpassed and unpassed[0].position <= last:
                self._land(unpassed.popleft().key)

    def _land(self, key: DeltaKey) -> None:
        if self._inflight.pop(key, None) is not None and key.client_id != NOBODY:
            self._numbers[key.client_id] -= 1
            if not self._numbers[key.client_id]:
                del self._numbers[key.client_id]


STATUSES: Final = {
    RememberedKind.COUNTED: Status.COUNTED,
    RememberedKind.LATE: Status.LATE,
    RememberedKind.OUT_OF_REACH: Status.UNKNOWN,
    RememberedKind.UNKNOWN: Status.UNKNOWN,
}

_journal = journal("gateway")


class VerdictResolver:
    """Asks the folds of one plan.

    Args:
        plan: What is collected.
        folds: What they remember, here or elsewhere.
        runtime: Time.
    """

    def __init__(self, plan: Plan, folds: FoldReader, runtime: Runtime) -> None:
        self._plan = plan
        self._folds = folds
        self._runtime = runtime
        self._unsettled = FailureLog(_journal)

    async def answer(self, inflight: InflightDelta, position: int | None) -> Answer:
        """The fold's word on a delta, or *unavailable* where it does not say in time: never an exception.

        Args:
            inflight: Which.
            position: Where it was appended; None: it was not.
        """
        id = inflight.key.id
        try:
            kind, reason = await self.verdict(inflight, position)
        except (TimeoutError, AggregatorError) as error:
            passes = isinstance(error, (TimeoutError, *TRANSIENT))
            self._unsettled.failed(self._runtime.monotonic(), "the folds do not answer", error, passes=passes)
            return unavailable(id, NOT_YET if passes else FAILED)
        self._unsettled.worked(self._runtime.monotonic(), "the folds answer again")
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            return refused(id, errors.of_fold(reason, id, self._plan))
        return Answer(id, STATUSES[kind])

    async def verdict(self, inflight: InflightDelta, position: int | None) -> tuple[RememberedKind, Reason | None]:
        """What the fold remembers of a delta or a cohort sum, once it has passed its position.

        Raises:
            TimeoutError: The fold has not come so far within ``SETTLE_S``.
            AggregatorError: It cannot be asked.
        """
        return await within(SETTLE_S, self._word(inflight, position), runtime=self._runtime)

    async def _word(self, inflight: InflightDelta, position: int | None) -> tuple[RememberedKind, Reason | None]:
        if position is not None:
            await self._folds.passed(inflight.partition, position)
        return await self._folds.recall(
            inflight.partition, inflight.key.client_id, inflight.key.id, inflight.digest, inflight.window
        )
