"""What the session machine is told (events), and what it asks for in return (effects)."""

from dataclasses import dataclass
from typing import Final

from edge_client.errors import SessionRefusedError
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, Refusal, ServiceReason
from hushsum_proto.messages import Welcome

#: These say that no delta of this client is welcome: none of them is given up for it.
ENDS_SESSION: Final = frozenset(
    {Reason.WRONG_PLAN, ServiceReason.UNAUTHENTICATED, ServiceReason.FORBIDDEN, ServiceReason.PROTOCOL_VERSION}
)


@dataclass(frozen=True)
class Loss:
    """Why a connection ended.

    Attributes:
        detail: One sentence for people.
        refusal: What the service said, where it was the service that ended it.
        no_stream: The service, or something on the way, does not offer the stream at all.
    """

    detail: str
    refusal: Refusal | None = None
    no_stream: bool = False


# ------------------------------------------------------------------------------- events; ``now`` in monotonic seconds


@dataclass(frozen=True)
class Begun:
    """The client is running."""

    now: float


@dataclass(frozen=True)
class Spooled:
    """New deltas are durable under these numbers (``lanes``), ascending and above all earlier ones.

    Attributes:
        sequences: Their numbers.
        streams: (number, stream) of those that have a stream of their own.
    """

    now: float
    sequences: tuple[int, ...]
    streams: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Greeted:
    """The service replied to Hello on this connection, when this device's clock said ``device_ms``."""

    now: float
    connection: int
    welcome: Welcome
    device_ms: int


@dataclass(frozen=True)
class Answered:
    """An answer came on this connection."""

    now: float
    connection: int
    answer: Answer


@dataclass(frozen=True)
class Lost:
    """This connection is over, or never came about."""

    now: float
    connection: int
    loss: Loss


@dataclass(frozen=True)
class Settled:
    """That this delta has its answer is durable in the spool, and the delta is gone from it.

    Attributes:
        sequence: Its number.
    """

    now: float
    sequence: int


@dataclass(frozen=True)
class Woke:
    """The time of a Wake has come."""

    now: float


Event = Begun | Spooled | Greeted | Answered | Lost | Settled | Woke


# ----------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class Greet:
    """Make the connection of this number and say Hello on it; then tell Greeted or Lost."""

    connection: int


@dataclass(frozen=True)
class Open:
    """Make the connection ready to send, as one stream or as a call for each delta; tell Answered and at last Lost."""

    connection: int
    unary: bool


@dataclass(frozen=True)
class Send:
    """Write these deltas to the connection, in this order."""

    connection: int
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Settle:
    """Make a definitive answer durable and remove its delta from the spool; then tell Settled."""

    answer: Answer
    sequence: int


@dataclass(frozen=True)
class Close:
    """End this connection; a Lost for it is not needed any more."""

    connection: int


@dataclass(frozen=True)
class Wake:
    """Tell Woke at this time; an earlier Wake is void."""

    at: float


@dataclass(frozen=True)
class WarnOfClock:
    """Tell the application that the clocks are this many milliseconds apart (the device's less the service's)."""

    ahead_ms: int


@dataclass(frozen=True)
class Stop:
    """The session is over for good; what is unanswered stays in the spool."""

    error: SessionRefusedError


Effect = Greet | Open | Send | Settle | Close | Wake | WarnOfClock | Stop
