"""Secure sums of one plan in one process: who may take part, which cohort each is in, and the result of its round.

A cohort lives here and nowhere else: if this process dies its rounds are over, and nothing of them is ever sent again.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PrometheusCounter

from aggregator import errors
from aggregator.errors import RefusedError, UnauthenticatedError, overloaded
from aggregator.ingest.collection_budget import CollectionBudget
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import NO_TRACES, Span, Tracer
from aggregator.logs import journal
from aggregator.runtime import Runtime
from aggregator.secure.cohorts import (
    CallKey,
    CohortRules,
    Cohorts,
    Effect,
    EndReason,
    Ends,
    Entered,
    Left,
    RoundOver,
    Starts,
    WindowOver,
    Woke,
)
from aggregator.secure.round import AGAIN_MS, Participant, RoundClaims, RoundDriver, RoundEnd, RoundSettings
from aggregator.secure.sum_submission import SumSubmitter
from aggregator.windows import WindowState
from hushsum.entropy import Entropy
from hushsum.errors import Reason
from hushsum.labels import ENTRY
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.server import Step, Sum
from hushsum.signing import Directory, Role
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.entries import CohortSumEntry
from hushsum_proto.rounds import (
    Enter,
    Message,
    RoundOutcome,
    RoundRequest,
    RoundResult,
    VectorChunk,
    Waiting,
    entry_parts,
)

CLIENTS_MAX: Final = 1 << 18  # of all rounds that are remembered; the oldest rounds are forgotten first
ROUNDS_MAX: Final = 4  # at once: each holds a sum and the vectors that come in
ROUND_BYTES: Final = 32
AGAIN: Final = "again"  # in the metrics: a round that cost nothing, and after which another one began
DETAILS: Final = {
    RoundResult.COUNTED: "the vector is in a sum that is durable",
    RoundResult.LEFT_OUT: "the round went on without this client",
    RoundResult.ABORTED: "the round ended without a sum",
    RoundResult.LATE: "the window was sealed before a sum was in the log",
    RoundResult.UNKNOWN: "the result of the round is not known here",
}

_LOOK_S: Final = 1.0  # how late it is noticed, at most, that a window is over

_journal = journal("secure sums")


class PastRound(NamedTuple):
    """One round that is over."""

    window: int
    result: RoundResult
    survivors: frozenset[str]  # clients whose vectors are in its sum; none if there is no sum
    members: frozenset[str]

    def result_for(self, client_id: str) -> RoundResult:
        if client_id not in self.members:
            return RoundResult.UNKNOWN
        is_left_out = bool(self.survivors) and client_id not in self.survivors
        return RoundResult.LEFT_OUT if is_left_out else self.result


class RoundHistory:
    """Past rounds of this process, by id; of all of them together at most ``clients_max`` clients."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._clients = 0
        self._rounds: OrderedDict[bytes, PastRound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, round_id: bytes, past: PastRound) -> None:
        self._rounds[round_id] = past
        self._clients += len(past.members)
        while self._clients > self._clients_max and len(self._rounds) > 1:
            _, oldest = self._rounds.popitem(last=False)
            self._clients -= len(oldest.members)

    def result_for(self, client_id: str, round_id: bytes, window: int) -> RoundResult:
        """The result for a client's vector, as far as it is known here."""
        past = self._rounds.get(round_id)
        return RoundResult.UNKNOWN if past is None or past.window != window else past.result_for(client_id)

    def forget_before(self, window: int) -> None:
        for round_id in [round_id for round_id, past in self._rounds.items() if past.window < window]:
            self._clients -= len(self._rounds.pop(round_id).members)


class SumMetrics:
    """Metrics of cohorts and rounds, and of the clients in each step."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make: Any = {"registry": registry}  # Any: the two constructors have one keyword in common, no type
        self.cohorts = PrometheusCounter("hushsum_cohorts", "Cohorts formed", **make)
        self.rounds = PrometheusCounter("hushsum_rounds", "Secure sum rounds ended, by result", ["outcome"], **make)
        self.spent = PrometheusCounter(
            "hushsum_submissions_spent", "Vectors possibly uploaded that are in no counted sum", **make
        )
        self.dropped = PrometheusCounter("hushsum_clients_dropped", "Clients dropped from rounds", **make)
        self.waiting = Gauge("hushsum_cohort_clients_waiting", "Clients waiting for a cohort", **make)
        self.steps = Gauge("hushsum_cohort_clients", "Clients in rounds, by step", ["step"], **make)
        # All are there from the start: an alert needs the 0 before the first one.
        for outcome in (RoundResult.COUNTED, RoundResult.ABORTED, RoundResult.LATE, RoundResult.UNKNOWN, AGAIN):
            self.rounds.labels(outcome)
        self.show_steps({})

    def show_steps(self, clients: Mapping[Step, int]) -> None:
        for step in Step:
            self.steps.labels(step.value).set(clients.get(step, 0))


class CohortCoordinator:
    """The secure sums of one plan.

    Args:
        budget: Whether the ledger could pay for a window; its rounds have it charged.
        entropy: Of the draws of cohorts, and of the ids of rounds.
        tracer: Gets a span for each round, which names no client.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        submitter: SumSubmitter,
        claims: RoundClaims,
        *,
        budget: CollectionBudget,
        window_tracker: WindowTracker,
        runtime: Runtime,
        entropy: Entropy,
        metrics: SumMetrics,
        settings: RoundSettings,
        directory: Directory | None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        cohort = plan.privacy.cohort
        assert cohort is not None, "a secure plan has cohorts"
        self.plan = plan
        self._size = cohort.size
        self._submitter = submitter
        self._claims = claims
        self._budget = budget
        self._window_tracker = window_tracker
        self._runtime = runtime
        self._entropy = entropy
        self._metrics = metrics
        self._settings = settings
        self._directory = directory
        self._tracer = tracer
        rules = CohortRules(cohort.size, cohort.survivors_min, cohort.wait_ms, ROUNDS_MAX, cohort.pool)
        self._cohorts = Cohorts(rules, entropy)
        self._numbers = count()
        self._participants: dict[CallKey, Participant] = {}
        self._rounds: dict[bytes, RoundDriver] = {}  # until their result is known: these count as under way
        self._history = RoundHistory()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False

    # --------------------------------------------------------------------------------------------------- the clients

    async def enter(self, client_id: str, enter: Enter) -> Participant:
        """Lets a client take part in a window; its id is the authenticator's, and ``enter`` names no spent round.

        Raises:
            RefusedError: Another plan, a window that was never open or has not begun, a ledger that could not pay for
                it, or a service that stops.
            UnauthenticatedError: The plan's directory does not know the client, or its key did not sign this.
        """
        self._check_running()
        self._check(client_id, enter)
        participant = Participant(CallKey(client_id, next(self._numbers)), enter.window)
        if await self._is_open(enter.window) and await self._budget.covered(enter.window):
            self._check_running()  # that took time
            self._participants[participant.key] = participant
            self._handle(self._cohorts.handle(Entered(participant.key, enter.window, self._now_ms())))
            self._wake.set()
        else:
            participant.end(outcome_of(b"", RoundResult.LATE))
        return participant

    async def query_result(self, client_id: str, enter: Enter) -> RoundOutcome:
        """The result of a client's part in a round; while its round is under way, once that is known.

        Raises:
            RefusedError: Another plan.
            UnauthenticatedError: As for :meth:`enter`.
        """
        self._check(client_id, enter)
        driver = self._rounds.get(enter.spent_round)
        if driver is not None:
            await driver.decided.wait()
        return outcome_of(enter.spent_round, self._history.result_for(client_id, enter.spent_round, enter.window))

    async def received(self, participant: Participant, request: RoundRequest) -> None:
        """Takes a request that follows a client's entry, and returns once it is handled."""
        if isinstance(request, Message) and participant.is_of_past_round(request.data):
            return  # it was on its way when that round ended
        driver = participant.round
        if isinstance(request, Enter):
            self._refuse(participant, "message enter received twice in one call")
        elif driver is None:
            if not participant.has_ended:
                self._refuse(participant, "message of a round before the round has started")
        elif isinstance(request, Message):
            await driver.message(participant, request)
        elif isinstance(request, VectorChunk):
            await driver.chunk(participant, request)

    def left(self, participant: Participant) -> None:
        participant.is_there = False
        if self._participants.pop(participant.key, None) is not None:
            if participant.round is not None:
                participant.round.left(participant)
            self._handle(self._cohorts.handle(Left(participant.key, participant.window)))

    def _refuse(self, participant: Participant, detail: str) -> None:
        participant.end(RefusedError(Refusal.of(Reason.MALFORMED, detail)))
        self.left(participant)

    def _check(self, client_id: str, enter: Enter) -> None:
        if enter.plan_id != self.plan.id:
            raise RefusedError(errors.wrong_plan(enter.plan_id, self.plan))
        if self._directory is not None:
            key = self._directory.keys.get(client_id)
            if key is None or key.role is not Role.CLIENT:
                raise UnauthenticatedError("this client is not in the plan's key registry")
            # Before anything changes for the client's other calls: no stranger takes its place, or learns its result.
            if not key.public_key.verifies(enter.signature, ENTRY, *entry_parts(enter, client_id)):
                raise UnauthenticatedError("the signature does not match the client's key in the plan's key registry")

    def _check_running(self) -> None:
        if self._stopping:
            raise RefusedError(errors.shutting_down())
        self._window_tracker.check_store()

    async def _is_open(self, window: int) -> bool:
        """Whether sums of it may still be counted, as far as is known; one that is not is noticed soon after.

        Raises:
            RefusedError: No gateway had it open, or its time has not come.
        """
        self._window_tracker.check(window)
        wait_ms = self.plan.window.start_ms(window) - self._runtime.now_ms()
        if wait_ms > 0:
            raise RefusedError(errors.not_begun(wait_ms))
        await self._window_tracker.ensure([window])
        return self._window_tracker.state(window) is WindowState.OPEN

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Starts cohorts when their time has come, and closes windows, until cancelled."""
        while True:
            wakes_ms = self._cohorts.wakes_ms
            wait_s = _LOOK_S if wakes_ms is None else min(max((wakes_ms - self._now_ms()) / 1000, 0.001), _LOOK_S)
            if not self._cohorts.windows:
                self._wake.clear()
                await self._wake.wait()
            await self._runtime.sleep(wait_s)
            self._handle(self._cohorts.handle(Woke(self._now_ms())))
            await self._look_at_windows()

    def stop_accepting(self) -> None:
        """Admits no client, and ends the rounds in which no vector was asked for yet; the others go on."""
        self._stopping = True
        for participant in list(self._participants.values()):
            if participant.round is None:
                participant.end(RefusedError(errors.shutting_down()))
        for driver in list(self._rounds.values()):
            if not driver.granted:
                driver.abort("the service is shutting down")

    async def finish(self) -> None:
        """Returns once the sums that are there are in the log, or cannot be, and the clients are told."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _look_at_windows(self) -> None:
        windows = self._cohorts.windows
        if not windows:
            return
        await self._window_tracker.refresh(windows)
        for window in windows:
            if self._window_tracker.state(window) is not WindowState.OPEN:
                for driver in list(self._rounds.values()):
                    if driver.window == window:
                        driver.abort("the window was sealed", RoundResult.LATE)
                self._handle(self._cohorts.handle(WindowOver(window)))
        oldest = self._window_tracker.accepted().start - 1
        self._history.forget_before(oldest)
        self._budget.forget_before(oldest)
        self._show_progress()
        self._metrics.waiting.set(self._cohorts.waiting)

    def _show_progress(self) -> None:
        steps: Counter[Step] = Counter()
        for driver in self._rounds.values():
            steps.update(driver.progress)
        self._metrics.show_steps(steps)

    def _now_ms(self) -> int:
        """A clock for waits alone: a wall clock may be set."""
        return int(1000 * self._runtime.monotonic())

    # ------------------------------------------------------------------------------------------------- the cohorts

    def _handle(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Starts):
                if not self._stopping:
                    self._start(effect)
            elif (participant := self._participants.get(effect.caller)) is None:
                continue  # its call has ended
            elif isinstance(effect, Ends):
                participant.end(_ending_of(effect))
                self._participants.pop(effect.caller, None)
            elif not participant.tell(Waiting(self._size)):
                self.left(participant)

    def _start(self, effect: Starts) -> None:
        """Begins a round; a client that has left at this very moment is out of it at once."""
        members = [self._participants.get(key) or Participant(key, effect.window) for key in effect.callers]
        try:
            driver = RoundDriver(
                self.plan,
                self._entropy.read(ROUND_BYTES),
                members,
                is_drawn=effect.is_drawn,
                claims=self._claims,
                runtime=self._runtime,
                settings=self._settings,
                directory=self._directory,
            )
        except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
            _journal.error("round not started", window=effect.window, exc_info=error)
            over = RoundOver(effect.window, effect.callers, (), frozenset(), self._now_ms())
            # Not here, where it may start the next one.
            asyncio.get_running_loop().call_soon(lambda: self._handle(self._cohorts.handle(over)))
            for member in members:
                member.end(outcome_of(b"", RoundResult.ABORTED, again=True))
            return
        self._rounds[driver.id] = driver
        if effect.is_drawn:
            self._metrics.cohorts.inc()
        for member in members:
            member.round = driver
            if member.key not in self._participants:
                member.is_there = False
                driver.left(member)
        task = self._runtime.spawn(self._conduct(driver), "round")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------------------------------ a round

    async def _conduct(self, driver: RoundDriver) -> None:
        """Conducts one round from its beginning until all its members have their outcome, whatever fails."""
        with self._tracer.span("round", window=driver.window, members=len(driver.participants)) as span:
            driver.on_step = lambda step, clients: span.event(step.value, clients=clients)
            try:
                await self._bring_to_its_end(driver, span)
            except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
                _journal.error("round not completed", window=driver.window, exc_info=error)
                past = PastRound(driver.window, RoundResult.ABORTED, frozenset(), frozenset(driver.participants))
                self._close(driver, past, ())

    async def _bring_to_its_end(self, driver: RoundDriver, span: Span) -> None:
        began_s = self._runtime.monotonic()
        end = await driver.run()
        driver.progress = {}  # its clients are in no step any more
        survivors = frozenset[str]() if end.sum is None else frozenset(end.sum.survivors)
        back = self._back(driver, end)
        # Until a sum is in the log its round counts as under way: while the log is away, sums do not pile up here.
        result = end.result if end.sum is None else await self._submit(driver, end.sum)
        past = PastRound(driver.window, result, survivors, frozenset(driver.participants))
        if driver.granted:
            self._history.add(driver.id, past)
        self._close(driver, past, back)
        outcome = AGAIN if back else result.value
        span.note(outcome=outcome, survivors=len(survivors), dropped=len(driver.dropped))
        counted = survivors if result is RoundResult.COUNTED else frozenset()
        self._metrics.rounds.labels(outcome).inc()
        self._metrics.spent.inc(len(driver.granted - counted))
        self._metrics.dropped.inc(len(driver.dropped))
        self._show_progress()
        _journal.info(
            "round ended",
            window=driver.window,
            members=len(driver.participants),
            survivors=len(survivors),
            dropped=len(driver.dropped),
            seconds=f"{self._runtime.monotonic() - began_s:.3f}",
            outcome=outcome,
            why=end.why,
        )
        _warn(driver, end)

    def _back(self, driver: RoundDriver, end: RoundEnd) -> list[Participant]:
        """Who takes part in another round at once: all that are still there, where no vector was asked for."""
        if not end.again or driver.granted or self._stopping:
            return []
        return [each for each in driver.present if each.is_there and len(each.past_rounds) + 1 < ATTEMPTS_MAX]

    async def _submit(self, driver: RoundDriver, total: Sum) -> RoundResult:
        """Brings a sum into the log; never an exception."""
        now_ms = self._runtime.now_ms()
        try:
            packed = await self._runtime.blocking(self.plan.words.pack, total.words)
            entry = CohortSumEntry(self.plan.id, driver.window, driver.id, total.submissions, packed, now_ms)
            return await self._submitter.submit(entry)
        except Exception as error:  # noqa: BLE001  the clients are told, whatever went wrong here
            _journal.error("cohort sum not appended to the log", window=driver.window, exc_info=error)
            return RoundResult.UNKNOWN

    def _close(self, driver: RoundDriver, past: PastRound, back: Sequence[Participant]) -> None:
        """Frees the place of a round, and tells its members their outcome; those that go on wait, or begin another."""
        for participant in back:
            participant.round = None
            participant.past_rounds.add(driver.id)
        if self._rounds.pop(driver.id, None) is not None:
            driver.decided.set()
            members = tuple(participant.key for participant in driver.participants.values())
            callers = tuple(participant.key for participant in back)
            over = RoundOver(driver.window, members, callers, driver.used_up, self._now_ms(), driver.spoilers)
            self._handle(self._cohorts.handle(over))
        for client_id, participant in driver.participants.items():
            if participant.round is not driver:
                continue  # it takes part in another one
            participant.round = None
            result = past.result_for(client_id)
            # A client reads its grant before it reads this, and has spent by then, whether or not anything of it came.
            again = result is RoundResult.ABORTED and client_id not in driver.granted and not self._stopping
            participant.end(outcome_of(driver.id, result, again=again))


def outcome_of(round_id: bytes, result: RoundResult, *, again: bool = False) -> RoundOutcome:
    """The outcome in words; with ``again`` it says when the client may come in again."""
    return RoundOutcome(round_id, result, DETAILS[result], again, AGAIN_MS if again else 0)


def _ending_of(effect: Ends) -> RoundOutcome | RefusedError:
    match effect.reason:
        case EndReason.REPLACED | EndReason.IN_ROUND:
            return overloaded(effect.reason.value)
        case EndReason.TOOK_PART:
            return RoundOutcome(b"", RoundResult.UNKNOWN, effect.reason.value)
        case EndReason.TOO_SOON:
            return RefusedError(Refusal.of(ServiceReason.OVERLOADED, effect.reason.value, effect.wait_ms))
        case EndReason.DRAWN_TOO_OFTEN:
            return RoundOutcome(b"", RoundResult.ABORTED, effect.reason.value)
        case EndReason.CLOSED:
            return outcome_of(b"", RoundResult.LATE)


def _warn(driver: RoundDriver, end: RoundEnd) -> None:
    """Tells the operator that clients may have spoilt a round; how many, and never which."""
    if end.suspects:
        what = "reconstruction of secrets failed, although enough shares were revealed"
        _journal.warning(what, window=driver.window, clients=len(end.suspects))
    if end.sum is not None and end.sum.liars:
        what = "clients revealed shares that differ from those they received"
        _journal.warning(what, window=driver.window, clients=len(end.sum.liars))
