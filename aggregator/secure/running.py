"""The rounds of one process: begun, begun again where nothing was spent, their sums brought into the log and told."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aggregator.journal import journal
from aggregator.ports import Runtime, Span, Tracer
from aggregator.records import RoundMembers
from aggregator.secure.claims import RoundClaims
from aggregator.secure.cohorts import RoundOver
from aggregator.secure.landing import Landing
from aggregator.secure.limits import RoundSettings, limits_of
from aggregator.secure.memory import Memory, Remembered, outcome_of
from aggregator.secure.metrics import AGAIN, SumMetrics
from aggregator.secure.parts import Part
from aggregator.secure.round_end import RoundEnd
from aggregator.secure.rounds import Round
from aggregator.secure.uploads import Uploads
from aggregator.watching.tracing import NO_TRACES
from hushsum.directory import Directory
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.parameters import round_parameters
from hushsum.secure_sum.server import ServerRound, Step, Sum
from hushsum_proto.entries import CohortSumEntry
from hushsum_proto.rounds import Fate

ROUNDS_MAX: Final = 4  # at once: each holds a sum and the vectors that come in
UPLOADS_MAX: Final = 2  # of a round, at once
ROUND_BYTES: Final = 32
_AGAIN_MS: Final = 1000

_journal = journal("secure sums")


class Running:
    """Runs rounds.

    Args:
        plan: Of mode ``secure``.
        landing: Brings sums into the log.
        claims: Of its clients, and of the ledger.
        runtime: Time, tasks and threads.
        entropy: Of the ids of rounds.
        metrics: Counts them.
        settings: How long a round waits.
        directory: Of clients; None where the plan names none.

    Attributes:
        tell_over: Called with each round that is over, before its clients are told what became of it.
        tracer: Is told of rounds, and of nobody in them.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        landing: Landing,
        claims: RoundClaims,
        *,
        runtime: Runtime,
        entropy: Entropy,
        metrics: SumMetrics,
        settings: RoundSettings,
        directory: Directory | None,
    ) -> None:
        self._plan = plan
        self._landing = landing
        self._claims = claims
        self._runtime = runtime
        self._entropy = entropy
        self._metrics = metrics
        self._settings = settings
        self._directory = directory
        self.tracer: Tracer = NO_TRACES
        self.tell_over: Callable[[RoundOver], None] = lambda _: None
        self._memory = Memory()
        self._rounds: dict[bytes, Round] = {}
        self._slots: set[Round] = set()  # that count as under way
        self._places: dict[Part, Round] = {}
        self._undecided: dict[bytes, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def round_of(self, part: Part) -> Round | None:
        """The round that a client is in."""
        return self._places.get(part)

    def start(self, window: int, parts: Sequence[Part], *, is_drawn: bool) -> None:
        """Begins a round of these clients: of a cohort that was drawn now, or of what is left of one."""
        try:
            ongoing = self._round(window, parts)
        except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
            _journal.error("a round could not begin", window=window, exc_info=error)
            members = tuple(part.caller for part in parts)
            over = RoundOver(window, members, (), frozenset(), milliseconds(self._runtime))
            asyncio.get_running_loop().call_soon(self.tell_over, over)  # not here, where it may start the next one
            for part in parts:
                part.end(outcome_of(b"", Fate.ABORTED, again=True, retry_after_ms=_AGAIN_MS))
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

    def _round(self, window: int, parts: Sequence[Part]) -> Round:
        id = self._entropy.read(ROUND_BYTES)
        members = sorted(part.caller.client_id for part in parts)
        parameters = round_parameters(self._plan, window, id)
        machine = ServerRound(parameters, tuple(members), self._directory, uploads_max=UPLOADS_MAX)
        return Round(
            id,
            parts,
            machine=machine,
            uploads=Uploads(self._plan.words.bytes, UPLOADS_MAX),
            runtime=self._runtime,
            limits=limits_of(self._plan, self._settings, parameters),
            charge=partial(self._claims.charge, window),
        )

    def abort(self, window: int, why: str, fate: Fate) -> None:
        """Ends the rounds of a window that have no sum yet."""
        for ongoing in list(self._rounds.values()):
            if ongoing.window == window:
                ongoing.abort(why, fate)

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

    async def fate_of(self, client_id: str, round_id: bytes, window: int) -> Fate:
        """What became of a client's vector; while its round is under way, once that is known."""
        undecided = self._undecided.get(round_id)
        if undecided is not None:
            await undecided.wait()
        return self._memory.fate_of(client_id, round_id, window)

    def forget_before(self, window: int) -> None:
        """Forgets what became of rounds of older windows."""
        self._memory.forget_before(window)

    # ------------------------------------------------------------------------------------------------------ a round

    async def _carry(self, ongoing: Round, *, is_drawn: bool) -> None:
        """One round from its beginning until everybody knows what became of it, whatever fails."""
        with self.tracer.span("round", window=ongoing.window, members=len(ongoing.parts)) as span:
            ongoing.tell_step = lambda step, clients: span.event(step.value, clients=clients)
            try:
                await self._carry_through(ongoing, span, is_drawn=is_drawn)
            except Exception as error:  # noqa: BLE001  whatever went wrong here, its place is free again and the clients are told
                _journal.error("a round could not be brought to its end", window=ongoing.window, exc_info=error)
                self._give_up(ongoing)

    async def _carry_through(self, ongoing: Round, span: Span, *, is_drawn: bool) -> None:
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
        fate = end.fate if end.sum is None else await self._land(ongoing, end.sum)
        became = Remembered(ongoing.window, fate, survivors, frozenset(ongoing.parts))
        if ongoing.granted:
            self._memory.add(ongoing.id, became)
        self._over(ongoing, back)
        self._undecided.pop(ongoing.id).set()
        for part in ongoing.parts.values():
            if self._places.get(part) is ongoing:
                self._tell(part, ongoing, became)
        outcome = AGAIN if back else fate.value
        span.note(outcome=outcome, survivors=len(survivors), dropped=len(ongoing.dropped))
        self._count(ongoing, outcome, survivors if fate is Fate.COUNTED else frozenset())
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

    def _over(self, ongoing: Round, back: Sequence[Part]) -> None:
        """Its place is free, once."""
        if ongoing in self._slots:
            self._slots.remove(ongoing)
            members = tuple(part.caller for part in ongoing.parts.values())
            callers, now_ms = tuple(part.caller for part in back), milliseconds(self._runtime)
            spent = ongoing.spent | ongoing.elsewhere
            self.tell_over(RoundOver(ongoing.window, members, callers, spent, now_ms, ongoing.spoilers))

    def _give_up(self, ongoing: Round) -> None:
        """Lets go of a round after an error of ours."""
        self._rounds.pop(ongoing.id, None)
        self._over(ongoing, ())
        undecided = self._undecided.pop(ongoing.id, None)
        if undecided is not None:
            undecided.set()
        became = Remembered(ongoing.window, Fate.ABORTED, frozenset(), frozenset(ongoing.parts))
        for part in ongoing.parts.values():
            if self._places.get(part) is ongoing:
                self._tell(part, ongoing, became)

    def _back(self, ongoing: Round, end: RoundEnd) -> list[Part]:
        """Who takes part in another round at once: all that are still there, where nothing of anybody was spent."""
        if not end.again or ongoing.granted or self._stopping:
            return []
        return [part for part in ongoing.present if part.is_there and len(part.past_rounds) + 1 < ATTEMPTS_MAX]

    async def _land(self, ongoing: Round, total: Sum) -> Fate:
        """Brings a sum into the log; never an exception."""
        now_ms = self._runtime.now_ms()
        try:
            packed = await self._runtime.blocking(self._plan.words.pack, total.words)
            entry = CohortSumEntry(self._plan.id, ongoing.window, ongoing.id, total.submissions, packed, now_ms)
            return await self._landing.land(entry)
        except Exception as error:  # noqa: BLE001  the clients are told, whatever went wrong here
            _journal.error("a sum could not be brought into the log", window=ongoing.window, exc_info=error)
            return Fate.UNKNOWN

    def _tell(self, part: Part, ongoing: Round, became: Remembered) -> None:
        """What became of one client's part."""
        del self._places[part]
        client_id = part.caller.client_id
        fate = became.fate_of(client_id)
        # A client reads its grant before it reads this, and has spent by then, whether or not anything of it came here.
        again = fate is Fate.ABORTED and client_id not in ongoing.granted and not self._stopping
        part.end(outcome_of(ongoing.id, fate, again=again, retry_after_ms=_AGAIN_MS if again else 0))

    def _count(self, ongoing: Round, outcome: str, counted: frozenset[str]) -> None:
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


def _warn(ongoing: Round, end: RoundEnd) -> None:
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
