"""The gateway: looks at each delta, has it appended, and answers by what is known afterwards (WIRE: answers).

It acknowledges only by a read of the store that began after the append was durable and says ``open``. Once a window is
not open, the answer is the fold's alone: the gateway waits until the fold has passed the entry, and repeats its words.
What the fold does not say in the stated time is answered *unavailable*, and the client's resend gets its word.

Where the fold runs in this process, a delta is kept until the fold has passed it, so that a resend is appended once;
where it runs elsewhere, until its answer alone: a slow fold there makes nothing grow here.
"""

import asyncio
from collections.abc import Coroutine
from typing import Final

from aggregator.commits import Commit, Commits
from aggregator.errors import AggregatorError
from aggregator.flights import Flight, Flights, Key, Sent
from aggregator.fold.verdicts import RememberedKind
from aggregator.fold_view import FoldView
from aggregator.journal import journal
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Appended, Runtime
from aggregator.refusals import (
    FAILED,
    RETRY_AFTER_MS,
    RefusedError,
    of_fold,
    refused,
    shutting_down,
    wrong_plan,
)
from aggregator.retries import TRANSIENT, within
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

_NOT_YET: Final = "what became of it is not known yet"
SETTLE_S: Final = 20.0  # how long a sender waits for the fold's word

_journal = journal("gateway")


class Gateway:
    """One process's gateway of one plan.

    Args:
        plan: What is collected.
        openings: Which windows take deltas.
        commits: The way into the log; the gateway stops it, and does not start it.
        folds: What is known of ids, and what is said of windows that are not open, here or elsewhere.
        runtime: Tasks and the clock.
        metrics: Counts every answer.
        pending_entries_max: Deltas of all sessions that may be unanswered, or not passed by a fold of this process.
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
        self._flights = Flights(folds, commits.partitions)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Deltas that are unanswered, or that a fold of this process has not passed yet."""
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
            sent = Sent(Key(client_id, header.id), partition, header.window, digest(data), data)
            flight = self._flights.find(sent)
            if flight is not None:
                return flight.answer
            delta = Delta.unpack(data, self._plan)
            glance = self._glance(sent, delta.records)
        except DeltaError as error:
            return refused(id_in(data), Refusal.of(error.reason, error.detail))
        except RefusedError as error:
            return refused(id_in(data), error.refusal)
        if glance is RememberedKind.OUT_OF_REACH:
            # The fold would drop it, whatever it holds: an acknowledgement would promise what never comes.
            return Answer(header.id, Status.UNKNOWN)
        if self._openings.state(sent.window) not in _OVER:
            return self._send(sent._replace(here=glance is not None))
        return self._ask(sent) if glance is None else Answer(header.id, _STATUSES[glance])

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

    def _glance(self, sent: Sent, records: int) -> RememberedKind | None:
        """What a fold that is here knows of it; refuses what that would refuse itself, but later.

        Beyond its client's bound a new delta will always be: what is counted in a window only grows until it is over.
        """
        glance = self._folds.glance(sent.partition, sent.key.client_id, sent.key.id, sent.digest, sent.window)
        if glance is None:
            return None
        if glance.kind is RememberedKind.REFUSED:
            assert glance.reason is not None
            raise RefusedError(of_fold(glance.reason, sent.key.id, self._plan))
        bound = self._plan.privacy.records_per_client
        if glance.kind is RememberedKind.UNKNOWN and bound is not None and glance.contributed + records > bound:
            raise RefusedError(of_fold(Reason.TOO_MANY_RECORDS, sent.key.id, self._plan))
        return glance.kind

    def _send(self, sent: Sent) -> Answer | asyncio.Future[Answer]:
        if self._is_full():
            return self._overloaded(sent)
        entry = DeltaEntry(sent.key.client_id, sent.data, self._runtime.now_ms())
        commit = self._commits.offer(Appended(sent.partition, sent.window, entry_to_bytes(entry)))
        if isinstance(commit, Refusal):
            return refused(sent.key.id, commit)
        flight = self._flights.take_off(sent)
        commit.add_done_callback(lambda done: self._committed(flight, done))
        return flight.answer

    def _ask(self, sent: Sent) -> Answer | asyncio.Future[Answer]:
        """The answer for a window that every fold has closed, from a fold that is not here: nothing is appended."""
        if self._is_full():
            return self._overloaded(sent)
        flight = self._flights.take_off(sent)
        self._spawn(self._settle(flight, None), "settle")
        return flight.answer

    def _is_full(self) -> bool:
        return self.waiting >= self._pending_entries_max

    def _overloaded(self, sent: Sent) -> Answer:
        detail = f"at most {self._pending_entries_max} deltas may wait for the log or the fold"
        return refused(sent.key.id, Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS))

    def _committed(self, flight: Flight, commit: Commit) -> None:
        committed = commit.result()
        if isinstance(committed, Refusal):
            self._flights.answered(flight, refused(flight.key.id, committed), appended=False)
            return
        if self._flights.appended(flight, committed.position):
            self._spawn(self._flights.sweep(flight.partition), "sweep")
        if committed.state is WindowState.OPEN:
            self._flights.answered(flight, Answer(flight.key.id, Status.ACKNOWLEDGED))
        else:
            self._spawn(self._settle(flight, committed.position), "settle")

    async def _settle(self, flight: Flight, position: int | None) -> None:
        """The answer for a window that is no longer open: the fold's, once it has passed the entry."""
        try:
            answer = await within(SETTLE_S, self._word(flight, position), runtime=self._runtime)
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning("the fold's word is not known yet", error=str(error))
            answer = refused(flight.key.id, Refusal.of(ServiceReason.UNAVAILABLE, _NOT_YET, RETRY_AFTER_MS))
        except AggregatorError as error:
            _journal.error("the fold says nothing of a delta", error=str(error))
            answer = refused(flight.key.id, Refusal.of(ServiceReason.UNAVAILABLE, FAILED, RETRY_AFTER_MS))
        self._flights.answered(flight, answer)

    async def _word(self, flight: Flight, position: int | None) -> Answer:
        if position is not None:
            await self._folds.passed(flight.partition, position)
        kind, reason = await self._folds.recall(
            flight.partition, flight.key.client_id, flight.key.id, flight.digest, flight.window
        )
        if kind is RememberedKind.REFUSED:
            assert reason is not None
            return refused(flight.key.id, of_fold(reason, flight.key.id, self._plan))
        return Answer(flight.key.id, _STATUSES[kind])

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
