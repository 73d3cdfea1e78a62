"""What is published: the plan and its releases, for analysts and for new clients."""

import asyncio
from collections.abc import AsyncIterator

from aggregator.errors import AggregatorError
from aggregator.ports import Outcome, Store
from hushsum.plan import Plan
from hushsum_proto.messages import ReleaseInfo


class NotFoundError(AggregatorError):
    """A release that is not there, or not published."""


class Catalogue:
    """The published releases of one plan.

    Args:
        plan: Whose.
        store: Where they are.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan = plan
        self._store = store
        self._published = asyncio.Event()  # replaced at each publication: who waits holds the old one
        self._closing = False

    async def releases(self, first_window: int | None) -> list[ReleaseInfo]:
        """The published releases from a window on, in the order of their windows."""
        outcomes = await self._store.outcomes(self.plan.id)
        return [
            _info(outcome)
            for outcome in outcomes
            if outcome.published and (first_window is None or outcome.window >= first_window)
        ]

    async def release(self, kind: str, window: int) -> bytes:
        """The bytes of a published release.

        Raises:
            NotFoundError: There is none, or it is not published.
        """
        release = await self._store.release(self.plan.id, kind, window)
        if release is None:
            raise NotFoundError(f"no published release of kind {kind!r} and window {window}")
        return release.data

    async def watch(self, first_window: int | None) -> AsyncIterator[ReleaseInfo]:
        """What is published already, then each release as it is published; ends when the service stops."""
        shown: set[tuple[str, int]] = set()
        while True:
            published = self._published
            for info in await self.releases(first_window):
                if (info.kind, info.window) not in shown:
                    shown.add((info.kind, info.window))
                    yield info
            if self._closing:
                return
            await published.wait()

    def announce(self) -> None:
        """Something was published: wakes who watches."""
        self._published.set()
        self._published = asyncio.Event()

    def close(self) -> None:
        """Ends the watching."""
        self._closing = True
        self.announce()


def _info(outcome: Outcome) -> ReleaseInfo:
    return ReleaseInfo(outcome.plan_id, outcome.kind, outcome.window, outcome.size_bytes, outcome.sha256)
