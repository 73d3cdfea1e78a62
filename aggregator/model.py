"""What passes through the ports of log and store."""

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from aggregator.fold.state import FoldMark, FoldState
from hushsum.directory import Role
from hushsum.errors import Reason
from hushsum.labels import SEALED_WINDOW
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum.sketch import Sketch

_ENTRY_SPARE_BYTES: Final = 1024  # around a delta, a sum or reports: client id or round, times, versions


def entry_bytes_max(plan: Plan) -> int:
    """Of one entry of this plan's log, encoded: what every limit on messages follows from."""
    body = plan.words.bytes if plan.privacy.mode == SECURE else plan.upload_bytes_max
    return body + _ENTRY_SPARE_BYTES


@dataclass(frozen=True)
class NewEntry:
    """An entry on its way into the log: its partition, its window (for forgetting), its encoded bytes."""

    partition: int
    window: int
    data: bytes


class PositionedEntry(NamedTuple):
    """An entry as it is read from the log.

    Attributes:
        position: In its partition.
        data: Its encoded bytes; empty where there is a ``problem``.
        signer: The role of the key that signed it; None where the log is not signed.
        appended_ms: By the clock of the log itself, where it has one of its own (Kafka's brokers).
        problem: Why it is refused before its bytes are looked at: ``unauthenticated``, or a message that is none.
    """

    position: int
    data: bytes
    signer: Role | None = None
    appended_ms: int | None = None
    problem: Reason | None = None


class EntryBatch(NamedTuple):
    """Consecutive entries of a partition, and the position to read on from: the asked one where there is none yet."""

    entries: tuple[PositionedEntry, ...]
    end: int


class RoundMembers(NamedTuple):
    """The clients of one round of a secure sum.

    Attributes:
        round_id: 32 bytes.
        clients: Their ids, each once.
        is_drawn: Whether they were drawn for it; else they are left of another round.
    """

    round_id: bytes
    clients: tuple[str, ...]
    is_drawn: bool = False


class ClaimedFold(NamedTuple):
    """A partition's fold as it is stored, and the fence of who has just claimed it."""

    fence: int
    state: FoldState


class RegisteredPlan(NamedTuple):
    """What a store knows of a plan, without its parameters.

    Attributes:
        partitions: P of its log.
        first_window: Its first in this store.
        signed_by: The id of the key of the signature that is kept; empty where none is.
    """

    plan_id: bytes
    name: str
    mode: str
    population: str
    partitions: int
    first_window: int
    signed_by: str


class StreamMemory(NamedTuple):
    """What is stored of one stream: its packed state (None: nothing), and how far its partition's fold had come."""

    data: bytes | None
    mark: FoldMark


@dataclass(frozen=True)
class Lease:
    """Who releases a plan.

    Attributes:
        owner: The process.
        address: Where its administration listens, ``host:port``.
        note: Why releasing has stopped; empty where it goes on.
        left_s: Seconds until another may take it; negative once one may.
    """

    owner: str
    address: str
    note: str
    left_s: float


@dataclass(frozen=True)
class SealedWindow:
    """What the folds have made of a sealed window, over all partitions: exact.

    Attributes:
        sketch: Its sum. Of a secure or local plan it is noised already, so that no counter need be what records can
            come to.
        clients: How many are in it; 0 where the plan gives nobody a reason to count them, and of reports, which are
            nobody's. Of a secure plan: how many clients' vectors, and so shares of noise; of form ``silo`` likewise.
        cohorts: How many sums of cohorts it is; 0 unless the plan is secure.
    """

    sketch: Sketch
    clients: int
    cohorts: int = 0

    def digest(self) -> bytes:
        """SHA-256 of all that its outcome is drawn from; as secret as the counters, for who guesses them can check."""
        hashed = hashlib.sha256(SEALED_WINDOW + self.clients.to_bytes(8, "big"))
        for values in (self.sketch.counters, self.sketch.counts):
            hashed.update(np.ascontiguousarray(values, "<i8").data)
        if self.cohorts:  # one of a central plan is what it was before there were any
            hashed.update(self.cohorts.to_bytes(8, "big"))
        return hashed.digest()


@dataclass(frozen=True)
class StoredOutcome:
    """An outcome as the store keeps it.

    Attributes:
        data: Of a release the bytes of its .hush file; of a withheld window those that say so.
        sha256: Of ``data``.
        withheld: Whether nothing is released of the window.
    """

    plan_id: bytes
    kind: str
    window: int
    data: bytes
    sha256: bytes
    withheld: bool = False

    @property
    def size_bytes(self) -> int:
        """Of ``data``."""
        return len(self.data)


@dataclass(frozen=True)
class ReceiptsMark:
    """Which receipts, and how far: what the store keeps of its receipts, and compares at every start.

    Attributes:
        id: 16 random bytes, of their header; empty where they have none yet.
        lines: How many lines (in Kafka: messages), the header among them.
        digest: Over these lines, in their order.
    """

    id: bytes
    lines: int
    digest: bytes


@dataclass(frozen=True)
class Outcome:
    """What is known of a stored outcome without reading it.

    Attributes:
        size_bytes: Of its data.
        sha256: Of its data.
        published: Whether anybody may see it yet.
        withheld: Whether nothing is released of the window.
    """

    plan_id: bytes
    kind: str
    window: int
    size_bytes: int
    sha256: bytes
    published: bool
    withheld: bool = False


class Scope(enum.StrEnum):
    """What a caller may do; none holds another."""

    SUBMIT = "submit"  # contribute, and ask what became of it
    READ = "read"  # published releases
    ADMIN = "admin"  # the administration: exact counts, seals, outcomes


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of the other end of a call before anything of it is believed.

    Attributes:
        address: gRPC's name of it, such as ``ipv4:127.0.0.1:50123``.
        metadata: The call's, keys in lower case.
        certificate: The client certificate that the transport has verified, PEM; empty where there is none.
    """

    address: str
    metadata: Mapping[str, str] = field(repr=False)
    certificate: bytes = field(default=b"", repr=False)
