"""A service and a bare server behind TLS, tokens of many devices, and a visit: the same for both servers."""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from aggregator.auth.tokens import change_table, issue
from aggregator.model import Scope
from benchmarks.service.endpoints import Endpoint, served, service
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum_proto.authority import Authority
from hushsum_proto.messages import PROTOCOL_VERSIONS
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.testbed.process import free_port

TIMEOUT_S: Final = 120.0
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no device shares a connection
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


_FOLDED: Final = "hushsum_folded_total{"


@dataclass(frozen=True)
class Site:
    """What servers and devices of one run share.

    Attributes:
        folder: Of all their files.
        plan: What is collected.
        tokens: One a device, by its number.
    """

    folder: Path
    plan: Plan
    tokens: tuple[str, ...]

    @classmethod
    def made(cls, folder: Path, plan: Plan, devices: int) -> "Site":
        """Certificates, a token for each device, and the table of tokens."""
        authority = Authority.make(datetime.now(UTC), 10)
        server = authority.server(["127.0.0.1", "localhost"])
        for name, data in (("ca.pem", authority.own.certificate), ("cert.pem", server.certificate)):
            (folder / name).write_bytes(data)
        key = folder / "key.pem"
        key.touch(0o600)
        key.write_bytes(server.key)
        now_ms = time.time_ns() // 1_000_000
        issued = [issue(OsEntropy(), f"device-{n}", (Scope.SUBMIT,), now_ms=now_ms) for n in range(devices)]
        change_table(folder / "tokens.jsonl", lambda table: table.changed(with_=[each.entry for each in issued]))
        return cls(folder, plan, tuple(each.text for each in issued))

    @contextmanager
    def service(self, **settings: object) -> Iterator[Endpoint]:
        """The service on SQLite."""
        given: dict[str, object] = {
            "tls_cert": str(self.folder / "cert.pem"),
            "tls_key": str(self.folder / "key.pem"),
            "authentication": "token",
            "tokens": str(self.folder / "tokens.jsonl"),
            **settings,
        }
        with service(self.plan, self.folder / "service", **given) as endpoint:
            yield endpoint

    @contextmanager
    def bare(self) -> Iterator[Endpoint]:
        """A grpc.aio server that answers at once (:mod:`benchmarks.fleet.bare`)."""
        port, pair = free_port(), [str(self.folder / name) for name in ("cert.pem", "key.pem")]
        command = ["-m", "benchmarks.fleet.bare", str(port), *pair]
        (self.folder / "bare").mkdir()
        yield from served("the bare server", port, command, self.folder / "bare")

    async def until_folded(self, page: str, expected: int) -> int:
        """How many deltas the service has counted, by its page of metrics: once these are all, or after a while."""
        counted = 0
        for _ in range(100):
            with await asyncio.to_thread(urllib.request.urlopen, f"http://{page}/metrics", timeout=30) as reply:
                lines = reply.read().decode().splitlines()
            counted = round(
                sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_FOLDED) and "counted" in line)
            )
            if counted >= expected:
                break
            await asyncio.sleep(0.1)
        return counted

    def device(self, address: str, number: int) -> "Device":
        """One device as it would reach a server."""
        trusted = grpc.ssl_channel_credentials((self.folder / "ca.pem").read_bytes())
        return Device(address, trusted, self.tokens[number], self.plan.id)


@dataclass(frozen=True)
class Device:
    """The least that a device does: a connection of its own, a greeting, deltas and their answers."""

    address: str
    trusted: grpc.ChannelCredentials
    token: str
    plan_id: bytes

    @asynccontextmanager
    async def session(self) -> AsyncIterator["grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]"]:
        """A connection that was greeted, with its stream of deltas open."""
        shown = (("authorization", f"Bearer {self.token}"),)
        async with grpc.aio.secure_channel(self.address, self.trusted, options=_OPTIONS) as channel:
            collection = stubs.CollectionStub(channel)
            hello = pb.HelloRequest(protocol_versions=PROTOCOL_VERSIONS, plan_id=self.plan_id, software="bench")
            reply = await collection.Hello(hello, metadata=shown, timeout=TIMEOUT_S)
            assert reply.plan_id == self.plan_id, "another plan"
            yield collection.Submit(metadata=shown)

    async def submit(self, call: "grpc.aio.StreamStreamCall[pb.SubmitRequest, pb.SubmitReply]", delta: bytes) -> None:
        """Sends a delta on an open stream, and waits for its answer."""
        await call.write(pb.SubmitRequest(plan_id=self.plan_id, delta=delta))
        reply = await call.read()
        assert isinstance(reply, pb.SubmitReply), reply
        assert reply.status in {pb.STATUS_ACKNOWLEDGED, pb.STATUS_COUNTED}, reply

    async def visit(self, deltas: Sequence[bytes]) -> float:
        """Connects, sends deltas, waits for their answers and goes; returns how long that took, in seconds."""
        began = time.perf_counter()
        async with asyncio.timeout(TIMEOUT_S), self.session() as call:
            for delta in deltas:
                await self.submit(call, delta)
            await call.done_writing()
        return time.perf_counter() - began
