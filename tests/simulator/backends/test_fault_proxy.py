"""The proxy that breaks links, before a server that says back what it hears."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from simulator.backends.fault_proxy import Fault, FaultProxy

PATIENCE_S = 60.0
SILENCE_S = 0.1


class Echo:
    """A server; ``heard`` is all that reached it."""

    def __init__(self) -> None:
        self.heard = b""
        self.news = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                async with self.news:
                    self.heard += data
                    self.news.notify_all()
                writer.write(data)
        except ConnectionError:
            pass  # reset: nothing more comes
        finally:
            writer.transport.abort()

    async def hears(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S), self.news:
            await self.news.wait_for(lambda: self.heard == data)


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Echo, FaultProxy]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, FaultProxy(server.sockets[0].getsockname()) as proxy:
        yield echo, proxy


async def connect(proxy: FaultProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(proxy: FaultProxy, data: bytes) -> bytes:
    """What comes back on a new connection: nothing where it is cut."""
    reader, writer = await connect(proxy)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(1000), PATIENCE_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_without_a_fault_everything_passes_and_is_counted() -> None:
    async with proxied() as (_, proxy):
        assert await answer(proxy, b"hello") == b"hello"
        assert (proxy.sent, proxy.received, proxy.connections, proxy.struck) == (5, 5, 1, 0)


async def test_cut_before_the_request_the_server_hears_nothing() -> None:
    async with proxied() as (echo, proxy):
        proxy.inject(Fault.CUT_BEFORE_REQUEST)
        assert await answer(proxy, b"one") == b""
        assert await answer(proxy, b"two") == b"two"
        assert (echo.heard, proxy.struck) == (b"two", 1)


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER_REQUEST, Fault.CUT_BEFORE_REPLY])
async def test_cut_after_the_request_the_server_hears_it_and_the_client_learns_nothing(fault: Fault) -> None:
    async with proxied() as (echo, proxy):
        proxy.inject(fault)
        assert await answer(proxy, b"one") == b""
        await echo.hears(b"one")
        assert proxy.received == 0
        assert await answer(proxy, b"two") == b"two"


async def test_half_open_is_silent_until_it_heals() -> None:
    async with proxied() as (echo, proxy):
        proxy.inject(Fault.HALF_OPEN)
        reader, writer = await connect(proxy)
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1000), SILENCE_S)
        assert await answer(proxy, b"other") == b"other"
        proxy.heal()
        with suppress(ConnectionResetError):  # the same, said more plainly
            assert await asyncio.wait_for(reader.read(1000), PATIENCE_S) == b""
        writer.close()
        assert echo.heard == b"other"


async def test_silence_and_refusal_hold_for_every_connection_until_they_heal() -> None:
    async with proxied() as (echo, proxy):
        proxy.fall_silent()
        reader, writer = await connect(proxy)
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1000), SILENCE_S)
        proxy.refuse()
        assert await answer(proxy, b"refused") == b""
        proxy.heal()
        assert await answer(proxy, b"again") == b"again"
        writer.close()
        assert echo.heard == b"again"


async def test_a_fault_meets_only_the_requests_that_it_is_aimed_at_and_only_so_often() -> None:
    async with proxied() as (_, proxy):
        proxy.inject(Fault.CUT_BEFORE_REQUEST, times=2, only=lambda data: b"bad" in data)
        answers = [await answer(proxy, data) for data in (b"good", b"bad", b"good", b"bad", b"bad")]
        assert answers == [b"good", b"", b"good", b"", b"bad"]
        assert proxy.struck == 2


async def test_a_delay_holds_both_directions_up() -> None:
    async with proxied() as (_, proxy):
        proxy.delay(SILENCE_S)
        began = asyncio.get_running_loop().time()
        assert await answer(proxy, b"slow") == b"slow"
        assert asyncio.get_running_loop().time() - began >= 2 * SILENCE_S
