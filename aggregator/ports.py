"""Every way out of the service's pure core: time, tasks, the log, the store, receipts, authentication.

Structural protocols (the store's stands in :mod:`aggregator.store_port`), so that the real thing, a double in a test
and a simulation under virtual time are exchanged freely; :class:`SystemRuntime` is the one place of this package that
reads a clock, sleeps, or starts a task.
"""

import asyncio
import enum
import errno
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from aggregator.errors import OpenFilesError
from aggregator.fold.state import FoldMark
from aggregator.fold.verdicts import Verdict
from aggregator.fold_view import Folds, FoldView
from aggregator.records import (
    Appended,
    ClaimedFold,
    Lease,
    Outcome,
    ReceiptsMark,
    SealedWindow,
    StoredOutcome,
    StreamMemory,
    Stretch,
)
from aggregator.store_port import Store
from hushsum.privacy.event import Spend

__all__ = [
    "NO_MORE_FILES",
    "Appended",
    "Authenticator",
    "ClaimedFold",
    "FoldMark",
    "FoldView",
    "Folds",
    "Lease",
    "Log",
    "Membership",
    "Observer",
    "Outcome",
    "PartitionOwner",
    "Peer",
    "Receipts",
    "ReceiptsMark",
    "Runtime",
    "Scope",
    "SealedWindow",
    "Span",
    "Store",
    "StoredOutcome",
    "StreamMemory",
    "Stretch",
    "SystemRuntime",
    "Tracer",
]

T = TypeVar("T")

#: Of an OSError that passes by itself, as files and connections are closed.
NO_MORE_FILES: Final = (errno.EMFILE, errno.ENFILE)


class Runtime(Protocol):
    """Time and tasks."""

    def now_ms(self) -> int:
        """The wall clock, ms since 1970-01-01T00:00:00Z."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back, for measuring alone."""

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts a task; its owner awaits or cancels it."""

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs a blocking call (a database, an fsync) off the event loop.

        Raises:
            OpenFilesError: It needed a file, and as many are open as may be.
            Exception: Whatever else it raises.
        """


class SystemRuntime:
    """The real clock, event loop and threads."""

    def __init__(self, threads: int = 8) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="hushsum")

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*arguments))
        except OSError as error:
            if error.errno in NO_MORE_FILES:
                raise OpenFilesError(f"no more files can be opened now: {error.strerror}") from error
            raise


class Log(Protocol):
    """The durable, ordered entries of one plan, in P partitions.

    A position only grows along a partition; positions need not be consecutive (an entry of a Kafka message that holds
    many has the message's offset and its number in it). Which position follows, :class:`Stretch` says.
    """

    @property
    def partitions(self) -> int: ...

    async def append(self, entries: Sequence[Appended]) -> list[int]:
        """Appends entries, in their order within each partition; durable against power loss when it returns.

        Returns:
            The position of each.

        Raises:
            LogError: Which of them are durable is not known. Appending them again is always safe: an id counts once,
                and only the first seal of a window counts.
        """

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> Stretch:
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

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
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
    begins or ends because one of them came (:mod:`aggregator.watching.tracing` says of what else nothing is told).
    """

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:
        """Goes on as long as the block does, within the one that is open around it; an error ends it by its kind."""


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
