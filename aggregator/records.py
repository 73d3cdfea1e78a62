"""What passes through the ports of log and store."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Appended:
    """An entry on its way into the log: its partition, its window (for forgetting), its encoded bytes."""

    partition: int
    window: int
    data: bytes


@dataclass(frozen=True)
class StoredRelease:
    """A release as the store keeps it; ``data`` are the bytes of its .hush file."""

    plan_id: bytes
    kind: str
    window: int
    data: bytes
    sha256: bytes


@dataclass(frozen=True)
class Outcome:
    """What is known of a stored release without reading it.

    Attributes:
        size_bytes: Of its .hush file.
        sha256: Of its .hush file.
        published: Whether anybody may see it yet.
    """

    plan_id: bytes
    kind: str
    window: int
    size_bytes: int
    sha256: bytes
    published: bool
