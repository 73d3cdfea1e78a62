"""The releaser's lease of a plan, while a process holds it: that of a releaser, or of an operator's command."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aggregator.errors import FencedError, ReceiptsError
from aggregator.logs import journal
from aggregator.runtime import TRANSIENT, Backoff, OnRetry, Runtime, within
from aggregator.store.store import Store

RENEWALS: Final = 3  # renewals of a lease, or attempts to acquire it, in its duration
_COMMAND_S: Final = 20.0  # how long a command that was killed keeps others from the lease

_journal = journal("leadership")


@dataclass
class HeldLease:
    """One lease of this process; ``until_s`` is its end by this process's monotonic clock."""

    plan_id: bytes
    fence: int
    lease_s: float
    until_s: float

    async def keep(self, store: Store, runtime: Runtime, note: Callable[[], str], on_retry: OnRetry) -> None:
        """Renews it, however long the work takes; returns once another process may have it.

        ``note`` says what every process's status shows.
        """
        backoff, pause_s = Backoff(), self.lease_s / RENEWALS
        try:
            while True:
                left_s = self.until_s - runtime.monotonic()
                await runtime.sleep(min(pause_s, max(left_s, 0.0)))
                asked_s = runtime.monotonic()
                if asked_s >= self.until_s:
                    return
                try:
                    renewing = store.renew_lease(self.plan_id, self.lease_s, note(), fence=self.fence)
                    await within(self.until_s - asked_s, renewing, runtime=runtime)
                except TRANSIENT as error:
                    on_retry("lease", str(error))
                    pause_s = backoff.next_s()
                else:
                    backoff.reset()
                    self.until_s, pause_s = asked_s + self.lease_s, self.lease_s / RENEWALS
        except (FencedError, TimeoutError) as error:
            on_retry("lease", str(error))


@asynccontextmanager
async def operators_lease(
    plan_id: bytes, name: str, store: Store, runtime: Runtime, *, owner: str
) -> AsyncIterator[int]:
    """Holds a plan's lease for an operator's command, and gives the fence that its writes name.

    ``owner`` is unique to the command: two at once exclude each other. Once a lease is lost, for want of an answer of
    the database, the writes that name its fence are refused.

    Raises:
        ReceiptsError: A releaser runs, or another command.
    """
    asked_s = runtime.monotonic()
    fence = await store.acquire_lease(plan_id, owner, "", _COMMAND_S)
    if fence is None:
        held = await store.lease(plan_id)
        whose, left_s = ("another process", 0.0) if held is None else (held.owner, max(held.left_s, 0.0))
        raise ReceiptsError(
            f"plan {name!r}: {whose} holds the releaser lease for {left_s:.0f} s more: stop every process of the "
            "service, let other commands end, and use this one again once the lease has ended"
        )
    lease = HeldLease(plan_id, fence, _COMMAND_S, asked_s + _COMMAND_S)
    renewing = runtime.spawn(lease.keep(store, runtime, lambda: "", _told), "lease")
    try:
        yield fence
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])
        try:
            await store.return_lease(plan_id, fence=fence)
        except TRANSIENT as error:  # what the command has done, or why it failed, counts
            _journal.warning("lease not returned: it expires by itself", why=str(error))


def _told(what: str, why: str) -> None:
    _journal.warning(f"{what} not renewed", why=why)
