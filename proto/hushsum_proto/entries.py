"""What the log holds, as plain values: a delta stamped by a gateway, a seal, or what is neither."""

import hashlib
from dataclasses import dataclass
from typing import Final, NamedTuple

from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.labels import COHORT_SUM

ENTRY_FORMAT: Final = 1


class DeltaEntry(NamedTuple):
    """A delta as a gateway stamped it.

    Attributes:
        client_id: From the authenticator, never from the delta.
        delta: Packed bytes, as they came.
        arrived_ms: The gateway's clock, ms since 1970 UTC.
    """

    client_id: str
    delta: bytes
    arrived_ms: int


class SealEntry(NamedTuple):
    """Closes a window in the partition that holds it: what stands before is in, what stands after is late."""

    plan_id: bytes
    window: int
    arrived_ms: int


class CohortSumEntry(NamedTuple):
    """The sum of a cohort's vectors, noised by its clients: it enters the log once, however often it is appended.

    Attributes:
        plan_id: 32 bytes.
        window: Of the round.
        round: Its id, 32 bytes.
        submissions: How many clients' vectors, and so shares of noise, are in it.
        sum: Packed as a masked vector is (``hushsum.privacy.modular_words``).
        arrived_ms: The gateway's clock, ms since 1970 UTC.
    """

    plan_id: bytes
    window: int
    round: bytes
    submissions: int
    sum: bytes
    arrived_ms: int

    @property
    def id(self) -> DeltaId:
        """What makes it unique: a labelled hash of plan, window and round."""
        named = COHORT_SUM + self.plan_id + self.window.to_bytes(8, "big", signed=True) + self.round
        return DeltaId(int.from_bytes(hashlib.sha256(named).digest()[:8], "big"), 0)


class ReportsEntry(NamedTuple):
    """A batch of anonymous reports: nothing in it tells whose it is, whence it came or when.

    Attributes:
        batch: Packed bytes (``hushsum.local.report_batch``).
        shuffled: It came through the plan's shuffler, whose signature a gateway has checked.
        arrived_ms: The start of its window, ms since 1970 UTC.
    """

    batch: bytes
    shuffled: bool
    arrived_ms: int


LogEntry = DeltaEntry | SealEntry | CohortSumEntry | ReportsEntry


@dataclass(frozen=True)
class RefusedEntry:
    """What stands in the log and is refused before any of it counts: the fold gives its verdict, and passes on.

    Attributes:
        reason: The stable code.
        detail: One sentence: what came, what was expected.
    """

    reason: Reason
    detail: str


def partition_of_sum(id: DeltaId, partitions: int) -> int:
    """The partition of what has no client id, a cohort sum or a batch of reports: its stream's, mod P."""
    return id.stream % partitions


def partition_of(client_id: str, partitions: int) -> int:
    """The partition of a client: the big-endian first 8 bytes of plain SHA-256 of its UTF-8 id, mod P."""
    return int.from_bytes(hashlib.sha256(client_id.encode("utf-8")).digest()[:8], "big") % partitions
