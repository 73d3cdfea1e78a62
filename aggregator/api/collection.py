"""The service Collection: streams of deltas, single ones, and those that come in chunks.

A call holds room for what has come of its delta, until it is answered: a size that is only named holds nothing. A
client has one such call at a time, so holds one delta at most; it pays for each chunk as that comes, whether the delta
is ever whole or not; and it must not be slower than a stated rate, nor silent for long.

Where no room is left, the call whose last :data:`CHUNK_BYTES` bytes take the longest gives up what it holds, and the
others go on; where that is the one who needs more, it is refused. So clients that fill the room and stall give way to
one that sends, however many they are. To hold room against a client of r bytes a second one has to send as fast
itself, which ends after its delta's size / r seconds: that is what r costs anybody, and no more than load.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from aggregator.api.admission_control import BYTES_S_MIN, GRACE_S, Malformed
from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import RETRY_AFTER_MS, RefusedError, overloaded, refused, shutting_down
from aggregator.ingest.handshake import FEATURES_MAX, VERSIONS_MAX, check_number
from aggregator.ingest.validation import id_in
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import NOT_ITS_SENDERS, ChunkReservations, SendLimits
from aggregator.runtime import Runtime, within
from hushsum.errors import DeltaError, Reason
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import CHUNK_BYTES, Authenticity, DeltaChunk, Hello, Welcome
from hushsum_proto.v1 import wire_pb2 as pb


class DeltaReceiver(Protocol):
    """Takes what clients send."""

    def check_running(self) -> None:
        """Refuses new work where none is taken now.

        Raises:
            RefusedError: None is.
        """

    async def submit(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None = None) -> Answer:
        """The answer to one delta, whose whole call is waited for.

        Args:
            client_id: From the authenticator.
            plan_id: As the envelope names it.
            data: The packed delta.
            shuffled: Who says to have shuffled it; nobody has checked that yet.
        """

    def send(
        self,
        client_id: str,
        plan_id: bytes,
        data: bytes,
        tell: Callable[[Answer], None],
        shuffled: Authenticity | None = None,
    ) -> None:
        """The same for one of many; ``tell`` is called once, later, with the answer, and must not raise."""


class HelloHandler(Protocol):
    """Opens sessions."""

    @property
    def in_flight_max(self) -> int:
        """Unanswered deltas that a session may have."""

    async def welcome(self, hello: Hello) -> Welcome:
        """Opens a session.

        Raises:
            RefusedError: No protocol version in common, or another plan.
        """


Requests = AsyncIterator[pb.SubmitRequest | Malformed]


class Session:
    """One client's stream.

    Args:
        uploads: Where deltas go.
        client_id: Whose they are.
        runtime: Tasks.
        metrics: Counts messages that are none.
        in_flight_max: Deltas beyond so many unanswered ones are refused as overload, and nothing more is read until
            that is written: a client that does not read its answers cannot make them pile up.
        sends: How much one client may send, messages that are none too; None: any.
    """

    def __init__(
        self,
        uploads: DeltaReceiver,
        client_id: str,
        *,
        runtime: Runtime,
        metrics: Metrics,
        in_flight_max: int,
        sends: SendLimits | None = None,
    ) -> None:
        self._uploads = uploads
        self._sends = sends
        self._client_id = client_id
        self._runtime = runtime
        self._metrics = metrics
        self._in_flight_max = in_flight_max
        self._ready: deque[Answer] = deque()
        self._unanswered = 0  # read, and its answer not written yet
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._stopped = False

    async def answers(self, requests: Requests) -> AsyncIterator[pb.SubmitReply]:
        """Reads until the client has sent all, and ends when everything is answered.

        Raises:
            RefusedError: The service stops; what was read is answered first.
        """
        self._reader = self._runtime.spawn(self._read(requests), "session")
        self._reader.add_done_callback(lambda _: self._wake.set())
        try:
            while self._unanswered or not self._reader.done():
                while self._ready:
                    yield convert.answer_to_wire(self._ready.popleft())
                    self._unanswered -= 1
                    self._room.set()
                self._wake.clear()
                if self._unanswered or not self._reader.done():
                    await self._wake.wait()
        finally:
            self._reader.cancel()
        if self._stopped:
            raise RefusedError(shutting_down())
        await self._reader  # raises what ended it early

    def stop(self) -> None:
        """Reads nothing more; the stream ends when what was read is answered."""
        self._stopped = True
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
                self._uploads.send(self._client_id, request.plan_id, request.delta, self._answer, shuffled)

    def _junk(self, size: int) -> Refusal:
        """What is said to bytes that are no message, once they are paid for like a delta."""
        try:
            if self._sends is not None:
                self._sends.pay(self._client_id, size)
        except RefusedError as error:
            return error.refusal
        return Refusal.of(Reason.MALFORMED, "bytes that are no SubmitRequest, expected one")

    async def _overload(self, request: pb.SubmitRequest | Malformed) -> None:
        detail = f"more than {self._in_flight_max} deltas of this session without an answer"
        refusal = Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS)
        delta_id = None if isinstance(request, Malformed) else id_in(request.delta)
        self._refuse(refused(delta_id, refusal))
        while self._unanswered > self._in_flight_max:
            self._room.clear()
            await self._room.wait()

    def _refuse(self, answer: Answer) -> None:
        self._metrics.answered(answer)
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self._ready.append(answer)
        self._wake.set()


_STALLED_S: Final = 1.0  # who takes no longer for a chunk gives nothing up for others
_HEAD_BYTES: Final = 64  # a delta's header, and more

Chunks = AsyncIterator[pb.DeltaChunk | Malformed]


@dataclass(eq=False)
class _Coming:
    """A delta that is on its way in.

    Attributes:
        moved_s: When it had come further by a chunk's bytes,
        moved: and how far.
        came: Its bytes that have come.
        held: Those that are booked for it: all, until it gave them up.
    """

    moved_s: float
    paid: ChunkReservations | None
    plan_id: bytes = b""
    head: bytes | None = None
    data: bytearray = field(default_factory=bytearray)
    moved: int = 0
    came: int = 0
    held: int = 0
    gave_up: bool = False


class LargeDeltas:
    """The deltas of one plan that come in chunks.

    Args:
        uploads: Where they go once they are whole.
        runtime: Time.
        delta_bytes_max: Of one.
        held_bytes_max: Of all that are under way; at least one fits.
        metrics: Counts what is refused here; None: nobody does.
        sends: How much one client may send; None: any.

    Attributes:
        held_bytes: What has come of all that are under way.
    """

    def __init__(
        self,
        uploads: DeltaReceiver,
        *,
        runtime: Runtime,
        delta_bytes_max: int,
        held_bytes_max: int,
        metrics: Metrics | None = None,
        sends: SendLimits | None = None,
    ) -> None:
        self._uploads = uploads
        self._runtime = runtime
        self._delta_bytes_max = delta_bytes_max
        self._held_bytes_max = max(held_bytes_max, delta_bytes_max)
        self._metrics = metrics
        self._sends = sends
        self._senders: set[str] = set()
        self._coming: dict[_Coming, None] = {}
        self.held_bytes = 0

    async def submit(self, client_id: str, chunks: Chunks) -> Answer:
        """The answer to one delta, which may refuse it for good.

        Raises:
            RefusedError: It is too slow; or all such calls together, or this client, have no room left. About the
                moment all: it may be sent again.
        """
        if client_id in self._senders:
            raise overloaded("another delta of this client is coming in chunks, expected one at a time")
        if self._sends is not None:
            self._sends.check(client_id)  # else it would send all of it to be refused
        self._senders.add(client_id)
        paid = None if self._sends is None else ChunkReservations(self._sends, client_id)
        coming = _Coming(self._runtime.monotonic(), paid)
        try:
            data = await self._whole(coming, chunks)
            return await self._answer(client_id, coming, data)
        except DeltaError as error:
            return self._refused(coming, error.reason, error.detail)
        except MalformedMessageError as error:
            return self._refused(coming, Reason.MALFORMED, str(error))
        finally:
            self._coming.pop(coming, None)
            self.held_bytes -= coming.held
            self._senders.discard(client_id)

    async def _answer(self, client_id: str, coming: _Coming, data: bytes) -> Answer:
        """That of a delta that is whole, and paid for."""
        if coming.paid is None:
            return await self._uploads.submit(client_id, coming.plan_id, data)
        with coming.paid.settled():
            answer = await self._uploads.submit(client_id, coming.plan_id, data)
        reason = None if answer.refusal is None else answer.refusal.reason
        if reason in NOT_ITS_SENDERS:
            coming.paid.give_back()
        elif reason is ServiceReason.RATE_LIMITED:
            coming.paid.keep()
        return answer

    def _refused(self, coming: _Coming, reason: Reason, detail: str) -> Answer:
        """With the delta's id, where that has come: a client takes a refusal of nothing for a lost connection."""
        answer = refused(None if coming.head is None else id_in(coming.head), Refusal.of(reason, detail))
        if self._metrics is not None:
            self._metrics.answered(answer)
        return answer

    async def _whole(self, coming: _Coming, chunks: Chunks) -> bytes:
        """Reads a delta to its end, and books its bytes as they come.

        Raises:
            DeltaError: It is too large.
            MalformedMessageError: Chunks that do not follow each other, or none.
            RefusedError: As :meth:`submit`.
        """
        began_s = self._runtime.monotonic()
        chunk = await self._next(chunks, began_s, coming)
        size, coming.plan_id = chunk.size, chunk.plan_id
        while True:
            if chunk.offset != coming.came:
                raise MalformedMessageError(f"delta chunk: got one at {chunk.offset}, expected it at {coming.came}")
            if coming.head is None:
                coming.head = chunk.data[:_HEAD_BYTES]
            if size > self._delta_bytes_max:
                raise DeltaError(Reason.TOO_LARGE, f"{size} bytes, expected at most {self._delta_bytes_max}")
            if coming.came + len(chunk.data) > size:
                raise MalformedMessageError(f"delta chunk: one that ends beyond the {size} bytes that were named")
            self._book(coming, len(chunk.data))
            coming.data += chunk.data
            if coming.came == size:
                self._coming.pop(coming, None)  # nothing of it is given up any more
                data, coming.data = bytes(coming.data), bytearray()
                return data
            chunk = await self._next(chunks, began_s, coming)

    def _book(self, coming: _Coming, size: int) -> None:
        """Room for a chunk that has come.

        Raises:
            RefusedError: There is none, or this delta has given up its own.
        """
        now_s = self._runtime.monotonic()
        while not coming.gave_up and self.held_bytes + size > self._held_bytes_max:
            slowest = min(self._coming, key=lambda each: each.moved_s, default=coming)
            if slowest is coming or now_s - slowest.moved_s < _STALLED_S:
                if coming.paid is not None and coming.moved_s + _STALLED_S > now_s:
                    coming.paid.give_back()
                raise self._no_room()
            self._give_up(slowest)
        if coming.gave_up:
            raise self._no_room()
        self._coming[coming] = None
        coming.came += size
        coming.held += size
        self.held_bytes += size
        if coming.came - coming.moved >= CHUNK_BYTES:
            coming.moved, coming.moved_s = coming.came, now_s

    def _give_up(self, coming: _Coming) -> None:
        """Frees its memory at once; its call ends with its next chunk, or for being too slow."""
        del self._coming[coming]
        self.held_bytes -= coming.held
        coming.held, coming.data, coming.gave_up = 0, bytearray(), True

    def _no_room(self) -> RefusedError:
        return overloaded(f"deltas that come in chunks may hold {self._held_bytes_max} bytes at once")

    async def _next(self, chunks: Chunks, began_s: float, coming: _Coming) -> DeltaChunk:
        """The next chunk, which is paid for, as is what is none."""
        left_s = began_s + GRACE_S + coming.came / BYTES_S_MIN - self._runtime.monotonic()
        try:
            message = await within(max(min(left_s, GRACE_S), 0.0), anext(chunks), runtime=self._runtime)
        except TimeoutError as error:
            detail = f"chunks come too slowly, expected {BYTES_S_MIN} bytes a second after the first {GRACE_S:g} s"
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail)) from error
        except StopAsyncIteration as error:
            detail = f"delta chunk: the last one came after {coming.came} bytes, expected more"
            raise MalformedMessageError(detail) from error
        if coming.paid is not None:
            coming.paid.pay(message.size if isinstance(message, Malformed) else len(message.data))
        if isinstance(message, Malformed):
            raise MalformedMessageError("bytes that are no DeltaChunk, expected one")
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
    """Serves clients.

    Args:
        uploads: Where deltas go.
        greeter: Opens sessions.
        large: Where those go that come in chunks.
        runtime: Tasks.
        metrics: Counts sessions.
        sessions_max: Streams that may be open.
        sends: How much one client may send, bytes that are no message too; None: any.
    """

    def __init__(
        self,
        uploads: DeltaReceiver,
        greeter: HelloHandler,
        *,
        large: LargeDeltas,
        runtime: Runtime,
        metrics: Metrics,
        sessions_max: int,
        sends: SendLimits | None = None,
    ) -> None:
        self._sends = sends
        self._uploads = uploads
        self._greeter = greeter
        self._large = large
        self._runtime = runtime
        self._metrics = metrics
        self._sessions_max = sessions_max
        self._sessions: set[Session] = set()

    def add_to(self, methods: Methods) -> Handler:
        """The handlers of every method."""
        submit = (Scope.SUBMIT,)
        methods.unary("Hello", pb.HelloRequest, self.hello, scopes=submit)
        methods.stream(
            "Submit", pb.SubmitRequest, self.submit, bytes_max=methods.message_bytes_max, carries=_delta_bytes
        )
        methods.unary(
            "SubmitOne",
            pb.SubmitRequest,
            self.submit_one,
            bytes_max=methods.message_bytes_max,
            scopes=submit,
            junk=_free if self._sends is None else self._sends.pay,
            carries=_delta_bytes,
        )
        methods.takes(
            "SubmitLarge", pb.DeltaChunk, self.submit_large, bytes_max=methods.message_bytes_max, carries=_data_bytes
        )
        return methods.handler(pb.DESCRIPTOR.services_by_name["Collection"].methods_by_name)

    def stop_sessions(self) -> None:
        """Reads no more deltas; each stream ends once what was read is answered."""
        for session in self._sessions:
            session.stop()

    async def hello(self, call: Call, request: pb.HelloRequest) -> pb.HelloReply:
        """Opens a session; who calls is checked, so that a client learns early that it is not known."""
        call.client_id()
        self._uploads.check_running()
        check_number(len(request.protocol_versions), VERSIONS_MAX, "protocol versions")
        check_number(len(request.features), FEATURES_MAX, "features")
        return convert.welcome_to_wire(await self._greeter.welcome(convert.hello_from_wire(request)))

    async def submit(self, call: Call, requests: Requests) -> AsyncIterator[pb.SubmitReply]:
        """Answers a stream of deltas."""
        client_id = call.client_id()
        self._uploads.check_running()
        if len(self._sessions) >= self._sessions_max:
            raise overloaded(f"at most {self._sessions_max} sessions may be open")
        session = Session(
            self._uploads,
            client_id,
            runtime=self._runtime,
            metrics=self._metrics,
            in_flight_max=self._greeter.in_flight_max,
            sends=self._sends,
        )
        self._sessions.add(session)
        self._metrics.session_opened()
        try:
            async for reply in session.answers(requests):
                yield reply
        finally:
            self._sessions.discard(session)
            self._metrics.session_closed()

    async def submit_one(self, call: Call, request: pb.SubmitRequest) -> pb.SubmitReply:
        """Answers one delta."""
        client_id = call.client_id()
        shuffled = convert.shuffled_from_wire(request)
        return _reply_of(await self._uploads.submit(client_id, request.plan_id, request.delta, shuffled))

    async def submit_large(self, call: Call, chunks: Chunks) -> pb.SubmitReply:
        """Answers one delta that comes in chunks."""
        client_id = call.client_id()
        self._uploads.check_running()
        return _reply_of(await self._large.submit(client_id, chunks))


def _free(_: str, __: int) -> None:
    """Takes bytes of nobody's rate."""


def _delta_bytes(request: pb.SubmitRequest) -> int:
    return len(request.delta)


def _data_bytes(chunk: pb.DeltaChunk) -> int:
    return len(chunk.data)


def _reply_of(answer: Answer) -> pb.SubmitReply:
    """The reply of a unary call.

    Raises:
        RefusedError: What refuses it is about the moment.
    """
    if answer.status is Status.REFUSED and answer.refusal is not None and answer.refusal.reason in _OF_THE_MOMENT:
        raise RefusedError(answer.refusal, counted=True)
    return convert.answer_to_wire(answer)
