"""Seals windows and draws their outcomes, in order: seal, reserve, draw, commit, receipt, publish, erase.

Each step can be repeated after a crash between any two: a repeated seal counts for nothing, an outcome is charged and
stored once, a receipt is written once. The charge of an outcome fixes all its randomness before anything is drawn:
whatever fails after that, and however often any process repeats the draw, the result is the same. So nothing that
depends on an outcome (its size on a full disk, its duration) can select among several.

A failure between the commit and the end (a full disk, a caller that disconnects) is completed by the next automatic
pass, the next release or the next start.

An outcome is a pure function of the sealed counters and of the entropy that was fixed with the charge.

The data of a window that has its outcome is erased: by folds, log and store in this order, each whether or not the one
before it succeeded. A failure (a reader of an older moment keeps erased bytes in the write-ahead log) is reported, and
retried by every later pass of the releaser, every seal and release, and the next start. A release never waits for it
and never fails because of it.
"""

import asyncio
from collections.abc import Awaitable
from functools import cached_property
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
from aggregator.interfaces import NO_TRACES, Folds, Log, Observer, Receipts, Tracer
from aggregator.model import HeldState, NewEntry, ReservedStep, SealedWindow, StoredOutcome
from aggregator.release.receipts import reconcile
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from aggregator.windows import WindowBook, WindowState, due_ms
from hushsum import cumulative
from hushsum.entropy import Entropy, KeyedEntropy
from hushsum.errors import BudgetError
from hushsum.outcomes import Withheld, decide, decide_local
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE, TUMBLING, Spend
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.releases import of_sums, spend_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import SealEntry

T = TypeVar("T")

_POLL_S: Final = 1.0  # the longest pause between two looks at the windows: gateways open new ones
_PAUSE_S: Final = 1.0  # after the first failure, doubled after each further one: every attempt holds up appends
_PAUSE_MAX_S: Final = 16.0
_AHEAD_MS: Final = 1000  # a clock that is less ahead of the store's is right


class Releaser:
    """The one releaser of a plan. Every write names its fence; FencedError ends it once another process has taken over.

    An exhausted budget stops outcomes, not collection: windows are still sealed in time, and their entries and exact
    counters are kept until an operator acts. The status says so, and how many windows wait.
    """

    def __init__(  # noqa: PLR0913  each is a part of its own
        self,
        plan: Plan,
        fence: int,
        *,
        log: Log,
        store: Store,
        receipts: Receipts,
        folds: Folds,
        entropy: Entropy,
        runtime: Runtime,
        observer: Observer,
        tracer: Tracer = NO_TRACES,
        keep: int | None = None,
    ) -> None:
        self._plan, self._fence, self._keep = plan, fence, keep
        self._log, self._store, self._receipts, self._folds = log, store, receipts, folds
        self._entropy, self._runtime, self._observer, self._tracer = entropy, runtime, observer, tracer
        self._one_at_a_time = asyncio.Lock()
        self._stopped = ""  # until the next start
        self._unpublishable = ""  # until publishing succeeds
        self._held: HeldState | None = None  # of a cumulative sequence: what this process has stored last
        self._unannounced: dict[tuple[str, int], StoredOutcome] = {}  # publication begun, observer not notified yet
        self._through: int | None = None  # the last window to erase
        self._erased: int | None = None  # the last window that is erased completely
        # Kept for repeated attempts on a window, so that they ask for the same; None: to be looked up.
        self._below: dict[int, int] | None = None
        self._store_done = False
        self._failures, self._not_before_s = 0, 0.0
        self._refused: int | None = None  # the window whose seal was last reported as refused
        self._pending = ""  # why something is not erased yet, as last reported

    @property
    def stopped(self) -> str:
        """Why no outcome is drawn; empty while releasing works.

        It lasts until an operator fixes the cause and restarts the service; if a committed outcome cannot be published,
        until that succeeds.
        """
        return self._stopped or self._unpublishable

    async def start(self) -> None:
        """Compares store and receipts, and completes what a crash interrupted. The folds must be running."""
        async with self._one_at_a_time:
            await self._reconcile()
            if not self._stopped:
                for outcome in await self._store.outcomes(self._plan.id):
                    if outcome.published:
                        self._erase_through(outcome.window)
            await self._catch_up()
            for window, state in sorted((await self._book()).states.items()):
                if state is WindowState.CLOSING:
                    await self._seal(window)

    async def run(self) -> None:
        """Seals and releases every window when it is due, for ever."""
        while True:
            await self.take_due()
            await self._runtime.sleep(await self._pause_s())

    async def take_due(self) -> None:
        """Completes committed outcomes, seals the windows that are due, and releases sealed windows.

        Windows are sealed in time whether or not releasing is stopped. The store's clock decides which are due.
        """
        async with self._one_at_a_time:
            await self._catch_up()
        await self._seal_due()
        while not self.stopped and (window := (await self._book()).next_outcome()) is not None:
            try:
                await self.release(window)
            except (ReleasingStoppedError, ReceiptsError):
                return  # `stopped` says why

    async def _seal_due(self) -> None:
        sealed: int | None = None
        while True:
            book, now_ms = await self._book(), await self._store.now_ms()
            window = book.due_to_seal(self._plan.window, now_ms)
            if window is None or window == sealed:
                break
            try:
                sealed = await self.seal(window)
            except WindowOrderError:
                return  # the store's clock was set back meanwhile, or an operator was faster
        ahead_ms = self._runtime.now_ms() - now_ms
        refused = book.due_to_seal(self._plan.window, now_ms + ahead_ms)
        if window is None and refused is not None and ahead_ms > _AHEAD_MS and refused != self._refused:
            self._refused = refused
            self._observer.seal_refused(refused, ahead_ms)

    async def seal(self, window: int | None = None, *, early: bool = False) -> int:
        """Closes a window (None: the oldest unsealed one) in every partition, and returns its index.

        Then its counters are stored and final.

        Args:
            window: Its index.
            early: Also before its end and lateness, which the store's clock tells, because an operator wants it: what
                is still on its way to it is late then.

        Raises:
            WindowOrderError: No gateway had it open, an older one comes first, or it is not over yet.
            PartitionStoppedError: A fold has stopped; the window stays closing, and a repeated call continues.
        """
        async with self._one_at_a_time:
            book = await self._book(window)
            if window is None:
                window = book.next_to_seal()
                if window is None:
                    raise WindowOrderError("no window is open")
            book.check_seal(window)
            if not early:
                book.check_over(window, self._plan.window, await self._store.now_ms())
            if book.states[window] in (WindowState.OPEN, WindowState.CLOSING):
                await self._seal(window, early=early)
            await self._erase_due()
            return window

    async def release(self, window: int | None = None) -> StoredOutcome:
        """Draws, stores and publishes the outcome of a sealed window, then erases the window's data.

        The outcome is returned even if erasing fails, which is retried later.

        Args:
            window: Its index; None: the oldest sealed one, or the one that an earlier call committed but could not
                publish. If the window has its outcome already, the stored one is returned.

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
                    await self._erase_due()
                    raise
                span.note(window=outcome.window, withheld=outcome.withheld)
                await self._erase_due()
                return outcome

    async def _outcome(self, window: int | None) -> StoredOutcome:
        if self._stopped:
            raise ReleasingStoppedError(self._stopped)
        finished = await self._publish_committed()
        if window is None and finished:
            return finished[0]  # a repeated call means this one; drawing the next window would charge again
        book = await self._book(window)
        if window is None:
            window = book.next_outcome()
            if window is None:
                raise WindowOrderError("no sealed window to release")
        book.check_outcome(window)
        if book.states[window] is WindowState.SEALED:
            await self._draw(window)
        await self._publish_committed()
        outcome = await self._store.outcome(self._plan.id, self._plan.window.kind, window)
        assert outcome is not None, "it was published above"
        self._erase_through(window)
        return outcome

    async def _seal(self, window: int, *, early: bool = False) -> None:
        """If repeated after a crash, it appends second seals, which count for nothing."""
        not_before_ms = None if early else due_ms(self._plan.window, window)
        with self._tracer.span("seal", window=window):
            await self._store.mark_closing(self._plan.id, window, fence=self._fence, not_before_ms=not_before_ms)
            partitions = range(self._log.partitions)
            data = entry_to_bytes(SealEntry(self._plan.id, window, self._runtime.now_ms()))
            await self._log.append([NewEntry(partition, window, data) for partition in partitions])
            for partition in partitions:
                await self._folds.closed(partition, window)

    async def _draw(self, window: int) -> None:
        """Charges an outcome and fixes its randomness, draws it outside any transaction, and stores it."""
        sealed = await self._store.sealed_window(self._plan, window)
        if sealed is None:
            raise StoreError(f"window {window} is sealed, but not in every partition: the store is damaged")
        try:
            if self._plan.window.kind == CUMULATIVE:
                await self._draw_step(sealed, window)
            else:
                await self._draw_alone(sealed, window)
        except OutcomeExistsError:
            return  # another releaser has drawn and stored it
        except BudgetError as error:
            self._stop(f"window {window} stays sealed: {error}")
            raise ReleasingStoppedError(self._stopped) from error

    async def _draw_alone(self, sealed: SealedWindow, window: int) -> None:
        with self._tracer.span("reserve", window=window):
            digest = await self._runtime.blocking(sealed.digest)
            key = await self._store.reserve_outcome(
                self._plan, TUMBLING, window, digest, self._entropy, fence=self._fence
            )
        with self._tracer.span("draw", window=window):
            data, withheld = await self._runtime.blocking(compute_outcome, sealed, window, KeyedEntropy(key))
        with self._tracer.span("commit outcome", window=window, bytes=len(data)):
            await self._store.commit_outcome(self._plan, TUMBLING, window, data, fence=self._fence, withheld=withheld)

    async def _draw_step(self, sealed: SealedWindow, window: int) -> None:
        """The same for a plan of cumulative releases, whose windows are steps of one sequence."""
        with self._tracer.span("reserve", window=window):
            digest = await self._runtime.blocking(sealed.digest)
            reserved = await self._store.reserve_step(
                self._plan, window, digest, self._entropy, fence=self._fence, held=self._held
            )
        with self._tracer.span("draw", window=window):
            data, state = await self._runtime.blocking(compute_step, sealed, window, reserved)
        with self._tracer.span("commit outcome", window=window, bytes=len(data)):
            await self._store.commit_step(self._plan, window, data, state, step=reserved.step, fence=self._fence)
        is_last = reserved.step == self._plan.window.horizon
        self._held = None if is_last else HeldState(reserved.digest, state)

    async def _catch_up(self) -> None:
        """Completes committed outcomes as far as possible now; `stopped` and the observer say what is left."""
        if not self._stopped:
            try:
                await self._publish_committed()
            except (FencedError, StoreUnavailableError):
                raise
            except AggregatorError:
                pass  # `stopped` says why
        await self._erase_due(patient=True)

    async def _publish_committed(self) -> list[StoredOutcome]:
        """Publishes committed outcomes and returns them. No outcome is visible before its receipt is durable."""
        published: list[StoredOutcome] = []
        try:
            waiting = {(each.kind, each.window): each for each in await self._store.unpublished(self._plan.id)}
            # A call that was cancelled in between may have published one without notifying the observer.
            published += [self._announce(key) for key in [*self._unannounced] if key not in waiting]
            for key, outcome in waiting.items():
                self._unannounced[key] = outcome
                kind, window = key
                with self._tracer.span("receipt", window=window):
                    mark = await self._receipts.write(outcome, await self._spend(outcome))
                with self._tracer.span("publish", window=window):
                    await self._store.publish(self._plan.id, kind, window, receipts=mark, fence=self._fence)
                published.append(self._announce(key))
        except (FencedError, StoreUnavailableError):
            raise  # releasing is not stopped: another process continues, or this one in a moment
        except AggregatorError as error:
            windows = [window for _, window in self._unannounced]
            which = f"window {min(windows)} is" if windows else "an outcome may be"
            self._set_unpublishable(f"{which} charged and drawn but not published yet: {error}; it is retried")
            raise
        self._set_unpublishable("")
        return published

    async def _spend(self, outcome: StoredOutcome) -> Spend:
        """The charge of an outcome: its receipt proves no more."""
        plan, kind, window = self._plan, outcome.kind, outcome.window
        if kind == CUMULATIVE:
            return self._sequence_spend
        if plan.privacy.mode == CENTRAL:
            return spend_of(plan, kind=kind, window=window, withheld=outcome.withheld)
        unspent = spend_of(plan, kind=kind, window=window, entered=False)
        entered = unspent not in (await self._store.account(plan.privacy.population)).spends
        return spend_of(plan, kind=kind, window=window, entered=entered)

    @cached_property
    def _sequence_spend(self) -> Spend:
        return spend_of(self._plan, kind=CUMULATIVE, window=None)

    def _announce(self, key: tuple[str, int]) -> StoredOutcome:
        outcome = self._unannounced.pop(key)
        self._erase_through(outcome.window)
        (self._observer.withheld if outcome.withheld else self._observer.released)(outcome)
        return outcome

    async def _reconcile(self) -> None:
        try:
            problem, spends = await reconcile(self._plan.id, self._store, self._receipts, fence=self._fence)
        except ReceiptsError as error:
            self._stop(str(error))
            return
        for spend in spends:
            await self._store.count_spend(self._plan.id, spend, fence=self._fence)
        if problem:
            self._stop(problem)

    async def _book(self, window: int | None = None) -> WindowBook:
        """The windows that are not finished, and ``window`` if it exists."""
        states = await self._store.unfinished(self._plan.id)
        if window is not None:
            states |= await self._store.states(self._plan.id, window, window)
        return WindowBook({index: WindowState(state) for index, state in states.items()})

    async def _pause_s(self) -> float:
        window = (await self._book()).next_to_seal()
        if window is None:
            return _POLL_S
        left_ms = due_ms(self._plan.window, window) - self._runtime.now_ms()
        return min(left_ms / 1000, _POLL_S) if left_ms > 0 else _POLL_S

    def _stop(self, why: str) -> None:
        self._stopped = why
        self._observer.releasing_stopped(why)

    def _set_unpublishable(self, why: str) -> None:
        if why != self._unpublishable:
            self._unpublishable = why
            self._observer.releasing_stopped(self.stopped)

    def _erase_through(self, window: int) -> None:
        """Every window up to this one is published (or was skipped), and is to be erased."""
        if self._through is None or window > self._through:
            self._through = window
            self._below, self._store_done = None, False

    async def _erase_due(self, *, patient: bool = False) -> None:
        """Erases what is due, if anything; a failure is reported to the observer and not raised.

        ``patient`` skips the attempt for a growing time after a failure, for a caller that comes every second.

        Raises:
            FencedError: Another process releases now, and erases.
        """
        if self._through is None or self._through == self._erased:
            return
        if patient and self._runtime.monotonic() < self._not_before_s:
            return
        window = self._through
        try:
            with self._tracer.span("forget", window=window) as span:
                problems = await self._erase(window)
                span.note(problems=len(problems))
        except asyncio.CancelledError:
            self._report_pending(f"window {window}: the erasure was abandoned")
            raise
        if problems:
            self._report_pending(f"window {window}: {'; '.join(problems)}")
            pause_s = min(_PAUSE_S * 2**self._failures, _PAUSE_MAX_S)
            self._failures = min(self._failures + 1, 10)
            self._not_before_s = self._runtime.monotonic() + pause_s
            return
        self._erased, self._failures, self._not_before_s = window, 0, 0.0
        self._report_pending("")

    async def _erase(self, window: int) -> list[str]:
        """Returns the reasons of failures. Folds come first: entries whose effect they have stored need no replay."""
        problems: list[str] = []
        if self._below is None:
            below = await _attempt(self._positions(window), problems)
            if below is None:
                return problems
            self._below = below
        await _attempt(self._log.forget(window, self._below), problems)
        if not self._store_done:
            known = len(problems)
            await _attempt(self._store.forget(self._plan, window, fence=self._fence), problems)
            if self._keep is not None:
                before = window - self._keep + 1
                await _attempt(self._store.remove_releases(self._plan.id, before, fence=self._fence), problems)
            self._store_done = len(problems) == known
        return problems

    async def _positions(self, window: int) -> dict[int, int]:
        await self._folds.forget(window, fence=self._fence)
        marks = await self._store.fold_marks(self._plan.id)
        return {partition: mark.position for partition, mark in marks.items()}

    def _report_pending(self, why: str) -> None:
        if why != self._pending:
            self._pending = why
            self._observer.forgetting_pending(why)


def compute_outcome(sealed: SealedWindow, window: int, entropy: Entropy) -> tuple[bytes, bool]:
    """The outcome's bytes, and whether it is withheld.

    ``entropy`` is not used for a secure or local plan, whose clients have drawn the noise. Windows of a secure plan are
    never withheld; those of a local plan are by numbers that are public.
    """
    sketch = sealed.sketch
    if sketch.plan.privacy.mode == SECURE:
        cohorts, submissions = sealed.cohorts, sealed.clients
        release = of_sums(
            sketch.plan, sketch.counters, sketch.counts, window=window, cohorts=cohorts, submissions=submissions
        )
        return release.to_bytes(), False
    if sketch.plan.privacy.mode == LOCAL:
        clients = sealed.clients if sketch.plan.privacy.reports is None else None
        local = decide_local(sketch.plan, sketch.counters, sketch.counts, window=window, submissions=clients)
        return local.to_bytes(), isinstance(local, Withheld)
    outcome = decide(sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=entropy)
    return outcome.to_bytes(), isinstance(outcome, Withheld)


def compute_step(sealed: SealedWindow, window: int, reserved: ReservedStep) -> tuple[bytes, bytes]:
    """The bytes of a cumulative release, of all windows so far, and of the state after it.

    Raises:
        StoreError: The state is of another step, or of other windows, than the reservation.
    """
    plan = sealed.sketch.plan
    before = cumulative.initial(plan) if reserved.state is None else reserved.state
    release, after = cumulative.step(
        plan,
        before,
        sealed.sketch,
        window=window,
        sealed=reserved.sealed,
        entropy=KeyedEntropy(reserved.key),
        accounted=True,  # by the first step's reservation
    )
    if (release.step, cumulative.digest_of(after)) != (reserved.step, reserved.digest):
        raise StoreError(f"store: the state of the sequence is not that before step {reserved.step}: it is damaged")
    return release.to_bytes(), after


async def _attempt(work: Awaitable[T], problems: list[str]) -> T | None:
    try:
        return await work
    except FencedError:
        raise
    except AggregatorError as error:
        problems.append(str(error))
        return None
