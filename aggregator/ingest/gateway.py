"""The gateway: validates each delta, has it appended, and answers by what is known afterwards.

The way of a delta: received → accepted (validated, owner known) → appended → answered. It is acknowledged only by a
read of the store that began after the append was durable and says ``open``. Once a window is not open, the answer is
the fold's alone: the gateway waits until the fold has passed the entry, and repeats its verdict. Without a verdict in
the stated time the answer is *unavailable*, and the client's resend gets the verdict.

Where the fold runs in this process, a delta is kept until the fold has passed it, so that a resend is appended once;
where it runs elsewhere, until its answer alone: a slow fold there makes nothing grow here. What outlives it is which
streams each client has used in the windows that are not over (:mod:`aggregator.rate_limits`).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Final

from aggregator import errors
from aggregator.errors import (
    FAILED,
    NOT_CHARGED,
    NOT_YET,
    RefusedError,
    overloaded,
    refused,
    share_taken,
    unavailable,
)
from aggregator.fold.verdicts import RememberedKind
from aggregator.ingest.collection_budget import CollectionBudget
from aggregator.ingest.group_commit import CommitResult, GroupCommitter
from aggregator.ingest.inflight import (
    STATUSES,
    AcceptedDelta,
    DeltaKey,
    InflightTable,
    OnAnswer,
    ReceivedDelta,
    VerdictResolver,
    released,
)
from aggregator.ingest.validation import ParsedDelta, SubmissionPolicy, id_in, submission_policy_of
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import FoldReader
from aggregator.logs import FailureLog, journal
from aggregator.model import NewEntry
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import DeltaStreamQuota, QuotaReservation, share_of
from aggregator.runtime import TRANSIENT, Runtime
from aggregator.windows import OVER, WindowState
from hushsum.delta import digest
from hushsum.errors import DeltaError
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, Status

# What no fold knows, or none in this process: the fold would remember its stream. Of what it knows, it does.
_NEW: Final = frozenset({None, RememberedKind.UNKNOWN})

_journal = journal("gateway")


class Gateway:
    """One process's gateway of one plan. It stops ``commits``, the writer of the log, and does not start it.

    ``pending_entries_max`` deltas may be unanswered, or not passed by a fold here; of one client a quarter. By default
    nothing limits what a client sends (``policy``) and how many streams it uses (``streams``); ``budget`` charges a
    window before its first append, and is None where an outcome is charged.
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
        policy: SubmissionPolicy | None = None,
        streams: DeltaStreamQuota | None = None,
        budget: CollectionBudget | None = None,
    ) -> None:
        if policy is None:
            policy = submission_policy_of(plan, limits=None, shufflers=None, runtime=runtime)
        self._plan = plan
        self._policy = policy
        self.streams = DeltaStreamQuota() if streams is None else streams
        self._window_tracker = window_tracker
        self._commits = commits
        self._folds = folds
        self._runtime = runtime
        self._metrics = metrics
        self._pending_entries_max = pending_entries_max
        self._share_max = share_of(pending_entries_max)
        self._budget = budget
        self._budget_failures = FailureLog(_journal)
        self._received: list[tuple[ReceivedDelta, OnAnswer]] = []
        self._inflight = InflightTable(folds, commits.partitions)
        self._resolver = VerdictResolver(plan, folds, runtime)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Deltas that are unanswered, or that a fold of this process has not passed yet."""
        return len(self._inflight)

    # -------------------------------------------------------------------------------------------------------- received

    async def submit(self, received: ReceivedDelta) -> Answer:
        answer = self.begin(received)
        return answer if isinstance(answer, Answer) else await answer

    def begin(self, received: ReceivedDelta) -> Answer | asyncio.Future[Answer]:
        """The answer where it is known at once; else a future of it, which never ends with an exception."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def on_answer(given: Answer) -> None:
            if not answer.done():  # else its caller has gone away
                answer.set_result(given)

        self._accept_all([(received, on_answer)])
        return answer.result() if answer.done() else answer

    def send(self, received: ReceivedDelta, on_answer: OnAnswer) -> None:
        """Takes one of many deltas: all that arrive in one turn of the event loop are validated together.

        ``on_answer`` is called once with the answer; it must not raise.
        """
        if not self._received:
            asyncio.get_running_loop().call_soon(self._accept_received)
        self._received.append((received, on_answer))

    def stop_accepting(self) -> None:
        """From here on every new delta is refused; what was accepted goes on."""
        self._stopping = True

    async def finish(self) -> None:
        """Commits and answers what was accepted. The folds must still run."""
        self._accept_received()
        await self._commits.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def check_running(self) -> None:
        """Raises RefusedError while the service is stopping, and while its store may be older than its log."""
        if self._stopping:
            raise RefusedError(errors.shutting_down())
        try:
            self._window_tracker.check_store()
        except RefusedError:
            if self._budget is not None:
                self._budget.forget()
            raise

    # ---------------------------------------------------------------------------------------- accepted: owner, validity

    def _accept_received(self) -> None:
        """A resend pays nothing while the same delta is in flight: second copies are taken after all first ones."""
        arrived, self._received = self._received, []
        firsts = {each[0].data: each for each in reversed(arrived)}
        if len(firsts) == len(arrived):
            self._accept_all(arrived)
            return
        self._accept_all([each for each in arrived if firsts[each[0].data] is each])
        for each in arrived:
            if firsts[each[0].data] is not each:
                self._accept_all([each])

    def _accept_all(self, arrived: Sequence[tuple[ReceivedDelta, OnAnswer]]) -> None:
        reserved: list[tuple[ReceivedDelta, OnAnswer, QuotaReservation]] = []
        for received, on_answer in arrived:
            try:
                self.check_running()
                # From here on the sender is not known, where the plan's reports are anonymous.
                reserved.append((received, on_answer, self._policy.reserve(received)))
            except Exception as error:  # noqa: BLE001  the others that arrived with it still get their answers
                self._answer(on_answer, self._answer_of(error, received.data))
        parsed: Sequence[ParsedDelta | None]
        try:
            parsed = self._policy.parse_many([received.data for received, _, _ in reserved])
        except Exception as error:  # noqa: BLE001  each is then parsed alone, and fails alone
            _journal.error("batch parsing failed, parsing deltas one by one", exc_info=error)
            parsed = [None] * len(reserved)
        for (received, on_answer, reservation), header in zip(reserved, parsed, strict=True):
            try:
                answer = self._accept(received, on_answer, reservation, header)
            except Exception as error:  # noqa: BLE001  the others that arrived with it still get their answers
                answer = self._answer_of(error, received.data)
            if answer is not None:
                self._answer(on_answer, released(reservation, answer))

    def _accept(
        self,
        received: ReceivedDelta,
        on_answer: OnAnswer,
        reservation: QuotaReservation,
        parsed: ParsedDelta | None,
    ) -> Answer | None:
        """The answer where it is known at once; None: the delta is in flight, and is answered later.

        Raises:
            DeltaError: Its bytes are refused.
            RefusedError: It is refused for another reason.
        """
        policy, data, owner = self._policy, received.data, reservation.owner
        id, window, records = policy.parse(received.plan_id, data, parsed)
        self._window_tracker.check(window)
        key, digested = DeltaKey(owner, id.stream, id.sequence), digest(data)
        same = self._inflight.find(key, id, window, digested)
        if same is not None:
            reservation.cancel()
            if same.answer is not None:
                return same.answer
            same.on_answer.append(on_answer)
            return None
        if records is None:
            records = policy.records(data)
        partition = policy.partition(owner, id, self._commits.partitions)
        peek = self._folds.peek(partition, owner, id, digested, window)
        kind = None
        if peek is not None:
            kind = peek.kind
            if peek.reason is not None:
                raise RefusedError(errors.of_fold(peek.reason, id, self._plan))
            policy.check_contribution(peek, id, records)
        state = self._window_tracker.state(window)
        is_over = state is not WindowState.OPEN and state in OVER
        # Out of reach, the fold would drop it, whatever it holds: an acknowledgement would promise what never comes.
        if kind is not None and (is_over or kind is RememberedKind.OUT_OF_REACH):
            return Answer(id, STATUSES[kind])
        self._check_room(owner)
        is_local = peek is not None
        delta = AcceptedDelta(key, id, window, partition, digested, is_local, reservation, [on_answer])
        if is_over:  # nothing is appended: the folds elsewhere have closed it
            self._spawn(self._answer_by_fold(delta, None), "verdict")
        else:
            refusal = self._append(delta, data, is_new=kind in _NEW)
            if refusal is not None:
                return refused(id, refusal)
        self._inflight.add(delta)
        return None

    def _check_room(self, owner: str) -> None:
        if len(self._inflight) >= self._pending_entries_max:
            raise overloaded(f"at most {self._pending_entries_max} deltas may be pending")
        if self._inflight.of(owner) >= self._share_max:
            raise RefusedError(share_taken(f"{self._share_max} pending deltas per client"))

    # -------------------------------------------------------------------------------------------------------- appended

    def _append(self, delta: AcceptedDelta, data: bytes, *, is_new: bool) -> Refusal | None:
        """Commits it: at once where its window is charged already, else by a task that charges the window first."""
        body = self._policy.entry(delta.key.owner, delta.window, data, self._runtime.now_ms())
        entry = NewEntry(delta.partition, delta.window, body)
        if self._budget is None or self._is_covered(self._budget, delta.window):
            return self._commit(delta, entry, is_new=is_new)
        self._spawn(self._commit_charged(self._budget, delta, entry, is_new=is_new), "charge")
        return None

    def _is_covered(self, budget: CollectionBudget, window: int) -> bool:
        if self._window_tracker.state(window) is None:  # a store that went back has lost it, and with it the charge
            budget.forget()
        return budget.is_covered(window)

    async def _commit_charged(
        self, budget: CollectionBudget, delta: AcceptedDelta, entry: NewEntry, *, is_new: bool
    ) -> None:
        window = delta.window
        try:
            answer = await self._charge(budget, delta)
        except RefusedError as error:
            answer = refused(delta.id, error.refusal)
        except Exception as error:  # noqa: BLE001  every sender gets its answer
            passes = isinstance(error, TRANSIENT)
            now_s = self._runtime.monotonic()
            self._budget_failures.failed(now_s, f"window {window} is not charged", error, passes=passes)
            answer = unavailable(delta.id, NOT_CHARGED if passes else FAILED)
        else:
            self._budget_failures.worked(self._runtime.monotonic(), "window charges work again")
        if answer is None:
            try:
                refusal = self._commit(delta, entry, is_new=is_new)
            except Exception as error:  # noqa: BLE001  every sender gets its answer
                _journal.error("delta not submitted to the log", exc_info=error)
                answer = unavailable(delta.id, FAILED)
            else:
                if refusal is None:
                    return
                answer = refused(delta.id, refusal)
        self._resolve(delta, answer, is_appended=False)

    async def _charge(self, budget: CollectionBudget, delta: AcceptedDelta) -> Answer | None:
        """Charges its window; None once that is done, else the answer to the delta, which is then not appended."""
        window = delta.window
        if await self._window_tracker.never_open({window}):
            raise RefusedError(errors.never_open())
        if await budget.covered(window):
            budget.forget_before(self._window_tracker.accepted().start - 1)
            return None
        await self._window_tracker.refresh([window])
        if self._window_tracker.state(window) in OVER:
            return await self._resolver.answer(delta, None)
        return unavailable(delta.id, NOT_YET)  # it closes: an earlier copy of it may still be counted

    def _commit(self, delta: AcceptedDelta, entry: NewEntry, *, is_new: bool) -> Refusal | None:
        """Hands an entry to the log's writer, unless its client has used as many streams in the window as it may.

        A stream counts as used from when the entry is in the writer's queue, whatever is answered later.
        """
        streams, window = self.streams, delta.window
        owner, stream, _ = delta.key
        takes_one = is_new and not streams.is_known(owner, stream, window)
        if takes_one:
            streams.forget(self._window_tracker.is_over)
            if not streams.has_room(owner, window):
                assert streams.most is not None, "else there is room"
                return errors.too_many_streams(streams.most)
        refusal = self._commits.offer(entry, partial(self._committed, delta))
        if takes_one and refusal is None:
            streams.add(owner, stream, window)
        return refusal

    def _committed(self, delta: AcceptedDelta, result: CommitResult | Refusal) -> None:
        try:
            self._answer_commit(delta, result)
        except Exception as error:  # noqa: BLE001  every sender gets its answer
            _journal.error("commit result not answered", exc_info=error)
            if delta.answer is None:
                self._resolve(delta, unavailable(delta.id, FAILED), is_appended=not isinstance(result, Refusal))

    def _answer_commit(self, delta: AcceptedDelta, result: CommitResult | Refusal) -> None:
        if isinstance(result, Refusal):
            self._resolve(delta, refused(delta.id, result), is_appended=False)
            return
        if self._inflight.appended(delta, result.position):
            self._spawn(self._inflight.sweep(delta.partition), "sweep")
        if result.state is WindowState.OPEN:
            self._resolve(delta, Answer(delta.id, Status.ACKNOWLEDGED))
        elif result.state is None:  # the store went back to an older moment
            if self._budget is not None:
                self._budget.forget()
            self._resolve(delta, unavailable(delta.id, NOT_YET))
        else:
            self._spawn(self._answer_by_fold(delta, result.position), "verdict")

    # -------------------------------------------------------------------------------------------------------- answered

    async def _answer_by_fold(self, delta: AcceptedDelta, position: int | None) -> None:
        """Answers for a window that is no longer open: by the fold, once it has passed the entry."""
        self._resolve(delta, await self._resolver.answer(delta, position))

    def _resolve(self, delta: AcceptedDelta, answer: Answer, *, is_appended: bool = True) -> None:
        """Answers all copies; the delta stays in flight where its fold is here and has to pass what was appended."""
        if not (delta.is_local and is_appended):
            self._inflight.remove(delta.key)
        delta.answer = answer
        given = released(delta.reservation, answer)
        for on_answer in delta.on_answer:
            self._answer(on_answer, given)
        delta.on_answer.clear()

    def _answer(self, on_answer: OnAnswer, answer: Answer) -> None:
        try:
            self._metrics.answered(answer)
            on_answer(answer)
        except Exception as error:  # noqa: BLE001  the others still get theirs
            _journal.error("answer not delivered to the caller", exc_info=error)

    def _answer_of(self, error: Exception, data: bytes) -> Answer:
        if isinstance(error, DeltaError):
            return refused(id_in(data), Refusal.of(error.reason, error.detail))
        if isinstance(error, RefusedError):
            return refused(id_in(data), error.refusal)
        _journal.error("delta validation failed", exc_info=error)
        return unavailable(id_in(data), FAILED)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = self._runtime.spawn(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
