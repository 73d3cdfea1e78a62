"""A client in secure sums: one call, the protocol's machine on it, the spend, and the result.

The service may begin several rounds on a call, one after the other, while nothing is spent: each has a machine of its
own, and counts as an attempt once this client opens its contribution. Effects are durable before they leave.

A vector leaves once for a window, if at all: the spool alone decides whether it may
(:mod:`edge_client.spool.window_submissions`). What the service says afterwards is kept as the result, and changes
nothing of that.

Drawing a share of the noise takes a time that depends on what is drawn. So it is drawn before a call begins, not
between a grant and a vector, which the service can time; and it is kept while rounds of its window end unspent.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Self

from edge_client.encoding import counters_of
from edge_client.errors import NoPartError, PlanChangedError, SessionRefusedError, SettingsError, SpoolError
from edge_client.participation.mode import ClientContext
from edge_client.participation.scheduler import WindowMode, windows_at
from edge_client.plan_fetch import OTHER_PLAN
from edge_client.session.driver import SessionDriver
from edge_client.session.session import ENDS_SESSION
from edge_client.spool.changes import Int64s
from edge_client.spool.window_submissions import SecureSubmissions, WindowStatus
from edge_client.status import RoundProgress, SendStats
from edge_client.transport.grpc import GrpcRoundCall
from edge_client.transport.interface import ConnectionLostError, Disconnect
from hushsum import labels
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import DirectoryError, GuaranteeError, Reason, SecureSumError
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.secure_sum.client import (
    ClientRound,
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
from hushsum.secure_sum.client_secrets import Share
from hushsum.secure_sum.messages import FORMAT, Kind, message_bytes_max, round_of
from hushsum.secure_sum.parameters import ROUND_BYTES, round_parameters
from hushsum.signing import Directory, Role, SigningKey, digest_of
from hushsum_proto.rounds import (
    Enter,
    Message,
    RoundOutcome,
    RoundReply,
    RoundRequest,
    RoundResult,
    VectorChunk,
    entry_parts,
)

_LOG: Final = logging.getLogger("edge_client")
CHUNK_BYTES: Final = 256 * 1024
_UNREAD_MAX: Final = 16  # replies; a service that sends more at a time waits
_INVITATION: Final = bytes((FORMAT, Kind.INVITATION))
# The service's clock and this one's differ, or its gateways do: this passes.
_PASSES: Final = frozenset({Reason.WINDOW_IN_FUTURE, Reason.MALFORMED})


@dataclass(frozen=True)
class Identity:
    """A client as the others of a cohort know it.

    The directory holds all clients that may be members; without one the service vouches for their keys.
    """

    client_id: str
    key: SigningKey
    directory: Directory | None

    def enter(self, plan_id: bytes, window: int, spent_round: bytes = b"") -> Enter:
        """The first request of a call; signed where there is a directory."""
        enter = Enter(plan_id, window, spent_round)
        if self.directory is None:
            return enter
        return replace(enter, signature=self.key.sign(labels.ENTRY, *entry_parts(enter, self.client_id)))


async def identity_of(context: ClientContext, submissions: SecureSubmissions) -> Identity:
    """This client as a member of the plan's cohorts.

    A directory is fetched at the first start. If the plan names none, the spool's own key stands in for a missing one.

    Raises:
        SettingsError: The plan names a directory and no key was given, or one that the directory does not hold under
            this client's id.
        UnreachableError: No service answered within ``first_contact_s``.
        SessionRefusedError: The service refuses, or its directory is not the plan's.
    """
    plan, key, client_id = context.plan, context.key, context.spool.client_id
    assert plan.privacy.cohort is not None
    digest = plan.privacy.cohort.directory
    blocking = context.retry.runtime.blocking
    if not digest:
        if key is None:  # the spool's key is the operating system's, whatever the jitter is drawn from
            key = await blocking(submissions.identity_key, OsEntropy())
        return Identity(client_id, key, None)
    if key is None:
        raise SettingsError(
            "key: got None, expected this client's Ed25519 key (a PEM file or a SigningKey): the plan names "
            "a key registry of clients"
        )
    data = await blocking(lambda: submissions.directory)
    is_kept = data is not None and digest_of(data).hex() == digest
    try:
        if data is None or not is_kept:
            data = await context.retry.fetch(
                lambda: context.rounds.fetch_directory(plan.id),
                refused="the service sent no key registry",
                missing="no service sent the plan's key registry of clients within {}",
            )
        directory = await blocking(_read, data, digest)
    except DirectoryError as error:
        raise SessionRefusedError(f"the service's key registry of clients is invalid: {error}") from error
    if not is_kept:
        await blocking(submissions.keep_directory, data)
    _check_own(directory, client_id, key)
    return Identity(client_id, key, directory)


def _read(data: bytes, digest: str) -> Directory:
    """The directory of these bytes, of which nothing is read unless they have the digest that the plan names."""
    came = digest_of(data).hex()
    if came != digest:
        raise DirectoryError(f"got the digest {came[:12]}…, expected {digest[:12]}…, which the plan names")
    return Directory.from_bytes(data)


def _check_own(directory: Directory, client_id: str, key: SigningKey) -> None:
    entry = directory.keys.get(client_id)
    if entry is None or entry.role is not Role.CLIENT:
        raise SettingsError(
            f"client_id: got {client_id!r}, expected a client in the plan's key registry: set client_id= at the "
            "first use of the spool"
        )
    if entry.public_key != key.verify_key:
        raise SettingsError(
            f"key: got the key {key.verify_key.hex}, expected {entry.public_key.hex}, the key of client "
            f"{client_id!r} in the plan's key registry"
        )


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended: why, in one sentence, and the service's outcome, if it gave one.

    Attributes:
        again: Whether it may be tried again, not before ``least_ms``, if it has cost nothing.
    """

    why: str
    outcome: RoundOutcome | None = None
    again: bool = True
    least_ms: int = 0


def _result_of_loss(loss: Disconnect) -> AttemptResult:
    refusal = loss.refusal
    if refusal is None:
        return AttemptResult(loss.detail)
    if refusal.reason in OTHER_PLAN:
        raise PlanChangedError(f"the service collects another plan: {loss.detail}")
    if refusal.reason in ENDS_SESSION:
        raise SessionRefusedError(f"the service refused the participation of this client: {loss.detail}")
    return AttemptResult(loss.detail, None, refusal.retry or refusal.reason in _PASSES, refusal.retry_after_ms)


class UnreadMessages:
    """A bounded queue of replies, or of the error that ended them: the newest, and ``bytes_max`` of others."""

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


class DrawnShare:
    """A share of the noise that is drawn here and now, and used once; a round takes it as its sampler."""

    def __init__(self, share: Share, size: int, entropy: Entropy) -> None:
        self._drawn: Int64s | None = share.sample(size, entropy)

    @property
    def is_unused(self) -> bool:
        """Whether it is still to be used."""
        return self._drawn is not None

    def sample(self, size: int, entropy: Entropy) -> Int64s:  # noqa: ARG002  drawn already: nothing is read
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
        return f"DrawnShare(is_unused={self.is_unused})"


class DrawnShares:
    """The shares of a client's open windows, as long as they are unused."""

    def __init__(self) -> None:
        self._shares: dict[int, DrawnShare] = {}

    def of(self, window: int) -> DrawnShare | None:
        share = self._shares.get(window)
        return share if share is not None and share.is_unused else None

    def keep(self, window: int, share: DrawnShare, *, windows: range) -> None:
        """Keeps the share of a window, and forgets those of all windows but these."""
        self._shares = {each: kept for each, kept in self._shares.items() if each in windows and kept.is_unused}
        self._shares[window] = share


class SecureMode(WindowMode):
    """Sends a masked vector, in a round of a cohort, for every window in which its client runs."""

    submissions: SecureSubmissions

    def __init__(
        self, context: ClientContext, driver: SessionDriver, submissions: SecureSubmissions, identity: Identity
    ) -> None:
        cohort = context.plan.privacy.cohort
        assert cohort is not None, "a plan with a secure sum"
        super().__init__(context, driver, submissions, wait_ms=cohort.wait_ms)
        self.identity = identity
        self.shares = DrawnShares()  # of the noise
        self.message_bytes_max = message_bytes_max(round_parameters(context.plan, 0, bytes(ROUND_BYTES)))
        self._transport = context.rounds
        self._sends = SendStats()
        self._participant: RoundParticipant | None = None  # under way

    @classmethod
    async def open(cls, context: ClientContext) -> Self:
        submissions = await context.retry.runtime.blocking(SecureSubmissions, context.spool, context.plan)
        driver = await context.driver()
        return cls(context, driver, submissions, await identity_of(context, submissions))

    @property
    def sends(self) -> SendStats:
        return self._sends

    @property
    def progress(self) -> RoundProgress | None:
        return None if self._participant is None else self._participant.progress

    async def begin(self, *, connect: bool) -> None:  # noqa: ARG002  no delta is sent: each call has a connection
        await super().begin(connect=False)

    def _on_status(self, status: WindowStatus) -> None:
        unreported = dict(status.unreported)
        for window in {*status.lost, *(self._unreported.keys() - unreported.keys())}:
            self._keep_reason(window, "the service did not report its result")
        self._unreported = unreported

    async def _submit(self, window: int) -> None:
        call = self._transport.take_part(self.message_bytes_max)
        participant = self._participant = RoundParticipant(window, self, call)
        try:
            ended = await participant.run()
        finally:
            self._participant = None  # with whatever secrets it has left
            self._close(call)
            self._sends = SendStats(bytes=self._sends.bytes + participant.bytes_sent)
        # Ask the spool, not the participant: a spend may be durable although the participant failed before it knew.
        if await self.runtime.blocking(self.submissions.is_spent, window):
            await self._on_spent(window, participant.spent, ended)
        elif ended.again:
            _LOG.info("%s: window %d: retrying: %s", self._transport, window, ended.why)
            self.driver.last_error = ended.why
            self._schedule.failed(window, self.runtime.now_ms(), ended.least_ms)
        else:
            self._give_up(window, ended.why)

    async def _on_spent(self, window: int, round_id: bytes | None, ended: AttemptResult) -> None:
        self._schedule.leave(window)
        await self.runtime.blocking(self.submissions.erase)
        if round_id is not None and ended.outcome is not None and ended.outcome.round == round_id:
            await self._settle(window, ended.outcome)
            return
        _LOG.info("window %d: vector sent, asking the service for the result: %s", window, ended.why)
        await self._update(anew=True)  # it is among the unreported ones now

    async def _ask(self, window: int, round_id: bytes) -> None:
        """Asks for the result of a vector, until it is known or the window is over."""
        backoff = self._retry.backoff()
        while window in self._unreported:
            call = self._transport.take_part(self.message_bytes_max)
            try:
                await call.send(self.identity.enter(self.plan.id, window, round_id))
                while not isinstance(reply := await call.receive(), RoundOutcome):
                    pass  # its round is still under way
                if reply.round in (round_id, b""):
                    await self._settle(window, reply)
            except ConnectionLostError as error:
                _LOG.info("window %d: asking the service for the result again: %s", window, error)
            finally:
                self._close(call)
            await self.runtime.sleep(backoff.next_s())

    async def _settle(self, window: int, outcome: RoundOutcome) -> None:
        async with self._updating:  # which would find it unreported
            try:
                await self.runtime.blocking(self.submissions.settle, window, outcome.result)
            except SpoolError as error:
                _LOG.warning("window %d: result not stored: %s", window, error)
                self._windows = range(0)  # it is asked again
                return
            self._unreported.pop(window, None)
        if outcome.result is not RoundResult.COUNTED:
            self._give_up(window, f"{outcome.result.value}: {outcome.detail}")

    def _close(self, call: GrpcRoundCall) -> None:
        # A task of its own: this one may be cancelled already, and the call must be closed all the same.
        self.driver.tasks.spawn(call.close(), "round-close", whole=True)


class RoundParticipant:
    """One client in one window's rounds, over one call, on which nothing was sent yet."""

    def __init__(self, window: int, mode: SecureMode, call: GrpcRoundCall) -> None:
        self.bytes_sent = 0
        self.spent: bytes | None = None  # the round that has this window's vector
        self._window = window
        self._mode = mode
        self._runtime = mode.runtime
        self._submissions = mode.submissions
        self._call = call
        self._secrets = OsEntropy()  # of keys, masks and noise, whatever the jitter is drawn from
        self._replies = UnreadMessages(mode.message_bytes_max)
        self._share: DrawnShare | None = None
        self._own: tuple[Int64s, Int64s] | None = None  # the sums of the window's records
        self._machine: ClientRound | None = None
        self._begun: set[bytes] = set()
        self._round = b""
        self._upto = 0  # pending records are in the vector up to this number

    @property
    def progress(self) -> RoundProgress | None:
        """In its latest round; None before its first."""
        return None if self._machine is None else RoundProgress(self._machine.round, self._machine.step)

    async def run(self) -> AttemptResult:
        """Takes part until the service gives an outcome, or until something prevents it; then nothing more is sent.

        Raises:
            SessionRefusedError: The service refuses this client.
        """
        try:
            outcome = await self._take_part()
        except ConnectionLostError as error:
            return _result_of_loss(error.loss)
        except SecureSumError as error:
            return AttemptResult(f"the service violated the protocol: {error}")
        except NoPartError as error:
            return AttemptResult(str(error), again=False)
        except SpoolError as error:
            return AttemptResult(str(error))
        finally:
            self._submissions.end(self._window)
        return AttemptResult(outcome.detail or outcome.result.value, outcome, outcome.again, outcome.retry_after_ms)

    async def _take_part(self) -> RoundOutcome:
        pending = await self._runtime.blocking(self._submissions.begin, self._window)
        self._upto = pending.upto
        self._own = await self._runtime.computing(counters_of, self._mode.plan, pending.deltas)
        await self._draw()
        # From here on the service can measure how long each step takes: none depends on records or noise.
        await self._send(self._mode.identity.enter(self._mode.plan.id, self._window))
        # Listened to all the while: a call that has ended takes no more requests, and its last word would be lost.
        listening = self._runtime.spawn(self._listen(), "hushsum-edge-round-listener")
        try:
            while True:
                reply = await self._receive()
                if isinstance(reply, RoundOutcome):
                    return reply
                if isinstance(reply, Message) and (outcome := await self._on_message(reply.data)) is not None:
                    return outcome
        finally:
            listening.cancel()

    async def _draw(self) -> None:
        plan, shares = self._mode.plan, self._mode.shares
        self._share = shares.of(self._window)
        if self._share is None:
            sampler, size = plan.privacy.mechanism.share(), plan.words.length
            self._share = await self._runtime.computing(DrawnShare, sampler, size, self._secrets)
            shares.keep(self._window, self._share, windows=windows_at(plan.window, self._runtime.now_ms()))

    async def _listen(self) -> None:
        most = self._mode.message_bytes_max
        reply: RoundReply | Exception | None = None
        while not isinstance(reply, RoundOutcome | Exception):
            try:
                reply = await self._call.receive()
            except ConnectionLostError as error:
                reply = error
            if isinstance(reply, Message) and len(reply.data) > most:
                reply = SecureSumError(f"a message of {len(reply.data)} bytes, expected at most {most}")
            await self._replies.put(reply)

    async def _receive(self) -> RoundReply:
        reply = await self._replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _on_message(self, data: bytes) -> RoundOutcome | None:
        try:
            if self._machine is None or data[:2] == _INVITATION:
                await self._begin(round_of(data, self._mode.plan.id, self._window))
            else:
                await self._handle(ServerMessage(data))
        except ConnectionLostError:
            pass  # the service may have said why before it stopped reading
        except SecureSumError as error:
            if self.spent is None:
                raise
            _LOG.warning("window %d: left the round: %s", self._window, error)
        else:
            return None
        while not isinstance(reply := await self._receive(), RoundOutcome):
            pass
        return reply

    async def _begin(self, round_id: bytes) -> None:
        """Begins a round, in place of one that has ended before anything was spent."""
        if self.spent is not None or round_id in self._begun:
            raise SecureSumError("unexpected invitation: the vector was already sent, or the round was entered before")
        if len(self._begun) == ATTEMPTS_MAX:
            raise SecureSumError(f"{ATTEMPTS_MAX + 1} invitations on one call, expected at most {ATTEMPTS_MAX}")
        # Before anything is said in the round: else it would break others' round.
        await self._runtime.blocking(self._submissions.require_part, self._window)
        self._begun.add(round_id)
        self._round = round_id
        self._machine = await self._runtime.computing(self._machine_of, round_id)
        await self._carry_out(await self._runtime.computing(self._machine.begin))

    async def _handle(self, event: Event) -> None:
        assert self._machine is not None
        await self._carry_out(await self._runtime.computing(self._machine.handle, event))

    async def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(data):
                    await self._send(Message(data))
                case CountAttempt():
                    await self._runtime.blocking(self._submissions.count_attempt, self._window)
                    await self._handle(Opened())
                case SpendWindow():
                    await self._spend()
                    await self._handle(Spent())
                case SendVector(data):
                    await self._send_vector(data)
                case Revealed():
                    pass  # the service reports the result of the sum

    async def _spend(self) -> None:
        """Durable before anything of the vector leaves."""
        if self.spent is not None:
            raise NoPartError(self._window, "it is spent")
        await self._runtime.blocking(self._submissions.spend, self._window, self._round, self._upto)
        self.spent = self._round
        self._own = self._share = None  # there is no second vector

    async def _send_vector(self, vector: bytes) -> None:
        if self.spent != self._round:
            raise NoPartError(self._window, "a vector is sent by the round that has spent it, and by no other")
        for chunk in _chunks(vector):
            await self._send(chunk)

    async def _send(self, request: RoundRequest) -> None:
        await self._call.send(request)
        self.bytes_sent += 0 if isinstance(request, Enter) else len(request.data)

    def _machine_of(self, round_id: bytes) -> ClientRound:
        identity = self._mode.identity
        assert self._own is not None, "it is read before this client enters"
        assert self._share is not None, "it is drawn before this client enters"
        counters, counts = self._own
        return ClientRound(
            round_parameters(self._mode.plan, self._window, round_id),
            client_id=identity.client_id,
            key=identity.key,
            directory=identity.directory,
            counters=counters,
            counts=counts,
            share=self._share,
            entropy=self._secrets,
        )


def _chunks(vector: bytes) -> Iterator[VectorChunk]:
    for offset in range(0, len(vector), CHUNK_BYTES):
        yield VectorChunk(offset, vector[offset : offset + CHUNK_BYTES])
