"""Every way out of the service's pure core: time, tasks, the log, the store, receipts, authentication.

Structural protocols, so that the real thing, a double in a test and a simulation under virtual time are exchanged
freely; :class:`SystemRuntime` is the one place of this package that reads a clock, sleeps, or starts a task.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from aggregator.fold_state import Checkpoint, FoldState
from aggregator.fold_view import Folds, FoldView
from aggregator.records import Appended, Outcome, SealedWindow, StoredOutcome
from aggregator.verdicts import Verdict
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.event import Spend

__all__ = [
    "Appended",
    "Authenticator",
    "FoldView",
    "Folds",
    "Log",
    "Observer",
    "Outcome",
    "Receipts",
    "Runtime",
    "SealedWindow",
    "Store",
    "StoredOutcome",
    "SystemRuntime",
]

T = TypeVar("T")


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
        """Runs a blocking call (a database, an fsync) off the event loop."""


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
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*arguments))


class Log(Protocol):
    """The durable, ordered entries of one plan, in P partitions."""

    @property
    def partitions(self) -> int: ...

    async def append(self, entries: Sequence[Appended]) -> list[int]:
        """Appends all entries or none; durable against power loss when it returns.

        Returns:
            The position of each in its partition: consecutive within a partition, from 0.
        """

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> list[tuple[int, bytes]]:
        """At most ``limit`` (position, bytes) from ``position`` on; waits up to ``wait_s`` seconds for the first.

        Only what is durable is ever read: a fold that has passed an entry passes it again after any crash.

        Raises:
            LogGapError: The log no longer holds ``position`` and holds later ones, or it ends before ``position``.
        """

    async def end(self, partition: int) -> int:
        """The position that the next appended entry will get."""

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases the entries of windows up to ``window`` that stand below each partition's position.

        Nothing of them is left in the log's files when it returns. Positions are never given twice.
        """

    async def close(self) -> None: ...


class Store(Protocol):
    """What outlives a process beside the log: plans, windows, checkpoints, the ledger, outcomes."""

    async def register(self, plan: Plan, partitions: int, first_window: int) -> None:
        """Registers a plan once: its bytes, its P, its first window, its population's limits.

        Raises:
            StoreError: The plan is stored with another P.
            BudgetError: Its limits are above its population's, or its spends could not be added up.
        """

    async def load_plan(self, plan_id: bytes) -> Plan | None: ...

    async def plan_named(self, name: str) -> Plan | None:
        """The stored plan of that name: what a ``plan.toml`` became at the first start."""

    async def open_windows(self, plan_id: bytes, first: int, last: int) -> None:
        """Records the fact that a gateway had these windows open (those that exist already stay as they are)."""

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        """State by window, as :class:`aggregator.windows.WindowState` names them: all there ever were."""

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        """State by window from ``first`` to ``last``: one short read, never held up by a checkpoint.

        This is the read that an acknowledgement needs. Nothing may be appended for a window that it does not call open.
        """

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        """State by window of those that have no outcome and are not skipped: few, whatever the store's age."""

    async def positions(self, plan_id: bytes) -> dict[int, int]:
        """The stored position of each partition: no replay starts before it."""

    async def first_window(self, plan_id: bytes) -> int: ...

    async def mark_closing(self, plan_id: bytes, window: int) -> None:
        """Before the first seal is appended: from here on no gateway acknowledges for the window.

        In the same transaction every window before it that no gateway has opened becomes ``skipped``: no outcome, no
        charge. A window that is closing, sealed or released already stays as it is.

        Raises:
            WindowOrderError: It was never open, or an older one is open or closing.
        """

    async def load_fold(self, plan: Plan, partition: int) -> FoldState | None: ...

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint) -> None:
        """Counters (touched blocks alone), stream states, verdicts to retain and position, in one transaction.

        A window that is ``closing`` becomes ``sealed`` in the transaction that closes it in the last partition.

        Raises:
            StaleCheckpointError: Its position is before the stored one.
        """

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        """The sum and the number of clients of a window over all partitions, of one moment.

        None until every partition has stored its sealed counters.

        Raises:
            StoreError: The window's counters are forgotten.
        """

    async def reserve_outcome(self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy) -> bytes:
        """Charges what a release of the window costs, and fixes the key of all randomness of its outcome.

        One transaction, before anything is drawn or decided; what it writes has the same size whatever was collected.
        Asked again, by whomever, it gives back the same key and charges nothing.

        Args:
            plan: Whose window it is.
            kind: ``tumbling``.
            window: The oldest sealed one without an outcome.
            digest: :meth:`SealedWindow.digest` of what the outcome will be drawn from.
            entropy: Of the key; read once the charge is allowed.

        Returns:
            The key of a :class:`hushsum.entropy.KeyedEntropy`. Who knows it knows the noise.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            BudgetError: The ledger's limits do not allow what a release costs. Nothing is fixed.
            StoreError: The outcome was charged for other counters: the store is damaged.
        """

    async def commit_outcome(self, plan: Plan, kind: str, window: int, data: bytes, *, withheld: bool = False) -> None:
        """Stores a reserved outcome (``committed``), erases its key, marks its window's state: one transaction.

        The charge of a withheld window becomes that of its test alone.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            StoreError: It was not reserved.
        """

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        """Outcomes that are committed and not yet published."""

    async def publish(self, plan_id: bytes, kind: str, window: int) -> None: ...

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        """All outcomes in the order of their windows, published or not, without their bytes: what a list is made of."""

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        """One published outcome; None where there is none, or it is not published yet."""

    async def forget(self, plan: Plan, window: int) -> None:
        """Erases the counters of windows up to ``window``, which all have their published outcome (or were skipped).

        Their stream states and contributions went with the checkpoints of :meth:`Folds.forget`, so that what is stored
        is always what the fold holds. Nothing of what was erased is left in the store's files when it returns.
        """

    async def account(self, population: str) -> Account:
        """The limits of a registered population, as its plans fixed them, and all its spends."""

    async def count_spend(self, spend: Spend) -> None:
        """Adds a spend that a receipt proves, unless it is there; no limit can refuse it."""

    async def close(self) -> None: ...


class Receipts(Protocol):
    """A record of every outcome, apart from the store, written before anybody sees it."""

    async def write(self, outcome: StoredOutcome, spend: Spend) -> None:
        """Durable when it returns; writing the same outcome again changes nothing.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest.
        """

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """(plan id, kind, window, sha256 of its data, spend) of each outcome."""


class Observer(Protocol):
    """Who counts what the workers and the releaser do; called from the event loop, and must not block."""

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next one."""

    def checkpointed(self, partition: int, position: int, seconds: float) -> None: ...

    def released(self, release: StoredOutcome) -> None: ...

    def withheld(self, outcome: StoredOutcome) -> None: ...

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken, and why; empty: it goes on again."""

    def forgetting_pending(self, why: str) -> None:
        """Something of a window that has its outcome is not erased yet, and why; empty: all of it is."""


class Authenticator(Protocol):
    """Who is at the other end of a call."""

    def client_id(self, peer: str, metadata: Mapping[str, str]) -> str:
        """The authenticated client id.

        Args:
            peer: gRPC's name of the peer, such as ``ipv4:127.0.0.1:50123``.
            metadata: The call's metadata, keys in lower case.

        Raises:
            UnauthenticatedError: Nobody that this service accepts.
        """
