"""Who seals and releases while everything breaks: asks one process after the other until it is done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_proto.credentials import Credentials
from hushsum_proto.messages import ReleaseInfo, ServiceStatus
from simulator.console import Console
from simulator.errors import JourneyError, ServiceError

T = TypeVar("T")

_PATIENCE_S: Final = 120.0
_CALL_S: Final = 15.0  # a process may be paused; the others are not
_PAUSE_S: Final = 0.2


class Operator:
    """Asks processes of the service for what any of them can do, or one of them at a time.

    Args:
        gateways: ``host:port`` of those that take deltas.
        releasers: Of those of which one releases.
        credentials: What is shown to them, and who is believed.
        patience_s: How long each thing is tried.
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
        self._refused: dict[str, str] = {}

    async def first_window(self) -> int:
        """The oldest window that takes deltas."""

        async def ask(console: Console) -> int:
            return (await console.welcome()).oldest_window

        return await self._until_it_works("welcome", self._gateways, ask)

    async def plan(self) -> Plan:
        """The plan that is collected here."""
        return await self._until_it_works("fetch the plan", self._gateways, Console.plan)

    async def status(self) -> ServiceStatus:
        """What a service shows its operator."""
        return await self._until_it_works("ask for the status", self._gateways, Console.status)

    async def seal(self, window: int) -> None:
        """Closes a window, and returns once all of it is folded."""

        async def ask(console: Console) -> int:
            return await console.seal(window)

        await self._until_it_works(f"seal window {window}", self._releasers, ask)

    async def release(self, window: int) -> tuple[ReleaseInfo, Release]:
        """Draws a sealed window's outcome, or finds that it is drawn; as an analyst loads it."""

        async def ask(console: Console) -> None:
            if window not in {info.window for info in await console.releases()}:
                await console.release(window)

        await self._until_it_works(f"release window {window}", self._releasers, ask)
        return await self.fetch(window)

    async def fetch(self, window: int) -> tuple[ReleaseInfo, Release]:
        """A published release."""

        async def ask(console: Console) -> tuple[ReleaseInfo, Release]:
            listed = await _listed(console, window)
            return listed, await console.fetch(listed)

        return await self._until_it_works(f"fetch window {window}", self._gateways, ask)

    async def outcome(self, window: int) -> Release | None:
        """What a window came to, once it has: a published release, or None, where it is withheld."""

        async def ask(console: Console) -> Release | None:
            listed = await _listed(console, window)
            return None if listed.withheld else await console.fetch(listed)

        return await self._until_it_works(f"fetch the outcome of window {window}", self._gateways, ask)

    async def outcomes(self) -> int:
        """How many outcomes are published."""

        async def ask(console: Console) -> int:
            return len(await console.releases())

        return await self._until_it_works("list the outcomes", self._gateways, ask)

    async def _until_it_works(self, what: str, addresses: Sequence[str], ask: Callable[[Console], Awaitable[T]]) -> T:
        deadline, turn = time.monotonic() + self._patience_s, 0
        while True:
            address, turn = addresses[turn % len(addresses)], turn + 1
            try:
                async with Console(address, self._credentials) as console:
                    return await asyncio.wait_for(ask(console), _CALL_S)
            except (HushsumError, TimeoutError) as error:
                self._refused[address] = str(error) or f"no answer in {_CALL_S:.0f} s"
                if time.monotonic() > deadline:
                    said = "; ".join(f"{address}: {text}" for address, text in sorted(self._refused.items()))
                    raise JourneyError(f"{what}: not done in {self._patience_s:.0f} s ({said})") from error
            await asyncio.sleep(_PAUSE_S)


async def _listed(console: Console, window: int) -> ReleaseInfo:
    """The one outcome of a window."""
    listed = [info for info in await console.releases() if info.window == window]
    if len(listed) != 1:
        raise ServiceError(f"window {window} has {len(listed)} outcomes in the list")
    return listed[0]
