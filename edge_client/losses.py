"""Why a call has ended, read from what gRPC says of it."""

import re
from collections.abc import Iterable
from typing import Final

import grpc

from edge_client.session_events import Loss
from hushsum.errors import Reason
from hushsum_proto.answers import AnyReason, Refusal, ServiceReason
from hushsum_proto.metadata import REASON, RETRY_AFTER_MS

_MILLISECONDS: Final = re.compile(r"[0-9]{1,10}")  # what is longer is no wait in uint32
_REASONS: Final[dict[str, AnyReason]] = {
    **{reason.value: reason for reason in Reason},
    **{reason.value: reason for reason in ServiceReason},
}
# What says no reason: something on the way, perhaps.
_BY_CODE: Final[dict[grpc.StatusCode, AnyReason]] = {
    grpc.StatusCode.UNAUTHENTICATED: ServiceReason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: ServiceReason.FORBIDDEN,
}


def loss_of(error: Exception, *, stream: bool = False) -> Loss:
    """What is known of an error that a call ended with."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return Loss(f"{type(error).__name__}: {error}")
    code = error.code()
    detail = f"{code.name}: {error.details()}"
    reason, retry_after_ms = pushed_back(error.trailing_metadata() or ())
    if reason is None:
        reason = _BY_CODE.get(code)
    refusal = None if reason is None else Refusal.of(reason, error.details() or "", retry_after_ms)
    return Loss(detail, refusal, no_stream=stream and code is grpc.StatusCode.UNIMPLEMENTED)


def pushed_back(metadata: Iterable[tuple[str, str | bytes]]) -> tuple[AnyReason | None, int]:
    """The reason that a service gives with a status, and how long to wait."""
    values = {key: value for key, value in metadata if isinstance(value, str)}
    after = values.get(RETRY_AFTER_MS, "")
    return _REASONS.get(values.get(REASON, "")), int(after) if _MILLISECONDS.fullmatch(after) else 0
