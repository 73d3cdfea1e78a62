"""Deltas between their arrival and their answer: one entry an id, whoever sends it how often."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from aggregator import errors
from aggregator.errors import FAILED, NOT_YET, AggregatorError, RefusedError, refused, unavailable, used_before
from aggregator.fold.fold import NOBODY
from aggregator.fold.verdicts import RememberedKind
from aggregator.interfaces import VERDICT_S, FoldReader
from aggregator.logs import FailureLog, journal
from aggregator.rate_limits import QuotaReservation, RateCharge
from aggregator.runtime import TRANSIENT, Runtime, within
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Status
from hushsum_proto.messages import Authenticity

_journal = journal("gateway")


OnAnswer = Callable[[Answer], None]


class ReceivedDelta(NamedTuple):
    """A delta as it arrived; nothing of it is validated but its sender, whom the authenticator names.

    ``plan_id`` is that of its envelope, ``shuffled`` a shuffler's signature, ``prepaid`` what its chunks have paid
    already.
    """

    client_id: str
    plan_id: bytes
    data: bytes
    shuffled: Authenticity | None = None
    prepaid: RateCharge | None = None


class DeltaKey(NamedTuple):
    """The id of a delta under its owner."""

    owner: str
    stream: int
    sequence: int


@dataclass(eq=False, slots=True)
class AcceptedDelta:
    """A validated delta with its owner, until its answer; until its fold has passed it where that is in this process.

    Attributes:
        is_local: Whether its fold is in this process.
        reservation: Of the first copy; a resend pays nothing.
        on_answer: To be called with the answer: of the first copy, and of each resend that came meanwhile.
        answer: None until it is known.
    """

    key: DeltaKey
    id: DeltaId
    window: int
    partition: int
    digest: bytes
    is_local: bool
    reservation: QuotaReservation
    on_answer: list[OnAnswer]
    answer: Answer | None = None


def released(reservation: QuotaReservation, answer: Answer) -> Answer:
    """Ends a reservation; returns the answer, or *unavailable* if that fails: it fails this delta, and no other one."""
    try:
        reservation.answered(answer)
    except Exception as error:  # noqa: BLE001  the other deltas of its batch or group still get their answers
        _journal.error("reserved quota not released", exc_info=error)
        return unavailable(answer.id, FAILED)
    return answer


class InflightTable:
    """The accepted deltas of one gateway; one whose fold is in this process is here until that has passed it."""

    def __init__(self, folds: FoldReader, partitions: int) -> None:
        self._folds = folds
        self._inflight: dict[DeltaKey, AcceptedDelta] = {}
        self._numbers: Counter[str] = Counter()  # by owner; anonymous deltas are not counted
        self._unpassed: list[deque[tuple[int, DeltaKey]]] = [deque() for _ in range(partitions)]

    def __len__(self) -> int:
        return len(self._inflight)

    def of(self, owner: str) -> int:
        """The number of this client's deltas; 0 of anonymous ones."""
        return self._numbers.get(owner, 0)

    def find(self, key: DeltaKey, id: DeltaId, window: int, digest: bytes) -> AcceptedDelta | None:
        """The same delta on its way.

        Raises:
            RefusedError: Its id is on its way with other bytes, or for another window.
        """
        inflight = self._inflight.get(key)
        if inflight is None or (inflight.window == window and inflight.digest == digest):
            return inflight
        reason = Reason.ID_REUSED if inflight.window == window else Reason.ID_OF_ANOTHER_WINDOW
        raise RefusedError(used_before(reason, id))

    def add(self, delta: AcceptedDelta) -> None:
        self._inflight[delta.key] = delta
        if delta.key.owner != NOBODY:
            self._numbers[delta.key.owner] += 1

    def appended(self, delta: AcceptedDelta, position: int) -> bool:
        """Keeps it until the fold has passed the position, where that is in this process.

        Returns whether :meth:`sweep` is to be begun for its partition.
        """
        if not delta.is_local:
            return False
        unpassed = self._unpassed[delta.partition]
        unpassed.append((position, delta.key))
        return len(unpassed) == 1

    async def sweep(self, partition: int) -> None:
        """Removes those that the fold has passed: from there on it knows their ids itself."""
        unpassed = self._unpassed[partition]
        while unpassed:
            last = max(position for position, _ in unpassed)
            try:
                await self._folds.passed(partition, last)
            except AggregatorError:
                last = max(position for position, _ in unpassed)  # it passes nothing more: waiting gains nothing
            while unpassed and unpassed[0][0] <= last:
                self.remove(unpassed.popleft()[1])

    def remove(self, key: DeltaKey) -> None:
        if self._inflight.pop(key, None) is not None and key.owner != NOBODY:
            self._numbers[key.owner] -= 1
            if not self._numbers[key.owner]:
                del self._numbers[key.owner]


STATUSES: Final = {
    RememberedKind.COUNTED: Status.COUNTED,
    RememberedKind.LATE: Status.LATE,
    RememberedKind.OUT_OF_REACH: Status.UNKNOWN,
    RememberedKind.UNKNOWN: Status.UNKNOWN,
}


class VerdictResolver:
    """Answers deltas of windows that are no longer open, by asking the folds of one plan, here or elsewhere."""

    def __init__(self, plan: Plan, folds: FoldReader, runtime: Runtime) -> None:
        self._plan = plan
        self._folds = folds
        self._runtime = runtime
        self._failures = FailureLog(_journal)

    async def answer(self, delta: AcceptedDelta, position: int | None) -> Answer:
        """The fold's verdict on a delta that was appended at ``position`` (None: that was not appended).

        Never an exception: *unavailable* where there is no verdict within :data:`VERDICT_S`.
        """
        try:
            kind, reason = await self.verdict(
                delta.partition, delta.key.owner, delta.id, delta.digest, delta.window, position
            )
        except (TimeoutError, AggregatorError) as error:
            passes = isinstance(error, (TimeoutError, *TRANSIENT))
            self._failures.failed(self._runtime.monotonic(), "folds do not respond", error, passes=passes)
            return unavailable(delta.id, NOT_YET if passes else FAILED)
        self._failures.worked(self._runtime.monotonic(), "folds respond again")
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            return refused(delta.id, errors.of_fold(reason, delta.id, self._plan))
        return Answer(delta.id, STATUSES[kind])

    async def verdict(
        self, partition: int, owner: str, id: DeltaId, digest: bytes, window: int, position: int | None
    ) -> tuple[RememberedKind, Reason | None]:
        """What the fold remembers of a delta or a cohort sum, once it has passed ``position`` (None: not appended).

        Raises:
            TimeoutError: The fold has not come so far within :data:`VERDICT_S`.
            AggregatorError: It cannot be asked.
        """

        async def recalled() -> tuple[RememberedKind, Reason | None]:
            if position is not None:
                await self._folds.passed(partition, position)
            return await self._folds.recall(partition, owner, id, digest, window)

        return await within(VERDICT_S, recalled(), runtime=self._runtime)
