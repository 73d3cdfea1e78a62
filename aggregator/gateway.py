"""The gateway: looks at each delta, has it appended, and answers by what is known afterwards (WIRE: answers).

It acknowledges only by a read of the store that began after the append was durable and says ``open``. Once a window is
not open, the answer is the fold's alone: the gateway waits until the fold has passed the entry, and repeats its words.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple

from aggregator.commits import Commit, Commits, Committed
from aggregator.errors import AggregatorError
from aggregator.fold import RememberedKind
from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Appended, FoldView, Runtime
from aggregator.refusals import (
    FAILED,
    RETRY_AFTER_MS,
    RefusedError,
    of_fold,
    refused,
    shutting_down,
    used_before,
    wrong_plan,
)
from aggregator.windows import WindowState
from hushsum.delta import Delta, DeltaHeader, DeltaId, digest, read_header
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry, partition_of

_STATUSES: Final = {
    RememberedKind.COUNTED: Status.COUNTED,
    RememberedKind.LATE: Status.LATE,
    RememberedKind.OUT_OF_REACH: Status.UNKNOWN,
    RememberedKind.UNKNOWN: Status.UNKNOWN,
}
# Every fold has closed such a window: nothing that is appended for it could count any more. (While it is *closing*, a
# delta is still appended: another copy of it may be on its way, and only what the fold says after both is final.)
_OVER: Final = frozenset({WindowState.SEALED, WindowState.RELEASED, WindowState.WITHHELD})

_journal = journal("gateway")


class _Key(NamedTuple):
    client_id: str
    id: DeltaId


class _Sent(NamedTuple):
    """A delta as it came, with what identifies it."""

    key: _Key
    partition: int
    window: int
    digest: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class _Flight:
    """A delta from its first look until the fold has passed it."""

    key: _Key
    partition: int
    window: int
    digest: bytes
    answer: asyncio.Future[Answer]


class _Unpassed(NamedTuple):
    position: int
    key: _Key


class Gateway:
    """One process's gateway of one plan.

    Args:
        plan: What is collected.
        openings: Which windows take deltas.
        commits: The way into the log; the gateway stops it, and does not start it.
        folds: What is known of ids, and what is said of windows that are not open.
        runtime: Tasks and the clock.
        metrics: Counts every answer.
        pending_entries_max: Deltas of all sessions that may be unanswered, or not passed by the fold yet.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        openings: Openings,
        commits: Commits,
        folds: FoldView,
        runtime: Runtime,
        metrics: Metrics,
        pending_entries_max: int,
    ) -> None:
        self._plan = plan
        self._openings = openings
        self._commits = commits
        self._folds = folds
        self._runtime = runtime
        self._metrics = metrics
        self._pending_entries_max = pending_entries_max
        self._flights: dict[_Key, _Flight] = {}
        self._unpassed: list[deque[_Unpassed]] = [deque() for _ in range(commits.partitions)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Deltas that are unanswered, or that the fold has not passed yet."""
        return len(self._flights)

    async def submit(self, client_id: str, plan_id: bytes, data: bytes) -> Answer:
        """The answer to one delta."""
        answer = self.begin(client_id, plan_id, data)
        # A caller that goes away takes nothing back: the delta is under way, and a resend may wait for the same answer.
        return answer if isinstance(answer, Answer) else await asyncio.shield(answer)

    def begin(self, client_id: str, plan_id: bytes, data: bytes) -> Answer | asyncio.Future[Answer]:
        """Looks at one delta and sends it on its way.

        Args:
            client_id: From the authenticator.
            plan_id: As the envelope names it.
            data: The packed delta.

        Returns:
            The answer, where it is known at once; else a future of it, which never ends with an exception. It may be
            shared: await it under a shield.
        """
        answer = self._begin(client_id, plan_id, data)
        if isinstance(answer, Answer):
            self._metrics.answered(answer)
        else:
            answer.add_done_callback(lambda done: self._metrics.answered(done.result()))
        return answer

    def stop_accepting(self) -> None:
        """From here on every new delta is refused; what was accepted goes on."""
        self._stopping = True

    async def finish(self) -> None:
        """Commits and answers what was accepted. The folds must still run."""
        await self._commits.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def check_running(self) -> None:
        """Refuses new work once the service is stopping.

        Raises:
            RefusedError: It is.
        """
        if self._stopping:
            raise RefusedError(shutting_down())

    def _begin(self, client_id: str, plan_id: bytes, data: bytes) -> Answer | asyncio.Future[Answer]:
        try:
            self.check_running()
            header = self._header(plan_id, data)
            partition = partition_of(client_id, self._commits.partitions)
            sent = _Sent(_Key(client_id, header.id), partition, header.window, digest(data), data)
            flight = self._in_flight(sent)
            if flight is not None:
                return flight.answer
            known = self._check_id(sent)
            delta = Delta.unpack(data, self._plan)
            if known is RememberedKind.OUT_OF_REACH:
                # The fold would drop it, whatever it holds: an acknowledgement would promise what never comes.
                return Answer(header.id, Status.UNKNOWN)
            if known is RememberedKind.UNKNOWN:
                self._check_bound(sent, delta.records)
        except DeltaError as error:
            return refused(id_in(data), Refusal.of(error.reason, error.detail))
        except RefusedError as error:
            return refused(id_in(data), error.refusal)
        return self._recall(sent) if self._openings.state(sent.window) in _OVER else self._send(sent)

    def _header(self, plan_id: bytes, data: bytes) -> DeltaHeader:
        """The header of a delta of this plan, no larger than one can be, for a window that takes deltas or did."""
        if len(data) > self._plan.delta_bytes_max:
            raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {self._plan.delta_bytes_max}")
        header = read_header(data)
        for named in (plan_id, header.plan_id):
            if named != self._plan.id:
                raise RefusedError(wrong_plan(named, self._plan))
        self._openings.check(header.window)
        return header

    def _in_flight(self, sent: _Sent) -> _Flight | None:
        """The same delta on its way, or still ahead of the fold; an id that is bound to another one is refused."""
        flight = self._flights.get(sent.key)
        if flight is None or (flight.window, flight.digest) == (sent.window, sent.digest):
            return flight
        reason = Reason.ID_REUSED if flight.window == sent.window else Reason.ID_OF_ANOTHER_WINDOW
        raise RefusedError(used_before(reason, sent.key.id))

    def _check_id(self, sent: _Sent) -> RememberedKind:
        """Refuses what the fold is known to refuse; it would say so itself, but later."""
        kind, reason = self._ask_fold(sent)
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            raise RefusedError(of_fold(reason, sent.key.id, self._plan))
        return kind

    def _check_bound(self, sent: _Sent, records: int) -> None:
        """Refuses a new delta beyond its client's bound: what is counted in an open window only grows."""
        bound = self._plan.privacy.records_per_client
        if bound is None:
            return
        if self._folds.contributed(sent.partition, sent.key.client_id, sent.window) + records > bound:
            raise RefusedError(of_fold(Reason.TOO_MANY_RECORDS, sent.key.id, self._plan))

    def _send(self, sent: _Sent) -> Answer | asyncio.Future[Answer]:
        if self.waiting >= self._pending_entries_max:
            detail = f"at most {self._pending_entries_max} deltas may wait for the log or the fold"
            return refused(sent.key.id, Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS))
        entry = DeltaEntry(sent.key.client_id, sent.data, self._runtime.now_ms())
        commit = self._commits.offer(Appended(sent.partition, sent.window, entry_to_bytes(entry)))
        if isinstance(commit, Refusal):
            return refused(sent.key.id, commit)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        flight = _Flight(sent.key, sent.partition, sent.window, sent.digest, answer)
        self._flights[flight.key] = flight
        commit.add_done_callback(lambda done: self._committed(flight, done))
        return answer

    def _committed(self, flight: _Flight, commit: Commit) -> None:
        committed = commit.result()
        if isinstance(committed, Refusal):
            del self._flights[flight.key]
            flight.answer.set_result(refused(flight.key.id, committed))
            return
        if committed.state is WindowState.OPEN:
            flight.answer.set_result(Answer(flight.key.id, Status.ACKNOWLEDGED))
        else:
            self._spawn(self._settle(flight, committed), "settle")
        unpassed = self._unpassed[flight.partition]
        unpassed.append(_Unpassed(committed.position, flight.key))
        if len(unpassed) == 1:
            self._spawn(self._sweep(flight.partition), "sweep")

    async def _settle(self, flight: _Flight, committed: Committed) -> None:
        """The answer for a window that is no longer open: the fold's, once it has passed the entry."""
        try:
            await self._folds.passed(flight.partition, committed.position)
            answer = self._recall(flight)
        except AggregatorError as error:
            _journal.error("the fold says nothing of a delta", error=str(error))
            answer = refused(flight.key.id, Refusal.of(ServiceReason.UNAVAILABLE, FAILED, RETRY_AFTER_MS))
        flight.answer.set_result(answer)

    async def _sweep(self, partition: int) -> None:
        """Lets go of the flights that the fold has passed: from there on it knows their ids itself."""
        unpassed = self._unpassed[partition]
        while unpassed:
            last = unpassed[-1].position
            try:
                await self._folds.passed(partition, last)
            except AggregatorError:
                last = unpassed[-1].position  # this fold passes nothing more; nothing is gained by holding on
            while unpassed and unpassed[0].position <= last:
                self._flights.pop(unpassed.popleft().key, None)

    def _recall(self, delta: _Sent | _Flight) -> Answer:
        kind, reason = self._ask_fold(delta)
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            return refused(delta.key.id, of_fold(reason, delta.key.id, self._plan))
        return Answer(delta.key.id, _STATUSES[kind])

    def _ask_fold(self, delta: _Sent | _Flight) -> tuple[RememberedKind, Reason | None]:
        return self._folds.recall(delta.partition, delta.key.client_id, delta.key.id, delta.digest, delta.window)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self._runtime.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def id_in(data: bytes) -> DeltaId | None:
    """The id of a delta that is refused before anything of it was believed, where one can be read."""
    try:
        return read_header(data).id
    except DeltaError:
        return None
