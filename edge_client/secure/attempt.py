"""One attempt to take part in a window: the protocol's machine on one call, its effects made durable before they leave.

The service may begin several rounds on a call, one after the other, while nothing is spent: each has a machine of its
own, and counts as an attempt once this client opens its contribution.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from edge_client.errors import NoPartError
from edge_client.ports import ConnectionLostError, RoundCall, Runtime
from edge_client.secure.member import Member
from edge_client.secure.noise import DrawnShare, DrawnShares
from edge_client.secure.rounds import Rounds
from edge_client.secure.unread import Unread
from edge_client.tallies import Sends
from edge_client.turns.participation import windows_at
from edge_client.turns.pending import counters_of
from hushsum.entropy import Entropy
from hushsum.errors import SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.client import (
    ClientRound,
    ClientStep,
    CountAttempt,
    Effect,
    Event,
    Opened,
    Received,
    Revealed,
    Send,
    SendVector,
    Spend,
    Spent,
)
from hushsum.secure_sum.contribution import Int64
from hushsum.secure_sum.messages import FORMAT, Kind, message_bytes_max, round_of
from hushsum.secure_sum.parameters import ROUND_BYTES, round_parameters
from hushsum_proto.rounds import Enter, Message, RoundOutcome, RoundReply, RoundRequest, VectorChunk

_LOG: Final = logging.getLogger("edge_client")
CHUNK_BYTES: Final = 256 * 1024
_INVITATION: Final = bytes((FORMAT, Kind.INVITATION))


@dataclass(frozen=True)
class Parts:
    """What every attempt of a client works with.

    Attributes:
        plan: With a secure sum.
        rounds: What the spool knows of them.
        member: Who takes part.
        runtime: Threads.
        secrets: Of keys, masks and noise: the operating system's.
        shares: Of the noise, that are drawn and not yet used.
    """

    plan: Plan
    rounds: Rounds
    member: Member
    runtime: Runtime
    secrets: Entropy = field(repr=False)
    shares: DrawnShares = field(default_factory=DrawnShares, repr=False)

    @cached_property
    def message_bytes_max(self) -> int:
        """What no message to this client is longer than."""
        return message_bytes_max(round_parameters(self.plan, 0, bytes(ROUND_BYTES)))


class Standing(NamedTuple):
    """How far a client has come in a round.

    Attributes:
        round: The round's id.
        step: What it has done last.
    """

    round: bytes
    step: ClientStep


class Attempt:
    """Takes part in a window, over one call.

    Args:
        window: Its index.
        parts: What it works with.
        call: Nothing was sent on it yet.

    Attributes:
        sends: What was written to the call.
        spent: The round that has this window's vector; None as long as there is none.
    """

    def __init__(self, window: int, parts: Parts, call: RoundCall) -> None:
        self.sends = Sends()
        self.spent: bytes | None = None
        self._window = window
        self._parts = parts
        self._call = call
        self._replies = Unread(parts.message_bytes_max)
        self._share: DrawnShare | None = None
        self._own: tuple[Int64, Int64] | None = None  # what the records of the window add up to
        self._machine: ClientRound | None = None
        self._begun: set[bytes] = set()
        self._round = b""
        self._upto = 0  # what waits in the spool is in the vector up to here

    @property
    def standing(self) -> Standing | None:
        """In its latest round; None before its first."""
        return None if self._machine is None else Standing(self._machine.round, self._machine.step)

    async def run(self) -> RoundOutcome:
        """What the service says at last.

        Raises:
            ConnectionLostError: The call broke, or the service refused it.
            SecureSumError: The service did not keep to the protocol. Nothing more was sent.
            NoPartError: This device takes no part any more. Where that is known before, the service is not called.
            SpoolError: Something could not be made durable; nothing more was sent.
        """
        parts = self._parts
        try:
            await self._read()
            await self._draw()
            # From here on whoever runs the round can tell how long each step takes: none depends on records or noise.
            await self._send(parts.member.enter(parts.plan.id, self._window))
            return await self._run()
        finally:
            parts.rounds.leave(self._window)

    async def _run(self) -> RoundOutcome:
        # Listened to all the while: a call that has ended takes no more requests, and its last word would be lost.
        listening = self._parts.runtime.spawn(self._listen(), "hushsum-edge-round-listener")
        try:
            while True:
                reply = await self._receive()
                if isinstance(reply, RoundOutcome):
                    return reply
                if isinstance(reply, Message) and (outcome := await self._received(reply.data)) is not None:
                    return outcome
        finally:
            listening.cancel()

    async def _draw(self) -> None:
        parts = self._parts
        self._share = parts.shares.of(self._window)
        if self._share is None:
            sampler, size = parts.plan.privacy.mechanism.share(), parts.plan.words.length
            self._share = await parts.runtime.computing(DrawnShare, sampler, size, parts.secrets)
            windows = windows_at(parts.plan.window, parts.runtime.now_ms())
            parts.shares.keep(self._window, self._share, windows=windows)

    async def _read(self) -> None:
        parts = self._parts
        pending = await parts.runtime.blocking(parts.rounds.enter, self._window)
        self._upto = pending.upto
        self._own = await parts.runtime.computing(counters_of, parts.plan, pending.deltas)

    async def _listen(self) -> None:
        reply: RoundReply | Exception | None = None
        while not isinstance(reply, RoundOutcome | Exception):
            try:
                reply = await self._call.receive()
            except ConnectionLostError as error:
                reply = error
            most = self._parts.message_bytes_max
            if isinstance(reply, Message) and len(reply.data) > most:
                reply = SecureSumError(f"a message of {len(reply.data)} bytes, expected at most {most}")
            await self._replies.put(reply)

    async def _receive(self) -> RoundReply:
        reply = await self._replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _received(self, data: bytes) -> RoundOutcome | None:
        try:
            await self._hear(data)
        except ConnectionLostError:
            pass  # the service may have said why before it stopped reading
        except SecureSumError as error:
            if self.spent is None:
                raise
            _LOG.warning("this client says nothing more in a round of window %d: %s", self._window, error)
        else:
            return None
        while not isinstance(reply := await self._receive(), RoundOutcome):
            pass
        return reply

    async def _hear(self, data: bytes) -> None:
        if self._machine is None or data[:2] == _INVITATION:
            await self._begin(round_of(data, self._parts.plan.id, self._window))
        else:
            await self._handle(Received(data))

    async def _begin(self, round_id: bytes) -> None:
        """A round begins, in place of one that has ended before anything was spent."""
        if self.spent is not None or round_id in self._begun:
            raise SecureSumError("an invitation after the vector was sent, or to a round once more; expected none")
        if len(self._begun) == ATTEMPTS_MAX:
            raise SecureSumError(f"{ATTEMPTS_MAX + 1} invitations on one call, expected at most {ATTEMPTS_MAX}")
        parts = self._parts
        await parts.runtime.blocking(parts.rounds.require_part, self._window)  # else it would break others' round
        self._begun.add(round_id)
        self._round = round_id
        self._machine = await parts.runtime.computing(self._machine_of, round_id)
        await self._carry_out(await parts.runtime.computing(self._machine.begin))

    async def _handle(self, event: Event) -> None:
        assert self._machine is not None
        await self._carry_out(await self._parts.runtime.computing(self._machine.handle, event))

    async def _carry_out(self, effects: list[Effect]) -> None:
        blocking, rounds = self._parts.runtime.blocking, self._parts.rounds
        for effect in effects:
            match effect:
                case Send(data):
                    await self._send(Message(data))
                case CountAttempt():
                    await blocking(rounds.count_attempt, self._window)
                    await self._handle(Opened())
                case Spend():
                    await self._spend()
                    await self._handle(Spent())
                case SendVector(data):
                    await self._send_vector(data)
                case Revealed():
                    pass  # what becomes of the sum is the service's to tell

    async def _spend(self) -> None:
        """Durable before anything of the vector leaves."""
        if self.spent is not None:
            raise NoPartError(self._window, "it is spent")
        await self._parts.runtime.blocking(self._parts.rounds.spend, self._window, self._round, self._upto)
        self.spent = self._round
        self._own = self._share = None  # there is no second vector

    async def _send_vector(self, vector: bytes) -> None:
        if self.spent != self._round:
            raise NoPartError(self._window, "a vector is sent by the round that has spent it, and by no other")
        for chunk in _chunks(vector):
            await self._send(chunk)

    async def _send(self, request: RoundRequest) -> None:
        await self._call.send(request)
        size = 0 if isinstance(request, Enter) else len(request.data)
        self.sends = Sends(bytes=self.sends.bytes + size)

    def _machine_of(self, round_id: bytes) -> ClientRound:
        parts = self._parts
        assert self._own is not None, "it is read before this client enters"
        assert self._share is not None, "it is drawn before this client enters"
        counters, counts = self._own
        return ClientRound(
            round_parameters(parts.plan, self._window, round_id),
            client_id=parts.member.client_id,
            key=parts.member.key,
            directory=parts.member.directory,
            counters=counters,
            counts=counts,
            share=self._share,
            entropy=parts.secrets,
        )


def _chunks(vector: bytes) -> Iterator[VectorChunk]:
    for offset in range(0, len(vector), CHUNK_BYTES):
        yield VectorChunk(offset, vector[offset : offset + CHUNK_BYTES])
