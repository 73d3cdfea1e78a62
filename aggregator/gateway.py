"""The gateway: looks at each delta, has it appended, and answers by what is known afterwards (WIRE: answers).

It acknowledges only by a read of the store that began after the append was durable and says ``open``. Once a window is
not open, the answer is the fold's alone: the gateway waits until the fold has passed the entry, and repeats its words.
What the fold does not say in the stated time is answered *unavailable*, and the client's resend gets its word.

Where the fold runs in this process, a delta is kept until the fold has passed it, so that a resend is appended once;
where it runs elsewhere, until its answer alone: a slow fold there makes nothing grow here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Final, NamedTuple

from aggregator import refusals
from aggregator.commits import Commits, Committed
from aggregator.errors import AggregatorError
from aggregator.flights import Flight, Flights, Key, Sent
from aggregator.fold.verdicts import RememberedKind
from aggregator.fold_view import FoldView
from aggregator.inspection import Inspection, Seen, id_in
from aggregator.journal import Spell, journal
from aggregator.metrics import Metrics
from aggregator.openings import Openings
from aggregator.ports import Appended, Runtime
from aggregator.refusals import FAILED, RETRY_AFTER_MS, RefusedError, of_fold, refused, unavailable, wrong_plan
from aggregator.retries import TRANSIENT, within
from aggregator.windows import WindowState
from hushsum.delta import digest
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

_partition_of = lru_cache(maxsize=1024)(partition_of)  # a session sends many deltas under one id


class _Arrived(NamedTuple):
    client_id: str
    plan_id: bytes
    data: bytes
    tell: Callable[[Answer], None]


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
        self._inspection = Inspection(plan)
        self._arrived: list[_Arrived] = []
        self._openings = openings
        self._commits = commits
        self._folds = folds
        self._runtime = runtime
        self._metrics = metrics
        self._pending_entries_max = pending_entries_max
        self._flights = Flights(folds, commits.partitions)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._unsettled = Spell(_journal)

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
        found = self._begin(client_id, plan_id, data, self._inspection.see([data])[0])
        answer = found if isinstance(found, Answer) else found.answer
        if answer is not None:
            self._metrics.answered(answer)
            return answer
        assert isinstance(found, Flight)
        found.tell(self._metrics.answered)
        return found.future()

    def send(self, client_id: str, plan_id: bytes, data: bytes, tell: Callable[[Answer], None]) -> None:
        """The same for one of many, looked at with what else came in this turn of the event loop.

        Args:
            client_id: From the authenticator.
            plan_id: As the envelope names it.
            data: The packed delta.
            tell: Called once, later, with the answer; it must not raise.
        """
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._look)
        self._arrived.append(_Arrived(client_id, plan_id, data, tell))

    def stop_accepting(self) -> None:
        """From here on every new delta is refused; what was accepted goes on."""
        self._stopping = True

    async def finish(self) -> None:
        """Commits and answers what was accepted. The folds must still run."""
        self._look()
        await self._commits.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def check_running(self) -> None:
        """Refuses new work once the service is stopping, and while its store may be older than its log.

        Raises:
            RefusedError: It is.
        """
        if self._stopping:
            raise RefusedError(refusals.shutting_down())
        self._openings.check_store()

    def _look(self) -> None:
        """Begins with all that came."""
        arrived, self._arrived = self._arrived, []
        seen = self._inspection.see([each.data for each in arrived])
        for each, one in zip(arrived, seen, strict=True):
            try:
                found = self._begin(each.client_id, each.plan_id, each.data, one)
            except Exception as error:  # noqa: BLE001  the others that came with it still get their answers
                _journal.error("a delta could not be looked at", exc_info=error)
                found = unavailable(id_in(each.data), FAILED)
            tell = partial(self._tell, each.tell)
            tell(found) if isinstance(found, Answer) else found.tell(tell)

    def _tell(self, tell: Callable[[Answer], None], answer: Answer) -> None:
        self._metrics.answered(answer)
        tell(answer)

    def _begin(self, client_id: str, plan_id: bytes, data: bytes, seen: Seen | None) -> Answer | Flight:
        try:
            self.check_running()
            seen = self._checked(plan_id, data, seen)
            partition = _partition_of(client_id, self._commits.partitions)
            sent = Sent(Key(client_id, seen.id), partition, seen.window, digest(data), data)
            flight = self._flights.find(sent)
            if flight is not None:
                return flight
            records = self._inspection.records(data) if seen.records is None else seen.records
            glance = self._glance(sent, records)
        except DeltaError as error:
            return refused(id_in(data), Refusal.of(error.reason, error.detail))
        except RefusedError as error:
            return refused(id_in(data), error.refusal)
        if glance is RememberedKind.OUT_OF_REACH:
            # The fold would drop it, whatever it holds: an acknowledgement would promise what never comes.
            return Answer(seen.id, Status.UNKNOWN)
        if self._openings.state(sent.window) not in _OVER:
            return self._send(sent, here=glance is not None)
        return self._ask(sent) if glance is None else Answer(seen.id, _STATUSES[glance])

    def _checked(self, plan_id: bytes, data: bytes, seen: Seen | None) -> Seen:
        """What is seen of a delta of this plan, no larger than one can be, whose window takes deltas or did."""
        if seen is None:
            seen = self._inspection.first_look(plan_id, data)
        elif plan_id != self._plan.id:
            raise RefusedError(wrong_plan(plan_id, self._plan))
        self._openings.check(seen.window)
        return seen

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

    def _send(self, sent: Sent, *, here: bool) -> Answer | Flight:
        if (overload := self._overload(sent)) is not None:
            return overload
        entry = DeltaEntry(sent.key.client_id, sent.data, self._runtime.now_ms())
        flight = Flight(sent, here=here)
        appended = Appended(sent.partition, sent.window, entry_to_bytes(entry))
        refusal = self._commits.offer(appended, partial(self._committed, flight))
        if refusal is not None:
            return refused(sent.key.id, refusal)
        self._flights.take_off(flight)
        return flight

    def _ask(self, sent: Sent) -> Answer | Flight:
        """The answer for a window that every fold has closed, from a fold that is not here: nothing is appended."""
        if (overload := self._overload(sent)) is not None:
            return overload
        flight = Flight(sent, here=False)
        self._flights.take_off(flight)
        self._spawn(self._settle(flight, None), "settle")
        return flight

    def _overload(self, sent: Sent) -> Answer | None:
        if self.waiting < self._pending_entries_max:
            return None
        detail = f"at most {self._pending_entries_max} deltas may wait for the log or the fold"
        return refused(sent.key.id, Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS))

    def _committed(self, flight: Flight, committed: Committed | Refusal) -> None:
        if isinstance(committed, Refusal):
            self._flights.answered(flight, refused(flight.key.id, committed), appended=False)
            return
        if self._flights.appended(flight, committed.position):
            self._spawn(self._flights.sweep(flight.partition), "sweep")
        if committed.state is WindowState.OPEN:
            self._flights.answered(flight, Answer(flight.key.id, Status.ACKNOWLEDGED))
        elif committed.state is None:  # the store went back to an older moment
            self._flights.answered(flight, unavailable(flight.key.id, _NOT_YET))
        else:
            self._spawn(self._settle(flight, committed.position), "settle")

    async def _settle(self, flight: Flight, position: int | None) -> None:
        """The answer for a window that is no longer open: the fold's, once it has passed the entry."""
        try:
            answer = await within(SETTLE_S, self._word(flight, position), runtime=self._runtime)
        except (TimeoutError, AggregatorError) as error:
            passes = isinstance(error, (TimeoutError, *TRANSIENT))
            self._unsettled.failed(self._runtime.monotonic(), "the folds do not answer", error, passes=passes)
            answer = unavailable(flight.key.id, _NOT_YET if passes else FAILED)
        else:
            self._unsettled.worked(self._runtime.monotonic(), "the folds answer again")
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
