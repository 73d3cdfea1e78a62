"""Whether log and store can be reached, how far folds have come, whether the store went back: looked at for ever."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Final

from aggregator.caught_up import CaughtUp
from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.ports import FoldMark, Log, Runtime, Store, Tracer
from aggregator.retries import within
from aggregator.watching.metrics import Metrics
from aggregator.watching.tracing import NO_TRACES

LOOK_S: Final = 2.0
SOON_S: Final = 0.5  # while a gateway waits for what it sees
#: A gateway that has not seen for so long how far the folds are takes nothing until it has.
SIGHT_S: Final = 5.0
#: What fails for less than that is retried where it fails, and nobody needs to be sent elsewhere.
PATIENCE_S: Final = 15.0
PARTITIONS_A_LOOK: Final = 32
_ANSWER_S_MAX: Final = 10.0  # whatever the log and the store themselves allow

_journal = journal("service")


class Soundings:
    """One look every two seconds, for as long as the service runs.

    Args:
        plan_id: Of what.
        log: Is asked for the ends of some partitions, in turn.
        store: Is asked how far folds have come.
        runtime: Time.
        metrics: Are told.
        tell: Is told, once each time it changes, whether both have answered within the last 15 seconds, and the gateway
            here, where there is one, takes deltas.
        caught_up: What the gateway here waits for; None where there is no gateway, or where the folds are here.

    Attributes:
        looks: What else is looked at each time; what raises has not answered.
        tracer: Is told of looks that fail.
    """

    def __init__(
        self,
        plan_id: bytes,
        log: Log,
        store: Store,
        runtime: Runtime,
        metrics: Metrics,
        tell: Callable[[bool], Awaitable[None]],
        caught_up: CaughtUp | None = None,
    ) -> None:
        self._plan_id, self._log, self._store = plan_id, log, store
        self._runtime, self._metrics, self._tell = runtime, metrics, tell
        self._caught_up, self._waits = caught_up, False
        self.looks: Sequence[Callable[[], Awaitable[None]]] = ()
        self.tracer: Tracer = NO_TRACES
        self._next = cycle(range(log.partitions))
        self._answered_s = runtime.monotonic()
        self._answers = self._is_ready = True

    async def run(self) -> None:
        """Looks for ever; what cannot be reached is told, not raised."""
        while True:
            await self.look()
            await self._runtime.sleep(min(LOOK_S, SOON_S) if self._is_shut else LOOK_S)

    async def look(self) -> None:
        """Looks once; a gateway takes nothing before the first look has allowed it."""
        why = await self._look_once()
        now_s = self._runtime.monotonic()
        if not why:
            self._answered_s = now_s
        self._say_whether_answered(now_s - self._answered_s < PATIENCE_S, why)
        self._say_whether_waiting()
        is_ready = self._answers and not self._waits
        self._metrics.ready(is_ready)
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            await self._tell(is_ready)

    @property
    def _is_shut(self) -> bool:
        return self._caught_up is not None and bool(self._caught_up.why)

    async def _look_once(self) -> str:
        """Why it did not succeed; empty where it did."""
        began_s = self._runtime.monotonic()
        try:
            await within(_ANSWER_S_MAX, self._sound(), runtime=self._runtime)
        except (AggregatorError, TimeoutError) as error:
            # Only now, for of those that succeed nothing is told.
            with self.tracer.span("sounding failed", kind=type(error).__name__) as span:
                span.note(seconds=self._runtime.monotonic() - began_s)
            return str(error) or type(error).__name__
        return ""

    async def _sound(self) -> None:
        marks = await self._marks()
        partitions = islice(self._next, min(PARTITIONS_A_LOOK, self._log.partitions))
        ends = {partition: await self._log.end(partition) for partition in partitions}
        self._metrics.sounded(ends, marks)
        for look in self.looks:
            await look()

    async def _marks(self) -> dict[int, int]:
        """How far each partition's fold has come; the gateway here hears of it."""
        if self._caught_up is None:
            return _positions(await self._store.fold_marks(self._plan_id))
        try:
            asking = self._store.fold_marks(self._plan_id)
            marks = _positions(await within(SIGHT_S, asking, runtime=self._runtime))
        except (AggregatorError, TimeoutError):
            self._caught_up.lose_sight()
            raise
        self._caught_up.learn(marks)
        if self._caught_up.needs_ends:
            ends = {partition: await self._log.end(partition) for partition in range(self._log.partitions)}
            self._caught_up.expect(ends)
        return marks

    def _say_whether_answered(self, answers: bool, why: str) -> None:  # noqa: FBT001  a fact, not a switch
        if answers == self._answers:
            return
        self._answers = answers
        if answers:
            _journal.info("log and store answer again")
        else:
            _journal.warning("log or store has not answered for long; health checks say so", why=why)

    def _say_whether_waiting(self) -> None:
        """One line when the gateway begins to wait for the folds, and one when it goes on."""
        waits = self._caught_up is not None and bool(self._caught_up.behind)
        if waits == self._waits:
            return
        self._waits = waits
        if waits:
            assert self._caught_up is not None
            _journal.warning("no delta is taken: the store may be older than the log", why=self._caught_up.why)
        else:
            _journal.info("the folds have stored all that stood in the log: deltas are taken")


def _positions(marks: Mapping[int, FoldMark]) -> dict[int, int]:
    return {partition: mark.position for partition, mark in marks.items()}
