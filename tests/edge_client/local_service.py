"""A service of local mode for the tests of the client: it keeps whatever bytes come, and answers as a test decides."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
from typing_extensions import override

from hushsum import Plan
from hushsum.delta import DeltaId, read_header
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Status
from hushsum_proto.convert_chunks import delta_chunk_from_wire
from hushsum_proto.v1 import wire_pb2 as pb
from tests.edge_client.model_service import Context, ModelService


@dataclass
class Kept:
    """Everything that came, which outlives a service."""

    received: list[bytes] = field(default_factory=list)
    large: int = 0

    def ids(self) -> set[DeltaId]:
        return {read_header(data).id for data in self.received}

    def of_window(self, window: int) -> set[bytes]:
        """The different bytes that came for a window."""
        return {data for data in self.received if read_header(data).window == window}


class LocalService(ModelService):
    """Acknowledges everything, unless told otherwise; it knows no more of a delta than its header.

    Attributes:
        kept: What came.
        lie: Answers a delta by its id, and how many came before it; None where it is acknowledged.
    """

    def __init__(self, plan: Plan, kept: Kept | None = None) -> None:
        super().__init__(plan)
        self.kept = kept or Kept()
        self.lie: Callable[[DeltaId, int], Answer | None] = lambda *_: None

    @override
    async def SubmitLarge(self, request_iterator: AsyncIterator[pb.DeltaChunk], context: Context) -> pb.SubmitReply:
        data = b""
        async for message in request_iterator:
            chunk = delta_chunk_from_wire(message)
            assert chunk.offset == len(data)
            data += chunk.data
        self.kept.large += 1
        if self.busy_calls:
            self.busy_calls -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection breaks before the answer")
        return await self._take(data)

    @override
    async def _answer(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        assert request.plan_id == self.plan.id
        return await self._take(request.delta)

    async def _take(self, data: bytes) -> pb.SubmitReply:
        id, before = read_header(data).id, len(self.kept.received)
        self.kept.received.append(data)
        answer = self.lie(id, before) or Answer(id, Status.ACKNOWLEDGED)
        self.taken.set()
        await self.answers.wait()
        return convert.answer_to_wire(answer)
