"""The proxy on real sockets: links that break, and what flows, what is held back, what is lost when it must be."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from hushsum_simulator.testbed.tcp_proxy import Fault, TcpProxy

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
async def proxied() -> AsyncIterator[tuple[Echo, TcpProxy]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with server, TcpProxy("{}:{}".format(*server.sockets[0].getsockname()[:2])) as proxy:
        yield echo, proxy


async def connect(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer(proxy: TcpProxy, data: bytes) -> bytes:
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
        assert proxy.turns == 1
        assert await answer(proxy, b"again") == b"again"
        assert proxy.turns == 2


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
        assert proxy.refused == 1
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


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Far:
    """A server that keeps its connections for the test to speak through."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Streams] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []
        self.address = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.accepted.put_nowait((reader, writer))


@asynccontextmanager
async def far_server() -> AsyncIterator[Far]:
    far = Far()
    server = await asyncio.start_server(far.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    far.address = f"{host}:{port}"
    try:
        yield far
    finally:
        server.close()
        for writer in far.writers:
            await close(writer)


@asynccontextmanager
async def connected(relay: TcpProxy) -> AsyncIterator[Streams]:
    host, _, port = relay.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        await close(writer)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes before the end, whichever way a connection ends."""
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def many_turns() -> None:
    """Everything that is ready in this event loop happens; nothing here waits for a clock."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_bytes_flow_both_ways() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            writer.write(b"question")
            far_reader, far_writer = await far.accepted.get()
            assert await far_reader.readexactly(8) == b"question"
            far_writer.write(b"answer")
            assert await reader.readexactly(6) == b"answer"
        assert await far_reader.read() == b""


async def test_replies_are_held_while_requests_flow_and_come_in_order_afterwards() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            writer.write(b"1")
            far_reader, far_writer = await far.accepted.get()
            await far_reader.readexactly(1)

            relay.hold_replies()
            far_writer.write(b"first ")
            writer.write(b"2")
            assert await far_reader.readexactly(1) == b"2"
            waiting = asyncio.ensure_future(reader.readexactly(6))
            await many_turns()
            assert not waiting.done()

            far_writer.write(b"second")
            relay.release_replies()
            assert await waiting + await reader.readexactly(6) == b"first second"


async def test_what_is_held_when_it_is_cut_is_never_delivered() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            writer.write(b"1")
            far_reader, far_writer = await far.accepted.get()
            await far_reader.readexactly(1)
            relay.hold_replies()
            far_writer.write(b"acknowledged")
            await far_writer.drain()
            await many_turns()
            relay.cut()
            relay.release_replies()
            assert await rest(reader) == b""


async def test_replies_of_a_connection_that_comes_while_they_are_held_are_held_too() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        relay.hold_replies()
        async with connected(relay) as (reader, _writer):
            _, far_writer = await far.accepted.get()
            far_writer.write(b"x")
            await far_writer.drain()
            waiting = asyncio.ensure_future(reader.readexactly(1))
            await many_turns()
            assert not waiting.done()
            relay.release_replies()
            assert await waiting == b"x"


async def test_a_connection_to_nowhere_is_closed_and_the_next_one_finds_the_new_server() -> None:
    async with TcpProxy() as relay:
        async with connected(relay) as (reader, _writer):
            assert await rest(reader) == b""
        relay.aim("127.0.0.1:1")  # nobody listens there
        async with connected(relay) as (reader, _writer):
            assert await rest(reader) == b""
        async with far_server() as far:
            relay.aim(far.address)
            async with connected(relay) as (reader, _writer):
                _, far_writer = await far.accepted.get()
                far_writer.write(b"!")
                assert await reader.readexactly(1) == b"!"


async def test_the_end_of_the_server_is_the_end_of_the_connection_after_its_last_byte() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, _writer):
            _, far_writer = await far.accepted.get()
            far_writer.write(b"last")
            far_writer.close()
            assert await rest(reader) == b"last"


async def test_eight_megabytes_pass_unchanged_to_a_slow_reader() -> None:
    data = bytes(range(256)) * 32_768
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            far_reader, far_writer = await far.accepted.get()
            far_writer.write(data)
            writer.write(data)
            await many_turns()  # the buffers on the way are full now, and nobody reads
            assert await reader.readexactly(len(data)) == data
            assert await far_reader.readexactly(len(data)) == data


async def test_after_what_it_may_carry_it_cuts_everything_for_good() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            writer.write(b"x" * 600)
            far_reader, _ = await far.accepted.get()
            assert await far_reader.readexactly(600) == b"x" * 600
            relay.carry(500)
            before = relay.is_spent
            writer.write(b"y" * 501)
            assert await rest(reader) == b""
            assert await rest(far_reader) == b""
            assert (before, relay.is_spent) == (False, True)
        async with connected(relay) as (reader, _):
            assert await rest(reader) == b""


async def test_replies_are_held_on_a_connection_once_it_has_carried_so_much() -> None:
    async with far_server() as far, TcpProxy() as relay:
        relay.aim(far.address)
        async with connected(relay) as (reader, writer):
            far_reader, far_writer = await far.accepted.get()
            writer.write(b"x" * 600)
            assert await far_reader.readexactly(600) == b"x" * 600
            relay.hold_replies(500)  # what it carried before does not count
            far_writer.write(b"go on")
            assert await reader.readexactly(5) == b"go on"
            writer.write(b"y" * 500)
            assert await far_reader.readexactly(500) == b"y" * 500
            far_writer.write(b"done")
            answer = asyncio.ensure_future(reader.readexactly(4))
            await many_turns()
            assert not answer.done()
            relay.release_replies()
            assert await answer == b"done"
