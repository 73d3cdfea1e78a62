"""Which process releases: the one that holds the store's lease, for as long as it renews it in time.

A lease that ends ends its releaser: whatever is under way is cancelled, by a clock that never goes back, and what still
goes on (a process that was paused in mid-call wakes and writes) is refused by the fence in the store's transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeVar

from aggregator.errors import (
    RETRY_AFTER_MS,
    AggregatorError,
    FencedError,
    FoldsBehindError,
    PartitionStoppedError,
    RefusedError,
)
from aggregator.logs import journal
from aggregator.release.releaser import Releaser, ReleaserPorts
from aggregator.runtime import TRANSIENT, Backoff, within
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason

T = TypeVar("T")

_LOOKS: Final = 3  # renewals, or looks for a free lease, in the time of one
_PATIENCE_S: Final = 5.0  # for what is cancelled to end, and for the lease's return

_journal = journal("leadership")


@dataclass(frozen=True)
class LeaseSettings:
    """How a process takes part in releasing.

    Attributes:
        owner: A name of this process alone.
        lease_s: How long a lease holds without being renewed: after so long another process takes over.
        automatic: Whether windows are sealed and released by the clock; else by the administration alone.
    """

    owner: str
    lease_s: float = 10.0
    automatic: bool = True


@dataclass
class _Term:
    """One lease of this process, and its releaser."""

    releaser: Releaser
    fence: int
    until_s: float
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # its start is done
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Leadership:
    """Makes this process the plan's releaser, whenever no other is.

    Args:
        plan: What is collected; registered in the store.
        ports: The world.
        settings: Its name, and for how long.
        address: Where this process's administration listens, ``host:port``.

    Attributes:
        address: As above; may be set until the start.
    """

    def __init__(self, plan: Plan, ports: ReleaserPorts, settings: LeaseSettings, *, address: str = "") -> None:
        self.address = address
        self._plan, self._ports, self._settings = plan, ports, settings
        self._store, self._runtime, self._observer = ports.store, ports.runtime, ports.observer
        self._term: _Term | None = None
        self._first = asyncio.Event()  # a releaser has been started, or never will be
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this process releases now."""
        return self._term is not None and self._runtime.monotonic() < self._term.until_s

    async def start(self) -> None:
        """Begins to ask for the lease."""
        self._task = self._runtime.spawn(self._run(), "leadership")

    async def led(self) -> None:
        """Returns once this process releases, and has finished what a crash left half done.

        Raises:
            Exception: What :meth:`ended` raises.
        """
        await self._first.wait()
        if self._task is not None and self._task.done():
            await self.ended()

    async def ended(self) -> None:
        """Returns once it is stopped; raises what it cannot go on after."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Ends what is under way, and returns the lease, so that another process takes over at once."""
        term, self._term = self._term, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if term is None:
            return
        try:
            await within(_PATIENCE_S, self._store.return_lease(self._plan.id, fence=term.fence), runtime=self._runtime)
        except (TimeoutError, *TRANSIENT) as error:
            self._observer.retried("return_lease", str(error))  # it runs out by itself

    async def do(self, work: Callable[[Releaser], Awaitable[T]]) -> T:
        """Has the releaser do something, if it is this process's.

        Raises:
            RefusedError: Another process releases, or none does now; the text names it, and where to ask.
            Exception: As ``work``.
        """
        term = self._term
        if term is None or not self.leads:
            raise await self._elsewhere()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def carry() -> None:
            try:
                await term.ready.wait()
                value = await work(term.releaser)
            except FencedError:
                term.over.set()
            except Exception as error:  # noqa: BLE001  it is raised where it is waited for
                if not result.done():
                    result.set_exception(error)
            else:
                if not result.done():
                    result.set_result(value)

        task = self._spawn(term, carry(), "releaser-call")
        task.add_done_callback(lambda _: result.cancel())
        try:
            return await result
        except asyncio.CancelledError:
            if not task.done():
                task.cancel()  # whoever asked went away
                raise
            raise await self._elsewhere() from None

    async def stopped(self) -> str:
        """Why no outcome is taken, by whichever process releases; empty while all is well."""
        if self._term is not None and self.leads:
            return self._term.releaser.stopped
        lease = await self._store.lease(self._plan.id)
        if lease is None or lease.left_s <= 0:
            return "no process releases now"
        return lease.note and f"process {lease.owner}: {lease.note}"

    async def _elsewhere(self) -> RefusedError:
        lease = await self._store.lease(self._plan.id)
        detail = "no process releases now; one takes over by itself, ask again"
        if lease is not None and lease.left_s > 0 and lease.owner != self._settings.owner:
            detail = f"process {lease.owner} releases, its administration listens at {lease.address}"
        return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail, RETRY_AFTER_MS))

    # ------------------------------------------------------------------------------------------------------ the lease

    async def _run(self) -> None:
        try:
            while True:
                fence, until_s = await self._acquired()
                await self._lead(_Term(Releaser(self._plan, self._ports, fence=fence), fence, until_s))
        finally:
            self._first.set()

    async def _acquired(self) -> tuple[int, float]:
        """Asks until the lease is this process's; its fence, and until when it holds by this process's clock."""
        settings, backoff = self._settings, Backoff()
        while True:
            asked_s = self._runtime.monotonic()
            try:
                fence = await self._store.acquire_lease(self._plan.id, settings.owner, self.address, settings.lease_s)
                backoff.reset()
                if fence is not None:
                    return fence, asked_s + settings.lease_s
                pause_s = settings.lease_s / _LOOKS
            except TRANSIENT as error:
                self._observer.retried("lease", str(error))
                pause_s = backoff.next_s()
            await self._runtime.sleep(pause_s)

    async def _lead(self, term: _Term) -> None:
        self._term = term
        self._observer.leading(True)  # noqa: FBT003  a fact that is told
        _journal.info("this process releases", fence=term.fence)
        working = self._spawn(term, self._work(term), "releaser")
        self._spawn(term, self._renew(term), "lease")
        try:
            await term.over.wait()
        finally:
            self._term = None
            await self._drop(term)
        if working.done() and not working.cancelled():
            working.result()  # raises what nobody foresaw

    async def _drop(self, term: _Term) -> None:
        for task in term.tasks:
            task.cancel()
        if term.releaser.stopped:
            self._observer.releasing_stopped("")  # whoever releases next says it again, if it is so
        self._observer.leading(False)  # noqa: FBT003  a fact that is told
        _journal.info("this process releases no more", fence=term.fence)
        try:
            if term.tasks:
                await within(_PATIENCE_S, asyncio.wait([*term.tasks]), runtime=self._runtime)
        except TimeoutError:
            pass  # its fence is a lower one by then
        # After its tasks, for a call that is cancelled says so itself; whoever releases next forgets it.
        self._observer.forgetting_pending("")

    async def _work(self, term: _Term) -> None:
        try:
            await self._until_done("start", term.releaser.start)
            term.ready.set()
            self._first.set()
            if self._settings.automatic:
                await self._until_done("release", term.releaser.run)
            else:
                await term.over.wait()
        except FencedError:
            pass
        finally:
            term.over.set()

    async def _until_done(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff()
        while True:
            try:
                return await work()
            except (FencedError, PartitionStoppedError):
                raise
            except (FoldsBehindError, *TRANSIENT) as error:
                self._observer.retried(what, str(error))
            except AggregatorError as error:
                _journal.error("releasing failed, trying again", error=str(error))
            await self._runtime.sleep(backoff.next_s())

    async def _renew(self, term: _Term) -> None:
        """Holds the lease while the releaser works, however long a draw takes; ends when it may be another's."""
        backoff, pause_s = Backoff(), self._settings.lease_s / _LOOKS
        try:
            while True:
                left_s = term.until_s - self._runtime.monotonic()
                await self._runtime.sleep(min(pause_s, max(left_s, 0.0)))
                asked_s = self._runtime.monotonic()
                if asked_s >= term.until_s:
                    return
                try:
                    await within(term.until_s - asked_s, self._renewed(term), runtime=self._runtime)
                except TRANSIENT as error:
                    self._observer.retried("lease", str(error))
                    pause_s = backoff.next_s()
                else:
                    backoff.reset()
                    term.until_s, pause_s = asked_s + self._settings.lease_s, self._settings.lease_s / _LOOKS
        except (FencedError, TimeoutError) as error:
            self._observer.retried("lease", str(error))
        finally:
            term.over.set()

    async def _renewed(self, term: _Term) -> None:
        note = term.releaser.stopped
        await self._store.renew_lease(self._plan.id, self._settings.lease_s, note, fence=term.fence)

    def _spawn(self, term: _Term, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        task = self._runtime.spawn(work, name)
        term.tasks.add(task)
        task.add_done_callback(term.tasks.discard)
        return task
