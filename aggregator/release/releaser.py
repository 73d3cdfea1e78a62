"""Closes windows and draws their outcomes, in order: seal, reserve, draw, commit, receipt, publication, forgetting.

Each step can be repeated after a crash between any two: a seal that stands already counts for nothing, an outcome is
charged and stored once, a receipt is written once. What charges an outcome fixes all its randomness, before anything is
drawn: whatever fails after that, and however often the draw is repeated, by whomever, it comes out the same. So nothing
that depends on an outcome (its size on a full disk, the time that it takes) can choose between several.

What fails between the commit and the end (a full disk, a caller that goes away) is finished by whoever comes next: the
automatic loop, the next release, the next start.

An outcome itself is a pure function of what is sealed, and of the entropy that was fixed with the charge.

What belongs to a window that has its outcome is erased: folds, log and store forget in this order, each independent of
how the one before it fared. What fails (somebody reads an old moment of a file, and so keeps its erased bytes in the
write-ahead log) is told, and tried again: by every later pass of the releaser, by every seal and release, and by the
next start. A release never waits for it, nor fails by it.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, TypeVar

from aggregator.errors import (
    AggregatorError,
    FencedError,
    OutcomeExistsError,
    ReceiptsError,
    ReleasingStoppedError,
    StoreError,
    StoreUnavailableError,
    WindowOrderError,
)
from aggregator.fold.fold import takes_reports
from aggregator.interfaces import NO_TRACES, Folds, Log, Observer, Receipts, Tracer
from aggregator.model import NewEntry, SealedWindow, StoredOutcome
from aggregator.release.receipts import reconciled
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from aggregator.windows import WindowBook, WindowState, due_ms
from hushsum.entropy import Entropy, KeyedEntropy
from hushsum.errors import BudgetError
from hushsum.outcomes import Withheld, decide, decide_local
from hushsum.plan import Plan
from hushsum.privacy.event import TUMBLING, Spend
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.releases import of_sums, spend_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import SealEntry


@dataclass(frozen=True)
class ReleaserPorts:
    """Log, store and the rest; the tracer is told of seals and outcomes."""

    log: Log
    store: Store
    receipts: Receipts
    folds: Folds
    entropy: Entropy
    runtime: Runtime
    observer: Observer
    tracer: Tracer = NO_TRACES


_LOOK_S: Final = 1.0  # between two looks at the windows, at most: gateways open new ones


class Releaser:
    """The one releaser of a plan: every write names its fence, and FencedError ends one that another has followed.

    An exhausted budget stops outcomes, not collection: windows are sealed in their time and stay sealed, and their
    entries and exact counters are kept, for as long as no operator acts. The status says so, and how many wait.

    Args:
        plan: What is collected; registered in the store.
        ports: The world.
        fence: Of the lease that this process holds.
    """

    def __init__(self, plan: Plan, ports: ReleaserPorts, *, fence: int) -> None:
        self._plan, self._ports, self._fence = plan, ports, fence
        self._store, self._runtime, self._tracer = ports.store, ports.runtime, ports.tracer
        self._forgetting = WindowErasure(plan, ports, fence=fence)
        self._one_at_a_time = asyncio.Lock()
        self._stopped, self._unpublishable = "", ""  # until the next start; until it succeeds
        self._untold: dict[tuple[str, int], StoredOutcome] = {}  # publication begun, and nobody told of it yet

    @property
    def stopped(self) -> str:
        """Why no outcome is taken; empty while all is well.

        It lasts until an operator has put something right and starts the service again; where it says that something
        committed cannot be published, until that succeeds.
        """
        return self._stopped or self._unpublishable

    async def start(self) -> None:
        """Compares store and receipts, and finishes what a crash left half done. The folds run already."""
        async with self._one_at_a_time:
            await self._reconcile()
            if not self._stopped:
                for outcome in await self._store.outcomes(self._plan.id):
                    if outcome.published:
                        self._forgetting.add(outcome.window)
            await self._catch_up()
            for window, state in sorted((await self._book()).states.items()):
                if state is WindowState.CLOSING:
                    await self._seal(window)

    async def run(self) -> None:
        """Seals and releases every window when its time has come, for ever."""
        while True:
            await self.take_due()
            await self._runtime.sleep(await self._pause_s())

    async def take_due(self) -> None:
        """Finishes what is committed, seals the windows whose time has come, and releases what is sealed.

        Windows are sealed in their time whether or not releasing is stopped.
        """
        async with self._one_at_a_time:
            await self._catch_up()
        schedule, sealed = self._plan.window, None
        while (window := (await self._book()).due_to_seal(schedule, self._runtime.now_ms())) not in (None, sealed):
            sealed = await self.seal(window)
        while not self.stopped and (window := (await self._book()).next_outcome()) is not None:
            try:
                await self.release(window)
            except (ReleasingStoppedError, ReceiptsError):
                return  # `stopped` says it

    async def seal(self, window: int | None = None) -> int:
        """Closes a window in every partition; returns once its counters are stored and cannot change any more.

        Args:
            window: Which; None: the oldest that is not sealed.

        Returns:
            The window.

        Raises:
            WindowOrderError: No gateway had it open, or an older one comes first.
            PartitionStoppedError: A fold has stopped; the window stays closing, and asking again goes on.
        """
        async with self._one_at_a_time:
            book = await self._book(window)
            if window is None:
                window = book.next_to_seal()
                if window is None:
                    raise WindowOrderError("no window is open")
            book.check_seal(window)
            if book.states[window] in (WindowState.OPEN, WindowState.CLOSING):
                await self._seal(window)
            await self._forgetting.attempt()
            return window

    async def release(self, window: int | None = None) -> StoredOutcome:
        """Draws, stores and publishes the outcome of a sealed window, then forgets the window, released or withheld.

        An outcome is given back although its window is not forgotten, where that fails: it is tried again.

        Args:
            window: Which; None: the oldest sealed one, or the one that an earlier call committed and could not publish.
                One that has its outcome already is given back as it is stored.

        Raises:
            WindowOrderError: It is not sealed, or an older one comes first.
            ReleasingStoppedError: The budget is spent, or the receipts do not belong to the store.
            ReceiptsError: The receipt cannot be written; the outcome is committed, and published once it can.
        """
        async with self._one_at_a_time:
            with self._tracer.span("outcome") as span:
                try:
                    outcome = await self._outcome(window)
                except AggregatorError:
                    await self._forgetting.attempt()
                    raise
                span.note(window=outcome.window, withheld=outcome.withheld)
                await self._forgetting.attempt()
                return outcome

    async def _outcome(self, window: int | None) -> StoredOutcome:
        if self._stopped:
            raise ReleasingStoppedError(self._stopped)
        finished = await self._publish_committed()
        if window is None and finished:
            return finished[0]  # a repeated call means this one; the next window would be another charge
        book = await self._book(window)
        if window is None:
            window = book.next_outcome()
            if window is None:
                raise WindowOrderError("no window is sealed and next for its outcome")
        book.check_outcome(window)
        if book.states[window] is WindowState.SEALED:
            await self._draw(window)
        await self._publish_committed()
        outcome = await self._store.outcome(self._plan.id, TUMBLING, window)
        assert outcome is not None, "it was published above"
        self._forgetting.add(window)
        return outcome

    async def _seal(self, window: int) -> None:
        """Repeated after a crash, it appends seals that count for nothing where the first ones stand."""
        with self._tracer.span("seal", window=window):
            await self._store.mark_closing(self._plan.id, window, fence=self._fence)
            log = self._ports.log
            data = entry_to_bytes(SealEntry(self._plan.id, window, self._runtime.now_ms()))
            await log.append([NewEntry(partition, window, data) for partition in range(log.partitions)])
            for partition in range(log.partitions):
                await self._ports.folds.closed(partition, window)

    async def _draw(self, window: int) -> None:
        """Charges an outcome and fixes its randomness; draws it outside any transaction; stores it."""
        sealed = await self._store.sealed_window(self._plan, window)
        if sealed is None:
            raise StoreError(f"window {window} is sealed, but not in every partition: the store is damaged")
        try:
            with self._tracer.span("reserve", window=window):
                digest = await self._runtime.blocking(sealed.digest)
                key = await self._store.reserve_outcome(
                    self._plan, TUMBLING, window, digest, self._ports.entropy, fence=self._fence
                )
            with self._tracer.span("draw", window=window):
                data, withheld = await self._runtime.blocking(decided, sealed, window, KeyedEntropy(key))
            with self._tracer.span("commit outcome", window=window, bytes=len(data)):
                await self._store.commit_outcome(
                    self._plan, TUMBLING, window, data, fence=self._fence, withheld=withheld
                )
        except OutcomeExistsError:
            return  # another releaser has drawn and stored it meanwhile
        except BudgetError as error:
            self._stop(f"window {window} stays sealed: {error}")
            raise ReleasingStoppedError(self._stopped) from error

    async def _catch_up(self) -> None:
        """Finishes what is committed, as far as that can be done now; what cannot, `stopped` and the observer say."""
        if not self._stopped:
            try:
                await self._publish_committed()
            except (FencedError, StoreUnavailableError):
                raise
            except AggregatorError:
                pass  # `stopped` says it
        await self._forgetting.attempt(patient=True)

    async def _publish_committed(self) -> list[StoredOutcome]:
        """Publishes what is committed, and gives it back. Nobody sees an outcome before its receipt is durable."""
        told: list[StoredOutcome] = []
        try:
            waiting = {(each.kind, each.window): each for each in await self._store.unpublished(self._plan.id)}
            # A call that was given up in between may have published one, and told nobody.
            told += [self._tell(key) for key in [*self._untold] if key not in waiting]
            for key, outcome in waiting.items():
                self._untold[key] = outcome
                kind, window = key
                with self._tracer.span("receipt", window=window):
                    mark = await self._ports.receipts.write(outcome, await self._spend(outcome))
                with self._tracer.span("publish", window=window):
                    await self._store.publish(self._plan.id, kind, window, receipts=mark, fence=self._fence)
                told.append(self._tell(key))
        except (FencedError, StoreUnavailableError):
            raise  # nothing is stopped: another process goes on, or this one in a moment
        except AggregatorError as error:
            which = f"window {min(window for _, window in self._untold)} is" if self._untold else "an outcome may be"
            self._say(unpublishable=f"{which} drawn and charged, and not published yet: {error}; it is tried again")
            raise
        self._say(unpublishable="")
        return told

    async def _spend(self, outcome: StoredOutcome) -> Spend:
        """What an outcome was charged: no more is proved by its receipt."""
        plan, kind, window = self._plan, outcome.kind, outcome.window
        if plan.privacy.mode == CENTRAL:
            return spend_of(plan, kind=kind, window=window, withheld=outcome.withheld)
        unspent = spend_of(plan, kind=kind, window=window, entered=False)
        entered = unspent not in (await self._store.account(plan.privacy.population)).spends
        return spend_of(plan, kind=kind, window=window, entered=entered)

    def _tell(self, key: tuple[str, int]) -> StoredOutcome:
        outcome, observer = self._untold.pop(key), self._ports.observer
        self._forgetting.add(outcome.window)
        (observer.withheld if outcome.withheld else observer.released)(outcome)
        return outcome

    async def _reconcile(self) -> None:
        try:
            found = await reconciled(self._plan.id, self._store, self._ports.receipts, fence=self._fence)
        except ReceiptsError as error:
            self._stop(str(error))
            return
        for spend in found.spends:
            await self._store.count_spend(self._plan.id, spend, fence=self._fence)
        if found.problem:
            self._stop(found.problem)

    async def _book(self, window: int | None = None) -> WindowBook:
        """The windows that are not finished, and the one that is asked about, if it is."""
        states = await self._store.unfinished(self._plan.id)
        if window is not None:
            states |= await self._store.states(self._plan.id, window, window)
        return WindowBook({index: WindowState(state) for index, state in states.items()})

    async def _pause_s(self) -> float:
        window = (await self._book()).next_to_seal()
        if window is None:
            return _LOOK_S
        left_ms = due_ms(self._plan.window, window) - self._runtime.now_ms()
        return min(left_ms / 1000, _LOOK_S) if left_ms > 0 else _LOOK_S

    def _stop(self, why: str) -> None:
        self._stopped = why
        self._ports.observer.releasing_stopped(why)

    def _say(self, *, unpublishable: str) -> None:
        if unpublishable != self._unpublishable:
            self._unpublishable = unpublishable
            self._ports.observer.releasing_stopped(self.stopped)


def decided(sealed: SealedWindow, window: int, entropy: Entropy) -> tuple[bytes, bool]:
    """The outcome's bytes, and whether it is withheld.

    Args:
        sealed: What the folds have made of the window.
        window: Its index.
        entropy: Of all that is drawn here: nothing for a secure or local plan, whose clients have drawn the noise.
            Windows of a secure plan are never withheld, those of a local one by numbers that are public.
    """
    sketch = sealed.sketch
    if sketch.plan.privacy.mode == SECURE:
        cohorts, submissions = sealed.cohorts, sealed.clients
        release = of_sums(
            sketch.plan, sketch.counters, sketch.counts, window=window, cohorts=cohorts, submissions=submissions
        )
        return release.to_bytes(), False
    if sketch.plan.privacy.mode == LOCAL:
        clients = None if takes_reports(sketch.plan) else sealed.clients
        local = decide_local(sketch.plan, sketch.counters, sketch.counts, window=window, submissions=clients)
        return local.to_bytes(), isinstance(local, Withheld)
    outcome = decide(sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=entropy)
    return outcome.to_bytes(), isinstance(outcome, Withheld)


T = TypeVar("T")

_PAUSE_S: Final = 1.0  # after the first failure; twice as long after each further one, for each try holds up appends
_PAUSE_MAX_S: Final = 16.0


class WindowErasure:
    """What is to be forgotten of one plan, and whether it is, under one releaser's fence.

    Attributes:
        pending: Why something is not forgotten yet; empty where all is.
    """

    def __init__(self, plan: Plan, ports: ReleaserPorts, *, fence: int) -> None:
        self.pending = ""
        self._plan, self._fence = plan, fence
        self._log, self._store, self._folds = ports.log, ports.store, ports.folds
        self._runtime, self._observer, self._tracer = ports.runtime, ports.observer, ports.tracer
        self._through: int | None = None  # the last window to forget
        self._forgotten: int | None = None  # the last one of which nothing is left
        # Kept for a window's repeated tries, so that they ask for the same; None: to be looked up.
        self._below: dict[int, int] | None = None
        self._store_done = False
        self._failures, self._not_before_s = 0, 0.0

    def add(self, window: int) -> None:
        """Every window up to this one is published (or was skipped), and is to be forgotten."""
        if self._through is None or window > self._through:
            self._through = window
            self._below, self._store_done = None, False

    async def attempt(self, *, patient: bool = False) -> None:
        """Forgets what is to be forgotten, if anything is; what fails is told to the observer, and not raised.

        Args:
            patient: Leaves a pause after a failure, which grows; for a caller that comes every second.

        Raises:
            FencedError: Another process releases now, and forgets.
        """
        if self._through is None or self._through == self._forgotten:
            return
        if patient and self._runtime.monotonic() < self._not_before_s:
            return
        window = self._through
        try:
            with self._tracer.span("forget", window=window) as span:
                problems = await self._forget(window)
                span.note(problems=len(problems))
        except asyncio.CancelledError:
            self._tell(f"window {window}: the call that forgot it was given up")
            raise
        if problems:
            self._tell(f"window {window}: {'; '.join(problems)}")
            pause_s = min(_PAUSE_S * 2**self._failures, _PAUSE_MAX_S)
            self._failures = min(self._failures + 1, 10)
            self._not_before_s = self._runtime.monotonic() + pause_s
            return
        self._forgotten, self._failures, self._not_before_s = window, 0, 0.0
        self._tell("")

    async def _forget(self, window: int) -> list[str]:
        """Why it did not succeed. The folds first: what they have stored needs no replay."""
        problems: list[str] = []
        if self._below is None:
            below = await _tried(self._positions(window), problems)
            if below is None:
                return problems
            self._below = below
        await _tried(self._log.forget(window, self._below), problems)
        if not self._store_done:
            known = len(problems)
            await _tried(self._store.forget(self._plan, window, fence=self._fence), problems)
            self._store_done = len(problems) == known
        return problems

    async def _positions(self, window: int) -> dict[int, int]:
        await self._folds.forget(window, fence=self._fence)
        marks = await self._store.fold_marks(self._plan.id)
        return {partition: mark.position for partition, mark in marks.items()}

    def _tell(self, why: str) -> None:
        if why != self.pending:
            self.pending = why
            self._observer.forgetting_pending(why)


async def _tried(work: Awaitable[T], problems: list[str]) -> T | None:
    try:
        return await work
    except FencedError:
        raise
    except AggregatorError as error:
        problems.append(str(error))
        return None
