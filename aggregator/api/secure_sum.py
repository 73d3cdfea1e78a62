"""The service SecureSum: a client's part in a round, on one stream, and the directory of clients."""

from collections.abc import AsyncIterator
from typing import Final

from aggregator.api.admission_control import Malformed
from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import RefusedError, overloaded
from aggregator.model import Scope
from aggregator.rate_limits import SendLimits
from aggregator.runtime import Runtime, within
from aggregator.secure.coordinator import CohortCoordinator
from aggregator.secure.round import CHUNK_BYTES_MAX, Participant
from hushsum.errors import Reason
from hushsum.signing import Directory
from hushsum_proto import convert_rounds
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.rounds import DirectoryChunk, Enter, RoundRequest
from hushsum_proto.v1 import wire_pb2 as pb

ENTER_S: Final = 20.0  # how long a stream may be open before its client says what it wants

_Requests = AsyncIterator[pb.RoundRequest | Malformed]


class SecureSumService:
    """Serves clients of secure sums.

    Args:
        sums: Those of the plan; None where its mode is another one: every call is then refused.
        directory: Of its clients; None where it names none.
        streams_max: Clients that may be here at once.
        sends: How fast messages of one client are read; None: at any speed.
    """

    def __init__(
        self,
        sums: CohortCoordinator | None,
        directory: Directory | None,
        *,
        runtime: Runtime,
        streams_max: int,
        sends: SendLimits | None = None,
    ) -> None:
        self._sums = sums
        self._directory = b"" if directory is None else directory.to_bytes()
        self._runtime = runtime
        self._streams_max = streams_max
        self._streams = 0
        self._sends = sends

    def add_to(self, methods: Methods) -> Handler:
        methods.stream("TakePart", pb.RoundRequest, self.take_part, bytes_max=methods.message_bytes_max)
        methods.replies("GetDirectory", pb.GetDirectoryRequest, self.get_directory, scopes=(Scope.SUBMIT,))
        return methods.handler(pb.DESCRIPTOR.services_by_name["SecureSum"].methods_by_name)

    async def take_part(self, call: Call, requests: _Requests) -> AsyncIterator[pb.RoundReply]:
        """One client's part in a window, or what became of it."""
        client_id = call.client_id()
        sums = self._secure()
        if self._streams >= self._streams_max:
            raise overloaded(f"at most {self._streams_max} clients may take part at once")
        self._streams += 1
        try:
            enter = await self._entering(requests)
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
        finally:
            self._streams -= 1

    async def get_directory(self, call: Call, request: pb.GetDirectoryRequest) -> AsyncIterator[pb.DirectoryChunk]:
        """The canonical bytes of the plan's directory of clients, in parts; none where the plan names none."""
        call.client_id()
        self._secure().check_plan(convert_rounds.directory_request_from_wire(request))
        for offset in range(0, len(self._directory), CHUNK_BYTES_MAX):
            part = DirectoryChunk(offset, self._directory[offset : offset + CHUNK_BYTES_MAX])
            yield convert_rounds.directory_chunk_to_wire(part)

    def _secure(self) -> CohortCoordinator:
        if self._sums is None:
            detail = "the plan that is collected here has no secure sum, expected its deltas"
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
            raise RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, f"nothing came in {ENTER_S:g} s")) from error
        except StopAsyncIteration as error:
            raise MalformedMessageError("expected to enter, got nothing") from error
        enter = _decoded(request)
        if not isinstance(enter, Enter):
            raise MalformedMessageError("expected to enter first")
        return enter

    async def _read(self, sums: CohortCoordinator, participant: Participant, requests: _Requests) -> None:
        """Hands on a client's requests, one after another: the next is read when the last is handled."""
        async for request in requests:
            if self._sends is not None and not isinstance(request, Malformed):
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
        raise MalformedMessageError("bytes that are no RoundRequest, expected one")
    return convert_rounds.request_from_wire(request)
