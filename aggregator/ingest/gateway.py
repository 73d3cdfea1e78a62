"""The gateway: looks at each delta, has it appended, and answers by what is known afterwards (WIRE: answers).

It acknowledges only by a read of the store that began after the append was durable and says ``open``. Once a window is
not open, the answer is the fold's alone: the gateway waits until the fold has passed the entry, and repeats its words.
What the fold does not say in the stated time is answered *unavailable*, and the client's resend gets its word.

Where the fold runs in this process, a delta is kept until the fold has passed it, so that a resend is appended once;
where it runs elsewhere, until its answer alone: a slow fold there makes nothing grow here. What outlives it is which
streams each client has used in the windows that are not over (:mod:`aggregator.rate_limits`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, NamedTuple

from aggregator import errors
from aggregator.errors import FAILED, NOT_YET, RefusedError, overloaded, refused, share_taken, unavailable
from aggregator.fold.state import RememberedKind
from aggregator.ingest.budget import CollectionBudget, WindowCharging
from aggregator.ingest.group_commit import CommitResult, GroupCommitter
from aggregator.ingest.inflight import STATUSES, DeltaKey, InflightDelta, InflightTable, Submission, VerdictResolver
from aggregator.ingest.validation import (
    AttributedDeltas,
    DeltaParser,
    ParsedDelta,
    SubmissionPolicy,
    SubmissionValidator,
    id_in,
)
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import FoldReader
from aggregator.logs import journal
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import ClientStreams, QuotaReservation, share_of
from aggregator.runtime import Runtime
from aggregator.windows import OVER, WindowState
from hushsum.delta import digest
from hushsum.errors import DeltaError
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, Status
from hushsum_proto.messages import Authenticity

# What is not known to a fold that is here, or to none: the fold would remember its stream. Of what it knows, it does.
_NEW: Final = frozenset({None, RememberedKind.UNKNOWN})

_journal = journal("gateway")


class _Arrived(NamedTuple):
    client_id: str
    plan_id: bytes
    data: bytes
    tell: Callable[[Answer], None]
    shuffled: Authenticity | None


class Gateway:
    """One process's gateway of one plan.

    Args:
        plan: What is collected.
        window_tracker: Which windows take deltas.
        commits: The way into the log; the gateway stops it, and does not start it.
        folds: What is known of ids, and what is said of windows that are not open, here or elsewhere.
        runtime: Tasks and the clock.
        metrics: Counts every answer.
        pending_entries_max: Deltas that may be unanswered, or not passed by a fold here; of one client a quarter.
        submissions: What the plan's mode makes of what is sent; by default each is its client's.
        streams: How many streams each client may use in a window, and has; by default any number.
        charges: Lets the ledger pay for a window before anything of it is appended; None where an outcome is charged.

    Attributes:
        streams: As they came, and what was used since.
    """

    def __init__(  # noqa: PLR0913  by name, and each is of another kind
        self,
        plan: Plan,
        *,
        window_tracker: WindowTracker,
        commits: GroupCommitter,
        folds: FoldReader,
        runtime: Runtime,
        metrics: Metrics,
        pending_entries_max: int,
        submissions: SubmissionPolicy | None = None,
        streams: ClientStreams | None = None,
        charges: CollectionBudget | None = None,
    ) -> None:
        self._parser = DeltaParser(plan)
        self._submissions = AttributedDeltas(plan) if submissions is None else submissions
        self.streams = ClientStreams() if streams is None else streams
        self._looks = SubmissionValidator(plan, self._parser, window_tracker, folds, self._submissions)
        self._arrived: list[_Arrived] = []
        self._window_tracker = window_tracker
        self._commits = commits
        self._runtime = runtime
        self._metrics = metrics
        self._pending_entries_max = pending_entries_max
        self._share_max = share_of(pending_entries_max)
        self._inflight = InflightTable(folds, commits.partitions)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._resolver = VerdictResolver(plan, folds, runtime)
        self._forget_charges: Callable[[], None] = (lambda: None) if charges is None else charges.forget
        self._charging = None if charges is None else WindowCharging(charges, window_tracker, self._resolver, runtime)

    @property
    def waiting(self) -> int:
        """Deltas that are unanswered, or that a fold of this process has not passed yet."""
        return len(self._inflight)

    async def submit(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None = None) -> Answer:
        """The answer to one delta."""
        answer = self.begin(client_id, plan_id, data, shuffled)
        # A caller that goes away takes nothing back: the delta is under way, and a resend may wait for the same answer.
        return answer if isinstance(answer, Answer) else await asyncio.shield(answer)

    def begin(
        self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None = None
    ) -> Answer | asyncio.Future[Answer]:
        """Looks at one delta and sends it on its way.

        Args:
            client_id: As the authenticator has it.
            plan_id: As the envelope names it.
            data: The packed delta.
            shuffled: Who says to have shuffled it.

        Returns:
            The answer, where it is known at once; else a future of it, which never ends with an exception. It may be
            shared: await it under a shield.
        """
        arrived = _Arrived(client_id, plan_id, data, self._metrics.answered, shuffled)
        sender = self._sender(arrived)
        found = (
            self._begin(arrived, sender, self._parser.see([data])[0])
            if isinstance(sender, QuotaReservation)
            else sender
        )
        answer = found if isinstance(found, Answer) else found.answer
        if answer is not None:
            self._metrics.answered(answer)
            return answer
        assert isinstance(found, InflightDelta)
        found.tell(self._metrics.answered)
        return found.future()

    def send(
        self,
        client_id: str,
        plan_id: bytes,
        data: bytes,
        tell: Callable[[Answer], None],
        shuffled: Authenticity | None = None,
    ) -> None:
        """The same for one of many, looked at with what else came in this turn of the event loop.

        Args:
            client_id: From the authenticator.
            plan_id: As the envelope names it.
            data: The packed delta.
            tell: Called once, later, with the answer; it must not raise.
            shuffled: Who says to have shuffled it.
        """
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._look)
        self._arrived.append(_Arrived(client_id, plan_id, data, tell, shuffled))

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
            raise RefusedError(errors.shutting_down())
        try:
            self._window_tracker.check_store()
        except RefusedError:
            self._forget_charges()
            raise

    def _look(self) -> None:
        """Begins with all that came.

        A resend is not to be paid for while the same is under way: what came twice is looked at after its first copy.
        """
        arrived, self._arrived = self._arrived, []
        firsts = {each.data: each for each in reversed(arrived)}
        self._look_at([each for each in arrived if firsts[each.data] is each])
        for each in arrived:
            if firsts[each.data] is not each:
                self._look_at([each])

    def _look_at(self, arrived: list[_Arrived]) -> None:
        senders = [self._sender(each) for each in arrived]
        let_in = [
            each.data for each, sender in zip(arrived, senders, strict=True) if isinstance(sender, QuotaReservation)
        ]
        seen = iter(self._parser.see(let_in))
        for each, sender in zip(arrived, senders, strict=True):
            found = self._begin(each, sender, next(seen)) if isinstance(sender, QuotaReservation) else sender
            tell = partial(self._tell, each.tell)
            tell(found) if isinstance(found, Answer) else found.tell(tell)

    def _tell(self, tell: Callable[[Answer], None], answer: Answer) -> None:
        self._metrics.answered(answer)
        tell(answer)

    def _sender(self, arrived: _Arrived) -> QuotaReservation | Answer:
        """Who sent it, before its bytes are looked at; or why nobody may now."""
        try:
            self.check_running()
            # From here on nobody knows who sent it, where the plan's reports are anonymous.
            return self._submissions.sender(arrived.client_id, arrived.plan_id, arrived.data, arrived.shuffled)
        except RefusedError as error:
            return refused(id_in(arrived.data), error.refusal)
        except Exception as error:  # noqa: BLE001  the others that came with it still get their answers
            return self._failed(arrived, error)

    def _begin(self, arrived: _Arrived, sender: QuotaReservation, seen: ParsedDelta | None) -> Answer | InflightDelta:
        try:
            found = self._found(arrived, sender, seen)
        except DeltaError as error:
            found = refused(id_in(arrived.data), Refusal.of(error.reason, error.detail))
        except RefusedError as error:
            found = refused(id_in(arrived.data), error.refusal)
        except Exception as error:  # noqa: BLE001  the others that came with it still get their answers
            found = self._failed(arrived, error)
        sender.answered(found) if isinstance(found, Answer) else found.tell(sender.answered)
        return found

    def _failed(self, arrived: _Arrived, error: Exception) -> Answer:
        _journal.error("a delta could not be looked at", exc_info=error)
        return unavailable(id_in(arrived.data), FAILED)

    def _found(self, arrived: _Arrived, sender: QuotaReservation, seen: ParsedDelta | None) -> Answer | InflightDelta:
        """The answer, or the delta on its way.

        Raises:
            DeltaError: What is wrong with its bytes.
            RefusedError: What else refuses it.
        """
        data = arrived.data
        seen = self._looks.checked(arrived.plan_id, data, seen)
        partition = self._submissions.partition(sender.name, seen.id, self._commits.partitions)
        sent = Submission(DeltaKey(sender.name, seen.id), partition, seen.window, digest(data), data)
        inflight = self._inflight.find(sent)
        if inflight is not None:
            sender.costs_nothing()
            return inflight
        return self._taken(sent, self._looks.peek(sent, seen))

    def _taken(self, sent: Submission, peek: RememberedKind | None) -> Answer | InflightDelta:
        if peek is RememberedKind.OUT_OF_REACH:
            # The fold would drop it, whatever it holds: an acknowledgement would promise what never comes.
            return Answer(sent.key.id, Status.UNKNOWN)
        is_over = self._window_tracker.state(sent.window) in OVER
        if is_over and peek is not None:
            return Answer(sent.key.id, STATUSES[peek])
        if self.waiting >= self._pending_entries_max:
            detail = f"at most {self._pending_entries_max} deltas may wait for the log or the fold"
            return refused(sent.key.id, overloaded(detail).refusal)
        if self._inflight.of(sent.key.client_id) >= self._share_max:
            return refused(sent.key.id, share_taken(f"{self._share_max} deltas of one client may wait"))
        inflight = InflightDelta(sent, here=peek is not None)
        return self._ask(inflight) if is_over else self._send(sent, inflight, is_new=peek in _NEW)

    def _send(self, sent: Submission, inflight: InflightDelta, *, is_new: bool) -> Answer | InflightDelta:
        entry = self._submissions.entry(sent, self._runtime.now_ms())
        appended = NewEntry(sent.partition, sent.window, entry)
        if self._charging is not None and not self._charging.has_paid(sent.window):
            self._spawn(self._pay(self._charging, inflight, appended, is_new=is_new), "charge")
        elif (refusal := self._offer(inflight, appended, is_new=is_new)) is not None:
            return refused(sent.key.id, refusal)
        self._inflight.add(inflight)
        return inflight

    def _offer(self, inflight: InflightDelta, appended: NewEntry, *, is_new: bool) -> Refusal | None:
        """Hands it to the log's writer, if its client may use its stream; that is used up once it is handed over."""
        streams, window = self.streams, inflight.window
        client_id, stream = inflight.key.client_id, inflight.key.id.stream
        takes_one = is_new and not streams.is_known(client_id, stream, window)
        if takes_one:
            streams.forget(self._window_tracker.is_over)
            if not streams.has_room(client_id, window):
                assert streams.most is not None, "else there is room"
                return errors.too_many_streams(streams.most)
        refusal = self._commits.offer(appended, partial(self._committed, inflight))
        if takes_one and refusal is None:
            streams.add(client_id, stream, window)
        return refusal

    async def _pay(
        self, charging: WindowCharging, inflight: InflightDelta, appended: NewEntry, *, is_new: bool
    ) -> None:
        answer = await charging.answer(inflight)
        if answer is None:
            refusal = self._offer(inflight, appended, is_new=is_new)
            if refusal is None:
                return
            answer = refused(inflight.key.id, refusal)
        self._inflight.answered(inflight, answer, appended=False)

    def _ask(self, inflight: InflightDelta) -> InflightDelta:
        """The answer for a window that every fold has closed, from a fold that is not here: nothing is appended."""
        self._inflight.add(inflight)
        self._spawn(self._settle(inflight, None), "settle")
        return inflight

    def _committed(self, inflight: InflightDelta, committed: CommitResult | Refusal) -> None:
        if isinstance(committed, Refusal):
            self._inflight.answered(inflight, refused(inflight.key.id, committed), appended=False)
            return
        if self._inflight.appended(inflight, committed.position):
            self._spawn(self._inflight.sweep(inflight.partition), "sweep")
        if committed.state is WindowState.OPEN:
            self._inflight.answered(inflight, Answer(inflight.key.id, Status.ACKNOWLEDGED))
        elif committed.state is None:  # the store went back to an older moment
            self._forget_charges()
            self._inflight.answered(inflight, unavailable(inflight.key.id, NOT_YET))
        else:
            self._spawn(self._settle(inflight, committed.position), "settle")

    async def _settle(self, inflight: InflightDelta, position: int | None) -> None:
        """The answer for a window that is no longer open: the fold's, once it has passed the entry."""
        self._inflight.answered(inflight, await self._resolver.answer(inflight, position))

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self._runtime.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
