"""Connections that only take room are closed: failing without end, nobody admitted there, beyond a share."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from aggregator.api import calls, connections
from aggregator.api.connections import Address, ConnectionGuard, address_of, connection_limits
from aggregator.model import Scope
from aggregator.runtime import SystemRuntime, next_turns
from tests.aggregator.api.test_server import (
    HEADERS,
    HELLO,
    PING,
    RESET,
    SETTINGS,
    Attacker,
    answered,
    frame,
    headers_of,
)
from tests.aggregator.auth.test_tokens_served import guarded, token

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")


@contextmanager
def connected(address: str, number: int) -> Iterator[list[socket.socket]]:
    """Connections that have begun HTTP/2, and call nothing; the server has answered each, or closed it."""
    host, port = address.rsplit(":", 1)
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection((host, int(port)), timeout=120)) for _ in range(number)]
        for each in made:
            each.sendall(PREFACE)
        for each in made:
            with suppress(ConnectionError):
                each.recv(1, socket.MSG_PEEK)
            each.setblocking(False)
        yield made


def is_closed(connection: socket.socket) -> bool:
    with suppress(BlockingIOError):
        try:
            while came := connection.recv(65536):
                del came
        except ConnectionError:
            pass
        return True
    return False


def closed(many: list[socket.socket]) -> int:
    return sum(is_closed(each) for each in many)


async def until_closed(many: list[socket.socket], number: int) -> None:
    async with asyncio.timeout(120):
        while closed(many) < number:  # noqa: ASYNC110  what the other side closes has no event
            await asyncio.sleep(0.02)


def reset_without_end(address: str, seconds: float = 120.0) -> bool:
    """Opens calls and resets them, on one connection, until it is closed; False: it was not closed in time."""
    host, port = address.rsplit(":", 1)
    headers = headers_of(HELLO)
    opened, data, until_s = 0, b"", time.monotonic() + seconds
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(PREFACE)
        connection.settimeout(0.01)
        try:
            while time.monotonic() < until_s:
                calls = range(2 * opened + 1, 2 * opened + 41, 2)
                connection.sendall(b"".join(frame(1, 4, n, headers) + frame(RESET, 0, n, b"\0\0\0\x08") for n in calls))
                opened += len(calls)
                with suppress(TimeoutError):
                    came = connection.recv(65536)
                    if not came:
                        return True
                    data += came
                while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3], "big")):
                    kind, flags, payload, data = data[3], data[4], data[9:end], data[end:]
                    if kind in (SETTINGS, PING) and not flags & 1:
                        connection.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
        except ConnectionError:
            return True
    return False


async def test_a_connection_whose_calls_are_opened_and_reset_without_end_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FAILURES_BURST", 200)
    monkeypatch.setattr(connections, "CHECK_S", 0.05)
    alice = token("alice", Scope.SUBMIT)
    with capture_logs() as logs:
        async with guarded(tmp_path, alice) as here, here.client(alice) as client:
            await answered(client)
            assert await asyncio.to_thread(reset_without_end, here.service.grpc)
            await answered(client)  # on the connection that it has had all the time
    lines = [line for line in logs if line["event"] == "connections closed"]
    assert [(line["reason"], line["number"]) for line in lines] == [("failing_calls", 1)]


async def test_a_connection_whose_calls_are_refused_without_end_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FAILURES_BURST", 200)
    monkeypatch.setattr(connections, "CHECK_S", 0.05)
    async with guarded(tmp_path) as here:
        attacker = await asyncio.to_thread(Attacker, here.service.grpc, HELLO, 450)
        async with asyncio.timeout(120):
            while not attacker.cut:  # noqa: ASYNC110  what a thread of its own sees has no event
                await asyncio.sleep(0.02)
        await asyncio.to_thread(attacker.close)


async def test_silent_connections_end_with_their_handshake_and_beyond_the_bound_at_once() -> None:
    soon = dict.fromkeys(("grpc.server_handshake_timeout_ms", "grpc.http2.settings_timeout"), 1000)
    limits = dict(connection_limits(20))
    assert soon.keys() <= limits.keys()
    server = grpc.aio.server(options=[*(limits | soon).items()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(50)]
        for each in made:
            each.setblocking(False)
        await until_closed(made, 30)
        await until_closed(made, 50)
    await server.stop(None)


@asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[str, ConnectionGuard, SystemRuntime]]:
    server, guard = grpc.aio.server(), ConnectionGuard(16, CollectorRegistry())
    port = server.add_insecure_port("127.0.0.1:0")
    guard.listens(port)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", guard, SystemRuntime()
    finally:
        await server.stop(None)


def peer_of(connection: socket.socket) -> str:
    return f"ipv4:127.0.0.1:{connection.getsockname()[1]}"


async def test_under_pressure_the_oldest_go_on_which_nobody_was_admitted() -> None:
    async with bare_server() as (address, guard, runtime):
        with connected(address, 8) as old, connected(address, 4) as known:
            await guard.look(runtime)
            for number, each in enumerate(known):
                guard.admitted(peer_of(each), f"till-{number}")
            guard._now_s = 10.0
            await guard.look(runtime)
            assert closed(old) == 0, "12 of 16 places are no more than three quarters"
            with connected(address, 3) as new:
                await asyncio.sleep(0.2)  # they are accepted
                await guard.look(runtime)
                await until_closed(old, 7)
                assert (closed(old), closed(known), closed(new)) == (7, 0, 0), "15 are open, and half of 16 stay"


async def test_while_an_eighth_of_the_places_is_free_newcomers_have_time_to_be_admitted() -> None:
    async with bare_server() as (address, guard, runtime):
        with connected(address, 14) as made:
            await asyncio.sleep(0.2)
            await guard.look(runtime)
            guard._now_s = connections.STRANGER_S_MAX - 1
            await guard.look(runtime)
            assert closed(made) == 0
            guard._now_s = connections.STRANGER_S_MAX
            await guard.look(runtime)
            await until_closed(made, 6)
            assert closed(made) == 6


async def test_under_pressure_a_name_keeps_its_share_of_connections_and_no_more() -> None:
    async with bare_server() as (address, guard, runtime):
        with connected(address, 11) as greedy, connected(address, 3) as others:
            for each in greedy:
                guard.admitted(peer_of(each), "greedy")
            for number, each in enumerate(others):
                guard.admitted(peer_of(each), f"till-{number}")
            await asyncio.sleep(0.2)
            await guard.look(runtime)
            await until_closed(greedy, 6)
            assert (closed(greedy), closed(others)) == (6, 0), "14 are open, and half of 16 stay"


async def test_a_call_that_is_reset_at_once_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a status that cannot be sent any more gRPC keeps 0.4 kB for ever."""
    told: list[str] = []

    async def watched(turns: int) -> None:
        told.append("to be refused")
        await next_turns(turns)
        told.append("refused")

    monkeypatch.setattr(calls, "next_turns", watched)
    async with guarded(tmp_path) as site:
        with connected(site.service.grpc, 1) as (connection,):
            for first in range(0, 1000, 10):
                streams = range(2 * first + 1, 2 * first + 20, 2)
                headers = headers_of(HELLO)
                frames = (frame(HEADERS, 4, n, headers) + frame(RESET, 0, n, b"\0\0\0\x08") for n in streams)
                connection.sendall(b"".join(frames))
                await asyncio.sleep(0.002)
            async with asyncio.timeout(120):
                while told.count("to be refused") < 500:  # noqa: ASYNC110  nobody tells it; some end before they come here
                    await asyncio.sleep(0.01)
    assert told.count("refused") < 0.9 * told.count("to be refused"), "one in thirty, on a machine that is not busy"


async def test_who_was_admitted_is_forgotten_soon_after_its_connection_and_was_never_kept_in_clear() -> None:
    async with bare_server() as (address, guard, runtime):
        with connected(address, 1) as made:
            guard.admitted(peer_of(made[0]), "till-3")
            assert b"till-3" not in b"".join(guard._names.values())
            guard._now_s = connections.FORGET_S
            await guard.look(runtime)
            assert len(guard._names) == 1
        port = int(address.rsplit(":", 1)[1])
        async with asyncio.timeout(120):
            while connections._connections(connections._files(), port, {})[0]:  # noqa: ASYNC110  the server sees its end
                await asyncio.sleep(0.02)
        guard._now_s = 2 * connections.FORGET_S
        await guard.look(runtime)
        assert not guard._names


async def test_who_is_admitted_while_connections_are_looked_at_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = connections._files
    async with bare_server() as (address, guard, runtime):
        with ExitStack() as stack:
            made: list[socket.socket] = []

            def admitted_meanwhile() -> list[int]:
                files = real()
                made.extend(stack.enter_context(connected(address, 1)))
                guard.admitted(peer_of(made[0]), "till-3")
                return files

            monkeypatch.setattr(connections, "_files", admitted_meanwhile)
            guard._now_s = connections.FORGET_S
            await guard.look(runtime)
            assert len(guard._names) == 1


async def test_two_connections_of_one_port_to_two_addresses_are_two() -> None:
    server, guard = grpc.aio.server(), ConnectionGuard(16, CollectorRegistry())
    port = server.add_insecure_port("0.0.0.0:0")
    guard.listens(port)
    await server.start()
    with ExitStack() as stack:
        source = ("127.0.0.1", 0)
        for target in ("127.0.0.1", "127.0.0.2"):
            opened = stack.enter_context(socket.socket())
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(source)
            opened.connect((target, port))
            source = opened.getsockname()
        found = dict[connections.Connection, int]()
        async with asyncio.timeout(120):
            while len(found) < 2:  # until the server has accepted both
                await asyncio.sleep(0.02)
                found, _ = connections._connections(connections._files(), port, {})
    await server.stop(None)


async def test_each_address_of_a_server_has_its_own_bound() -> None:
    guard = ConnectionGuard(32, CollectorRegistry())
    assert dict(guard.begin(2))["grpc.max_allowed_incoming_connections"] == 16
    server = grpc.aio.server()
    port = server.add_insecure_port("0.0.0.0:0")
    guard.listens(port)
    await server.start()
    with connected(f"127.0.0.1:{port}", 15) as full, connected(f"127.0.0.2:{port}", 9) as half:
        await asyncio.sleep(0.2)
        await guard.look(SystemRuntime())
        await until_closed(full, 7)
        assert (closed(full), closed(half)) == (7, 0)
    await server.stop(None)


async def test_a_connection_whose_reply_is_not_read_is_closed_where_others_need_its_place() -> None:
    async with bare_server() as (address, guard, runtime):
        with connected(address, 2) as made:
            await asyncio.sleep(0.2)
            guard.does_not_read(peer_of(made[0]))
            await guard.look(runtime)
            await until_closed(made, 1)
            assert [is_closed(each) for each in made] == [True, False]


async def test_files_that_cannot_be_listed_are_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_FILES", Path("/nowhere"))
    async with bare_server() as (address, _, _):
        with connected(address, 3):
            await asyncio.sleep(0.2)
            assert len(connections._connections(connections._files(), int(address.rpartition(":")[2]), {})[0]) == 3


def test_where_somebody_was_admitted_ten_times_as_many_calls_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy has callers whom it does not choose."""
    monkeypatch.setattr(connections, "FAILURES_BURST", 10)
    guard = ConnectionGuard(16, CollectorRegistry())
    guard.admitted("ipv4:127.0.0.1:1", "till-3")
    for peer in ("ipv4:127.0.0.1:1", "ipv4:127.0.0.1:2"):
        for _ in range(50):
            guard.failed(peer)
    assert guard._failing == {"ipv4:127.0.0.1:2"}
    for _ in range(100):
        guard.failed("ipv4:127.0.0.1:1")
    assert len(guard._failing) == 2


@pytest.mark.parametrize(
    ("peer", "network"),
    (
        ("ipv4:203.0.113.9:1", "203.0.113.9"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::5%5D:2", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:203.0.113.9%5D:1", "203.0.113.9"),
        ("", ""),
        ("unix:", "unix:"),
    ),
)
def test_a_caller_is_its_address_or_its_network(peer: str, network: str) -> None:
    assert connections.network_of(peer) == network


def test_a_full_table_of_failures_closes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ConnectionGuard(16, CollectorRegistry())
    monkeypatch.setattr(guard._failures, "_clients_max", 0)
    guard.failed("ipv4:127.0.0.1:1")
    assert not guard._failing


@pytest.mark.parametrize(
    ("peer", "address"),
    (
        ("ipv4:127.0.0.1:4711", Address("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", Address("::1", 4711)),
        ("ipv6:%5B2001:DB8::1%5D:1", Address("2001:db8::1", 1)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:80", Address("10.0.0.7", 80)),
        ("unix:/run/hushsum.sock", Address("unix:/run/hushsum.sock", 0)),
        ("", Address("", 0)),
    ),
)
def test_a_peer_is_known_by_one_spelling_of_its_address(peer: str, address: Address) -> None:
    assert address_of(peer) == address


def test_a_file_that_has_become_another_connection_is_seen_as_that_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()) as first:
            accepted, _ = server.accept()
            file = accepted.fileno()
            found, seen = connections._connections([file], port, {})
            here, there = Address(*server.getsockname()), Address(*first.getsockname())
            assert found == {connections.Connection(there, here): file}
            assert connections._connections([file], port, seen)[0] == found
            accepted.close()
        assert connections._connections([file], port, seen)[0] == {}
        with socket.create_connection(server.getsockname()) as second:
            accepted, _ = server.accept()
            with accepted:
                assert accepted.fileno() == file, "the system gives the lowest number that is free"
                [again] = connections._connections([file], port, seen)[0]
                assert again.peer == second.getsockname()
