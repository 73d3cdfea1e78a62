"""One submission stream: deltas in, answers out in whatever order they are ready, so many unanswered and no more."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from aggregator.callers.client_limits import SendLimits
from aggregator.inspection import id_in
from aggregator.ports import Runtime
from aggregator.refusals import RETRY_AFTER_MS, RefusedError, refused, shutting_down
from aggregator.server.calls import Malformed
from aggregator.server.uploads import Uploads
from aggregator.watching.metrics import Metrics
from hushsum.errors import Reason
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Refusal, ServiceReason
from hushsum_proto.v1 import wire_pb2 as pb

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
        uploads: Uploads,
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
