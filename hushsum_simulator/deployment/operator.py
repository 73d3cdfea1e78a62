"""The operator and the analyst of a deployment, who retry each request until one of its processes answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.credentials import Credentials
from hushsum_proto.messages import ReleaseInfo, ServiceStatus
from hushsum_simulator.demo.services import Console
from hushsum_simulator.errors import JourneyError, ServiceError

T = TypeVar("T")

_PATIENCE_S: Final = 120.0
_CALL_S: Final = 15.0  # a process may be paused; the others are not
_PAUSE_S: Final = 0.2


class Operator:
    """Sends each request to one process after the other until one of them has done it.

    Args:
        gateways: ``host:port`` each.
        releasers: ``host:port`` each; one of them releases at a time.
        credentials: For every connection.
        patience_s: How long each request is retried.
    """

    def __init__(
        self,
        gateways: Sequence[str],
        releasers: Sequence[str] = (),
        *,
        credentials: Credentials | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._gateways, self._releasers = list(gateways), list(releasers)
        self._credentials, self._patience_s = credentials, patience_s
        self._failures: dict[str, str] = {}

    async def first_window(self) -> int:
        """The oldest window that is open."""
        return (await self._retry("welcome", self._gateways, Console.welcome)).oldest_window

    async def plan(self) -> Plan:
        return await self._retry("fetch the plan", self._gateways, Console.plan)

    async def status(self) -> ServiceStatus:
        return await self._retry("ask for the status", self._gateways, Console.status)

    async def seal(self, window: int) -> None:
        """Closes a window, and returns once all of it is folded."""
        await self._retry(f"seal window {window}", self._releasers, lambda console: console.seal(window))

    async def release(self, window: int) -> tuple[ReleaseInfo, Release]:
        """Draws the outcome of a sealed window unless it has one, and fetches it."""

        async def ask(console: Console) -> None:
            if window not in {info.window for info in await console.releases()}:
                await console.release(window)

        await self._retry(f"release window {window}", self._releasers, ask)
        return await self.fetch(window)

    async def fetch(self, window: int) -> tuple[ReleaseInfo, Release]:
        """A published release."""

        async def ask(console: Console) -> tuple[ReleaseInfo, Release]:
            listed = await _listed(console, window)
            return listed, await console.fetch(listed)

        return await self._retry(f"fetch window {window}", self._gateways, ask)

    async def outcome(self, window: int) -> Release | None:
        """The published outcome of a window: its release, or None if it is withheld."""

        async def ask(console: Console) -> Release | None:
            listed = await _listed(console, window)
            return None if listed.withheld else await console.fetch(listed)

        return await self._retry(f"fetch the outcome of window {window}", self._gateways, ask)

    async def outcomes(self) -> int:
        """How many outcomes are published."""
        return len(await self._retry("list the outcomes", self._gateways, Console.releases))

    async def _retry(self, what: str, addresses: Sequence[str], ask: Callable[[Console], Awaitable[T]]) -> T:
        deadline, attempt = time.monotonic() + self._patience_s, 0
        while True:
            address, attempt = addresses[attempt % len(addresses)], attempt + 1
            try:
                async with Console(address, self._credentials) as console:
                    return await asyncio.wait_for(ask(console), _CALL_S)
            except (HushsumError, TimeoutError) as error:
                self._failures[address] = str(error) or f"no answer in {_CALL_S:.0f} s"
                if time.monotonic() > deadline:
                    failures = "; ".join(f"{address}: {text}" for address, text in sorted(self._failures.items()))
                    raise JourneyError(f"{what}: not done in {self._patience_s:.0f} s ({failures})") from error
            await asyncio.sleep(_PAUSE_S)


async def _listed(console: Console, window: int) -> ReleaseInfo:
    listed = [info for info in await console.releases() if info.window == window]
    if len(listed) != 1:
        raise ServiceError(f"window {window} has {len(listed)} outcomes in the list")
    return listed[0]
