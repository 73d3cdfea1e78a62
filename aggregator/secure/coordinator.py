"""Secure sums of one plan in one process: who may take part, which cohort each is in, and what became of its round.

A cohort lives here and nowhere else: if this process dies its rounds are over, and nothing of them is ever sent again.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as PrometheusCounter

from aggregator import errors
from aggregator.errors import RefusedError, UnauthenticatedError, overloaded
from aggregator.ingest.budget import CollectionBudget
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import NO_TRACES, Span, Tracer
from aggregator.logs import journal
from aggregator.model import RoundMembers
from aggregator.runtime import Runtime
from aggregator.secure.claims import RoundClaims
from aggregator.secure.cohorts import (
    CallKey,
    Closed,
    CohortRules,
    Cohorts,
    DrawnTooOften,
    Effect,
    Entered,
    InRound,
    Left,
    Replaced,
    RoundOver,
    Starts,
    TookPart,
    TooSoon,
    Waits,
    WindowOver,
    Woke,
)
from aggregator.secure.round import (
    AGAIN_MS,
    Participant,
    RoundDriver,
    RoundEnd,
    RoundSettings,
    VectorUploads,
    limits_of,
)
from aggregator.secure.sum_submission import SumSubmitter
from aggregator.windows import WindowState
from hushsum.directory import Directory, Role
from hushsum.entropy import Entropy
from hushsum.errors import Reason
from hushsum.labels import ENTRY
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.parameters import round_parameters
from hushsum.secure_sum.server import ServerRound, Step, Sum
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

DETAILS: Final = {
    RoundResult.COUNTED: "the vector is in a sum that is durable",
    RoundResult.LEFT_OUT: "the round went on without this client",
    RoundResult.ABORTED: "the round ended without a sum",
    RoundResult.LATE: "the window was sealed before a sum was in the log",
    RoundResult.UNKNOWN: "nothing is known here of what became of the round",
}


class PastRound(NamedTuple):
    """One round that is over.

    Attributes:
        window: Its window.
        result: Of its sum.
        survivors: Clients whose vectors are in it; none where there is no sum.
        members: All clients of the round.
    """

    window: int
    result: RoundResult
    survivors: frozenset[str]
    members: frozenset[str]

    def result_for(self, client_id: str) -> RoundResult:
        """What became of a client's vector."""
        if client_id not in self.members:
            return RoundResult.UNKNOWN
        is_left_out = bool(self.survivors) and client_id not in self.survivors
        return RoundResult.LEFT_OUT if is_left_out else self.result


class RoundHistory:
    """Rounds of this process, by id.

    Args:
        clients_max: Of all that are remembered.
    """

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._clients = 0
        self._rounds: OrderedDict[bytes, PastRound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, round_id: bytes, became: PastRound) -> None:
        """Remembers a round."""
        self._rounds[round_id] = became
        self._clients += len(became.members)
        while self._clients > self._clients_max and len(self._rounds) > 1:
            _, oldest = self._rounds.popitem(last=False)
            self._clients -= len(oldest.members)

    def result_for(self, client_id: str, round_id: bytes, window: int) -> RoundResult:
        """What became of a client's vector, as far as it is known here."""
        became = self._rounds.get(round_id)
        return RoundResult.UNKNOWN if became is None or became.window != window else became.result_for(client_id)

    def forget_before(self, window: int) -> None:
        """Forgets all rounds of older windows."""
        for round_id in [round_id for round_id, became in self._rounds.items() if became.window < window]:
            self._clients -= len(self._rounds.pop(round_id).members)


def outcome_of(round_id: bytes, result: RoundResult, *, again: bool = False, retry_after_ms: int = 0) -> RoundOutcome:
    """The outcome in words."""
    return RoundOutcome(round_id, result, DETAILS[result], again, retry_after_ms)


AGAIN: Final = "again"  # the outcome of a round that cost nothing, and after which another one began


class SumMetrics:
    """Cohorts, rounds, and who is in which step.

    Args:
        registry: The service's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        make: Any = {"registry": registry}  # Any: the two constructors have one keyword in common, no type
        self._cohorts = PrometheusCounter("hushsum_cohorts", "Cohorts of secure sums that were formed", **make)
        self._rounds = PrometheusCounter("hushsum_rounds", "Rounds of secure sums, by outcome", ["outcome"], **make)
        self._spent = PrometheusCounter(
            "hushsum_submissions_spent", "Vectors that may have been sent, and are in no sum that counts", **make
        )
        self._dropped = PrometheusCounter("hushsum_clients_dropped", "Clients that fell out of a round", **make)
        self._waiting = Gauge("hushsum_cohort_clients_waiting", "Clients that wait for a cohort", **make)
        self._steps = Gauge("hushsum_cohort_clients", "Clients in rounds, by step", ["step"], **make)
        # All are there from the start: an alert needs the 0 before the first one.
        for outcome in (RoundResult.COUNTED, RoundResult.ABORTED, RoundResult.LATE, RoundResult.UNKNOWN, AGAIN):
            self._rounds.labels(outcome)
        self.in_steps({})

    def cohort_formed(self) -> None:
        """A cohort begins its first round."""
        self._cohorts.inc()

    def round_over(self, outcome: str, *, lost: int, dropped: int) -> None:
        """A round has ended.

        Args:
            outcome: What became of its sum, or ``AGAIN``.
            lost: Vectors that may have been sent, and are in no sum that counts.
            dropped: Clients that fell out of it.
        """
        self._rounds.labels(outcome).inc()
        self._spent.inc(lost)
        self._dropped.inc(dropped)

    def waiting(self, clients: int) -> None:
        """So many clients wait for a cohort."""
        self._waiting.set(clients)

    def in_steps(self, clients: Mapping[Step, int]) -> None:
        """How many clients of all rounds are in which step now."""
        for step in Step:
            self._steps.labels(step.value).set(clients.get(step, 0))


ROUNDS_MAX: Final = 4  # at once: each holds a sum and the vectors that come in
UPLOADS_MAX: Final = 2  # of a round, at once
ROUND_BYTES: Final = 32

_journal = journal("secure sums")


class ActiveRounds:
    """Runs rounds.

    Args:
        plan: Of mode ``secure``.
        submitter: Brings sums into the log.
        claims: Of its clients, and of the ledger.
        runtime: Time, tasks and threads.
        entropy: Of the ids of rounds.
        metrics: Counts them.
        settings: How long a round waits.
        directory: Of clients; None where the plan names none.

    Attributes:
        on_round_end: Called with each round that is over, before its clients are told what became of it.
        tracer: Is told of rounds, and of nobody in them.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        submitter: SumSubmitter,
        claims: RoundClaims,
        *,
        runtime: Runtime,
        entropy: Entropy,
        metrics: SumMetrics,
        settings: RoundSettings,
        directory: Directory | None,
    ) -> None:
        self._plan = plan
        self._submitter = submitter
        self._claims = claims
        self._runtime = runtime
        self._entropy = entropy
        self._metrics = metrics
        self._settings = settings
        self._directory = directory
        self.tracer: Tracer = NO_TRACES
        self.on_round_end: Callable[[RoundOver], None] = lambda _: None
        self._memory = RoundHistory()
        self._rounds: dict[bytes, RoundDriver] = {}
        self._slots: set[RoundDriver] = set()  # that count as under way
        self._places: dict[Participant, RoundDriver] = {}
        self._undecided: dict[bytes, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def round_of(self, part: Participant) -> RoundDriver | None:
        """The round that a client is in."""
        return self._places.get(part)

    def start(self, window: int, parts: Sequence[Participant], *, is_drawn: bool) -> None:
        """Begins a round of these clients: of a cohort that was drawn now, or of what is left of one."""
        try:
            ongoing = self._round(window, parts)
        except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
            _journal.error("a round could not begin", window=window, exc_info=error)
            members = tuple(part.caller for part in parts)
            over = RoundOver(window, members, (), frozenset(), milliseconds(self._runtime))
            asyncio.get_running_loop().call_soon(self.on_round_end, over)  # not here, where it may start the next one
            for part in parts:
                part.end(outcome_of(b"", RoundResult.ABORTED, again=True, retry_after_ms=AGAIN_MS))
            return
        self._slots.add(ongoing)
        self._rounds[ongoing.id] = ongoing
        self._undecided[ongoing.id] = asyncio.Event()
        self._places.update(dict.fromkeys(parts, ongoing))
        if is_drawn:
            self._metrics.cohort_formed()
        task = self._runtime.spawn(self._carry(ongoing, is_drawn=is_drawn), "round")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _round(self, window: int, parts: Sequence[Participant]) -> RoundDriver:
        id = self._entropy.read(ROUND_BYTES)
        members = sorted(part.caller.client_id for part in parts)
        parameters = round_parameters(self._plan, window, id)
        machine = ServerRound(parameters, tuple(members), self._directory, uploads_max=UPLOADS_MAX)
        return RoundDriver(
            id,
            parts,
            machine=machine,
            uploads=VectorUploads(self._plan.words.bytes, UPLOADS_MAX),
            runtime=self._runtime,
            limits=limits_of(self._plan, self._settings, parameters),
            charge=partial(self._claims.charge, window),
        )

    def abort(self, window: int, why: str, result: RoundResult) -> None:
        """Ends the rounds of a window that have no sum yet."""
        for ongoing in list(self._rounds.values()):
            if ongoing.window == window:
                ongoing.abort(why, result)

    def stop(self) -> None:
        """Ends the rounds in which nobody was asked for a vector yet; the others go on to their end."""
        self._stopping = True
        for ongoing in list(self._rounds.values()):
            if not ongoing.granted:
                ongoing.abort("the service stops")

    async def finish(self) -> None:
        """Returns once the sums that are there are in the log, or cannot be, and the clients are told."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def result_for(self, client_id: str, round_id: bytes, window: int) -> RoundResult:
        """What became of a client's vector; while its round is under way, once that is known."""
        undecided = self._undecided.get(round_id)
        if undecided is not None:
            await undecided.wait()
        return self._memory.result_for(client_id, round_id, window)

    def forget_before(self, window: int) -> None:
        """Forgets what became of rounds of older windows."""
        self._memory.forget_before(window)

    # ------------------------------------------------------------------------------------------------------ a round

    async def _carry(self, ongoing: RoundDriver, *, is_drawn: bool) -> None:
        """One round from its beginning until everybody knows what became of it, whatever fails."""
        with self.tracer.span("round", window=ongoing.window, members=len(ongoing.parts)) as span:
            ongoing.tell_step = lambda step, clients: span.event(step.value, clients=clients)
            try:
                await self._carry_through(ongoing, span, is_drawn=is_drawn)
            except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
                _journal.error("a round could not be brought to its end", window=ongoing.window, exc_info=error)
                self._give_up(ongoing)

    async def _carry_through(self, ongoing: RoundDriver, span: Span, *, is_drawn: bool) -> None:
        began_s = self._runtime.monotonic()
        members = RoundMembers(ongoing.id, tuple(ongoing.parts), is_drawn)
        for client_id in await self._claims.claim(ongoing.window, members, lambda: ongoing.ended is None):
            ongoing.exclude(client_id)
        end = await ongoing.run()
        if ongoing.is_charged and (unspent := ongoing.parts.keys() - ongoing.spent):
            await self._claims.release(ongoing.window, RoundMembers(ongoing.id, tuple(unspent)))
        del self._rounds[ongoing.id]
        survivors = frozenset[str]() if end.sum is None else frozenset(end.sum.survivors)
        back = self._back(ongoing, end)
        for part in back:
            del self._places[part]
            part.past_rounds.add(ongoing.id)
        # Until a sum is in the log its round counts as under way: while the log is away, sums do not pile up here.
        result = end.result if end.sum is None else await self._land(ongoing, end.sum)
        became = PastRound(ongoing.window, result, survivors, frozenset(ongoing.parts))
        if ongoing.granted:
            self._memory.add(ongoing.id, became)
        self._over(ongoing, back)
        self._undecided.pop(ongoing.id).set()
        for part in ongoing.parts.values():
            if self._places.get(part) is ongoing:
                self._tell(part, ongoing, became)
        outcome = AGAIN if back else result.value
        span.note(outcome=outcome, survivors=len(survivors), dropped=len(ongoing.dropped))
        self._count(ongoing, outcome, survivors if result is RoundResult.COUNTED else frozenset())
        _journal.info(
            "round over",
            window=ongoing.window,
            members=len(ongoing.parts),
            survivors=len(survivors),
            dropped=len(ongoing.dropped),
            seconds=f"{self._runtime.monotonic() - began_s:.3f}",
            outcome=outcome,
            why=end.why,
        )
        _warn(ongoing, end)

    def _over(self, ongoing: RoundDriver, back: Sequence[Participant]) -> None:
        """Its place is free, once."""
        if ongoing in self._slots:
            self._slots.remove(ongoing)
            members = tuple(part.caller for part in ongoing.parts.values())
            callers, now_ms = tuple(part.caller for part in back), milliseconds(self._runtime)
            spent = ongoing.spent | ongoing.elsewhere
            self.on_round_end(RoundOver(ongoing.window, members, callers, spent, now_ms, ongoing.spoilers))

    def _give_up(self, ongoing: RoundDriver) -> None:
        """Lets go of a round after an error of ours."""
        self._rounds.pop(ongoing.id, None)
        self._over(ongoing, ())
        undecided = self._undecided.pop(ongoing.id, None)
        if undecided is not None:
            undecided.set()
        became = PastRound(ongoing.window, RoundResult.ABORTED, frozenset(), frozenset(ongoing.parts))
        for part in ongoing.parts.values():
            if self._places.get(part) is ongoing:
                self._tell(part, ongoing, became)

    def _back(self, ongoing: RoundDriver, end: RoundEnd) -> list[Participant]:
        """Who takes part in another round at once: all that are still there, where nothing of anybody was spent."""
        if not end.again or ongoing.granted or self._stopping:
            return []
        return [part for part in ongoing.present if part.is_there and len(part.past_rounds) + 1 < ATTEMPTS_MAX]

    async def _land(self, ongoing: RoundDriver, total: Sum) -> RoundResult:
        """Brings a sum into the log; never an exception."""
        now_ms = self._runtime.now_ms()
        try:
            packed = await self._runtime.blocking(self._plan.words.pack, total.words)
            entry = CohortSumEntry(self._plan.id, ongoing.window, ongoing.id, total.submissions, packed, now_ms)
            return await self._submitter.land(entry)
        except Exception as error:  # noqa: BLE001  the clients are told, whatever went wrong here
            _journal.error("a sum could not be brought into the log", window=ongoing.window, exc_info=error)
            return RoundResult.UNKNOWN

    def _tell(self, part: Participant, ongoing: RoundDriver, became: PastRound) -> None:
        """What became of one client's part."""
        del self._places[part]
        client_id = part.caller.client_id
        result = became.result_for(client_id)
        # A client reads its grant before it reads this, and has spent by then, whether or not anything of it came here.
        again = result is RoundResult.ABORTED and client_id not in ongoing.granted and not self._stopping
        part.end(outcome_of(ongoing.id, result, again=again, retry_after_ms=AGAIN_MS if again else 0))

    def _count(self, ongoing: RoundDriver, outcome: str, counted: frozenset[str]) -> None:
        self._metrics.round_over(outcome, lost=len(ongoing.granted - counted), dropped=len(ongoing.dropped))
        self.show_progress()

    def show_waiting(self, clients: int) -> None:
        """Shows in the metrics how many clients wait for a cohort."""
        self._metrics.waiting(clients)

    def show_progress(self) -> None:
        """Shows in the metrics how many clients of all rounds are in which step."""
        steps: Counter[Step] = Counter()
        for ongoing in self._rounds.values():
            steps.update(ongoing.progress)
        self._metrics.in_steps(steps)


def _warn(ongoing: RoundDriver, end: RoundEnd) -> None:
    """Tells the operator that clients may have spoilt a round; how many, and never which."""
    if end.suspects:
        what = "secrets of clients did not come out, though enough of their shares were revealed"
        _journal.warning(what, window=ongoing.window, clients=len(end.suspects))
    if end.sum is not None and end.sum.liars:
        what = "clients revealed other shares than they were given"
        _journal.warning(what, window=ongoing.window, clients=len(end.sum.liars))


def milliseconds(runtime: Runtime) -> int:
    """A clock for waits alone: a wall clock may be set."""
    return int(1000 * runtime.monotonic())


_LOOK_S: Final = 1.0  # how late it is noticed, at most, that a window is over


@dataclass(frozen=True)
class CoordinatorPorts:
    """What secure sums stand on.

    Attributes:
        window_tracker: Which windows are open.
        charges: Whether the ledger could pay for a window; its rounds have it charged.
        runtime: Time and tasks.
        entropy: Of the draws of cohorts.
    """

    window_tracker: WindowTracker
    charges: CollectionBudget
    runtime: Runtime
    entropy: Entropy


class CohortCoordinator:
    """The secure sums of one plan.

    Args:
        plan: Of mode ``secure``.
        ports: What they stand on.
        running: Its rounds; from here on this is told when one is over.
        directory: Of clients; None where the plan names none.
    """

    def __init__(self, plan: Plan, ports: CoordinatorPorts, running: ActiveRounds, directory: Directory | None) -> None:
        cohort = plan.privacy.cohort
        assert cohort is not None, "a secure plan has cohorts"
        self.plan = plan
        self._size = cohort.size
        self._window_tracker = ports.window_tracker
        self._charges = ports.charges
        self._runtime = ports.runtime
        self._directory = directory
        rules = CohortRules(cohort.size, cohort.survivors_min, cohort.wait_ms, ROUNDS_MAX, cohort.pool)
        self._cohorts = Cohorts(rules, ports.entropy)
        self._running = running
        running.on_round_end = lambda over: self._handle(self._cohorts.handle(over))
        self._numbers = count()
        self._parts: dict[CallKey, Participant] = {}
        self._wake = asyncio.Event()
        self._stopping = False

    # --------------------------------------------------------------------------------------------------- the clients

    async def enter(self, client_id: str, enter: Enter) -> Participant:
        """Lets a client take part in a window.

        Args:
            client_id: From the authenticator.
            enter: What it opened with; it names no spent round.

        Raises:
            RefusedError: Another plan, a window that was never open or has not begun, a ledger that could not pay for
                it, or a service that stops.
            UnauthenticatedError: The plan's directory does not know the client, or its key did not sign this.
        """
        self._check_running()
        self._check(client_id, enter)
        part = Participant(CallKey(client_id, next(self._numbers)), enter.window)
        if await self._is_open(enter.window) and await self._charges.covered(enter.window):
            self._check_running()  # that took time
            self._parts[part.caller] = part
            self._handle(self._cohorts.handle(Entered(part.caller, enter.window, self._now_ms())))
            self._wake.set()
        else:
            part.end(outcome_of(b"", RoundResult.LATE))
        return part

    async def query_result(self, client_id: str, enter: Enter) -> RoundOutcome:
        """What is known here of a client's part in a round: if it is under way, once that is known.

        Raises:
            RefusedError: Another plan.
            UnauthenticatedError: As for :meth:`enter`.
        """
        self._check(client_id, enter)
        result = await self._running.result_for(client_id, enter.spent_round, enter.window)
        return outcome_of(enter.spent_round, result)

    def check_plan(self, plan_id: bytes) -> None:
        """Refuses another plan.

        Raises:
            RefusedError: It is.
        """
        if plan_id != self.plan.id:
            raise RefusedError(errors.wrong_plan(plan_id, self.plan))

    async def received(self, part: Participant, request: RoundRequest) -> None:
        """Takes what a client says after it has entered, and returns once it is handled."""
        if isinstance(request, Message) and part.is_of_past_round(request.data):
            return  # it was on its way when that round ended
        ongoing = self._running.round_of(part)
        if isinstance(request, Enter):
            part.end(RefusedError(Refusal.of(Reason.MALFORMED, "entered twice in one call, expected once")))
            self.left(part)
        elif ongoing is None:
            if not part.has_ended:
                detail = "a message of a round, expected none before one has begun"
                part.end(RefusedError(Refusal.of(Reason.MALFORMED, detail)))
                self.left(part)
        elif isinstance(request, Message):
            await ongoing.message(part, request)
        elif isinstance(request, VectorChunk):
            await ongoing.chunk(part, request)

    def left(self, part: Participant) -> None:
        """A client's call has ended."""
        part.is_there = False
        if self._parts.pop(part.caller, None) is not None:
            ongoing = self._running.round_of(part)
            if ongoing is not None:
                ongoing.left(part)
            self._handle(self._cohorts.handle(Left(part.caller, part.window)))

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
        """Takes nobody more, and ends the rounds in which nobody was asked for a vector yet; the others go on."""
        self._stopping = True
        for part in list(self._parts.values()):
            if self._running.round_of(part) is None:
                part.end(RefusedError(errors.shutting_down()))
        self._running.stop()

    async def finish(self) -> None:
        """Returns once every round is over, and its clients are told."""
        await self._running.finish()

    async def _look_at_windows(self) -> None:
        windows = self._cohorts.windows
        if not windows:
            return
        await self._window_tracker.refresh(windows)
        for window in windows:
            if self._window_tracker.state(window) is not WindowState.OPEN:
                self._running.abort(window, "the window was sealed", RoundResult.LATE)
                self._handle(self._cohorts.handle(WindowOver(window)))
        oldest = self._window_tracker.accepted().start - 1
        self._running.forget_before(oldest)
        self._charges.forget_before(oldest)
        self._running.show_progress()
        self._running.show_waiting(self._cohorts.waiting)

    def _check(self, client_id: str, enter: Enter) -> None:
        self.check_plan(enter.plan_id)
        if self._directory is not None:
            key = self._directory.keys.get(client_id)
            if key is None or key.role is not Role.CLIENT:
                raise UnauthenticatedError("this client is not in the directory that the plan names")
            # Before anything changes for the client's other calls: nobody else takes its place, or learns its fate.
            if not key.public_key.verifies(enter.signature, ENTRY, *entry_parts(enter, client_id)):
                raise UnauthenticatedError(
                    "this is not signed by the client's key in the directory that the plan names"
                )

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

    def _now_ms(self) -> int:
        return milliseconds(self._runtime)

    # ------------------------------------------------------------------------------------------------- the cohorts

    def _handle(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Starts):
                if not self._stopping:
                    self._start(effect)
            elif (part := self._parts.get(effect.caller)) is not None:
                self._say(part, effect)

    def _start(self, effect: Starts) -> None:
        """Begins a round; who has gone in this very moment is out of it at once."""
        parts = [self._parts.get(caller) or Participant(caller, effect.window) for caller in effect.callers]
        self._running.start(effect.window, parts, is_drawn=effect.is_drawn)
        for part in parts:
            if part.caller not in self._parts:
                part.is_there = False
                ongoing = self._running.round_of(part)
                if ongoing is not None:
                    ongoing.left(part)

    def _say(
        self, part: Participant, effect: Waits | Replaced | InRound | TookPart | TooSoon | DrawnTooOften | Closed
    ) -> None:
        match effect:
            case Waits():
                if not part.tell(Waiting(self._size)):
                    self.left(part)
                return
            case Replaced():
                part.end(overloaded("a newer call of this client has taken its place"))
            case InRound():
                part.end(overloaded("a round of this client is under way, in another call"))
            case TookPart():
                part.end(
                    RoundOutcome(b"", RoundResult.UNKNOWN, "a vector of this client was taken in this window already")
                )
            case TooSoon():
                detail = "a round ended because of this client, expected it to come in again later"
                part.end(RefusedError(Refusal.of(ServiceReason.OVERLOADED, detail, effect.wait_ms)))
            case DrawnTooOften():
                part.end(
                    RoundOutcome(b"", RoundResult.ABORTED, f"this client was in {ATTEMPTS_MAX} cohorts of the window")
                )
            case Closed():
                part.end(outcome_of(b"", RoundResult.LATE))
        self._parts.pop(part.caller, None)
