"""Values that modules exchange: log entries, windows and outcomes, leases, receipts, callers."""

import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, overload

import numpy as np

from aggregator.fold.state import FoldMark, FoldState, Int64
from hushsum.errors import Reason
from hushsum.labels import SEALED_WINDOW
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum.signing import Role
from hushsum.sketch import Sketch

_ENTRY_SPARE_BYTES: Final = 1024  # around a delta, a sum or reports: client id or round, times, versions


def entry_bytes_max(plan: Plan) -> int:
    """The largest encoded size of an entry of this plan's log; every limit on messages follows from it."""
    body = plan.words.bytes if plan.privacy.mode == SECURE else plan.upload_bytes_max
    return body + _ENTRY_SPARE_BYTES


@dataclass(frozen=True)
class NewEntry:
    """An entry to append: its partition, its window (for erasing), its encoded bytes."""

    partition: int
    window: int
    data: bytes


class PositionedEntry(NamedTuple):
    """An entry as it is read from the log.

    Attributes:
        data: The encoded bytes; empty if there is a ``problem``.
        signer: The role of the key that signed it; None if the log is not signed.
        appended_ms: By the clock of the log, if it has its own (Kafka's brokers).
        problem: Why it is refused before its bytes are decoded: unsigned, or not a message of this log.
    """

    position: int
    data: bytes
    signer: Role | None = None
    appended_ms: int | None = None
    problem: Reason | None = None


class EntryColumns(Sequence[PositionedEntry]):
    """Unsigned entries without a problem, as they lie in the bytes of the log; each becomes a value when it is read.

    Args:
        positions: (n,).
        data: What the entries lie in, among other bytes.
        spans: (n, 2) where each begins and ends.
        appended_ms: (n,), negative where the log has no clock of its own.
    """

    def __init__(self, positions: Int64, data: bytes, spans: Int64, appended_ms: Int64) -> None:
        self.positions, self.data, self.spans, self._appended_ms = positions, data, spans, appended_ms

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> PositionedEntry: ...
    @overload
    def __getitem__(self, index: slice) -> "EntryColumns": ...
    def __getitem__(self, index: int | slice) -> "PositionedEntry | EntryColumns":
        positions, spans, appended_ms = self.positions[index], self.spans[index], self._appended_ms[index]
        if isinstance(index, slice):
            return EntryColumns(positions, self.data, spans, appended_ms)
        first, last = spans.tolist()
        time_ms = None if appended_ms < 0 else int(appended_ms)
        return PositionedEntry(int(positions), self.data[first:last], None, time_ms)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list


def sizes_of(entries: Sequence[PositionedEntry]) -> list[int]:
    """The bytes of each."""
    if not isinstance(entries, EntryColumns):
        return [len(positioned.data) for positioned in entries]
    sizes: list[int] = (entries.spans[:, 1] - entries.spans[:, 0]).tolist()
    return sizes


class EntryBatch(NamedTuple):
    """Consecutive entries of a partition, and the position to read from next."""

    entries: Sequence[PositionedEntry]
    end: int


class RoundMembers(NamedTuple):
    """The clients of one round of a secure sum.

    Attributes:
        clients: Their ids, each once.
        is_drawn: Whether they were drawn for this round; else they are the rest of another round.
    """

    round_id: bytes
    clients: tuple[str, ...]
    is_drawn: bool = False


class ClaimedFold(NamedTuple):
    """A partition's stored fold, and the fence of its new claim."""

    fence: int
    state: FoldState


class RegisteredPlan(NamedTuple):
    """A plan in the store, without its parameters.

    Attributes:
        signed_by: The key id of the stored signature; empty if there is none.
    """

    plan_id: bytes
    name: str
    mode: str
    population: str
    partitions: int
    first_window: int
    signed_by: str


class StreamMemory(NamedTuple):
    """The stored state of one stream (packed; None: nothing), and the mark of its partition's fold."""

    data: bytes | None
    mark: FoldMark


@dataclass(frozen=True)
class Lease:
    """The lease of the process that releases a plan.

    Attributes:
        address: Where its administration listens, ``host:port``.
        note: Why releasing has stopped; empty while it has not.
        left_s: Seconds until another process may take the lease; negative afterwards.
    """

    owner: str
    address: str
    note: str
    left_s: float


@dataclass(frozen=True)
class SealedWindow:
    """The exact sum of a sealed window over all partitions.

    Attributes:
        sketch: The sum. In secure and local mode it is noised already: counters may have values that no records have.
        clients: The number of clients in it. Of a secure plan and of form ``silo`` it is the number of vectors, and so
            of shares of noise. 0 if the plan does not need it, and for reports, which have no client.
        cohorts: The number of cohort sums; 0 unless the plan is secure.
    """

    sketch: Sketch
    clients: int
    cohorts: int = 0

    def digest(self) -> bytes:
        """SHA-256 of all that the outcome is drawn from; as secret as the counters, because it verifies a guess."""
        hashed = hashlib.sha256(SEALED_WINDOW + self.clients.to_bytes(8, "big"))
        for values in (self.sketch.counters, self.sketch.counts):
            hashed.update(np.ascontiguousarray(values, "<i8").data)
        if self.cohorts:  # so that digests of central plans are those of versions without cohorts
            hashed.update(self.cohorts.to_bytes(8, "big"))
        return hashed.digest()


class ReservedStep(NamedTuple):
    """A step of a plan's cumulative sequence that may be drawn.

    Attributes:
        step: Its number, from 1 on.
        key: Of a :class:`hushsum.entropy.KeyedEntropy`. It reveals the noise.
        sealed: The digest of the window's counters under that key: what the state after it has chained.
        digest: Of the counters of all windows so far, chained: what is reserved, and what the state after it has.
        state: After the step before; None before the first.
    """

    step: int
    key: bytes
    sealed: bytes
    digest: bytes
    state: bytes | None


class HeldState(NamedTuple):
    """The state of a sequence that a releaser has stored itself, and keeps in memory for the next step.

    Attributes:
        digest: As of :class:`ReservedStep`. It fixes the state: its counters and its key are chained.
        state: The bytes that are stored.
    """

    digest: bytes
    state: bytes


@dataclass(frozen=True)
class StoredOutcome:
    """An outcome with its data: the bytes of a .hush file, or of a statement that the window is withheld."""

    plan_id: bytes
    kind: str
    window: int
    data: bytes
    sha256: bytes
    withheld: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class ReceiptsMark:
    """What the store knows of its receipts, and compares at every start."""

    id: bytes  # 16 random bytes of their header; empty before there is one
    lines: int  # (in Kafka: messages), with the header
    digest: bytes  # over these lines, in order
    copy: str = ""  # where a second sink has the same lines; empty: the store, or its caller, knows of none


@dataclass(frozen=True)
class Outcome:
    """A stored outcome without its data; it can be seen outside once it is published."""

    plan_id: bytes
    kind: str
    window: int
    size_bytes: int
    sha256: bytes
    published: bool
    withheld: bool = False


class Scope(enum.StrEnum):
    """What a caller may do; no scope includes another."""

    SUBMIT = "submit"  # contributions, and questions about one's own
    READ = "read"  # published releases
    ADMIN = "admin"  # the administration: exact counts, seals, outcomes


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a call, before it is authenticated.

    Attributes:
        address: gRPC's name of it, such as ``ipv4:127.0.0.1:50123``.
        metadata: Of the call, keys in lower case.
        certificate: The client certificate, verified by the transport (PEM); empty if there is none.
    """

    address: str
    metadata: Mapping[str, str] = field(repr=False)
    certificate: bytes = field(default=b"", repr=False)
