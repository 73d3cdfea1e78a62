"""The service SecureSum: a client's part in a round, on one stream, and the directory of clients."""

from collections.abc import AsyncIterator
from typing import Final

from aggregator.api.admission_control import Malformed
from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import RefusedError, wrong_plan
from aggregator.model import Scope
from aggregator.rate_limits import ConcurrencyLimit, SendLimits
from aggregator.runtime import Runtime, within
from aggregator.secure.coordinator import CohortCoordinator
from aggregator.secure.round import CHUNK_BYTES_MAX, Participant
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum.signing import Directory
from hushsum_proto import convert_rounds
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.rounds import DirectoryChunk, Enter, RoundRequest
from hushsum_proto.v1 import wire_pb2 as pb

ENTER_S: Final = 20.0  # how long a stream may be open before its client says what it wants

_Requests = AsyncIterator[pb.RoundRequest | Malformed]


class SecureSumService:
    """Serves clients of secure sums, ``streams_max`` at once.

    Every call is refused where there are no ``sums``: the plan's mode is another one. A call of another plan is refused
    as that first: a device learns from it that its plan was replaced. Messages of one client are read as fast as
    ``sends`` allows.
    """

    def __init__(
        self,
        plan: Plan,
        sums: CohortCoordinator | None,
        directory: Directory | None,
        *,
        runtime: Runtime,
        streams_max: int,
        sends: SendLimits,
    ) -> None:
        self._plan = plan
        self._sums = sums
        self._directory = b"" if directory is None else directory.to_bytes()
        self._runtime = runtime
        self._streams = ConcurrencyLimit(streams_max, "participating clients")
        self._sends = sends

    def add_to(self, methods: Methods) -> Handler:
        methods.stream("TakePart", pb.RoundRequest, self.take_part, bytes_max=methods.message_bytes_max)
        methods.replies("GetDirectory", pb.GetDirectoryRequest, self.get_directory, scopes=(Scope.SUBMIT,))
        return methods.handler(pb.DESCRIPTOR.services_by_name["SecureSum"].methods_by_name)

    async def take_part(self, call: Call, requests: _Requests) -> AsyncIterator[pb.RoundReply]:
        """One client's part in a window, or what became of it."""
        client_id = call.client_id()
        with self._streams.taken():
            enter = await self._entering(requests)
            sums = self._secure(enter.plan_id)
            if enter.spent_round:
                outcome = await sums.query_result(client_id, enter)
                yield convert_rounds.reply_to_wire(outcome)
                return
            participant = await sums.enter(client_id, enter)
            reader = self._runtime.spawn(self._read(sums, participant, requests), "round-reader")
            try:
                async for reply in participant.replies():
                    yield convert_rounds.reply_to_wire(reply)
            finally:
                reader.cancel()
                sums.left(participant)

    async def get_directory(self, call: Call, request: pb.GetDirectoryRequest) -> AsyncIterator[pb.DirectoryChunk]:
        """The canonical bytes of the plan's directory of clients, in parts; none where the plan names none."""
        call.client_id()
        self._secure(convert_rounds.directory_request_from_wire(request))
        for offset in range(0, len(self._directory), CHUNK_BYTES_MAX):
            part = DirectoryChunk(offset, self._directory[offset : offset + CHUNK_BYTES_MAX])
            yield convert_rounds.directory_chunk_to_wire(part)

    def _secure(self, plan_id: bytes) -> CohortCoordinator:
        """The sums of the plan that a client names.

        Raises:
            RefusedError: Another plan is collected here, or one without a secure sum.
        """
        if plan_id != self._plan.id:
            raise RefusedError(wrong_plan(plan_id, self._plan))
        if self._sums is None:
            detail = "the plan collected here has no secure sum: send sketch deltas"
            raise RefusedError(Refusal.of(Reason.WRONG_MODE, detail))
        return self._sums

    async def _entering(self, requests: _Requests) -> Enter:
        """What the client opens with.

        Raises:
            MalformedMessageError: Anything else.
            RefusedError: Nothing came in time.
        """
        try:
            request = await within(ENTER_S, anext(requests), runtime=self._runtime)
        except TimeoutError as error:
            raise RefusedError(
                Refusal.of(ServiceReason.UNAVAILABLE, f"no message received within {ENTER_S:g} s")
            ) from error
        except StopAsyncIteration as error:
            raise MalformedMessageError("expected the message enter, got none") from error
        enter = _decoded(request)
        if not isinstance(enter, Enter):
            raise MalformedMessageError("expected the message enter first")
        return enter

    async def _read(self, sums: CohortCoordinator, participant: Participant, requests: _Requests) -> None:
        """Hands on a client's requests, one after another: the next is read when the last is handled."""
        async for request in requests:
            if not isinstance(request, Malformed):
                # It is read more slowly, and not refused: its vector may be spent, and others wait for it.
                await self._sends.pace(participant.client_id, request.ByteSize())
            try:
                decoded = _decoded(request)
            except MalformedMessageError as error:
                participant.end(RefusedError(Refusal.of(Reason.MALFORMED, str(error))))
                sums.left(participant)
                return
            await sums.received(participant, decoded)
            del request, decoded  # a chunk of a vector is not to be kept while the client is waited for


def _decoded(request: pb.RoundRequest | Malformed) -> RoundRequest:
    if isinstance(request, Malformed):
        raise MalformedMessageError("the bytes received are not a valid RoundRequest")
    return convert_rounds.request_from_wire(request)
