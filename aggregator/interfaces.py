"""Protocols with several implementations, in the service or in its simulation; and one that inverts a dependency.

`PartitionOwner` has one implementation, the pool of workers, which a membership calls from a lower layer.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from aggregator.fold.state import StreamUse
from aggregator.fold.verdicts import RememberedKind, Verdict
from aggregator.model import EntryBatch, NewEntry, Peer, ReceiptsMark, Scope, StoredOutcome
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.privacy.events import Spend

VERDICT_S: Final = 20.0  #: how long a sender, or a cohort sum, waits for the fold's verdict


class FoldPeek(NamedTuple):
    """What a fold of this process knows of a new delta, before it is appended.

    Attributes:
        kind: As :meth:`FoldReader.recall` returns it.
        reason: Why the id is refused; None if it is not.
        contributed: Records of the client that are counted in the delta's window.
        is_barred: Whether the client is counted in as many windows as the plan allows, and not in the delta's.
    """

    kind: RememberedKind
    reason: Reason | None
    contributed: int
    is_barred: bool = False


class FoldReader(Protocol):
    """The folds as a gateway reads them. A cohort sum has the empty client id."""

    def peek(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> FoldPeek | None:
        """What is known now; None if the partition is folded elsewhere.

        It only lets a gateway answer earlier: the fold repeats every check.
        """

    def stream_uses(self) -> Iterator[StreamUse]:
        """Every stream that the folds here remember, with the latest window of its deltas."""

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``, so that :meth:`recall` knows of it.

        A fold of this process need not be checkpointed: the entries up to ``position`` are durable in the log, and the
        fold is deterministic, so after a crash it reaches the same verdict again. For a fold elsewhere its checkpoint
        counts.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
            StoreUnavailableError: The checkpoint cannot be read now.
        """

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """The verdict on a delta that the fold has passed and whose window is no longer open.

        Id and window are read at once: one after the other, a forgotten delta could be reported as *late*.
        """


class Folds(FoldReader, Protocol):
    """The folds as the releaser uses them."""

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window's counters as sealed; durable.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    async def forget(self, window: int, *, fence: int) -> None:
        """Makes every fold forget windows up to this one; durable when it returns.

        Raises:
            PartitionStoppedError: A partition's fold has stopped.
            FoldsBehindError: A fold elsewhere has not done so yet; asking again helps.
        """


class Log(Protocol):
    """The durable, ordered entries of one plan, in P partitions.

    Positions grow along a partition and need not be consecutive (an entry of a Kafka message has the offset of the
    message and its number in it). :class:`EntryBatch` has the position to read from next.
    """

    @property
    def partitions(self) -> int: ...

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        """Appends entries, in their order within each partition; durable against power loss when it returns.

        Returns:
            The position of each.

        Raises:
            LogError: It is not known which of them are durable. Appending them again is safe: an id counts once, and
                only the first seal of a window counts.
        """

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        """About ``limit`` entries at most from ``position`` on; waits up to ``wait_s`` seconds for the first.

        Only durable entries are read, so that a fold that has passed an entry passes it again after any crash.

        Raises:
            LogGapError: The log no longer holds ``position`` and holds later ones, or it ends before ``position``.
            LogUnavailableError: It cannot be reached now.
        """

    async def end(self, partition: int) -> int:
        """The position that the next appended entry will get, or one below it that no entry has."""

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases the entries of windows up to ``window`` below each partition's position.

        Nothing of them is in the log's files when it returns (in Kafka: they cannot be read, and their segments are
        deleted within the stated time). Positions are never reused.
        """

    async def close(self) -> None: ...


class PartitionOwner(Protocol):
    """Folds the partitions that a membership assigns."""

    async def assigned(self, partitions: Collection[int]) -> None:
        """Folds these partitions from now on. Returns at once; their state is loaded in the background."""

    async def revoked(self, partitions: Collection[int]) -> None:
        """Returns once each of these partitions is checkpointed and released, for another process to take."""

    async def lost(self, partitions: Collection[int]) -> None:
        """Drops these partitions without storing anything: another process may fold them already."""


class Membership(Protocol):
    """Distributes the partitions among the processes that fold the plan."""

    async def start(self, owner: PartitionOwner) -> None:
        """Joins; calls the owner from now on."""

    async def ended(self) -> None:
        """Returns once it was stopped; raises an unexpected error, after which nothing is folded here."""

    async def stop(self) -> None:
        """Revokes all partitions and leaves, so that others take over at once."""


class Receipts(Protocol):
    """A record of every outcome, apart from the store, written before the outcome is published."""

    async def begin(self) -> ReceiptsMark:
        """Creates the receipts with a random id, unless they exist; durable when it returns.

        Several processes that begin at once get the same id.
        """

    async def check(self, bound: ReceiptsMark) -> str:
        """Compares the receipts with the mark that the store had before this call; there may be more receipts.

        Returns:
            Where a copy of them is; empty if they have none.

        Raises:
            ForeignReceiptsError: They are missing, or another store's.
            ReceiptsError: They are fewer than the store knows, or differ.
        """

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        """Writes a receipt; durable when it returns. Writing the same outcome again changes nothing.

        Returns:
            The mark of the receipts up to this one, or further.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest.
        """

    async def read(self) -> Sequence[tuple[bytes, str, int, bytes, Spend]]:
        """(plan id, kind, window, sha256 of its data, spend) of each outcome."""


class Observer(Protocol):
    """Receives events of workers and releaser; called from the event loop, and must not block."""

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next position."""

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These partitions are folded here now."""

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold has stopped until an operator acts; an empty ``why``: it goes on again."""

    def leading(self, leads: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether this process is the plan's releaser now."""

    def retried(self, what: str, why: str) -> None:
        """An operation on a broker, a database or another process failed for now, and is tried again."""

    def checkpointed(self, partition: int, position: int, seconds: float) -> None: ...

    def released(self, release: StoredOutcome) -> None: ...

    def withheld(self, outcome: StoredOutcome) -> None: ...

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken; an empty ``why``: releasing goes on again."""

    def seal_refused(self, window: int, ahead_ms: int) -> None:
        """A window is over by this process's clock, which is ``ahead_ms`` ahead, and not by the store's."""

    def forgetting_pending(self, why: str) -> None:
        """Data of a window with an outcome is not erased yet; an empty ``why``: all of it is."""


class Span(Protocol):
    """An operation of the service, while it lasts."""

    def note(self, **attributes: str | float) -> None:
        """Adds attributes."""

    def event(self, name: str, **attributes: str | float) -> None:
        """Adds an event."""


class Tracer(Protocol):
    """Records how long the service's own steps take. Called from the event loop; it never blocks and never raises.

    No name, attribute or event ever holds a client, a delta or an address; for plans with anonymous entries no span
    begins or ends because one of them arrived (:mod:`aggregator.observability.tracing` lists what else is not traced).
    """

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:
        """A span for the duration of the block, child of the open one; an error is recorded by its type."""


class Authenticator(Protocol):
    """Identifies callers and checks their scopes.

    Attributes:
        reads_certificates: Whether it looks at a peer's certificate; else calls do not ask the transport for it.
    """

    reads_certificates: bool

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The name of a caller with any of these scopes: its client id, or a name to count calls under, perhaps empty.

        Raises:
            UnauthenticatedError: An unknown caller. The error is the same whatever was wrong.
            ForbiddenError: A known caller without these scopes.
        """


class _NoTraces:
    """A tracer, and its spans, that record nothing."""

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:  # noqa: ARG002  the form of any Tracer
        return _NO_SPAN

    def note(self, **attributes: str | float) -> None: ...

    def event(self, name: str, **attributes: str | float) -> None: ...


_NO_SPAN: Final = nullcontext[Span](_NoTraces())
#: The tracer where none is configured.
NO_TRACES: Final[Tracer] = _NoTraces()
