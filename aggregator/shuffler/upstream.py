"""The aggregator as a shuffler sees it: where the plan comes from, and where batches go."""

from typing import Final

import grpc

from aggregator.errors import AggregatorError, ConfigError
from aggregator.shuffler.values import KeptPlan, Outgoing
from hushsum.plan import BUNDLE_BYTES_MAX
from hushsum_proto.answers import Answer
from hushsum_proto.convert import answer_from_wire, submission_to_wire
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError, MalformedMessageError
from hushsum_proto.messages import Authenticity
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs

_CALL_S: Final = 60.0  # above what a gateway waits for a fold's word
_KEEPALIVE_MS: Final = 30_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", BUNDLE_BYTES_MAX + 2**10),  # the largest plan, and its envelope
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # the forwarder decides what is sent again, and when
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class UpstreamError(AggregatorError):
    """The aggregator has given no answer: what became of a batch is not known, and it is sent again."""


class Upstream:
    """The aggregator. It connects at the first call.

    Args:
        target: ``host:port`` of a gateway.
        key_id: The shuffler's name in the directory, under which it signs and calls; its token is of that name, too.
        credentials: Who is believed, and what proves who this is. A token's file is read for each call, those of
            certificates once a start.

    Raises:
        ConfigError: A file of the credentials cannot be used.
    """

    def __init__(self, target: str, key_id: str, credentials: Credentials | None = None) -> None:
        self._target = target
        self._key_id = key_id
        self._credentials = credentials or Credentials()
        try:
            self._credentials.metadata()
            self._channel = self._credentials.channel(target, _OPTIONS)
        except CredentialsError as error:
            raise ConfigError(f"upstream_{error}") from error

    async def fetch_plan(self) -> KeptPlan:
        """The plan that is collected there, with its signature.

        Raises:
            UpstreamError: No answer.
        """
        try:
            found = await stubs.CatalogueStub(self._channel).GetPlan(
                pb.GetPlanRequest(), metadata=self._metadata(), timeout=_CALL_S
            )
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        return KeptPlan(found.plan, found.key_id, found.suite, found.signature)

    async def submit(self, plan_id: bytes, outgoing: Outgoing) -> Answer:
        """What the aggregator says of a batch.

        Raises:
            UpstreamError: No answer.
        """
        request = submission_to_wire(plan_id, outgoing.batch, Authenticity(self._key_id, outgoing.tag))
        try:
            reply = await stubs.CollectionStub(self._channel).SubmitOne(
                request, metadata=self._metadata(), timeout=_CALL_S
            )
            return answer_from_wire(reply)
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except MalformedMessageError as error:
            raise UpstreamError(f"upstream {self._target}: {error}") from error

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        try:
            return ((CLIENT_ID, client_id_to_metadata(self._key_id)), *self._credentials.metadata())
        except CredentialsError as error:
            raise UpstreamError(f"upstream_{error}") from error

    def _lost(self, error: grpc.aio.AioRpcError) -> UpstreamError:
        said = self._credentials.explained(self._target, error.details() or "")
        return UpstreamError(f"upstream {self._target}: {error.code().name}: {said}")
