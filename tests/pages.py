"""Pages over HTTP as those ask who watch a service, and time that passes faster than it does."""

import asyncio
import http.client
import ssl
from collections.abc import Awaitable, Callable

from tests.services import NOW_MS, SetRuntime

SPEED = 15.0


class QuickRuntime(SetRuntime):
    """Real tasks and threads; every wait is shorter, and every measured time longer, by the same factor."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        super().__init__(now_ms)

    def monotonic(self) -> float:
        return super().monotonic() * SPEED

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / SPEED)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns once it does."""
    async with asyncio.timeout(120):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


def asked(address: str, path: str, tls: ssl.SSLContext | None = None, method: str = "GET") -> tuple[int, str]:
    """The status and the body of a page."""
    host, _, port = address.rpartition(":")
    connection: http.client.HTTPConnection
    if tls is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=tls)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()
