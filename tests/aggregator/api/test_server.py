"""The edge: strangers are not waited for, each client holds its share, busy streams hear why they end."""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from aggregator.api import admission_control
from aggregator.api.admission_control import CancellableCall, OpenCalls, RequestAdmission
from aggregator.api.calls import Call, Methods
from aggregator.api.server import HEALTH_CHECKS_MAX
from aggregator.errors import RefusedError, UnauthenticatedError
from aggregator.model import Peer, Scope
from aggregator.observability.metrics import Metrics
from aggregator.runtime import SystemRuntime
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.auth.test_tokens_served import guarded, token
from tests.plans import small_plan
from tests.services import RawClient, config_of, service_of, trailing

PLAN = small_plan()
HELLO, ONE, CHECK = "/hushsum.v1.Collection/Hello", "/hushsum.v1.Collection/SubmitOne", "/grpc.health.v1.Health/Check"
HEADERS, RESET, SETTINGS, PING, END = 1, 3, 4, 6, 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def headers_of(path: str) -> bytes:
    """Of a call without a token."""
    pairs = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    pairs |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(literal(*pair) for pair in pairs.items())


class Attacker:
    """A connection with calls of which nothing comes but their headers; it heeds no limit of the other side."""

    def __init__(self, address: str, path: str, calls: int) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self.ended: set[int] = set()
        self.cut = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        headers = headers_of(path)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        with suppress(OSError):
            self._socket.sendall(b"".join(frame(HEADERS, 4, 2 * n + 1, headers) for n in range(calls)))

    def over(self, calls: int) -> bool:
        """Whether so many calls were ended, or all with their connection."""
        return self.cut or len(self.ended) >= calls

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        with suppress(OSError):
            self._listen()
        self.cut = True

    def _listen(self) -> None:
        data = b""
        while came := self._socket.recv(65536):
            data += came
            while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
                kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9], "big")
                payload, data = data[9 : 9 + size], data[9 + size :]
                if kind in (SETTINGS, PING) and not flags & 1:
                    self._socket.sendall(frame(kind, 1, 0, payload if kind == PING else b""))
                if kind == RESET or (kind == HEADERS and flags & END):
                    self.ended.add(stream)


@asynccontextmanager
async def attacked(address: str, path: str, connections: int, calls: int) -> AsyncIterator[list[Attacker]]:
    made = [await asyncio.to_thread(Attacker, address, path, calls) for _ in range(connections)]
    try:
        yield made
    finally:
        for each in made:
            await asyncio.to_thread(each.close)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  what other threads and processes do has no event
            await asyncio.sleep(0.01)


async def answered(client: RawClient) -> None:
    """A good token and health are answered."""
    assert (
        await client.collection.Hello(pb.HelloRequest(protocol_versions=[1]), metadata=client.metadata, timeout=120)
    ).plan_id
    check: Any = client.channel.unary_unary(CHECK)
    assert await check(b"", timeout=120) == b"\x08\x01"


@pytest.mark.parametrize(("connections", "calls"), ((1, 1500), (20, 100), (20, 300)))
async def test_calls_of_strangers_without_a_message_take_nobodys_place(
    tmp_path: Path, connections: int, calls: int
) -> None:
    alice = token("alice", Scope.SUBMIT)
    async with (
        guarded(tmp_path, alice) as here,
        here.client(alice) as client,
        attacked(here.service.grpc, ONE, connections, calls) as attackers,
    ):
        await answered(client)
        await until(lambda: all(each.over(calls) for each in attackers))
        await answered(client)


async def test_health_goes_on_being_answered_while_hundreds_ask_and_do_not_say_what(tmp_path: Path) -> None:
    alice = token("alice", Scope.SUBMIT)
    async with guarded(tmp_path, alice) as here, here.client(alice) as client:
        calls = 100
        async with attacked(here.service.grpc, CHECK, 8, calls) as attackers:
            most = HEALTH_CHECKS_MAX
            await until(lambda: sum(calls if each.cut else len(each.ended) for each in attackers) >= 8 * calls - most)
            await answered(client)


async def test_a_planted_mistake_shows_strangers_that_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Call, "admit", lambda *_: "anybody")
    async with guarded(tmp_path) as here, attacked(here.service.grpc, ONE, 1, 5) as attackers:
        await asyncio.to_thread(attackers[0]._reader.join, 0.5)
        assert not attackers[0].ended


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), dict(await call.trailing_metadata())["hushsum-reason"]


@pytest.mark.parametrize("path", (ONE, HELLO))
async def test_a_call_without_its_one_message_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def says(*messages: bytes, ends: bool = True) -> AsyncIterator[bytes]:
        for message in messages:
            yield message
        if not ends:
            await asyncio.Event().wait()

    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        method: Any = client.channel.stream_unary(path)
        malformed = grpc.StatusCode.INVALID_ARGUMENT, "malformed"
        assert await ended(method(says(), metadata=client.metadata)) == malformed
        assert await ended(method(says(b"", b""), metadata=client.metadata)) == malformed
        assert await ended(method(says(b"\xff"), metadata=client.metadata)) == malformed
    (folder := tmp_path / "late").mkdir()  # another service: only here may a busy machine be late
    monkeypatch.setattr(admission_control, "GRACE_S", 0.05)
    monkeypatch.setattr(admission_control, "BYTES_S_MIN", 10**9)
    monkeypatch.setattr(admission_control, "RECHECK_S", 0.02)
    async with service_of(config_of(folder, PLAN)) as service, RawClient(service.grpc) as client:
        method = client.channel.stream_unary(path)
        late = grpc.StatusCode.UNAVAILABLE, "unavailable"
        assert await ended(method(says(ends=False), metadata=client.metadata)) == late
        assert await ended(method(says(b"", ends=False), metadata=client.metadata)) == late


async def test_one_name_has_its_share_of_calls_and_reads_few_messages_at_once() -> None:
    calls = RequestAdmission(16, admission_control.UNREAD_BYTES_MAX)
    events: list[str] = []

    async def reading(name: str, until: asyncio.Event) -> None:
        with calls.under_way(name):
            async with calls.unread(name, CancellableCall()):
                events.append(name)
                await until.wait()

    first, others = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(reading("evil", first))]
    tasks += [asyncio.create_task(reading("evil", others)) for _ in range(3)]
    tasks += [asyncio.create_task(reading("bob", first))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(RefusedError, match="4 concurrent calls per client"), calls.under_way("evil"):
        pass
    assert (events, len(calls)) == (["evil", "bob"], 5)
    first.set()
    others.set()
    await asyncio.gather(*tasks)
    assert (Counter(events), len(calls)) == ({"evil": 4, "bob": 1}, 0)


async def test_where_messages_are_awaited_the_oldest_call_of_whoever_awaits_most_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission_control, "UNREAD_MAX", 4)
    calls, made = RequestAdmission(64, 1), [CancellableCall() for _ in range(5)]

    async def reading(name: str, call: CancellableCall) -> None:
        with calls.under_way(name), call.working():
            async with calls.unread(name, call):
                await asyncio.Event().wait()

    names = ("honest", "evil", "evil", "evil", "late")
    tasks = [asyncio.create_task(reading(name, call)) for name, call in zip(names, made, strict=True)]
    await asyncio.sleep(0.01)
    assert [call.ended is not None for call in made] == [False, True, False, False, False]
    with pytest.raises(RefusedError, match="other calls are waiting"):
        await tasks[1]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(calls) == 0


class Revocable:
    """Admits everybody, until it admits nobody."""

    reads_certificates = False
    good = True

    def admit(self, _: Peer, *__: Scope) -> str:
        if not self.good:
            raise UnauthenticatedError("a bearer token, expected one that is good")
        return "bob"


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Revocable, OpenCalls, str, list[str]]]:
    """A stream that echoes, and one of large replies; what has let go of what it held is listed."""
    monkeypatch.setattr(admission_control, "RECHECK_S", 0.02)
    names, streams, closed = Revocable(), OpenCalls(), list[str]()
    methods = Methods("test.Service", names, Metrics(), incoming=RequestAdmission(8, 4096, streams))

    async def echo(caller: Call, requests: AsyncIterator[Any]) -> AsyncIterator[pb.SubmitReply]:
        caller.client_id()
        async for _ in requests:
            yield pb.SubmitReply()

    async def large(_: Call, __: pb.GetReleaseRequest) -> AsyncIterator[pb.ReleaseChunk]:
        try:
            for ___ in range(400):
                yield pb.ReleaseChunk(data=bytes(256 * 1024))
        finally:
            closed.append("large")

    methods.stream("Echo", pb.SubmitRequest, echo)
    methods.replies("Large", pb.GetReleaseRequest, large)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((methods.handler(["Echo", "Large"]),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    looking = asyncio.create_task(streams.run(SystemRuntime()))
    yield names, streams, f"127.0.0.1:{port}", closed
    looking.cancel()
    await server.stop(0)


def busy(address: str, heard: threading.Semaphore) -> str:
    """What a client hears at last that writes and reads as fast as it can.

    In a thread, with gRPC's synchronous client: the other one takes a write that fails for the end of the call.
    """
    over = threading.Event()

    def requests() -> Iterator[pb.SubmitRequest]:
        while not over.is_set():
            yield pb.SubmitRequest(delta=b"x" * 100)

    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        method = channel.stream_stream(
            "/test.Service/Echo", pb.SubmitRequest.SerializeToString, pb.SubmitReply.FromString
        )
        try:
            for number, _ in enumerate(method(requests(), timeout=120)):
                if number == 3:
                    heard.release()
        except grpc.RpcError as error:
            return str(getattr(error, "code")().name)  # noqa: B009  it is a call as well, which its type does not say
        finally:
            over.set()
    return "OK"


async def test_thirty_busy_streams_all_hear_why_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = threading.Semaphore(0)
    async with serving(monkeypatch) as (names, streams, address, _):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))
        clients = [asyncio.create_task(asyncio.to_thread(busy, address, heard)) for _ in range(30)]
        for _ in range(30):
            await asyncio.to_thread(heard.acquire)
        names.good = False
        assert Counter(await asyncio.gather(*clients)) == {"UNAUTHENTICATED": 30}
        assert len(streams) == 0


async def test_a_reader_that_does_not_read_loses_its_place_at_once_and_hears_why_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(monkeypatch) as (names, streams, address, closed):  # noqa: SIM117  the address comes of it
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_stream("/test.Service/Large")
            call = method(b"")
            await call.initial_metadata()
            await asyncio.sleep(0.3)  # until the windows are full
            names.good = False
            await until(lambda: len(streams) == 0 and closed == ["large"])
            with pytest.raises(grpc.aio.AioRpcError, match="expected one that is good") as caught:
                async for _ in call:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_junk_costs_its_sender_what_a_delta_would(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, client_bytes_rate=0.001, client_bytes_burst=1500)
    padded = pb.SubmitRequest(plan_id=PLAN.id).SerializeToString() + b"\x7a\x80\x40" + bytes(8192)  # an unknown field
    async with service_of(config) as service:
        for client_id, junk in (("alice", b"\xff" * 2000), ("bob", padded)):
            async with RawClient(service.grpc, client_id) as client:
                one: Any = client.channel.unary_unary(ONE)
                reasons = []
                for _ in range(2):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await one(junk, metadata=client.metadata)
                    reasons.append(trailing(caught.value)["hushsum-reason"])
                assert reasons == ["malformed", "rate_limited"], client_id
        async with RawClient(service.grpc, "carol") as client:
            call: Any = client.channel.stream_stream("/hushsum.v1.Collection/Submit", None, pb.SubmitReply.FromString)
            stream = call(metadata=client.metadata)
            heard = []
            for _ in range(3):
                await stream.write(b"\xff" * 1000)
                heard.append((await stream.read()).refusal.reason)
            assert heard == [pb.REASON_MALFORMED, pb.REASON_MALFORMED, pb.REASON_RATE_LIMITED]
            stream.cancel()
