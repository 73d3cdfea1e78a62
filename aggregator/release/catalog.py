"""What is published: the plan and its outcomes, for analysts and for new clients."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.fold.fold import takes_reports
from aggregator.model import Outcome, StoredOutcome
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from hushsum.plan import Plan
from hushsum.signed_plan import SignedPlan
from hushsum_proto.messages import ReleaseInfo

_LOOK_S: Final = 1.0  # how late a watcher may hear of what another process published


class NotFoundError(AggregatorError):
    """A release that is not there, or not published."""


class ReleaseCatalog:
    """The published outcomes of one plan: its releases, and which windows are withheld.

    Args:
        plan: Whose.
        store: Where they are.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan
        self._store = store
        self._published = asyncio.Event()  # replaced at each publication: who waits holds the old one
        self._watchers = 0
        self._closing = False

    async def signed_plan(self) -> SignedPlan | None:
        """The plan with the signature that is kept of it; None where nobody has signed it."""
        return await self._store.signed_plan(self.plan.id)

    async def releases(self, first_window: int | None) -> list[ReleaseInfo]:
        """The published outcomes from a window on, in the order of their windows."""
        outcomes = await self._store.outcomes(self.plan.id)
        return [
            info_of(outcome)
            for outcome in outcomes
            if outcome.published and (first_window is None or outcome.window >= first_window)
        ]

    async def release(self, kind: str, window: int) -> bytes:
        """The bytes of a published release.

        Raises:
            NotFoundError: There is none, it is not published, or the window is withheld.
        """
        outcome = await self._store.outcome(self.plan.id, kind, window)
        if outcome is None:
            raise NotFoundError(f"no published release of kind {kind!r} and window {window}")
        if outcome.withheld:
            few = "reports" if takes_reports(self.plan) else "clients"
            raise NotFoundError(f"window {window} is withheld, for ever: too few {few}; there is nothing to fetch")
        return outcome.data

    async def watch(self, first_window: int | None) -> AsyncIterator[ReleaseInfo]:
        """What is published already, then each outcome as it is published; ends when the service stops."""
        shown: set[tuple[str, int]] = set()
        self._watchers += 1
        try:
            while True:
                published = self._published
                for info in await self.releases(first_window):
                    if (info.kind, info.window) not in shown:
                        shown.add((info.kind, info.window))
                        yield info
                if self._closing:
                    return
                await published.wait()
        finally:
            self._watchers -= 1

    async def look_out(self, runtime: Runtime) -> None:
        """Wakes who watches when another process has published something; for ever.

        One read of the store a second, and none while nobody watches.

        Raises:
            StoreUnavailableError: The store cannot be reached now.
        """
        seen: int | None = None
        while True:
            if self._watchers:
                count = sum(outcome.published for outcome in await self._store.outcomes(self.plan.id))
                if count != seen:
                    self.announce()
                seen = count
            await runtime.sleep(_LOOK_S)

    def announce(self) -> None:
        """Something was published: wakes who watches."""
        self._published.set()
        self._published = asyncio.Event()

    def close(self) -> None:
        """Ends the watching."""
        self._closing = True
        self.announce()


def info_of(outcome: Outcome | StoredOutcome) -> ReleaseInfo:
    """What is told of an outcome; of a withheld one nothing can be fetched, so that it has no size and no sum."""
    if outcome.withheld:
        return ReleaseInfo(outcome.plan_id, outcome.kind, outcome.window, 0, b"", withheld=True)
    return ReleaseInfo(outcome.plan_id, outcome.kind, outcome.window, outcome.size_bytes, outcome.sha256)
