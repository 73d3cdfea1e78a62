"""Which gRPC status each reason and each error becomes."""

from typing import Final

import grpc

from aggregator.catalogue import NotFoundError
from aggregator.errors import ForbiddenError, ReleasingStoppedError, UnauthenticatedError, WindowOrderError
from aggregator.refusals import RefusedError
from hushsum.errors import BudgetError, Reason
from hushsum_proto.answers import AnyReason, Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError

CODES: Final[dict[AnyReason | None, grpc.StatusCode]] = {
    ServiceReason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ServiceReason.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ServiceReason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServiceReason.RATE_LIMITED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ServiceReason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ServiceReason.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ServiceReason.PROTOCOL_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    ServiceReason.WINDOW_NOT_OPEN: grpc.StatusCode.FAILED_PRECONDITION,
    ServiceReason.BUDGET: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WRONG_PLAN: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WRONG_MODE: grpc.StatusCode.FAILED_PRECONDITION,
}
# What has no number on the wire: only the operator's calls and the catalogue's come to it.
OTHERS: Final[tuple[tuple[type[Exception], grpc.StatusCode, str], ...]] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND, "not_found"),
    (WindowOrderError, grpc.StatusCode.FAILED_PRECONDITION, "window_order"),
    (ReleasingStoppedError, grpc.StatusCode.FAILED_PRECONDITION, "releasing_stopped"),
    (BudgetError, grpc.StatusCode.FAILED_PRECONDITION, "budget"),
)


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal that an error says; None for one that says none."""
    if isinstance(error, RefusedError):
        return error.refusal
    if isinstance(error, UnauthenticatedError):
        return Refusal.of(ServiceReason.UNAUTHENTICATED, str(error))
    if isinstance(error, ForbiddenError):
        return Refusal.of(ServiceReason.FORBIDDEN, str(error))
    if isinstance(error, MalformedMessageError):
        return Refusal.of(Reason.MALFORMED, str(error))
    return None
