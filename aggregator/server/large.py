"""Deltas that come in chunks: put together within a bound on what all such calls may hold, then a delta like any other.

A call holds room for what has come of its delta, until it is answered: a size that is only named holds nothing. Where
no room is left, who needs more is refused and gives up its own, so that somebody always ends. A client has one such
call at a time, and must not be slower than a stated rate, nor silent for long. Where names are only declared, a liar
takes another one, and can still fill the room with bytes that it has really sent.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from aggregator.callers.client_limits import SendLimits
from aggregator.inspection import id_in
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, overloaded, refused
from aggregator.retries import within
from aggregator.server.calls import Malformed
from aggregator.server.uploads import Uploads
from aggregator.watching.metrics import Metrics
from hushsum.errors import DeltaError, Reason
from hushsum_proto.answers import Answer, Refusal, ServiceReason
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import DeltaChunk
from hushsum_proto.v1 import wire_pb2 as pb

GRACE_S: Final = 30.0  # how far behind the rate a client may be, and how long silent
BYTES_S_MIN: Final = 64 * 1024  # how fast it must send, on average

_HEAD_BYTES: Final = 64  # a delta's header, and more

Chunks = AsyncIterator[pb.DeltaChunk | Malformed]


@dataclass
class _Coming:
    """A delta that is on its way in: how it begins, and how many bytes are booked for it."""

    plan_id: bytes = b""
    head: bytes | None = None
    held: int = 0


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
        coming = _Coming()
        try:
            data = await self._whole(coming, chunks)
            return await self._uploads.submit(client_id, coming.plan_id, data)
        except DeltaError as error:
            return self._refused(coming, error.reason, error.detail)
        except MalformedMessageError as error:
            return self._refused(coming, Reason.MALFORMED, str(error))
        finally:
            self.held_bytes -= coming.held
            self._senders.discard(client_id)

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
        held = bytearray()
        chunk = await self._next(chunks, began_s, 0)
        size, coming.plan_id = chunk.size, chunk.plan_id
        while True:
            if chunk.offset != coming.held:
                raise MalformedMessageError(f"delta chunk: got one at {chunk.offset}, expected it at {coming.held}")
            if coming.head is None:
                coming.head = chunk.data[:_HEAD_BYTES]
            if size > self._delta_bytes_max:
                raise DeltaError(Reason.TOO_LARGE, f"{size} bytes, expected at most {self._delta_bytes_max}")
            if coming.held + len(chunk.data) > size:
                raise MalformedMessageError(f"delta chunk: one that ends beyond the {size} bytes that were named")
            self._book(coming, len(chunk.data))
            held += chunk.data
            if coming.held == size:
                return bytes(held)
            chunk = await self._next(chunks, began_s, coming.held)

    def _book(self, coming: _Coming, size: int) -> None:
        if self.held_bytes + size > self._held_bytes_max:
            raise overloaded(f"deltas that come in chunks may hold {self._held_bytes_max} bytes at once")
        coming.held += size
        self.held_bytes += size

    async def _next(self, chunks: Chunks, began_s: float, held: int) -> DeltaChunk:
        left_s = began_s + GRACE_S + held / BYTES_S_MIN - self._runtime.monotonic()
        try:
            message = await within(max(min(left_s, GRACE_S), 0.0), anext(chunks), runtime=self._runtime)
        except TimeoutError as error:
            detail = f"chunks come too slowly, expected {BYTES_S_MIN} bytes a second after the first {GRACE_S:g} s"
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail)) from error
        except StopAsyncIteration as error:
            raise MalformedMessageError(f"delta chunk: the last one came after {held} bytes, expected more") from error
        if isinstance(message, Malformed):
            raise MalformedMessageError("bytes that are no DeltaChunk, expected one")
        return delta_chunk_from_wire(message)
