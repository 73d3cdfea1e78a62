"""Leader election: the process that holds the store's lease releases, as long as it renews the lease in time.

The end of a lease ends its releaser: its work is cancelled, by a monotonic clock. A write that still comes (a process
that was paused in mid-call wakes) is refused by the fence in the store's transaction.
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
from aggregator.interfaces import Observer
from aggregator.logs import journal
from aggregator.release.lease import RENEWALS, HeldLease
from aggregator.release.releaser import Releaser
from aggregator.runtime import TRANSIENT, Backoff, Runtime, within
from aggregator.store.store import Store
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason

T = TypeVar("T")

_PATIENCE_S: Final = 5.0  # for cancelled tasks to end, and for the lease's return

_journal = journal("leadership")


@dataclass
class _Term:
    """One lease of this process, and its releaser."""

    releaser: Releaser
    lease: HeldLease
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # the releaser has started
    over: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Leadership:
    """Makes this process the plan's releaser whenever no other process is.

    Args:
        new_releaser: Makes the plan's releaser for a lease with this fence.
        owner: The name of this process, unique to it.
        lease_s: How long a lease holds without renewal: after that another process takes over.
        automatic: Whether windows are sealed and released by the clock; else by the administration alone.
        address: ``host:port`` of this process's administration; may be set until the start.
    """

    def __init__(  # noqa: PLR0913  each is a part or a setting of its own
        self,
        plan: Plan,
        new_releaser: Callable[[int], Releaser],
        *,
        store: Store,
        runtime: Runtime,
        observer: Observer,
        owner: str,
        lease_s: float = 10.0,
        automatic: bool = True,
        address: str = "",
    ) -> None:
        self.address = address
        self._plan, self._new_releaser = plan, new_releaser
        self._store, self._runtime, self._observer = store, runtime, observer
        self._owner, self._lease_s, self._automatic = owner, lease_s, automatic
        self._term: _Term | None = None
        self._first = asyncio.Event()  # a releaser has started, or never will
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        return self._term is not None and self._runtime.monotonic() < self._term.lease.until_s

    async def start(self) -> None:
        """Begins to request the lease."""
        self._task = self._runtime.spawn(self._run(), "leadership")

    async def led(self) -> None:
        """Returns once this process releases and has completed what a crash interrupted; raises as :meth:`ended`."""
        await self._first.wait()
        if self._task is not None and self._task.done():
            await self.ended()

    async def ended(self) -> None:
        """Returns once it is stopped; raises the error that ended it."""
        assert self._task is not None
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """Cancels the work in progress and returns the lease, so that another process takes over at once."""
        term, self._term = self._term, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if term is None:
            return
        try:
            await within(
                _PATIENCE_S, self._store.return_lease(self._plan.id, fence=term.lease.fence), runtime=self._runtime
            )
        except (TimeoutError, *TRANSIENT) as error:
            self._observer.retried("return_lease", str(error))  # it expires by itself

    async def do(self, work: Callable[[Releaser], Awaitable[T]]) -> T:
        """Runs ``work`` with this process's releaser, if it has one.

        Raises:
            RefusedError: Another process releases, or none does now; the text names it and its address.
            Exception: Any that ``work`` raises.
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
            except Exception as error:  # noqa: BLE001  raised where the result is awaited
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
                task.cancel()  # the caller was cancelled
                raise
            raise await self._elsewhere() from None

    async def stopped(self) -> str:
        """Why no outcome is drawn, by whichever process releases; empty while releasing works."""
        if self._term is not None and self.leads:
            return self._term.releaser.stopped
        lease = await self._store.lease(self._plan.id)
        if lease is None or lease.left_s <= 0:
            return "no process holds the releaser lease"
        return lease.note and f"process {lease.owner}: {lease.note}"

    async def _elsewhere(self) -> RefusedError:
        lease = await self._store.lease(self._plan.id)
        detail = "no process holds the releaser lease: retry later"
        if lease is not None and lease.left_s > 0 and lease.owner != self._owner:
            detail = f"process {lease.owner} holds the releaser lease: retry when it has ended"
            if lease.address:
                detail = f"process {lease.owner} is the releaser: send the request to {lease.address}"
        return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail, RETRY_AFTER_MS))

    # ------------------------------------------------------------------------------------------------------ the lease

    async def _run(self) -> None:
        try:
            while True:
                lease = await self._acquired()
                await self._lead(_Term(self._new_releaser(lease.fence), lease))
        finally:
            self._first.set()

    async def _acquired(self) -> HeldLease:
        """Repeats until this process has the lease."""
        backoff = Backoff()
        while True:
            asked_s = self._runtime.monotonic()
            try:
                fence = await self._store.acquire_lease(self._plan.id, self._owner, self.address, self._lease_s)
                backoff.reset()
                if fence is not None:
                    return HeldLease(self._plan.id, fence, self._lease_s, asked_s + self._lease_s)
                pause_s = self._lease_s / RENEWALS
            except TRANSIENT as error:
                self._observer.retried("lease", str(error))
                pause_s = backoff.next_s()
            await self._runtime.sleep(pause_s)

    async def _lead(self, term: _Term) -> None:
        self._term = term
        self._observer.leading(True)  # noqa: FBT003  a fact that is told
        _journal.info("releaser lease acquired", fence=term.lease.fence)
        working = self._spawn(term, self._work(term), "releaser")
        self._spawn(term, self._renew(term), "lease")
        try:
            await term.over.wait()
        finally:
            self._term = None
            await self._drop(term)
        if working.done() and not working.cancelled():
            working.result()  # raises an unexpected error

    async def _drop(self, term: _Term) -> None:
        for task in term.tasks:
            task.cancel()
        if term.releaser.stopped:
            self._observer.releasing_stopped("")  # the next releaser reports it again, if it still holds
        self._observer.leading(False)  # noqa: FBT003  a fact that is told
        _journal.info("releaser lease lost", fence=term.lease.fence)
        try:
            if term.tasks:
                await within(_PATIENCE_S, asyncio.wait([*term.tasks]), runtime=self._runtime)
        except TimeoutError:
            pass  # the next fence keeps them from writing
        # After its tasks, because a cancelled call reports its own; the next releaser erases it.
        self._observer.forgetting_pending("")

    async def _work(self, term: _Term) -> None:
        try:
            await self._until_done("start", term.releaser.start)
            term.ready.set()
            self._first.set()
            if self._automatic:
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
                _journal.error("releasing failed, retrying", error=str(error))
            await self._runtime.sleep(backoff.next_s())

    async def _renew(self, term: _Term) -> None:
        """Renews the lease while the releaser works, however long a draw takes; ends once another may have it."""
        try:
            await term.lease.keep(self._store, self._runtime, lambda: term.releaser.stopped, self._observer.retried)
        finally:
            term.over.set()

    def _spawn(self, term: _Term, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        task = self._runtime.spawn(work, name)
        term.tasks.add(task)
        task.add_done_callback(term.tasks.discard)
        return task
