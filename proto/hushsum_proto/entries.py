"""What the log holds, as plain values: a delta stamped by a gateway, or a seal (WIRE: entries)."""

import hashlib
from dataclasses import dataclass
from typing import Final

ENTRY_FORMAT: Final = 1


@dataclass(frozen=True)
class DeltaEntry:
    """A delta as a gateway stamped it.

    Attributes:
        client_id: From the authenticator, never from the delta.
        delta: Packed bytes, as they came.
        arrived_ms: The gateway's clock, ms since 1970 UTC.
    """

    client_id: str
    delta: bytes
    arrived_ms: int


@dataclass(frozen=True)
class SealEntry:
    """Closes a window in the partition that holds it: what stands before is in, what stands after is late."""

    plan_id: bytes
    window: int
    arrived_ms: int


LogEntry = DeltaEntry | SealEntry


def partition_of(client_id: str, partitions: int) -> int:
    """The partition of a client: the big-endian first 8 bytes of plain SHA-256 of its UTF-8 id, mod P (WIRE)."""
    return int.from_bytes(hashlib.sha256(client_id.encode("utf-8")).digest()[:8], "big") % partitions
