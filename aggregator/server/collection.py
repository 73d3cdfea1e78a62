"""The service Collection: sessions, and deltas."""

from collections.abc import AsyncIterator

from aggregator.callers.client_limits import SendLimits
from aggregator.ports import Runtime, Scope
from aggregator.reception import FEATURES_MAX, VERSIONS_MAX, check_number
from aggregator.refusals import RefusedError, overloaded
from aggregator.server.calls import Call, Handler, Methods
from aggregator.server.large import Chunks, LargeDeltas
from aggregator.server.sessions import Requests, Session
from aggregator.server.uploads import Greeter, Uploads
from aggregator.watching.metrics import Metrics
from hushsum_proto import convert
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.v1 import wire_pb2 as pb

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
        uploads: Uploads,
        greeter: Greeter,
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
