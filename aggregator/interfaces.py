"""Protocols with two or more implementations, in the service or in the simulation of it.

Log, store, membership, receipts, folds, observers, tracers, authenticators: structural, so that the real thing and a
double are exchanged freely.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from aggregator.fold.state import RememberedKind, StreamUse, Verdict
from aggregator.model import (
    EntryBatch,
    NewEntry,
    Peer,
    ReceiptsMark,
    Scope,
    StoredOutcome,
)
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.privacy.event import Spend

SETTLE_S: Final = 20.0  #: how long a sender, or a cohort sum, waits for the fold's word


class FoldPeek(NamedTuple):
    """What a fold of this process knows of a delta that has just come, before it is appended.

    Attributes:
        kind: As :meth:`FoldReader.recall` says it.
        reason: Why the id is refused; None where it is not.
        contributed: Records of the client that are counted in the delta's window.
    """

    kind: RememberedKind
    reason: Reason | None
    contributed: int


class FoldReader(Protocol):
    """What a gateway asks of the folds. A cohort sum has no client id: its is the empty one."""

    def peek(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> FoldPeek | None:
        """What is known here and now; None where the partition is folded elsewhere.

        It only lets a gateway say sooner what the fold would say: every check is the fold's in the end.
        """

    def stream_uses(self) -> Iterator[StreamUse]:
        """Every stream that the folds here remember, with the latest window that it has a delta in."""

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``, so that :meth:`recall` knows of it.

        A fold of this process need not be checkpointed: the entries up to ``position`` are durable in the log, and the
        fold is deterministic, so after a crash it comes to the same verdict again. Of a fold elsewhere its checkpoint
        tells.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
            StoreUnavailableError: It cannot be known now.
        """

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

        One look: asking for the id first and the window's state after it could call a forgotten delta *late*.
        """


class Folds(FoldReader, Protocol):
    """What the releaser asks of the folds."""

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window's counters as sealed; durable.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    async def forget(self, window: int, *, fence: int) -> None:
        """Makes every fold forget windows up to this one; durable when it returns.

        Raises:
            PartitionStoppedError: A partition's fold has stopped.
            FoldsBehindError: A fold elsewhere has not done so yet; it goes on, and asking again helps.
        """


class Log(Protocol):
    """The durable, ordered entries of one plan, in P partitions.

    A position only grows along a partition; positions need not be consecutive (an entry of a Kafka message that holds
    many has the message's offset and its number in it). Which position follows, :class:`EntryBatch` says.
    """

    @property
    def partitions(self) -> int: ...

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        """Appends entries, in their order within each partition; durable against power loss when it returns.

        Returns:
            The position of each.

        Raises:
            LogError: Which of them are durable is not known. Appending them again is always safe: an id counts once,
                and only the first seal of a window counts.
        """

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        """About ``limit`` entries at most from ``position`` on; waits up to ``wait_s`` seconds for the first.

        Only what is durable is ever read: a fold that has passed an entry passes it again after any crash.

        Raises:
            LogGapError: The log no longer holds ``position`` and holds later ones, or it ends before ``position``.
            LogUnavailableError: It cannot be reached now.
        """

    async def end(self, partition: int) -> int:
        """The position that the next appended entry will get, or one below it that no entry has."""

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases the entries of windows up to ``window`` that stand below each partition's position.

        Nothing of them is left in the log's files when it returns (in Kafka: they cannot be read, and their segments
        are deleted in the stated time). Positions are never given twice.
        """

    async def close(self) -> None: ...


class PartitionOwner(Protocol):
    """Who folds partitions, and is told which."""

    async def assigned(self, partitions: Collection[int]) -> None:
        """These are to be folded here from now on. Returns at once; what they need is loaded in the background."""

    async def revoked(self, partitions: Collection[int]) -> None:
        """They go to somebody else: returns once each is stored where it has come to, and let go."""

    async def lost(self, partitions: Collection[int]) -> None:
        """Somebody else may fold them already: they are dropped, and nothing of them is stored."""


class Membership(Protocol):
    """Which partitions this process folds, among all that fold the plan."""

    async def start(self, owner: PartitionOwner) -> None:
        """Joins; from here on the owner is told."""

    async def ended(self) -> None:
        """Returns once it was stopped; raises what nobody foresaw: nothing is folded here any more."""

    async def stop(self) -> None:
        """Revokes what is held, and leaves, so that others take over at once."""


class Receipts(Protocol):
    """A record of every outcome, apart from the store, written before anybody sees it."""

    async def begin(self) -> ReceiptsMark:
        """Gives them a random id, unless they have one, and makes them where they are missing.

        Durable when it returns. Of several processes that begin at once, all get the same id.
        """

    async def check(self, bound: ReceiptsMark) -> None:
        """Compares them with what the store knows of them, and knew before this call; there may be more of them.

        Raises:
            ForeignReceiptsError: They are missing, or not this store's.
            ReceiptsError: They are fewer than the store knows, or others.
        """

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        """Durable when it returns; writing the same outcome again changes nothing.

        Returns:
            How far the receipts are known to reach now, this one among them.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest.
        """

    async def read(self) -> Sequence[tuple[bytes, str, int, bytes, Spend]]:
        """(plan id, kind, window, sha256 of its data, spend) of each outcome."""


class Observer(Protocol):
    """Who counts what the workers and the releaser do; called from the event loop, and must not block."""

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next one."""

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These are folded here now."""

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold cannot go on until an operator acts, and why; empty: it goes on again."""

    def leading(self, leads: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether this process is the plan's releaser now."""

    def retried(self, what: str, why: str) -> None:
        """Something of a broker, a database or another process failed in a way that passes; it is tried again."""

    def checkpointed(self, partition: int, position: int, seconds: float) -> None: ...

    def released(self, release: StoredOutcome) -> None: ...

    def withheld(self, outcome: StoredOutcome) -> None: ...

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken, and why; empty: it goes on again."""

    def forgetting_pending(self, why: str) -> None:
        """Something of a window that has its outcome is not erased yet, and why; empty: all of it is."""


class Span(Protocol):
    """Something of the service that takes time, while it goes on."""

    def note(self, **attributes: str | float) -> None:
        """What is known of it by now."""

    def event(self, name: str, **attributes: str | float) -> None:
        """Something has happened in it."""


class Tracer(Protocol):
    """Who is told how long the service's own steps take. Called from the event loop; it never blocks and never raises.

    No name, attribute or event ever holds a client, a delta or an address; of plans whose entries are anonymous nothing
    begins or ends because one of them came (:mod:`aggregator.observability.tracing` says of what else nothing is told).
    """

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:
        """Goes on as long as the block does, within the one that is open around it; an error ends it by its kind."""


class Authenticator(Protocol):
    """Who is at the other end of a call, and what it may do."""

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for.

        Returns:
            The client id of one that may submit; else a name to count its calls under, empty where it has none.

        Raises:
            UnauthenticatedError: Nobody that this service knows. What was wrong is not told: it is the same for all.
            ForbiddenError: It is known, and may do none of this.
        """


class _Silence:
    """Of nothing anything is told."""

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:  # noqa: ARG002  the form of any Tracer
        return _UNTOLD

    def note(self, **attributes: str | float) -> None:
        """Not told."""

    def event(self, name: str, **attributes: str | float) -> None:
        """Not told."""


_SILENCE: Final = _Silence()
_UNTOLD: Final = nullcontext[Span](_SILENCE)
#: The tracer where none is asked for.
NO_TRACES: Final[Tracer] = _SILENCE
