"""What happens to a client of a round, and what its machine wants done about it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ServerMessage:
    """The server's next message."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Opened:
    """The attempt that was asked for is durably counted."""


@dataclass(frozen=True)
class Spent:
    """The window is durably charged, and its records will never be submitted again."""


@dataclass(frozen=True)
class Send:
    """A message for the server."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class CountAttempt:
    """One more attempt of this window is to be counted, durably; if it may be made, say :class:`Opened`."""


@dataclass(frozen=True)
class SpendWindow:
    """The window is to be charged, durably; then say :class:`Spent`. Nothing of the vector has left before."""


@dataclass(frozen=True)
class SendVector:
    """The packed masked vector, whole, for the server."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Revealed:
    """The client's part is done; what became of the sum is the service's to say."""


Event = ServerMessage | Opened | Spent
Effect = Send | CountAttempt | SpendWindow | SendVector | Revealed
