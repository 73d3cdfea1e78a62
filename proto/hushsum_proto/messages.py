"""The messages of a session, of the catalogue and of the administration, as plain values (wire.proto says more)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hushsum.privacy.events import Spend
from hushsum.signing import ED25519

PROTOCOL_VERSIONS: Final = (1,)
PAGE: Final = 100  # windows or spends, where nobody says how many
PAGE_MAX: Final = 1000
CHUNK_BYTES: Final = 262_144  # of a delta that comes in parts: far below every default limit of a server


@dataclass(frozen=True, slots=True)
class Authenticity:
    """What somebody has signed, as a message claims: nobody has checked it.

    Attributes:
        key_id: Of whose key in a directory.
        tag: The signature.
        suite: 1: Ed25519.
    """

    key_id: str
    tag: bytes
    suite: int = ED25519


@dataclass(frozen=True, slots=True)
class DeltaChunk:
    """A part of a delta that is too large for one message.

    Attributes:
        offset: Of its first byte in the delta; chunks come in order, without gaps.
        data: 1 to :data:`CHUNK_BYTES` bytes.
        plan_id: Of the first chunk: 32 bytes; empty of the others.
        size: Of the first chunk: of the whole delta, bytes; 0 of the others.
    """

    offset: int
    data: bytes = field(repr=False)
    plan_id: bytes = b""
    size: int = 0


def chunks_of(plan_id: bytes, delta: bytes) -> Iterator[DeltaChunk]:
    """The parts of a packed delta of 1 byte or more, in order."""
    for offset in range(0, len(delta), CHUNK_BYTES):
        data = delta[offset : offset + CHUNK_BYTES]
        yield DeltaChunk(offset, data) if offset else DeltaChunk(offset, data, plan_id, len(delta))


@dataclass(frozen=True)
class Hello:
    """What a client opens with."""

    protocol_versions: tuple[int, ...]
    plan_id: bytes = b""
    software: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Welcome:
    """What the service replies.

    Attributes:
        protocol_version: The one to speak.
        plan_id: Of the plan that is collected here.
        window: The one that is open by the service's clock.
        now_ms: The service's clock, ms since 1970 UTC.
        oldest_window: The oldest that still accepts deltas.
        newest_window: The newest that does: now plus the stated skew.
        in_flight_max: Unanswered deltas that a session may have.
        delta_bytes_max: Of one packed delta.
        features: What else the service knows.
        client_id: Who the caller is, to the service; empty of an older one.
    """

    protocol_version: int
    plan_id: bytes
    window: int
    now_ms: int
    oldest_window: int
    newest_window: int
    in_flight_max: int
    delta_bytes_max: int
    features: tuple[str, ...] = ()
    client_id: str = ""


class NextOutcome(NamedTuple):
    """The outcome that is published next.

    Attributes:
        window: Its window.
        due_ms: When the window's seal is due by its plan, in ms since 1970 UTC.
        is_sealed: Whether its seal has begun, perhaps early.
    """

    window: int
    due_ms: int
    is_sealed: bool


@dataclass(frozen=True)
class ReleaseInfo:
    """A published outcome: its key; the size of a release's bytes and their SHA-256.

    Attributes:
        withheld: Whether nothing is released of the window: no bytes then, and no sum.
    """

    plan_id: bytes
    kind: str
    window: int
    size_bytes: int
    sha256: bytes
    withheld: bool = False

    @property
    def removed(self) -> bool:
        """Whether the service keeps the bytes no longer."""
        return not self.withheld and self.size_bytes == 0


@dataclass(frozen=True)
class FoldStatus:
    """Where a partition's fold stands.

    Attributes:
        position: Of its latest checkpoint.
        lag: Entries (Kafka: messages) beyond it; None where it is not known.
        stopped: Why it cannot go on, where it is folded by the process that was asked; empty where it goes on.
    """

    partition: int
    position: int
    lag: int | None = None
    stopped: str = ""


@dataclass(frozen=True)
class ServiceStatus:
    """What the administration shows of a service.

    Attributes:
        windows: (window, state) of the newest ones, in order.
        epsilon_total: Of the population's ledger, as are the two that follow and those of δ: exact text where that is
            short, else rounded, what is spent up and what is left down.
        releasing_stopped: Why the releaser is stopped; empty when it is not.
        delta_total: Where zCDP is converted.
        statement: What was released tells about one unit and what is left, in plain words.
        role: Of the process that was asked.
        releaser: The process that releases; empty where none does now.
        releaser_address: Where its administration listens, ``host:port``.
        folds: By partition.
    """

    plan_id: bytes
    plan_name: str
    partitions: int
    windows: tuple[tuple[int, str], ...]
    epsilon_total: str
    epsilon_spent: str
    epsilon_left: str
    releasing_stopped: str = ""
    delta_total: str = "0"
    delta_spent: str = "0"
    delta_left: str = "0"
    statement: str = ""
    role: str = "all"
    releaser: str = ""
    releaser_address: str = ""
    folds: tuple[FoldStatus, ...] = ()


@dataclass(frozen=True)
class Released:
    """An outcome that was just drawn, with what the population's ledger says after it."""

    release: ReleaseInfo
    epsilon_spent: str
    epsilon_left: str


@dataclass(frozen=True)
class PlanInfo:
    """A plan of a store.

    Attributes:
        mode: ``central``, ``local`` or ``secure``.
        population: Empty: the service's single one.
        first_window: Its first in this store.
        signed_by: The key's id where a signature is kept; empty otherwise.
        collected_here: Whether it is the plan of the process that was asked.
    """

    plan_id: bytes
    name: str
    mode: str
    population: str
    partitions: int
    first_window: int
    signed_by: str = ""
    collected_here: bool = False


@dataclass(frozen=True)
class WindowsPage:
    """Windows of a plan.

    Attributes:
        windows: (window, state), newest first.
        more: Whether there are older ones.
    """

    windows: tuple[tuple[int, str], ...]
    more: bool = False


@dataclass(frozen=True)
class LedgerPage:
    """A population's ledger: limits, totals, and some of its spends.

    Attributes:
        population: Whose data it is; empty: the service's single one.
        epsilon_total: Rounded as in :class:`ServiceStatus`, as are the others.
        statement: What was released tells about one unit and what is left, in plain words.
        spends: Some of them, newest first.
        spends_total: How many there are.
    """

    population: str
    unit: str
    relation: str
    epsilon_total: str
    epsilon_spent: str
    epsilon_left: str
    delta_total: str
    delta_spent: str
    delta_left: str
    statement: str
    spends: tuple[Spend, ...] = ()
    spends_total: int = 0
