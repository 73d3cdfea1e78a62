"""Deltas that come in chunks: put together within a bound on what all such calls may hold, then a delta like any other.

A call holds room for what has come of its delta, until it is answered: a size that is only named holds nothing. A
client has one such call at a time, so holds one delta at most; it pays for each chunk as that comes, whether the delta
is ever whole or not; and it must not be slower than a stated rate, nor silent for long.

Where no room is left, the call whose last :data:`CHUNK_BYTES` bytes take the longest gives up what it holds, and the
others go on; where that is the one who needs more, it is refused. So clients that fill the room and stall give way to
one that sends, however many they are. To hold room against a client of r bytes a second one has to send as fast
itself, which ends after its delta's size / r seconds: that is what r costs anybody, and no more than load.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from aggregator.callers.client_limits import SendLimits
from aggregator.callers.instalments import Instalments
from aggregator.callers.senders import NOT_ITS_SENDERS
from aggregator.inspection import id_in
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, overloaded, refused
from aggregator.retries import within
from aggregator.server.incoming import BYTES_S_MIN, GRACE_S, Malformed
from aggregator.server.uploads import Uploads
from aggregator.watching.metrics import Metrics
from hushsum.errors import DeltaError, Reason
from hushsum_proto.answers import Answer, Refusal, ServiceReason
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import CHUNK_BYTES, DeltaChunk
from hushsum_proto.v1 import wire_pb2 as pb

__all__ = ["BYTES_S_MIN", "GRACE_S", "Chunks", "LargeDeltas"]

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
    paid: Instalments | None
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
        uploads: Uploads,
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
        paid = None if self._sends is None else Instalments(self._sends, client_id)
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
