"""How one client gets to its service: channels, what it shows on them, and why it is not let in."""

import logging
from dataclasses import replace
from typing import Final

import grpc

from edge_client.config import Config
from edge_client.losses import loss_of
from edge_client.ports import ConnectionLostError
from edge_client.session_events import Loss
from hushsum_proto.answers import Answer, ServiceReason
from hushsum_proto.credentials import Credentials
from hushsum_proto.errors import CredentialsError
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata

Metadata = tuple[tuple[str, str], ...]

_LOG: Final = logging.getLogger("edge_client")
_UNWELCOME: Final = frozenset({ServiceReason.UNAUTHENTICATED, ServiceReason.FORBIDDEN})


class Access:
    """One client's way to one service.

    That the service does not let a client in, or not do this, is for good where what it shows is fixed. What lies in
    files may be renewed at any moment: then it is a loss like any other, after which they are read again.

    Args:
        target: ``host:port``, or another name that gRPC resolves.
        client_id: Declared with each call.
        config: ``own_connection``, ``insecure`` and keepalive.
        credentials: What is shown, and who is believed.

    Raises:
        CredentialsError: ``insecure`` would send a token in plaintext to another machine.
    """

    def __init__(self, target: str, client_id: str, config: Config, credentials: Credentials) -> None:
        self._target = target
        self._declared: Metadata = ((CLIENT_ID, client_id_to_metadata(client_id)),)
        self._credentials = credentials.in_plaintext(target) if config.insecure else credentials
        keepalive_ms = int(config.keepalive_s * 1000)
        self._options = (
            ("grpc.use_local_subchannel_pool", int(config.own_connection)),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", min(keepalive_ms, 20_000)),
            ("grpc.http2.max_pings_without_data", 0),  # the stream may be silent for long
            ("grpc.enable_retries", 0),  # the session decides what is sent again, and when
            # A channel that is shared must not wait longer than the session does before it connects anew.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        )

    def open(self, receive_max: int) -> tuple[grpc.aio.Channel, Metadata]:
        """A new channel, which connects at its first call, and what goes with each call.

        Raises:
            ConnectionLostError: A file of the credentials cannot be used now.
        """
        options = (*self._options, ("grpc.max_receive_message_length", receive_max))
        try:
            shown = (*self._declared, *self._credentials.metadata())
            return self._credentials.channel(self._target, options), shown
        except CredentialsError as error:
            _LOG.warning("no connection to %s can be made: %s", self._target, error)
            raise ConnectionLostError(Loss(str(error))) from error

    def loss_of(self, error: Exception, *, stream: bool = False) -> Loss:
        """What is known of an error that a call ended with."""
        loss = loss_of(error, stream=stream)
        if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE:
            said = error.details() or ""
            explained = self._credentials.explained(self._target, said)
            return loss if explained == said else replace(loss, detail=explained)
        if loss.refusal is not None and loss.refusal.reason in _UNWELCOME and self._credentials.renewable:
            return self._unwelcome(loss.detail)
        return loss

    def heard(self, answer: Answer) -> Answer:
        """An answer as it came.

        Raises:
            ConnectionLostError: It says that this client is not let in, which its files may change.
        """
        refusal = answer.refusal
        if refusal is not None and refusal.reason in _UNWELCOME and self._credentials.renewable:
            raise ConnectionLostError(self._unwelcome(refusal.detail))
        return answer

    def _unwelcome(self, detail: str) -> Loss:
        _LOG.warning("%s does not accept what this client shows, which is read again: %s", self._target, detail)
        return Loss(f"the service does not accept what this client shows: {detail}")
