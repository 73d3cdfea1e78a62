"""Deltas that come in chunks: put together within a bound on what all such calls may hold, then a delta like any other.

A call holds room for the whole of its delta from its first chunk on until it is answered, so that what has begun can
also end. A client has one such call at a time, and must not be slower than a stated rate: it cannot keep others out.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, overloaded
from aggregator.retries import within
from aggregator.server.calls import Malformed
from aggregator.server.uploads import Uploads
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, Refusal, ServiceReason
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import DeltaChunk
from hushsum_proto.v1 import wire_pb2 as pb

GRACE_S: Final = 30.0  # how far behind the rate a client may be
BYTES_S_MIN: Final = 64 * 1024  # how fast it must send, on average

Chunks = AsyncIterator[pb.DeltaChunk | Malformed]


class LargeDeltas:
    """The deltas of one plan that come in chunks.

    Args:
        uploads: Where they go once they are whole.
        runtime: Time.
        delta_bytes_max: Of one.
        held_bytes_max: Of all that are under way; at least one fits.
    """

    def __init__(self, uploads: Uploads, *, runtime: Runtime, delta_bytes_max: int, held_bytes_max: int) -> None:
        self._uploads = uploads
        self._runtime = runtime
        self._delta_bytes_max = delta_bytes_max
        self._held_bytes_max = max(held_bytes_max, delta_bytes_max)
        self._senders: set[str] = set()
        self.held_bytes = 0

    async def submit(self, client_id: str, chunks: Chunks) -> Answer:
        """The answer to one delta.

        Raises:
            RefusedError: It is too large, or too slow; or all such calls together, or this client, have no room left.
            MalformedMessageError: Chunks that do not follow each other, or none.
        """
        began_s = self._runtime.monotonic()
        first = await self._next(chunks, began_s, 0)
        if first.offset:
            raise MalformedMessageError(f"delta chunk: got one at {first.offset}, expected the first one, at 0")
        if first.size > self._delta_bytes_max:
            detail = f"{first.size} bytes, expected at most {self._delta_bytes_max}"
            raise RefusedError(Refusal.of(Reason.TOO_LARGE, detail))
        with self._room(client_id, first.size):
            data = await self._whole(first, chunks, began_s)
            return await self._uploads.submit(client_id, first.plan_id, data)

    @contextmanager
    def _room(self, client_id: str, size: int) -> Iterator[None]:
        if client_id in self._senders:
            raise overloaded("another delta of this client is coming in chunks, expected one at a time")
        if self.held_bytes + size > self._held_bytes_max:
            raise overloaded(f"deltas that come in chunks may hold {self._held_bytes_max} bytes at once")
        self._senders.add(client_id)
        self.held_bytes += size
        try:
            yield
        finally:
            self.held_bytes -= size
            self._senders.discard(client_id)

    async def _whole(self, first: DeltaChunk, chunks: Chunks, began_s: float) -> bytes:
        held, size, chunk = bytearray(), first.size, first
        while True:
            if chunk.offset != len(held):
                raise MalformedMessageError(f"delta chunk: got one at {chunk.offset}, expected it at {len(held)}")
            if chunk.offset + len(chunk.data) > size:
                raise MalformedMessageError(f"delta chunk: one that ends beyond the {size} bytes that were named")
            held += chunk.data
            if len(held) == size:
                return bytes(held)
            chunk = await self._next(chunks, began_s, len(held))

    async def _next(self, chunks: Chunks, began_s: float, held: int) -> DeltaChunk:
        left_s = began_s + GRACE_S + held / BYTES_S_MIN - self._runtime.monotonic()
        try:
            message = await within(max(left_s, 0.0), anext(chunks), runtime=self._runtime)
        except TimeoutError as error:
            detail = f"chunks come too slowly, expected {BYTES_S_MIN} bytes a second after the first {GRACE_S:g} s"
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, detail)) from error
        except StopAsyncIteration as error:
            raise MalformedMessageError(f"delta chunk: the last one came after {held} bytes, expected more") from error
        if isinstance(message, Malformed):
            raise MalformedMessageError("bytes that are no DeltaChunk, expected one")
        return delta_chunk_from_wire(message)
