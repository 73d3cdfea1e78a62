"""A service for the tests of the client: real gRPC on a free port of loopback, and answers that a test decides."""

import asyncio
import socket
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from typing_extensions import override

from hushsum import Plan, Sketch
from hushsum.delta import Delta, DeltaId, apply
from hushsum.signed_plan import SignedPlan
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.messages import Welcome
from hushsum_proto.metadata import CLIENT_ID, REASON, RETRY_AFTER_MS, client_id_from_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

Context = grpc.aio.ServicerContext[Any, Any]  # Any: the types of messages are those of each method


@dataclass
class Fold:
    """What a service knows, which outlives its process: each id once, and the counters."""

    plan: Plan
    bytes_of: dict[tuple[str, DeltaId], bytes] = field(default_factory=dict)
    received: Counter[DeltaId] = field(default_factory=Counter)
    windows: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.sketch = Sketch(self.plan)

    def take(self, client_id: str, data: bytes) -> Answer:
        delta = Delta.unpack(data, self.plan)
        self.received[delta.id] += 1
        known = self.bytes_of.setdefault((client_id, delta.id), data)
        assert known == data, f"{delta.id} came with other bytes"
        if self.received[delta.id] == 1:
            apply(delta, self.sketch.counters, self.sketch.counts, self.plan.privacy.mechanism.count_scale)
            self.windows[delta.window] += delta.records
        return Answer(delta.id, Status.ACKNOWLEDGED)


class ModelService(stubs.CollectionServicer, stubs.CatalogueServicer):
    """Acknowledges everything, unless told otherwise.

    Attributes:
        decide: Answers a delta in place of the fold; None where it is the fold's to answer.
        answers: Clear: replies are held back.
        streams: False: there is no stream to be had.
        refusal: Of every Hello.
        hello: Clear: the replies to Hello are held back.
        plan_bytes: What is sent as the plan.
        signed: The plan with a signature, which is sent in place of it.
        clock_ms: What the service's clock says.
    """

    def __init__(self, plan: Plan, fold: Fold | None = None) -> None:
        self.plan = plan
        self.fold = fold or Fold(plan)
        self.decide: Callable[[DeltaId], Answer | None] = lambda _: None
        self.answers = asyncio.Event()
        self.answers.set()
        self.taken = asyncio.Event()
        self.hello = asyncio.Event()
        self.hello.set()
        self.streams_opened = 0
        self.streams = True
        self.refusal: Refusal | None = None
        self.plan_bytes = plan.bundle
        self.signed: SignedPlan | None = None
        self.clock_ms: Callable[[], int] = lambda: 0
        self.in_flight_max = 64
        self.greeted = asyncio.Event()
        self.unary_calls = 0
        self.together = 1  # answers of a stream in one message
        self.busy_calls = 0  # calls that are refused for the moment before one is not
        self.retry_after = "1"  # what those are told
        self.port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listens on a port of its own, which no other program is given while it is stopped, or on that of another."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.offer(self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port or self._held_port()}")
        await self._server.start()

    def _held_port(self) -> int:
        """A port that is free, and that the system gives to nobody else as long as this object lives.

        A socket that does not listen holds it. Those who name the port may listen there.
        """
        held = socket.socket()
        weakref.finalize(self, held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])

    def offer(self, server: grpc.aio.Server) -> None:
        """Adds what can be called."""
        stubs.add_CollectionServicer_to_server(self, server)
        stubs.add_CatalogueServicer_to_server(self, server)

    async def stop(self) -> None:
        """At once, as a crash would: nothing that is under way is finished."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @override
    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloReply:
        self.greeted.set()
        await self.hello.wait()
        if self.refusal is not None:
            reason = self.refusal.reason
            assert reason is not None
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal.detail, ((REASON, reason.value),))
        window = self.plan.window.index_at(self.clock_ms())
        limits = (self.in_flight_max, self.plan.delta_bytes_max)
        return convert.welcome_to_wire(
            Welcome(1, self.plan.id, window, self.clock_ms(), window - 1, window + 1, *limits)
        )

    @override
    async def GetPlan(self, request: pb.GetPlanRequest, context: Context) -> pb.SignedPlan:
        signed = self.signed
        if signed is None:
            return pb.SignedPlan(plan=self.plan_bytes)
        return pb.SignedPlan(plan=signed.bundle, key_id=signed.key_id, suite=signed.suite, signature=signed.signature)

    @override
    async def Submit(
        self, request_iterator: AsyncIterator[pb.SubmitRequest], context: Context
    ) -> AsyncIterator[pb.SubmitReply]:
        self.streams_opened += 1
        if not self.streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no streams here")
        ready: list[pb.SubmitReply] = []
        async for request in request_iterator:
            ready.append(await self._answer(request, context))
            if len(ready) == self.together:
                reply, *more = ready
                reply.more.extend(more)
                ready = []
                yield reply

    @override
    async def SubmitOne(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        self.unary_calls += 1
        if self.busy_calls:
            self.busy_calls -= 1
            trailing = ((REASON, ServiceReason.OVERLOADED.value), (RETRY_AFTER_MS, self.retry_after))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now", trailing)
        return await self._answer(request, context)

    @override
    async def SubmitLarge(self, request_iterator: AsyncIterator[pb.DeltaChunk], context: Context) -> pb.SubmitReply:
        raise NotImplementedError

    async def _answer(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        client_id = client_id_from_metadata(str(dict(context.invocation_metadata() or ())[CLIENT_ID]))
        assert request.plan_id == self.plan.id
        id = Delta.unpack(request.delta, self.plan).id
        answer = self.decide(id) or self.fold.take(client_id, request.delta)
        self.taken.set()
        await self.answers.wait()
        return convert.answer_to_wire(answer)

    @override
    async def ListReleases(self, request: pb.ListReleasesRequest, context: Context) -> pb.ListReleasesReply:
        raise NotImplementedError

    @override
    def GetRelease(self, request: pb.GetReleaseRequest, context: Context) -> AsyncIterator[pb.ReleaseChunk]:
        raise NotImplementedError

    @override
    def WatchReleases(self, request: pb.ListReleasesRequest, context: Context) -> AsyncIterator[pb.ReleaseInfo]:
        raise NotImplementedError
