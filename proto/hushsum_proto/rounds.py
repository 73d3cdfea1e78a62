"""What a client and the service say to each other in a round of a secure sum, as plain values (wire.proto says more).

What the protocol itself says is in a :class:`Message`, and opaque here.
"""

import enum
from dataclasses import dataclass, field


class RoundResult(enum.StrEnum):
    """What became of a client's vector."""

    COUNTED = "counted"  # it is in a sum that is durable, and stands before its window's seal
    LEFT_OUT = "left_out"  # the round went on without it: if it was sent, it is spent
    ABORTED = "aborted"  # the round ended without a sum: if the vector was sent, it is spent
    LATE = "late"  # the window was sealed before the sum was in the log
    UNKNOWN = "unknown"  # nothing is remembered of the round


@dataclass(frozen=True)
class Enter:
    """What a client opens with.

    Attributes:
        plan_id: 32 bytes.
        window: To take part in.
        spent_round: 32 bytes: no part is taken, only what became of that round is asked; empty otherwise.
        signature: Where the plan names a directory, of :func:`entry_parts` by the client's key: 64 bytes.
    """

    plan_id: bytes
    window: int
    spent_round: bytes = b""
    signature: bytes = field(default=b"", repr=False)


def entry_parts(enter: Enter, client_id: str) -> tuple[bytes, ...]:
    """What a client signs that enters, under the label ``ENTRY``: nobody else takes its place."""
    return enter.plan_id, enter.window.to_bytes(8, "big", signed=True), client_id.encode(), enter.spent_round


@dataclass(frozen=True)
class Message:
    """A message of the protocol, to or from a client."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class VectorChunk:
    """A part of a client's masked vector.

    Attributes:
        offset: Of its first byte in the vector; chunks come in order, without gaps.
        data: 1 byte or more.
    """

    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Waiting:
    """The cohort fills.

    Attributes:
        cohort: How many it takes.
    """

    cohort: int


@dataclass(frozen=True)
class RoundOutcome:
    """The last that a client is told.

    Attributes:
        round: 32 bytes; empty where none had begun.
        result: Of its vector.
        detail: One sentence.
        again: Whether it may enter again, if its vector was not sent.
        retry_after_ms: Not before.
    """

    round: bytes
    result: RoundResult
    detail: str = ""
    again: bool = False
    retry_after_ms: int = 0


@dataclass(frozen=True)
class DirectoryChunk:
    """A part of the canonical bytes of the directory of clients, as :class:`VectorChunk` is one of a vector."""

    offset: int
    data: bytes


RoundRequest = Enter | Message | VectorChunk
RoundReply = Waiting | Message | RoundOutcome
