"""A service that runs secure sums for the tests of the client: real gRPC, the protocol's machine, lies on demand.

Members of a cohort that no test looks at are *companions*: machines of the protocol beside the server's, without a
network, a spool, or records.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
from typing_extensions import override

from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum.secure_sum import client as clients
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.parameters import RoundParameters, round_parameters
from hushsum.secure_sum.server import (
    ClientMessage,
    Done,
    Drop,
    Event,
    Failed,
    ServerRound,
    Sum,
    Tell,
    Uploaded,
    Vanished,
)
from hushsum.signing import Directory, SigningKey
from hushsum_proto.convert_rounds import directory_chunk_to_wire, reply_to_wire, request_from_wire
from hushsum_proto.metadata import CLIENT_ID, REASON, client_id_from_metadata
from hushsum_proto.rounds import (
    DirectoryChunk,
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    RoundResult,
    VectorChunk,
    Waiting,
)
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from tests.edge_client.model_service import Context, ModelService

#: What a service tells a client in a round, in order.
TOLD: Final = (
    Kind.INVITATION,
    Kind.ROSTER,
    Kind.OPENINGS,
    Kind.INBOX,
    Kind.GRANT,
    Kind.SURVIVORS,
    Kind.QUORUM,
)


def kind_of(reply: RoundReply) -> Kind | None:
    """The kind of a message of the protocol."""
    return Kind(reply.data[1]) if isinstance(reply, Message) else None


@dataclass(eq=False)
class Seat:
    """One client's call."""

    client_id: str
    window: int
    replies: "asyncio.Queue[RoundReply | None]" = field(default_factory=asyncio.Queue)  # None: the call breaks
    vector: bytearray = field(default_factory=bytearray)
    round: "RunningRound | None" = None


class RunningRound:
    """One round: the server's machine, companions, and the seats of real clients."""

    def __init__(self, service: "RoundService", round_id: bytes, seats: list[Seat]) -> None:
        self.id = round_id
        self.over = False
        self._service = service
        self.seats = {seat.client_id: seat for seat in seats}
        self._parameters = round_parameters(service.plan, seats[0].window, round_id)
        self._companions = {
            name: companion(self._parameters, name, key, service) for name, key in service.companion_keys.items()
        }
        members = tuple(sorted([*self.seats, *self._companions]))
        self._machine = ServerRound(self._parameters, members, service.directory)
        self._events: deque[Event] = deque()
        for seat in seats:
            seat.round = self

    def begin(self) -> None:
        self._carry_out(self._machine.begin())
        self._drain()

    def tell(self, event: Event) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        while self._events and not self.over:
            self._carry_out(self._machine.handle(self._events.popleft()))

    def _carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Tell(client_id, data) if client_id in self.seats:
                    self._service.say(self.seats[client_id], Message(data))
                case Tell(client_id, data):
                    self._companion_hears(client_id, data)
                case Drop(client_id, text):
                    self._service.dropped[client_id] = text
                    self._service.say(self.seats[client_id], RoundOutcome(self.id, RoundResult.LEFT_OUT, text))
                case Done(total):
                    self._end(total, RoundResult.COUNTED, "")
                case Failed(reason, _, again):
                    self._end(None, RoundResult.ABORTED, reason, again=again)

    def _end(self, total: Sum | None, result: RoundResult, detail: str, *, again: bool = False) -> None:
        self.over = True
        if total is not None:
            self._service.sums[self.id] = total
        for name, seat in self.seats.items():
            told = RoundResult.LEFT_OUT if total is not None and name not in total.survivors else result
            self._service.results[name, self.id] = told
            self._service.say(seat, RoundOutcome(self.id, told, detail, again=again))

    def _companion_hears(self, name: str, data: bytes) -> None:
        machine = self._companions[name]
        invited = data[1] == Kind.INVITATION
        self._companion_does(name, machine.begin() if invited else machine.handle(clients.ServerMessage(data)))

    def _companion_does(self, name: str, effects: list[clients.Effect]) -> None:
        machine = self._companions[name]
        for effect in effects:
            match effect:
                case clients.Send(data):
                    self._events.append(ClientMessage(name, data))
                case clients.SendVector(data):
                    self._events.append(Uploaded(name, data))
                case clients.CountAttempt():
                    self._companion_does(name, machine.handle(clients.Opened()))
                case clients.SpendWindow():
                    self._companion_does(name, machine.handle(clients.Spent()))
                case clients.Revealed():
                    pass


class RoundService(stubs.SecureSumServicer, ModelService):
    """Runs a round as soon as enough clients wait for a window.

    Attributes:
        seats: How many real clients a round takes.
        lie: Sees all that is about to be said to a client, and what is said in its place; None says nothing, and
            breaks the call.
        vectors: What came of masked vectors, by client, window and round.
        asked: Rounds that clients asked after.
        sums: Of rounds that came to their end.
    """

    def __init__(self, plan: Plan, *, seats: int = 1, directory: Directory | None = None) -> None:
        ModelService.__init__(self, plan)
        self.seats = seats
        self.directory = directory
        self.directory_part = 100  # bytes of the directory in one message
        self.directory_parts = 0  # that were asked for
        self.directory_bytes = b"" if directory is None else directory.to_bytes()
        self.companion_keys: Mapping[str, SigningKey] = {}
        self.lie: Callable[[Seat, RoundReply], RoundReply | None] = lambda _, reply: reply
        self.refuses: Callable[[Enter], str | None] = lambda _: None
        self.vectors: Counter[tuple[str, int, bytes]] = Counter()
        self.entered: Counter[tuple[str, int]] = Counter()
        self.heard: list[RoundRequest] = []
        self.asked: list[tuple[str, bytes]] = []
        self.dropped: dict[str, str] = {}
        self.sums: dict[bytes, Sum] = {}
        self.results: dict[tuple[str, bytes], RoundResult] = {}
        self.rounds = 0
        self.deaf = False  # to what clients say
        self._waiting: list[Seat] = []

    @override
    def offer(self, server: grpc.aio.Server) -> None:
        super().offer(server)
        stubs.add_SecureSumServicer_to_server(self, server)

    @override
    async def GetDirectory(self, request: pb.GetDirectoryRequest, context: Context) -> AsyncIterator[pb.DirectoryChunk]:
        data = self.directory_bytes
        for offset in range(0, len(data), self.directory_part):
            self.directory_parts += 1
            yield directory_chunk_to_wire(DirectoryChunk(offset, data[offset : offset + self.directory_part]))

    @override
    async def TakePart(
        self, request_iterator: AsyncIterator[pb.RoundRequest], context: Context
    ) -> AsyncIterator[pb.RoundReply]:
        client_id = client_id_from_metadata(str(dict(context.invocation_metadata() or ())[CLIENT_ID]))
        enter = request_from_wire(await anext(request_iterator))
        assert isinstance(enter, Enter)
        assert enter.plan_id == self.plan.id
        if reason := self.refuses(enter):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused by the test", ((REASON, reason),))
        seat = Seat(client_id, enter.window)
        if enter.spent_round:
            self.asked.append((client_id, enter.spent_round))
            result = self.results.get((client_id, enter.spent_round), RoundResult.UNKNOWN)
            seat.replies.put_nowait(self.lie(seat, RoundOutcome(enter.spent_round, result)))
        else:
            self.entered[client_id, enter.window] += 1
            self._seat(seat)
        reader = asyncio.create_task(self._read(seat, request_iterator))
        try:
            while (reply := await seat.replies.get()) is not None:
                yield reply_to_wire(reply)
                if isinstance(reply, RoundOutcome):
                    return
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
        finally:
            reader.cancel()
            self._leave(seat)

    def say(self, seat: Seat, reply: RoundReply) -> None:
        """Says something to a client, or what the test says in its place."""
        seat.replies.put_nowait(self.lie(seat, reply))

    def _seat(self, seat: Seat) -> None:
        self._waiting.append(seat)
        here = [each for each in self._waiting if each.window == seat.window]
        self.say(seat, Waiting(self.seats))
        if len(here) >= self.seats:
            self._waiting = [each for each in self._waiting if each not in here]
            self.rounds += 1
            RunningRound(self, self.rounds.to_bytes(32, "big"), here).begin()

    def _leave(self, seat: Seat) -> None:
        self._waiting = [each for each in self._waiting if each is not seat]
        if seat.round is not None:
            seat.round.tell(Vanished(seat.client_id))

    async def _read(self, seat: Seat, requests: AsyncIterator[pb.RoundRequest]) -> None:
        async for wire in requests:
            request = request_from_wire(wire)
            self.heard.append(request)
            assert seat.round is not None, "nobody speaks before a round has begun"
            if isinstance(request, VectorChunk):
                assert request.offset == len(seat.vector)
                self.vectors[seat.client_id, seat.window, seat.round.id] += len(request.data)
                seat.vector += request.data
                if len(seat.vector) == self.plan.words.bytes:
                    seat.round.tell(Uploaded(seat.client_id, bytes(seat.vector)))
            elif isinstance(request, Message) and not self.deaf:
                seat.round.tell(ClientMessage(seat.client_id, request.data))


def companion(
    parameters: RoundParameters, client_id: str, key: SigningKey, service: RoundService
) -> clients.ClientRound:
    """A member without records."""
    words = service.plan.words
    return clients.ClientRound(
        parameters,
        client_id=client_id,
        key=key,
        directory=service.directory,
        counters=np.zeros(words.size, dtype=np.int64),
        counts=np.zeros(words.classes, dtype=np.int64),
        share=service.plan.privacy.mechanism.share(),
        entropy=OsEntropy(),
    )
