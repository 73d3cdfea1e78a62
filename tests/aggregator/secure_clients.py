"""Clients of a secure sum over real gRPC: the protocol's own machine, and no more around it than a test needs.

Their shares of noise are zeros, so that a sum can be told exactly.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, Self

import grpc.aio
import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import SecureSumError
from hushsum.labels import ENTRY
from hushsum.plan import Plan
from hushsum.secure_sum.client import (
    ClientRound,
    CountAttempt,
    Effect,
    Opened,
    Revealed,
    Send,
    SendVector,
    ServerMessage,
    SpendWindow,
    Spent,
)
from hushsum.secure_sum.messages import Kind, round_of
from hushsum.secure_sum.parameters import round_parameters
from hushsum.signing import Directory, SigningKey
from hushsum_proto import convert_rounds, metadata
from hushsum_proto.rounds import (
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    VectorChunk,
    Waiting,
    entry_parts,
)
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc

CHUNK_BYTES = 200  # of these small vectors, so that each is several


class Silence:
    """A share of noise that is none."""

    scale = Fraction(1)
    variance = std = 0.0
    block_draws = 1

    def log_probability(self, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        raise NotImplementedError

    def sample(self, size: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        return np.zeros(size, np.int64)


class VanishedError(Exception):
    """The client went away, as the test wanted."""


Hook = Callable[["SecureClient", Kind], None]
Stub = wire_pb2_grpc.SecureSumStub
_RoundCall = Any  # a stream of gRPC: generic in its typings alone


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[Stub]:
    """The service's stub, on a channel of its own."""
    channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
    try:
        yield wire_pb2_grpc.SecureSumStub(channel)
    finally:
        await channel.close(None)


class AnyLine(Protocol):
    """What a client speaks on."""

    async def say(self, request: RoundRequest) -> None: ...

    async def hear(self) -> RoundReply: ...

    def cut(self) -> None: ...


class Line:
    """One stream of one client, in plain values."""

    def __init__(self, call: _RoundCall) -> None:
        self._call = call

    @classmethod
    def open(cls, stub: Stub, client_id: str) -> Self:
        return cls(stub.TakePart(metadata=((metadata.CLIENT_ID, client_id),)))

    async def say(self, request: RoundRequest) -> None:
        with suppress(grpc.aio.UsageError, asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the next reply says how
            await self._call.write(convert_rounds.request_to_wire(request))

    async def hear(self) -> RoundReply:
        """The next reply.

        Raises:
            AioRpcError: The call ended with a status.
        """
        reply = await self._call.read()
        if isinstance(reply, pb.RoundReply):
            return convert_rounds.reply_from_wire(reply)
        raise grpc.aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
        )

    def cut(self) -> None:
        """The connection breaks."""
        self._call.cancel()


@dataclass
class SecureClient:
    """One device.

    Attributes:
        silent_at: On this message of the server it does nothing, and waits on.
        stutters: Invited to another round it says its last message of the old one again, as if it had been on its way.
        vanishes_at: On this message of the server it goes away before it answers; at its vector after the first chunk.
        waits: What it was told while its cohort filled.
        rounds: Ids of the rounds that it was invited to.
        spent: The round that it has sent its vector in.
        outcome: What it was told at last.
    """

    plan: Plan
    client_id: str
    counters: npt.NDArray[np.int64]
    key: SigningKey
    directory: Directory | None = None
    vanishes_at: Kind | None = None
    silent_at: Kind | None = None
    stutters: bool = False
    hook: Hook | None = None

    def __post_init__(self) -> None:
        self.waits: list[Waiting] = []
        self.rounds: list[bytes] = []
        self.spent = b""
        self.fell_silent = False
        self.outcome: RoundOutcome | None = None
        self.refusal: SecureSumError | None = None
        self._said = b""
        self._machine: ClientRound | None = None

    async def take_part(self, stub: Stub, window: int) -> RoundOutcome:
        """Takes part from entering to the outcome.

        Raises:
            AioRpcError: The call ended with a status.
            VanishedError: It went away.
        """
        try:
            return await self.take_part_on(Line.open(stub, self.client_id), window)
        except grpc.aio.AioRpcError as error:
            # It wrote just as the service ended the call: grpc gives both up, and the outcome that was on its way.
            if error.code() is not grpc.StatusCode.INTERNAL or not self.spent:
                raise
        self.outcome = await self.ask(stub, window, self.spent)
        return self.outcome

    async def take_part_on(self, line: AnyLine, window: int) -> RoundOutcome:
        """The same on a line that is there."""
        try:
            await line.say(self.enter(window))
            while True:
                reply = await line.hear()
                if isinstance(reply, RoundOutcome):
                    self.outcome = reply
                    return reply
                if isinstance(reply, Waiting):
                    self.waits.append(reply)
                else:
                    await self._receive(line, reply.data, window)
        finally:
            line.cut()

    def enter(self, window: int, spent_round: bytes = b"") -> Enter:
        """What it opens with."""
        enter = Enter(self.plan.id, window, spent_round)
        if self.directory is None:
            return enter
        return replace(enter, signature=self.key.sign(ENTRY, *entry_parts(enter, self.client_id)))

    async def ask(self, stub: Stub, window: int, spent_round: bytes) -> RoundOutcome:
        """What became of a round."""
        line = Line.open(stub, self.client_id)
        try:
            await line.say(self.enter(window, spent_round))
            reply = await line.hear()
            assert isinstance(reply, RoundOutcome)
            return reply
        finally:
            line.cut()

    async def _receive(self, line: AnyLine, data: bytes, window: int) -> None:
        kind = Kind(data[1])
        if kind is Kind.INVITATION:
            assert not self.spent, "invited after it has sent its vector"
            self.rounds.append(round_of(data, self.plan.id, window))
            self._machine = self.machine_of(window, self.rounds[-1])
            if self.stutters and self._said:
                await line.say(Message(self._said))
        if self.hook is not None:
            self.hook(self, kind)
        if kind is self.vanishes_at and kind is not Kind.GRANT:
            raise VanishedError
        if kind is self.silent_at:
            self.fell_silent = True
            return
        assert self._machine is not None
        try:
            effects = self._machine.begin() if kind is Kind.INVITATION else self._machine.handle(ServerMessage(data))
        except SecureSumError as error:
            self.refusal = error
            return  # it says nothing more, and waits for the outcome
        await self._do(line, effects)

    async def _do(self, line: AnyLine, effects: list[Effect]) -> None:
        assert self._machine is not None
        for effect in effects:
            match effect:
                case Send(data):
                    await line.say(Message(data))
                    self._said = data
                case CountAttempt():
                    await self._do(line, self._machine.handle(Opened()))
                case SpendWindow():
                    self.spent = self.rounds[-1]
                    await self._do(line, self._machine.handle(Spent()))
                case SendVector(data):
                    for offset in range(0, len(data), CHUNK_BYTES):
                        await line.say(VectorChunk(offset, data[offset : offset + CHUNK_BYTES]))
                        if self.vanishes_at is Kind.GRANT:
                            raise VanishedError
                case Revealed():
                    pass

    def machine_of(self, window: int, round_id: bytes) -> ClientRound:
        """The protocol's machine of this client for a round."""
        size = self.plan.words.size
        return ClientRound(
            round_parameters(self.plan, window, round_id),
            client_id=self.client_id,
            key=self.key,
            directory=self.directory,
            counters=self.counters[:size],
            counts=self.counters[size:],
            share=Silence(),
            entropy=OsEntropy(),
        )


def fleet_of(plan: Plan, number: int, rng: np.random.Generator) -> list[SecureClient]:
    """Clients with counters as one record may have them, and without a directory."""
    length = plan.words.length
    return [
        SecureClient(plan, f"client-{index}", rng.integers(-1, 2, length, np.int64), SigningKey.generate(OsEntropy()))
        for index in range(number)
    ]
