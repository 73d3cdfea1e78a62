"""What a service answers to a delta, as plain values: a status, and for a refusal its reason."""

import enum
from dataclasses import dataclass
from typing import Final, Self

from hushsum.delta import DeltaId
from hushsum.errors import Reason


class Status(enum.StrEnum):
    """What became of a delta."""

    ACKNOWLEDGED = "acknowledged"
    COUNTED = "counted"
    LATE = "late"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class ServiceReason(enum.StrEnum):
    """Why a delta or a session is refused where its bytes alone cannot tell: the sender, the moment, the service."""

    UNAUTHENTICATED = "unauthenticated"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    PROTOCOL_VERSION = "protocol_version"
    WINDOW_NOT_OPEN = "window_not_open"
    UNAVAILABLE = "unavailable"
    BUDGET = "budget"
    RATE_LIMITED = "rate_limited"
    FORBIDDEN = "forbidden"
    TOO_MANY_STREAMS = "too_many_streams"


AnyReason = Reason | ServiceReason
#: The service does not accept who its caller is, or what proves it.
IDENTITY_REASONS: Final = frozenset({ServiceReason.UNAUTHENTICATED, ServiceReason.FORBIDDEN})


class Fault(enum.StrEnum):
    """Whose fault a refusal is."""

    SENDER = "sender"
    SERVICE = "service"


# Nothing is wrong with what was sent. Of these, a window that was never open stays closed, and a budget stays spent.
_OF_SERVICE: Final = frozenset(
    {
        ServiceReason.OVERLOADED,
        ServiceReason.SHUTTING_DOWN,
        ServiceReason.WINDOW_NOT_OPEN,
        ServiceReason.UNAVAILABLE,
        ServiceReason.BUDGET,
        ServiceReason.RATE_LIMITED,
    }
)
_RETRIED: Final = _OF_SERVICE - {ServiceReason.WINDOW_NOT_OPEN, ServiceReason.BUDGET}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was refused, and what its sender can do.

    Attributes:
        reason: The stable code; None where a newer service sent one that this version does not know.
        detail: One sentence: what came, what was expected.
        fault: The sender's (the same bytes will be refused again) or the service's.
        retry: Whether sending the same again can succeed.
        retry_after_ms: How long to wait before that, at least; 0 where nothing is known.
    """

    reason: AnyReason | None
    detail: str
    fault: Fault
    retry: bool
    retry_after_ms: int = 0

    @classmethod
    def of(cls, reason: AnyReason, detail: str, retry_after_ms: int = 0) -> Self:
        """A refusal whose fault and retry follow from its reason."""
        fault = Fault.SERVICE if reason in _OF_SERVICE else Fault.SENDER
        return cls(reason, detail, fault, reason in _RETRIED, retry_after_ms)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one delta.

    Attributes:
        id: The delta's; None where its bytes were so malformed that no id could be read.
        status: What became of it.
        refusal: Set exactly where the status is REFUSED.
    """

    id: DeltaId | None
    status: Status
    refusal: Refusal | None = None
