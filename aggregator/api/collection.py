"""The service Collection: streams of deltas, single ones, and those that come in chunks.

A chunked call holds memory for the bytes of its delta that have arrived, until it is answered; a size that is only
named holds none. A client has one such call at a time, so it holds one delta at most; it pays for each chunk on its
arrival, whether the delta is ever whole or not; and it must not be slower than a stated rate, nor silent for long.

When the memory is full, the call whose last :data:`CHUNK_BYTES` bytes take the longest gives up what it holds, and the
others go on; if that is the call that needs more, it is refused. So clients that fill the memory and stall give way to
one that sends, however many they are. To hold memory against a client of r bytes a second, a client has to send as fast
itself, which ends after its delta's size / r seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from aggregator.api.admission_control import BYTES_S_MIN, GRACE_S, Malformed
from aggregator.api.calls import Call, Handler, Methods
from aggregator.config import Config
from aggregator.errors import (
    RETRY_AFTER_MS,
    RefusedError,
    check_plan,
    common_version,
    overloaded,
    refused,
    shutting_down,
)
from aggregator.ingest.inflight import OnAnswer, ReceivedDelta
from aggregator.ingest.validation import id_in
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import NOT_ITS_SENDERS, RateCharge, SendLimits
from aggregator.runtime import Runtime, within
from hushsum.errors import DeltaError, Reason
from hushsum.plan import Plan
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import CHUNK_BYTES, DeltaChunk, Hello, Welcome
from hushsum_proto.v1 import wire_pb2 as pb


class DeltaReceiver(Protocol):
    """A gateway, or a shuffler's intake: takes what clients send (see :class:`aggregator.ingest.gateway.Gateway`)."""

    def check_running(self) -> None: ...

    async def submit(self, received: ReceivedDelta) -> Answer: ...

    def send(self, received: ReceivedDelta, on_answer: OnAnswer) -> None: ...


VERSIONS_MAX: Final = 64
FEATURES_MAX: Final = 64


def _check_number(count: int, most: int, what: str) -> None:
    """Bounds a list of one message, before it is converted.

    Raises:
        RefusedError: There are more.
    """
    if count > most:
        raise RefusedError(Refusal.of(Reason.TOO_LARGE, f"{count} {what} in one message, expected at most {most}"))


class Handshake:
    """Opens sessions for clients of one plan; each may have ``in_flight_max`` unanswered deltas."""

    def __init__(
        self, plan: Plan, *, span: Callable[[], Awaitable[tuple[int, int]]], runtime: Runtime, in_flight_max: int
    ) -> None:
        self.plan = plan
        self.in_flight_max = in_flight_max
        self._span = span  # of the oldest and the newest window that take deltas now
        self._runtime = runtime

    async def welcome(self, hello: Hello, client_id: str = "") -> Welcome:
        """Opens a session of this client.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """
        version = common_version(hello.protocol_versions)
        check_plan(hello.plan_id, self.plan)
        oldest, newest = await self._span()
        now_ms = self._runtime.now_ms()
        return Welcome(
            protocol_version=version,
            plan_id=self.plan.id,
            window=self.plan.window.index_at(now_ms),
            now_ms=now_ms,
            oldest_window=oldest,
            newest_window=newest,
            in_flight_max=self.in_flight_max,
            delta_bytes_max=self.plan.upload_bytes_max,
            client_id=client_id,
        )


Requests = AsyncIterator[pb.SubmitRequest | Malformed]


class Session:
    """One client's stream of deltas, and the queue of their answers.

    Deltas beyond ``in_flight_max`` unanswered ones are refused as overload, and nothing more is read until that is
    written: a client that does not read its answers cannot make them pile up.
    """

    __slots__ = (
        "_client_id",
        "_in_flight_max",
        "_metrics",
        "_reader",
        "_ready",
        "_receiver",
        "_room",
        "_sends",
        "_stopped",
        "_unanswered",
        "_wake",
    )

    def __init__(
        self, receiver: DeltaReceiver, client_id: str, metrics: Metrics, sends: SendLimits, in_flight_max: int
    ) -> None:
        self._receiver = receiver
        self._sends = sends
        self._client_id = client_id
        self._metrics = metrics
        self._in_flight_max = in_flight_max
        # No deque and no Event: empty ones take 3 kB, and most sessions are idle.
        self._ready: list[Answer] = []
        self._unanswered = 0  # read, and its answer not written yet
        self._wake: asyncio.Future[None] | None = None  # of who waits for an answer
        self._room: asyncio.Future[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self, requests: Requests, runtime: Runtime) -> None:
        self._reader = runtime.spawn(self._read(requests), "session")
        self._reader.add_done_callback(self._read_all)

    async def next_answers(self) -> list[Answer]:
        """The next answers to be written, as many as one message takes; none: all deltas were read, and are answered.

        Raises:
            RefusedError: The service stops; what was read is answered first.
        """
        assert self._reader is not None, "started before"
        while not self._ready:
            if not self._unanswered and self._reader.done():
                if self._stopped:
                    raise RefusedError(shutting_down())
                await self._reader  # raises what ended it early
                return []
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        answers, self._ready = self._ready[: convert.ANSWERS_MAX], self._ready[convert.ANSWERS_MAX :]
        return answers

    def written(self, count: int) -> None:
        """The answers of the last :meth:`next_answers`, so many, are with the client."""
        self._unanswered -= count
        _wake(self._room)

    def stop(self) -> None:
        """Reads nothing more; the stream ends when what was read is answered."""
        self._stopped = True
        self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: Requests) -> None:
        async for request in requests:
            self._unanswered += 1
            if self._unanswered > self._in_flight_max:
                await self._overload(request)
            elif isinstance(request, Malformed):
                self._refuse(refused(None, self._junk(request.size)))
            else:
                shuffled = convert.shuffled_from_wire(request) if request.HasField("shuffled") else None
                received = ReceivedDelta(self._client_id, request.plan_id, request.delta, shuffled)
                self._receiver.send(received, self._answer)
                del received, shuffled
            del request  # else an idle session would keep its last delta

    def _junk(self, size: int) -> Refusal:
        """The refusal of bytes that are no message; they are paid for like a delta."""
        try:
            self._sends.pay(self._client_id, size)
        except RefusedError as error:
            return error.refusal
        return Refusal.of(Reason.MALFORMED, "the bytes received are not a valid SubmitRequest")

    async def _overload(self, request: pb.SubmitRequest | Malformed) -> None:
        detail = f"more than {self._in_flight_max} unanswered deltas in this session"
        refusal = Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS)
        delta_id = None if isinstance(request, Malformed) else id_in(request.delta)
        self._refuse(refused(delta_id, refusal))
        while self._unanswered > self._in_flight_max:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _refuse(self, answer: Answer) -> None:
        self._metrics.answered(answer)
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self._ready.append(answer)
        _wake(self._wake)

    def _read_all(self, _: "asyncio.Task[None]") -> None:
        _wake(self._wake)


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


_STALLED_S: Final = 1.0  # a call that takes no longer for a chunk gives nothing up for others
_HEAD_BYTES: Final = 64  # a delta's header, and more

Chunks = AsyncIterator[pb.DeltaChunk | Malformed]


@dataclass(eq=False)
class _Upload:
    """A delta of which some chunks have arrived.

    Attributes:
        moved_s: When it had last come further by a chunk's bytes, to the size ``moved``.
        received: Its bytes that have arrived.
        held: Those that are booked for it: all, until it gave them up.
    """

    moved_s: float
    charge: RateCharge
    plan_id: bytes = b""
    head: bytes | None = None
    data: bytearray = field(default_factory=bytearray)
    moved: int = 0
    received: int = 0
    held: int = 0
    gave_up: bool = False


class LargeDeltas:
    """The deltas of one plan that come in chunks; ``receiver`` takes them once they are whole.

    One has ``delta_bytes_max`` bytes at most, and all that are under way hold ``held_bytes_max`` (at least one fits).
    """

    def __init__(
        self,
        receiver: DeltaReceiver,
        runtime: Runtime,
        metrics: Metrics,
        sends: SendLimits,
        *,
        delta_bytes_max: int,
        held_bytes_max: int,
    ) -> None:
        self._receiver = receiver
        self._runtime = runtime
        self._metrics = metrics
        self._sends = sends
        self._delta_bytes_max = delta_bytes_max
        self._held_bytes_max = max(held_bytes_max, delta_bytes_max)
        self._senders: set[str] = set()
        self._uploads: dict[_Upload, None] = {}
        self.held_bytes = 0  # for all that are under way

    async def submit(self, client_id: str, chunks: Chunks) -> Answer:
        """The answer to one delta, which may refuse it for good.

        Raises:
            RefusedError: It is too slow; or all such calls together, or this client, have no room left. About the
                moment all: it may be sent again.
        """
        if client_id in self._senders:
            raise overloaded("another chunked delta of this client is being received, expected one at a time")
        self._sends.check(client_id)  # else it would send all of it to be refused
        charge = RateCharge(self._sends.rates, client_id)
        self._senders.add(client_id)
        upload = _Upload(self._runtime.monotonic(), charge)
        try:
            data = await self._receive(upload, chunks)
            answer = await self._receiver.submit(ReceivedDelta(client_id, upload.plan_id, data, prepaid=charge))
            self._refund(charge, answer, len(data))
            return answer
        except DeltaError as error:
            return self._refused(upload, error.reason, error.detail)
        except MalformedMessageError as error:
            return self._refused(upload, Reason.MALFORMED, str(error))
        finally:
            self._uploads.pop(upload, None)
            self.held_bytes -= upload.held
            self._senders.discard(client_id)

    def _refund(self, charge: RateCharge, answer: Answer, size: int) -> None:
        """Gives back what a refusal for the service's own reasons cost."""
        if answer.refusal is None:
            return
        if answer.refusal.reason in NOT_ITS_SENDERS:
            charge.give_back()
        elif answer.refusal.reason is ServiceReason.RATE_LIMITED and not charge.units:
            # Its client was ahead of another of its rates before the delta came, and sent it all the same.
            self._sends.pay_chunk(charge, size)

    def _refused(self, upload: _Upload, reason: Reason, detail: str) -> Answer:
        """With the delta's id, where that has arrived: a client takes a refusal without one for a lost connection."""
        answer = refused(None if upload.head is None else id_in(upload.head), Refusal.of(reason, detail))
        self._metrics.answered(answer)
        return answer

    async def _receive(self, upload: _Upload, chunks: Chunks) -> bytes:
        """Reads a delta to its end, and books its bytes as they arrive.

        Raises:
            DeltaError: It is too large.
            MalformedMessageError: Chunks that do not follow each other, or none.
            RefusedError: As :meth:`submit`.
        """
        began_s = self._runtime.monotonic()
        chunk = await self._next(chunks, began_s, upload)
        size, upload.plan_id = chunk.size, chunk.plan_id
        while True:
            if chunk.offset != upload.received:
                raise MalformedMessageError(f"delta chunk: got one at {chunk.offset}, expected it at {upload.received}")
            if upload.head is None:
                upload.head = chunk.data[:_HEAD_BYTES]
            if size > self._delta_bytes_max:
                raise DeltaError(Reason.TOO_LARGE, f"{size} bytes, expected at most {self._delta_bytes_max}")
            if upload.received + len(chunk.data) > size:
                raise MalformedMessageError(f"delta chunk: ends beyond the announced size of {size} bytes")
            self._book(upload, len(chunk.data))
            upload.data += chunk.data
            if upload.received == size:
                self._uploads.pop(upload, None)  # nothing of it is given up any more
                data, upload.data = bytes(upload.data), bytearray()
                return data
            chunk = await self._next(chunks, began_s, upload)

    def _book(self, upload: _Upload, size: int) -> None:
        """Room for a chunk that has arrived.

        Raises:
            RefusedError: There is none, or this delta has given up its own.
        """
        now_s = self._runtime.monotonic()
        while not upload.gave_up and self.held_bytes + size > self._held_bytes_max:
            slowest = min(self._uploads, key=lambda each: each.moved_s, default=upload)
            if slowest is upload or now_s - slowest.moved_s < _STALLED_S:
                if upload.moved_s + _STALLED_S > now_s:
                    upload.charge.give_back()
                raise self._no_room()
            self._give_up(slowest)
        if upload.gave_up:
            raise self._no_room()
        self._uploads[upload] = None
        upload.received += size
        upload.held += size
        self.held_bytes += size
        if upload.received - upload.moved >= CHUNK_BYTES:
            upload.moved = upload.received
            upload.moved_s = now_s

    def _give_up(self, upload: _Upload) -> None:
        """Frees its memory at once; its call ends with its next chunk, or for being too slow."""
        del self._uploads[upload]
        self.held_bytes -= upload.held
        upload.held = 0
        upload.data = bytearray()
        upload.gave_up = True

    def _no_room(self) -> RefusedError:
        return overloaded(f"bytes of chunked deltas in memory: at most {self._held_bytes_max}")

    async def _next(self, chunks: Chunks, began_s: float, upload: _Upload) -> DeltaChunk:
        """The next chunk; whatever arrives is paid for."""
        left_s = began_s + GRACE_S + upload.received / BYTES_S_MIN - self._runtime.monotonic()
        try:
            message = await within(max(min(left_s, GRACE_S), 0.0), anext(chunks), runtime=self._runtime)
        except TimeoutError as error:
            detail = f"chunks arrive too slowly, expected {BYTES_S_MIN} bytes per second after the first {GRACE_S:g} s"
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail)) from error
        except StopAsyncIteration as error:
            detail = f"delta chunk: the stream ended after {upload.received} bytes, expected more"
            raise MalformedMessageError(detail) from error
        self._sends.pay_chunk(upload.charge, message.size if isinstance(message, Malformed) else len(message.data))
        if isinstance(message, Malformed):
            raise MalformedMessageError("the bytes received are not a valid DeltaChunk")
        return delta_chunk_from_wire(message)


# A refusal that is about the moment, not the delta: a unary call says it with its status.
_OF_THE_MOMENT = frozenset(
    {
        ServiceReason.OVERLOADED,
        ServiceReason.SHUTTING_DOWN,
        ServiceReason.UNAVAILABLE,
        ServiceReason.RATE_LIMITED,
    }
)


class Collection:
    """The service: passes what clients send to ``receiver``; ``sends`` limits it, malformed messages too."""

    def __init__(
        self,
        plan: Plan,
        config: Config,
        runtime: Runtime,
        metrics: Metrics,
        *,
        receiver: DeltaReceiver,
        handshake: Handshake,
        sends: SendLimits,
    ) -> None:
        self._receiver = receiver
        self._handshake = handshake
        self._sends = sends
        self._runtime = runtime
        self._metrics = metrics
        self._sessions_max = config.sessions_max
        self._sessions: set[Session] = set()
        self._large = LargeDeltas(
            receiver,
            runtime,
            metrics,
            sends,
            delta_bytes_max=plan.upload_bytes_max,
            held_bytes_max=config.pending_bytes_max,
        )

    def add_to(self, methods: Methods) -> Handler:
        submit = (Scope.SUBMIT,)
        methods.unary("Hello", pb.HelloRequest, self.hello, scopes=submit)
        methods.stream("Submit", pb.SubmitRequest, self.submit, bytes_max=methods.message_bytes_max, payload="delta")
        methods.unary(
            "SubmitOne",
            pb.SubmitRequest,
            self.submit_one,
            bytes_max=methods.message_bytes_max,
            scopes=submit,
            junk=self._sends.pay,
            payload="delta",
        )
        methods.takes(
            "SubmitLarge", pb.DeltaChunk, self.submit_large, bytes_max=methods.message_bytes_max, payload="data"
        )
        return methods.handler(pb.DESCRIPTOR.services_by_name["Collection"].methods_by_name)

    def stop_sessions(self) -> None:
        """Reads no more deltas; each stream ends once what was read is answered."""
        for session in self._sessions:
            session.stop()

    async def hello(self, call: Call, request: pb.HelloRequest) -> pb.HelloReply:
        """Opens a session; the caller is checked, and told who it is: a client learns early that it is not known."""
        client_id = call.client_id()
        self._receiver.check_running()
        _check_number(len(request.protocol_versions), VERSIONS_MAX, "protocol versions")
        _check_number(len(request.features), FEATURES_MAX, "features")
        return convert.welcome_to_wire(await self._handshake.welcome(convert.hello_from_wire(request), client_id))

    async def submit(self, call: Call, requests: Requests) -> AsyncIterator[pb.SubmitReply]:
        client_id = call.client_id()
        self._receiver.check_running()
        if len(self._sessions) >= self._sessions_max:
            raise overloaded(f"at most {self._sessions_max} open sessions")
        session = Session(self._receiver, client_id, self._metrics, self._sends, self._handshake.in_flight_max)
        self._sessions.add(session)
        self._metrics.session_opened()
        session.start(requests, self._runtime)
        try:
            while answers := await session.next_answers():
                count, reply = len(answers), convert.answers_to_wire(answers)
                del answers  # else an idle session would keep its last ones
                yield reply
                del reply
                session.written(count)
        finally:
            session.close()
            self._sessions.discard(session)
            self._metrics.session_closed()

    async def submit_one(self, call: Call, request: pb.SubmitRequest) -> pb.SubmitReply:
        client_id = call.client_id()
        shuffled = convert.shuffled_from_wire(request)
        return _reply_of(
            await self._receiver.submit(ReceivedDelta(client_id, request.plan_id, request.delta, shuffled))
        )

    async def submit_large(self, call: Call, chunks: Chunks) -> pb.SubmitReply:
        client_id = call.client_id()
        self._receiver.check_running()
        return _reply_of(await self._large.submit(client_id, chunks))


def _reply_of(answer: Answer) -> pb.SubmitReply:
    """The reply of a unary call.

    Raises:
        RefusedError: What refuses it is about the moment.
    """
    if answer.status is Status.REFUSED and answer.refusal is not None and answer.refusal.reason in _OF_THE_MOMENT:
        raise RefusedError(answer.refusal, counted=True)
    return convert.answer_to_wire(answer)
