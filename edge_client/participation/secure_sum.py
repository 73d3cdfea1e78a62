"""A client's part in secure sums: one call, the protocol's machine on it, the spend, and what became of it.

The service may begin several rounds on a call, one after the other, while nothing is spent: each has a machine of its
own, and counts as an attempt once this client opens its contribution. Effects are durable before they leave.

A vector leaves once for a window, if at all: the spool alone says whether it may
(:mod:`edge_client.spool.window_submissions`). What the service says afterwards is kept as news, and changes nothing of
that.

To draw a share of the noise takes a time that depends on what is drawn. So it is drawn before a call begins, not
between a grant and a vector, which are the service's to time; and it is kept while rounds of its window end unspent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edge_client.config import Config
from edge_client.encoding import counters_of
from edge_client.errors import NoPartError, SessionRefusedError, SpoolError
from edge_client.participation.identity import Identity
from edge_client.participation.scheduler import Owner, WindowScheduler, windows_at
from edge_client.runtime import BackOff, Runtime
from edge_client.session.session import ENDS_SESSION
from edge_client.spool.window_submissions import SecureSubmissions, WindowStatus
from edge_client.stats import SendStats
from edge_client.transport.interface import ConnectionLostError, Disconnect, RoundCall, RoundTransport
from hushsum.entropy import Entropy
from hushsum.errors import GuaranteeError, Reason, SecureSumError
from hushsum.plan import Plan
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.client import (
    ClientRound,
    ClientStep,
    CountAttempt,
    Effect,
    Event,
    Opened,
    Revealed,
    Send,
    SendVector,
    ServerMessage,
    SpendWindow,
    Spent,
)
from hushsum.secure_sum.contribution import Int64, Share
from hushsum.secure_sum.messages import FORMAT, Kind, message_bytes_max, round_of
from hushsum.secure_sum.parameters import ROUND_BYTES, round_parameters
from hushsum_proto.rounds import Enter, Message, RoundOutcome, RoundReply, RoundRequest, RoundResult, VectorChunk

# The service's clock and this one's differ, or its gateways do: this passes.
_PASSES: Final = frozenset({Reason.WINDOW_IN_FUTURE, Reason.MALFORMED})


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended.

    Attributes:
        why: One sentence.
        outcome: What the service said, where it did.
        again: Whether it may be tried again, where it has cost nothing.
        least_ms: Not before.
    """

    why: str
    outcome: RoundOutcome | None = None
    again: bool = True
    least_ms: int = 0


async def ending_of(attempt: Awaitable[RoundOutcome]) -> AttemptResult:
    """Waits for an attempt, and says how it ended.

    Raises:
        SessionRefusedError: The service wants nothing of this client.
    """
    try:
        outcome = await attempt
    except ConnectionLostError as error:
        return _of_loss(error.loss)
    except SecureSumError as error:
        return AttemptResult(f"the service did not keep to the protocol: {error}")
    except NoPartError as error:
        return AttemptResult(str(error), again=False)
    except SpoolError as error:
        return AttemptResult(str(error))
    return AttemptResult(outcome.detail or outcome.result.value, outcome, outcome.again, outcome.retry_after_ms)


def _of_loss(loss: Disconnect) -> AttemptResult:
    refusal = loss.refusal
    if refusal is None:
        return AttemptResult(loss.detail)
    if refusal.reason in ENDS_SESSION:
        raise SessionRefusedError(f"the service wants no part of this client: {loss.detail}")
    return AttemptResult(loss.detail, None, refusal.retry or refusal.reason in _PASSES, refusal.retry_after_ms)


_UNREAD_MAX: Final = 16  # whoever says more at a time waits


class UnreadMessages:
    """Replies, or what has ended them, that were not read yet; whoever has more waits.

    Args:
        bytes_max: That it holds beside the newest.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._queue: asyncio.Queue[RoundReply | Exception] = asyncio.Queue(_UNREAD_MAX)
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, reply: RoundReply | Exception) -> None:
        """Returns once there is room for the next."""
        await self._queue.put(reply)
        self._count(_size(reply))
        await self._room.wait()

    async def get(self) -> RoundReply | Exception:
        """The oldest."""
        reply = await self._queue.get()
        self._count(-_size(reply))
        return reply

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._room.clear()
        else:
            self._room.set()


def _size(reply: RoundReply | Exception) -> int:
    if isinstance(reply, Message):
        return len(reply.data)
    return len(reply.detail) if isinstance(reply, RoundOutcome) else 0


_Int64s = npt.NDArray[np.int64]


class DrawnShare:
    """A share that is drawn here and now, and used once; to a round it is what it draws from.

    Args:
        share: What draws it.
        size: Of the vector.
        entropy: Private randomness.
    """

    def __init__(self, share: Share, size: int, entropy: Entropy) -> None:
        self._drawn: _Int64s | None = share.sample(size, entropy)

    @property
    def is_there(self) -> bool:
        """Whether it is still to be used."""
        return self._drawn is not None

    def sample(self, size: int, entropy: Entropy) -> _Int64s:  # noqa: ARG002  drawn already: nothing is read
        """(size,) int64: the share, which is forgotten here.

        Raises:
            GuaranteeError: It was taken before: the difference of two vectors would be without noise.
            ValueError: It was drawn in another size.
        """
        if self._drawn is None:
            raise GuaranteeError("a share of noise is used once")
        if self._drawn.shape != (size,):
            raise ValueError(f"a share of {size} draws, expected {self._drawn.size}")
        drawn, self._drawn = self._drawn, None
        return drawn

    def __repr__(self) -> str:
        return f"DrawnShare(is_there={self.is_there})"


class DrawnShares:
    """The shares of a client's open windows, as long as they are unused."""

    def __init__(self) -> None:
        self._shares: dict[int, DrawnShare] = {}

    def of(self, window: int) -> DrawnShare | None:
        """The share of a window; None where none is there."""
        share = self._shares.get(window)
        return share if share is not None and share.is_there else None

    def keep(self, window: int, share: DrawnShare, *, windows: range) -> None:
        """Keeps the share of a window, and forgets those of all windows but these."""
        self._shares = {each: kept for each, kept in self._shares.items() if each in windows and kept.is_there}
        self._shares[window] = share


_LOG: Final = logging.getLogger("edge_client")
CHUNK_BYTES: Final = 256 * 1024
_INVITATION: Final = bytes((FORMAT, Kind.INVITATION))


@dataclass(frozen=True)
class RoundParts:
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
    rounds: SecureSubmissions
    member: Identity
    runtime: Runtime
    secrets: Entropy = field(repr=False)
    shares: DrawnShares = field(default_factory=DrawnShares, repr=False)

    @cached_property
    def message_bytes_max(self) -> int:
        """What no message to this client is longer than."""
        return message_bytes_max(round_parameters(self.plan, 0, bytes(ROUND_BYTES)))


class RoundProgress(NamedTuple):
    """How far a client has come in a round.

    Attributes:
        round: The round's id.
        step: What it has done last.
    """

    round: bytes
    step: ClientStep


class RoundParticipant:
    """Takes part in a window, over one call.

    Args:
        window: Its index.
        parts: What it works with.
        call: Nothing was sent on it yet.

    Attributes:
        sends: What was written to the call.
        spent: The round that has this window's vector; None as long as there is none.
    """

    def __init__(self, window: int, parts: RoundParts, call: RoundCall) -> None:
        self.sends = SendStats()
        self.spent: bytes | None = None
        self._window = window
        self._parts = parts
        self._call = call
        self._replies = UnreadMessages(parts.message_bytes_max)
        self._share: DrawnShare | None = None
        self._own: tuple[Int64, Int64] | None = None  # what the records of the window add up to
        self._machine: ClientRound | None = None
        self._begun: set[bytes] = set()
        self._round = b""
        self._upto = 0  # what waits in the spool is in the vector up to here

    @property
    def standing(self) -> RoundProgress | None:
        """In its latest round; None before its first."""
        return None if self._machine is None else RoundProgress(self._machine.round, self._machine.step)

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
            await self._handle(ServerMessage(data))

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
                case SpendWindow():
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
        self.sends = SendStats(bytes=self.sends.bytes + size)

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


class SecureSubmitter(WindowScheduler):
    """Takes part in a round for every window in which its client runs, whatever records there are.

    Args:
        parts: What an attempt works with.
        transport: Where calls come from.
        config: Waits.
        entropy: Of moments and back-off: public.
        owner: Of its tasks.
    """

    def __init__(
        self, parts: RoundParts, transport: RoundTransport, config: Config, entropy: Entropy, owner: Owner
    ) -> None:
        cohort = parts.plan.privacy.cohort
        assert cohort is not None, "a plan with a secure sum"
        super().__init__(
            parts.rounds,
            schedule=parts.plan.window,
            wait_ms=cohort.wait_ms,
            runtime=parts.runtime,
            config=config,
            entropy=entropy,
            owner=owner,
        )
        self.sends = SendStats()
        self.attempt: RoundParticipant | None = None  # under way, to be shown
        self._parts = parts
        self._transport = transport
        self._unreported: dict[int, bytes] = {}  # spent windows of which nobody has said what became of them

    def _hear(self, look: WindowStatus) -> None:
        unreported = dict(look.unreported)
        for window in self._unreported.keys() - unreported.keys():
            self._note(window, "nobody has said what became of it")
        self._unreported = unreported

    def _asked(self) -> frozenset[int]:
        return frozenset(self._unreported)

    def _ask_for(self, window: int) -> Coroutine[object, object, None]:
        return self._ask(window, self._unreported[window])

    async def _take_part(self, window: int) -> None:
        call = self._transport.take_part(self._parts.message_bytes_max)
        attempt = self.attempt = RoundParticipant(window, self._parts, call)
        try:
            ended = await ending_of(attempt.run())
        finally:
            self.attempt = None  # with whatever secrets it has left
            self._close(call)
            self.sends = SendStats(bytes=self.sends.bytes + attempt.sends.bytes)
        # The spool knows, whatever came in between: it may hold a spend that could not be told any more.
        if await self._runtime.blocking(self._parts.rounds.is_spent, window):
            await self._spent(window, attempt.spent, ended)
        elif ended.again:
            _LOG.info("window %d is tried again: %s", window, ended.why)
            self._participation.failed(window, self._runtime.now_ms(), ended.least_ms)
        else:
            self._give_up(window, ended.why)

    async def _spent(self, window: int, round_id: bytes | None, ended: AttemptResult) -> None:
        self._participation.leave(window)
        await self._runtime.blocking(self._parts.rounds.erase)
        if round_id is not None and ended.outcome is not None and ended.outcome.round == round_id:
            await self._settle(window, ended.outcome)
            return
        _LOG.info("window %d is spent, and it is asked what became of it: %s", window, ended.why)
        await self._look(anew=True)  # it is among the untold now

    async def _ask(self, window: int, round_id: bytes) -> None:
        """Asks what became of a vector, until somebody says so or the window is over."""
        backoff = BackOff(self._config.backoff_first_s, self._config.backoff_longest_s, self._entropy)
        while window in self._unreported:
            call = self._transport.take_part(self._parts.message_bytes_max)
            try:
                await call.send(self._parts.member.enter(self._parts.plan.id, window, round_id))
                while not isinstance(reply := await call.receive(), RoundOutcome):
                    pass  # its round is still under way
                if reply.round in (round_id, b""):
                    await self._settle(window, reply)
            except ConnectionLostError as error:
                _LOG.info("what became of window %d is asked again: %s", window, error)
            finally:
                self._close(call)
            await self._runtime.sleep(backoff.next_s())

    async def _settle(self, window: int, outcome: RoundOutcome) -> None:
        async with self._looking:  # which would find it untold
            try:
                await self._runtime.blocking(self._parts.rounds.settle, window, outcome.result)
            except SpoolError as error:
                _LOG.warning("what became of window %d cannot be kept: %s", window, error)
                self._seen = range(0)  # it is asked again
                return
            self._unreported.pop(window, None)
        if outcome.result is not RoundResult.COUNTED:
            self._give_up(window, f"{outcome.result.value}: {outcome.detail}")

    def _close(self, call: RoundCall) -> None:
        # A task of its own: this one may be cancelled already, and the call must be closed all the same.
        self._owner.spawn_whole(call.close(), "round-close")
