"""The release catalog: the plan and its published outcomes, for analysts and for new clients."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aggregator.errors import AggregatorError
from aggregator.model import Outcome, StoredOutcome
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from aggregator.windows import WindowState, due_ms
from hushsum.plan import Plan
from hushsum.signed_plan import SignedPlan
from hushsum_proto.messages import NextOutcome, ReleaseInfo

_POLL_S: Final = 1.0  # how late watchers may hear of another process's publications


class NotFoundError(AggregatorError):
    """A release that does not exist or is not published."""


class ReleaseCatalog:
    """The published outcomes of one plan: its releases, and which windows are withheld.

    Attributes:
        publications: How often something was published, as far as this process knows.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan
        self._store = store
        self._published = asyncio.Event()  # replaced at each publication; a waiter holds the old one
        self._watchers = self.publications = 0
        self._closing = False

    async def signed_plan(self) -> SignedPlan | None:
        """The plan with its stored signature; None if it is not signed."""
        return await self._store.signed_plan(self.plan.id)

    async def releases(self, first_window: int | None) -> list[ReleaseInfo]:
        """The published outcomes from a window on, in the order of their windows."""
        outcomes = await self._store.outcomes(self.plan.id)
        return [
            info_of(outcome)
            for outcome in outcomes
            if outcome.published and (first_window is None or outcome.window >= first_window)
        ]

    async def next_outcome(self) -> NextOutcome | None:
        """The next outcome.

        It is the oldest one without an outcome, or the one after the newest. None: no gateway ever had one open, or the
        plan's horizon has no outcome left.
        """
        states = await self._store.unfinished(self.plan.id)
        window = min(states, default=None)
        if window is None:
            horizon = self.plan.window.horizon
            if horizon is not None and len(await self._store.outcomes(self.plan.id)) >= horizon:
                return None
            newest = await self._store.newest_windows(self.plan.id, None, 1)
            if not newest:
                return None
            window = newest[0][0] + 1
        is_sealed = states.get(window, WindowState.OPEN) != WindowState.OPEN
        return NextOutcome(window, due_ms(self.plan.window, window), is_sealed)

    async def release(self, kind: str, window: int) -> bytes:
        """The bytes of a published release.

        Raises:
            NotFoundError: There is none, it is not published, or the window is withheld.
        """
        outcome = await self._store.outcome(self.plan.id, kind, window)
        if outcome is None:
            raise NotFoundError(f"no published release of kind {kind!r} and window {window}")
        if outcome.withheld:
            few = "reports" if self.plan.privacy.reports is not None else "clients"
            raise NotFoundError(f"window {window} is withheld: it has too few {few}")
        if not outcome.data:
            why = "it is older than keep_releases allows, or was lost before this store was restored"
            raise NotFoundError(f"the release of window {window} was removed: {why}")
        return outcome.data

    async def watch(self, first_window: int | None) -> AsyncIterator[ReleaseInfo]:
        """All published outcomes, then each one as it is published; ends when the service stops."""
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
        """Wakes watchers when another process has published something; runs for ever.

        It reads the store once a second, and not while there are no watchers.

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
            await runtime.sleep(_POLL_S)

    def announce(self) -> None:
        self.publications += 1
        self._published.set()
        self._published = asyncio.Event()

    def close(self) -> None:
        self._closing = True
        self.announce()


def info_of(outcome: Outcome | StoredOutcome) -> ReleaseInfo:
    """An outcome's public description; a withheld one cannot be fetched, so it has no size and no checksum.

    A release that was removed has a checksum and no size.
    """
    if outcome.withheld:
        return ReleaseInfo(outcome.plan_id, outcome.kind, outcome.window, 0, b"", withheld=True)
    return ReleaseInfo(outcome.plan_id, outcome.kind, outcome.window, outcome.size_bytes, outcome.sha256)
