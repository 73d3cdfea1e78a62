"""Stand-ins for the service's ports: a runtime without a clock, a log that loses power, a store in memory, faults."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import numpy as np

from aggregator.errors import (
    ClaimLostError,
    FencedError,
    LogGapError,
    OutcomeExistsError,
    StaleCheckpointError,
    StoreError,
    WindowNotBegunError,
    WindowOrderError,
)
from aggregator.fold.state import BLOCK, Checkpoint, Contribution, Counters, FoldMark, FoldState, StreamKey, WindowSum
from aggregator.fold.verdicts import Verdict
from aggregator.model import (
    ClaimedFold,
    EntryBatch,
    Lease,
    NewEntry,
    Outcome,
    PositionedEntry,
    ReceiptsMark,
    RegisteredPlan,
    RoundMembers,
    SealedWindow,
    StoredOutcome,
    StreamMemory,
)
from aggregator.release.receipts import KeptLine, Receipt, ReceiptLines, ReceiptsHeader
from aggregator.runtime import Runtime, Watermark
from aggregator.store.store import Store
from aggregator.windows import WindowState
from hushsum.entropy import KEY_BYTES, Entropy
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import TUMBLING, Spend
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.releases import spend_of
from hushsum.signed_plan import SignedPlan
from hushsum.sketch import Sketch

T = TypeVar("T")


class ManualRuntime:
    """Time that moves when a test says so; blocking calls run on the spot, after giving others a turn."""

    def __init__(self, now_ms: int = 1_000_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed = Watermark(0)  # milliseconds

    def now_ms(self) -> int:
        return self._now_ms + self._elapsed.value

    def monotonic(self) -> float:
        return self._elapsed.value / 1000

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        # At least a millisecond, so that a loop of sleeps cannot hold time still.
        await self._elapsed.reached(self._elapsed.value + max(round(seconds * 1000), 1))

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)
        return function(*arguments)

    async def advance(self, seconds: float) -> None:
        """Lets everything come to rest, moves time on, and lets everything that this wakes come to rest."""
        await self.settle()
        self._elapsed.reach(self._elapsed.value + round(seconds * 1000))
        await self.settle()

    async def settle(self, turns: int = 200) -> None:
        """Lets every task run until it waits for time, or for another that does."""
        for _ in range(turns):
            await asyncio.sleep(0)


class PowerLossLog:
    """A log of which only what was synced outlasts :meth:`lose_power`.

    Attributes:
        syncs: How often entries were made durable.
        held: While set, no sync comes to its end: set it, look who answers too early, and :meth:`let_go`.
    """

    def __init__(self, partitions: int = 1, runtime: Runtime | None = None) -> None:
        self.syncs = 0
        self.held = False
        self._runtime = runtime or ManualRuntime()
        self._durable: list[dict[int, NewEntry]] = [{} for _ in range(partitions)]
        self._unsynced: list[NewEntry] = []
        self._ends = [Watermark(0) for _ in range(partitions)]
        self._released = asyncio.Event()

    @property
    def partitions(self) -> int:
        return len(self._ends)

    @property
    def unsynced(self) -> tuple[NewEntry, ...]:
        """What was appended and would be lost."""
        return tuple(self._unsynced)

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        self._unsynced += entries
        while self.held:
            self._released.clear()
            await self._released.wait()
        await asyncio.sleep(0)
        return self._sync(entries)

    def _sync(self, entries: Sequence[NewEntry]) -> list[int]:
        self.syncs += 1
        positions = []
        for entry in entries:
            self._unsynced.remove(entry)
            position = self._ends[entry.partition].value
            self._durable[entry.partition][position] = entry
            positions.append(position)
            self._ends[entry.partition].reach(position + 1)
        return positions

    def let_go(self) -> None:
        self.held = False
        self._released.set()

    def lose_power(self) -> "PowerLossLog":
        """The log as it is found after power came back."""
        after = PowerLossLog(self.partitions, self._runtime)
        after._durable = [dict(entries) for entries in self._durable]
        after._ends = [Watermark(end.value) for end in self._ends]
        return after

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        end, entries = self._ends[partition], self._durable[partition]
        if position > end.value:
            raise LogGapError(partition, position, end.value)
        if not await end.reached_within(position + 1, self._runtime, wait_s):
            return EntryBatch((), position)
        if position not in entries:
            raise LogGapError(partition, position, min((p for p in entries if p > position), default=end.value))
        read: list[PositionedEntry] = []
        while position in entries and len(read) < limit:
            read.append(PositionedEntry(position, entries[position].data))
            position += 1
        return EntryBatch(tuple(read), position)

    async def end(self, partition: int) -> int:
        return self._ends[partition].value

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        for partition, stop in below.items():
            for position, entry in list(self._durable[partition].items()):
                if position < stop and entry.window <= window:
                    del self._durable[partition][position]

    async def close(self) -> None:
        return

    @property
    def held_windows(self) -> set[int]:
        """Windows of the entries that are not forgotten."""
        return {entry.window for entries in self._durable for entry in entries.values()}


@dataclass
class StoredFold:
    """What a store holds of one fold: checkpoints added up."""

    state: FoldState
    size: int  # counters of a class
    classes: int = 1  # where no count counters tell it
    verdicts: list[Verdict] = field(default_factory=list)
    sums: dict[int, WindowSum] = field(default_factory=dict)

    def add(self, change: Checkpoint) -> None:
        """One transaction."""
        old = self.state
        if change.position < old.position or change.closed_through < old.closed_through:
            raise StaleCheckpointError(f"position {change.position}, stored is {old.position}")
        for block in change.blocks:
            assert block.window > old.closed_through, "a sealed window has changed"
        for window, counts in change.counts.items():
            known = self.sums.get(window)
            shape = (len(counts) or self.classes, self.size)
            counters = np.zeros(shape, np.int64) if known is None else known.counters
            self.sums[window] = WindowSum(counters, counts)
        for block in change.blocks:
            row = self.sums[block.window].counters[block.class_index]
            row[block.number * BLOCK : (block.number + 1) * BLOCK] = block.values
        streams = {**old.streams, **{key: data for key, (_, data) in change.streams.items()}}
        self._last_windows.update({key: last for key, (last, _) in change.streams.items()})
        contributions = {**old.contributions, **change.contributions}
        forgotten = change.forgotten_through
        self.state = FoldState(
            position=change.position,
            closed_through=change.closed_through,
            forgotten_through=forgotten,
            streams={key: data for key, data in streams.items() if self._last_windows[key] > forgotten},
            contributions={key: n for key, n in contributions.items() if key.window > forgotten},
            client_windows={**old.client_windows, **change.client_windows},
        )
        self.verdicts += change.verdicts

    _last_windows: dict[StreamKey, int] = field(default_factory=dict)

    def load(self, shape: tuple[int, ...]) -> FoldState:
        """What a fold goes on from: its own copy."""
        state = self.state
        windows = {
            window: WindowSum(sums.counters.reshape(shape).copy(), sums.counts.copy())
            for window, sums in self.sums.items()
            if window > state.closed_through
        }
        return FoldState(
            state.position,
            state.closed_through,
            state.forgotten_through,
            windows,
            dict(state.streams),
            dict(state.contributions),
            dict(state.client_windows),
        )


def described(state: FoldState) -> tuple[object, ...]:
    """A fold's state as a value that can be compared."""

    def listed(counters: Counters) -> list[int]:
        return [int(value) for value in counters.reshape(-1)]

    windows = {
        window: (listed(sums.counters), listed(sums.counts))
        for window, sums in state.windows.items()
        if sums.counts.any()
    }
    contributions: dict[Contribution, int] = dict(state.contributions)
    return (
        state.position,
        state.closed_through,
        state.forgotten_through,
        windows,
        dict(state.streams),
        contributions,
    )


class MemoryStore(Store):
    """A store of one plan that forgets everything with its process: in place of tables it has attributes to look at."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime
        self.plan: Plan | None = None
        self.fences: dict[int, int] = {}
        self.fence = 0
        self.lease_held: tuple[str, str, str, float] | None = None  # owner, address, note, until
        self.asked: int | None = None
        self.first = 0
        self.states_by_window: dict[int, WindowState] = {}
        self.folds: list[StoredFold] = []
        self.results: dict[tuple[str, int], tuple[bytes, bool]] = {}
        self.removed: set[int] = set()
        self.reserved: dict[tuple[str, int], tuple[bytes, bytes]] = {}  # key and digest
        self.ledger: Account | None = None
        self.checkpoints = 0
        self.signed: SignedPlan | None = None
        self.claims: dict[tuple[int, str], tuple[bytes, bool]] = {}  # round, and whether it was granted
        self.draws: Counter[tuple[int, str]] = Counter()
        self.receipts: ReceiptsMark | None = None

    async def register(self, plan: Plan, partitions: int, first_window: int) -> None:
        if self.plan is not None:
            if len(self.folds) != partitions:
                raise StoreError("another number of partitions")
            return
        self.plan, self.first, self.ledger = plan, first_window, Account(plan.limits)
        size = int(np.prod(plan.counters_shape[1:]))
        state, classes = FoldState(closed_through=first_window - 1), plan.counters_shape[0]
        self.folds = [StoredFold(state, size, classes) for _ in range(partitions)]

    async def load_plan(self, plan_id: bytes) -> Plan | None:
        return self.plan if self.plan is not None and self.plan.id == plan_id else None

    async def plan_named(self, name: str) -> Plan | None:
        return self.plan if self.plan is not None and self.plan.name == name else None

    async def plans(self) -> list[RegisteredPlan]:
        if self.plan is None:
            return []
        plan, privacy = self.plan, self.plan.privacy
        signed_by = "" if self.signed is None else self.signed.key_id
        shown = (plan.id, plan.name, privacy.mode, privacy.population, len(self.folds), self.first, signed_by)
        return [RegisteredPlan(*shown)]

    async def keep_plan_signature(self, signed: SignedPlan) -> None:
        if await self.load_plan(signed.plan_id) is None:
            raise StoreError("not registered")
        self.signed = signed

    async def signed_plan(self, plan_id: bytes) -> SignedPlan | None:
        return self.signed

    async def open_windows(
        self,
        plan_id: bytes,
        first: int,
        last: int,
        *,
        horizon: int | None = None,
        latest: Callable[[int], int] | None = None,
    ) -> int | None:
        for window in range(max(first, self.first), last + 1):
            skipped = [*self.states_by_window.values()].count(WindowState.SKIPPED)
            if horizon is None or len(self.states_by_window) - skipped < horizon:
                self.states_by_window.setdefault(window, WindowState.OPEN)
            elif window not in self.states_by_window:
                return window
        return None

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        return dict(sorted(self.states_by_window.items()))

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        return {window: state for window, state in sorted(self.states_by_window.items()) if first <= window <= last}

    async def newest_windows(self, plan_id: bytes, before: int | None, limit: int) -> list[tuple[int, str]]:
        below = 2**63 if before is None else before
        windows = sorted((window for window in self.states_by_window if window < below), reverse=True)[:limit]
        return [(window, self.states_by_window[window].value) for window in windows]

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        finished = (WindowState.RELEASED, WindowState.WITHHELD, WindowState.SKIPPED)
        return {window: state for window, state in sorted(self.states_by_window.items()) if state not in finished}

    async def fold_marks(self, plan_id: bytes) -> dict[int, FoldMark]:
        return {partition: _mark(fold.state) for partition, fold in enumerate(self.folds)}

    async def stream_memory(self, plan_id: bytes, partition: int, client_id: str, stream: int) -> StreamMemory:
        state = self.folds[partition].state
        return StreamMemory(state.streams.get(StreamKey(client_id, stream)), _mark(state))

    def _now_s(self) -> float:
        return 0.0 if self._runtime is None else self._runtime.now_ms() / 1000

    def _check_fence(self, fence: int) -> None:
        if fence != self.fence:
            raise FencedError(f"fence {fence}, the latest is {self.fence}")

    async def acquire_lease(self, plan_id: bytes, owner: str, address: str, seconds: float) -> int | None:
        held = self.lease_held
        if self._runtime is not None and held is not None and held[0] != owner and held[3] > self._now_s():
            return None
        self.lease_held = (owner, address, "", self._now_s() + seconds)
        self.fence += 1
        return self.fence

    async def renew_lease(self, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
        self._check_fence(fence)
        assert self.lease_held is not None
        self.lease_held = (*self.lease_held[:2], note, self._now_s() + seconds)

    async def return_lease(self, plan_id: bytes, *, fence: int) -> None:
        if fence == self.fence and self.lease_held is not None:
            self.lease_held = (*self.lease_held[:3], self._now_s())

    async def lease(self, plan_id: bytes) -> Lease | None:
        held = self.lease_held
        return None if held is None else Lease(held[0], held[1], held[2], held[3] - self._now_s())

    async def ask_to_forget(self, plan_id: bytes, window: int, *, fence: int) -> None:
        self._check_fence(fence)
        self.asked = window if self.asked is None else max(self.asked, window)

    async def forget_asked(self, plan_id: bytes) -> int | None:
        return self.asked

    async def first_window(self, plan_id: bytes) -> int:
        return self.first

    async def now_ms(self) -> int:
        return 0 if self._runtime is None else self._runtime.now_ms()

    async def mark_closing(self, plan_id: bytes, window: int, *, fence: int, not_before_ms: int | None = None) -> None:
        self._check_fence(fence)
        state = self.states_by_window.get(window)
        if state is None or state is WindowState.SKIPPED:
            raise WindowOrderError(f"window {window} was never open")
        if state is not WindowState.OPEN:
            return
        for older in range(self.first, window):
            if self.states_by_window.setdefault(older, WindowState.SKIPPED) in (WindowState.OPEN, WindowState.CLOSING):
                raise WindowOrderError(f"window {older} comes first")
        self.states_by_window[window] = WindowState.CLOSING

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        if partition >= len(self.folds):
            return None
        self.fences[partition] = self.fences.get(partition, 0) + 1
        return ClaimedFold(self.fences[partition], self.folds[partition].load(plan.counters_shape))

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        if fence != self.fences.get(partition):
            raise FencedError(f"partition {partition}: fence {fence}, the latest is {self.fences.get(partition)}")
        self.checkpoints += 1
        self.folds[partition].add(change)
        closed = min(fold.state.closed_through for fold in self.folds)
        for window, state in self.states_by_window.items():
            if state is WindowState.CLOSING and window <= closed:
                self.states_by_window[window] = WindowState.SEALED

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        if any(window <= fold.state.forgotten_through for fold in self.folds):
            raise StoreError(f"the counters of window {window} are erased")
        if any(window > fold.state.closed_through for fold in self.folds):
            return None
        shape = plan.counters_shape
        parts = [fold.sums[window] for fold in self.folds if window in fold.sums]
        counters = sum((part.counters.reshape(shape) for part in parts), np.zeros(shape, np.int64))
        counts = sum((part.counts for part in parts), np.zeros(shape[:1], np.int64))
        contributed = [
            records for fold in self.folds for key, records in fold.state.contributions.items() if key.window == window
        ]
        sketch = Sketch.of_counters(plan, counters, counts)
        if plan.privacy.mode == SECURE:
            return SealedWindow(sketch, sum(contributed), len(contributed))
        return SealedWindow(sketch, len(contributed))

    def _check_next(self, kind: str, window: int) -> None:
        if (kind, window) in self.results:
            raise OutcomeExistsError(f"window {window}")
        if self.states_by_window.get(window) is not WindowState.SEALED:
            raise WindowOrderError(f"window {window} is not sealed")

    async def check_collection(self, plan: Plan, window: int) -> None:
        self._charged(plan, window)

    def _charged(self, plan: Plan, window: int) -> Account:
        if plan.privacy.mode == CENTRAL:
            raise StoreError("a central plan")
        if self.states_by_window.get(window) is not WindowState.OPEN:
            raise WindowOrderError(f"window {window} is not open")
        assert self.ledger is not None
        spend = spend_of(plan, kind=TUMBLING, window=window)
        unspent = spend_of(plan, kind=TUMBLING, window=window, entered=False)
        if spend in self.ledger.spends:
            return self.ledger
        others = (each for each in self.ledger.spends if each != unspent)
        return Account(self.ledger.limits).recorded(*others).charge(spend)

    async def charge_collection(self, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
        charged = self._charged(plan, window)
        wait_ms = 0 if self._runtime is None else plan.window.start_ms(window) - self._runtime.now_ms()
        if wait_ms > 0:
            raise WindowNotBegunError(window, wait_ms)
        if members is not None:
            mine = (members.round_id, False), (members.round_id, True)
            lost = frozenset(each for each in members.clients if self.claims.get((window, each)) not in mine)
            if lost:
                raise ClaimLostError(lost)
            self.claims |= {(window, each): (members.round_id, True) for each in members.clients}
        self.ledger = charged

    async def claim_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
        refused = set()
        for each in members.clients:
            round_id, granted = self.claims.get((window, each), (b"", False))
            if round_id == members.round_id:
                continue
            if granted or self.draws[window, each] + members.is_drawn > ATTEMPTS_MAX:
                refused.add(each)
                continue
            self.claims[window, each] = (members.round_id, False)
            self.draws[window, each] += members.is_drawn
        return frozenset(refused)

    async def release_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> None:
        for each in members.clients:
            if self.claims.get((window, each)) == (members.round_id, True):
                self.claims[window, each] = (members.round_id, False)

    async def reserve_outcome(
        self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
    ) -> bytes:
        self._check_fence(fence)
        self._check_next(kind, window)
        assert self.ledger is not None
        if (kind, window) not in self.reserved:
            spend = spend_of(plan, kind=kind, window=window)
            if plan.privacy.mode == CENTRAL:
                self.ledger = self.ledger.charge(spend)
            elif not any(each.window == window for each in self.ledger.spends):
                self.ledger = self.ledger.recorded(spend_of(plan, kind=kind, window=window, entered=False))
            self.reserved[kind, window] = (entropy.read(KEY_BYTES), digest)
        key, reserved_for = self.reserved[kind, window]
        if reserved_for != digest:
            raise StoreError(f"the counters of window {window} differ from those that were charged")
        return key

    async def commit_outcome(
        self, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
    ) -> None:
        self._check_fence(fence)
        self._check_next(kind, window)
        if self.reserved.pop((kind, window), None) is None:
            raise StoreError(f"window {window} was not charged before it was drawn")
        assert self.ledger is not None
        if withheld and plan.privacy.mode == CENTRAL:
            cheaper = spend_of(plan, kind=kind, window=window, withheld=True)
            spends = [cheaper if each.window == window else each for each in self.ledger.spends]
            self.ledger = Account(self.ledger.limits).recorded(*spends)
        self.results[kind, window] = (data, False)
        self.states_by_window[window] = WindowState.WITHHELD if withheld else WindowState.RELEASED

    def _stored(self, kind: str, window: int) -> StoredOutcome:
        import hashlib

        assert self.plan is not None
        data = self.results[kind, window][0]
        withheld, digest = self.states_by_window[window] is WindowState.WITHHELD, hashlib.sha256(data).digest()
        return StoredOutcome(self.plan.id, kind, window, b"" if window in self.removed else data, digest, withheld)

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        return [self._stored(*key) for key, (_, published) in sorted(self.results.items()) if not published]

    async def receipts_mark(self) -> ReceiptsMark | None:
        return self.receipts

    async def bind_receipts(
        self, plan_id: bytes, found: ReceiptsMark, *, fence: int, known_copy: str = ""
    ) -> ReceiptsMark:
        self._check_fence(fence)
        if self.receipts is None:
            self.receipts = found
        return self.receipts

    async def publish(self, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int) -> None:
        self._check_fence(fence)
        if (kind, window) not in self.results:
            raise StoreError(f"window {window} has no outcome to publish")
        if self.receipts is None or self.receipts.id != receipts.id:
            raise StoreError("the receipts belong to another store")
        self.receipts = max(self.receipts, receipts, key=lambda mark: mark.lines)
        self.results[kind, window] = (self.results[kind, window][0], True)

    async def remove_releases(self, plan_id: bytes, before: int, *, fence: int) -> None:
        self._check_fence(fence)
        self.removed |= {
            window for (_, window), (_, published) in self.results.items() if published and window < before
        }

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        stored = [(self._stored(*key), published) for key, (_, published) in sorted(self.results.items())]
        return [
            Outcome(plan_id, each.kind, each.window, len(each.data), each.sha256, published, each.withheld)
            for each, published in stored
        ]

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        published = self.results.get((kind, window), (b"", False))[1]
        return self._stored(kind, window) if published else None

    async def forget(self, plan: Plan, window: int, *, fence: int) -> None:
        self._check_fence(fence)
        for fold in self.folds:
            fold.sums = {index: sums for index, sums in fold.sums.items() if index > window}

    async def account(self, population: str) -> Account:
        assert self.ledger is not None
        return self.ledger

    async def spends_alike(self, population: str) -> tuple[Limits, list[tuple[bytes, int]]]:
        account = await self.account(population)
        return account.limits, [(spend.to_bytes(), 1) for spend in account.spends]

    async def count_spend(self, plan_id: bytes, spend: Spend, *, fence: int) -> None:
        self._check_fence(fence)
        assert self.ledger is not None
        if spend not in self.ledger.spends:
            self.ledger = self.ledger.recorded(spend)

    async def close(self) -> None:
        return


def _mark(state: FoldState) -> FoldMark:
    return FoldMark(state.position, state.closed_through, state.forgotten_through)


class MemoryReceipts:
    """Receipts of this process alone."""

    def __init__(self, where: str = "receipts in memory") -> None:
        self.lines = ReceiptLines(where)

    async def begin(self) -> ReceiptsMark:
        if not self.lines.mark.id:
            self._add(ReceiptsHeader(b"the receipts' id"))
        return self.lines.mark

    async def check(self, bound: ReceiptsMark) -> str:
        self.lines.check(bound)
        return ""

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        receipt = Receipt.from_outcome(outcome, spend)
        if not self.lines.knows(receipt):
            self._add(receipt)
        return self.lines.mark

    async def read(self) -> list[Receipt]:
        return self.lines.receipts

    async def catch_up(self) -> ReceiptLines:
        return self.lines

    async def append(self, kept: KeptLine) -> None:
        self.lines.add(*kept)

    def _add(self, held: ReceiptsHeader | Receipt) -> None:
        self.lines.add(held.to_line()[0], held)


class RecordingObserver:
    """Remembers all that it is told."""

    def __init__(self) -> None:
        self.verdicts: list[tuple[int, Verdict]] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.releases: list[StoredOutcome] = []
        self.withholdings: list[StoredOutcome] = []
        self.stops: list[str] = []
        self.pending: list[str] = []
        self.refused_seals: list[tuple[int, int]] = []
        self.held: list[frozenset[int]] = []
        self.partition_stops: list[tuple[int, str]] = []
        self.leads: list[bool] = []
        self.retries: list[tuple[str, str]] = []

    def partitions_held(self, partitions: Collection[int]) -> None:
        self.held.append(frozenset(partitions))

    def partition_stopped(self, partition: int, why: str) -> None:
        self.partition_stops.append((partition, why))

    def leading(self, leads: bool) -> None:
        self.leads.append(leads)

    def retried(self, what: str, why: str) -> None:
        self.retries.append((what, why))

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        self.verdicts += [(partition, verdict) for verdict in verdicts]

    def checkpointed(self, partition: int, position: int, seconds: float) -> None:
        self.checkpoints.append((partition, position))

    def released(self, release: StoredOutcome) -> None:
        self.releases.append(release)

    def withheld(self, outcome: StoredOutcome) -> None:
        self.withholdings.append(outcome)

    def releasing_stopped(self, why: str) -> None:
        self.stops.append(why)

    def seal_refused(self, window: int, ahead_ms: int) -> None:
        self.refused_seals.append((window, ahead_ms))

    def forgetting_pending(self, why: str) -> None:
        self.pending.append(why)


class CrashError(BaseException):
    """The process dies here. No ``except Exception`` survives it."""


class Steps:
    """Counts the calls that go through :meth:`around`, and dies at one of them.

    Args:
        fatal: Which call; None: none.
        after: Whether it dies when the call has taken effect (its reply is lost) or before.
    """

    def __init__(self, fatal: int | None = None, *, after: bool = False) -> None:
        self.count = 0
        self.names: list[str] = []
        self._fatal, self._after = fatal, after

    def around(self, port: T, *methods: str) -> T:
        """The port, with these methods counted; everything else goes straight through."""
        steps = self

        class Counted:
            def __getattr__(self, name: str) -> object:
                found = getattr(port, name)
                if name not in methods:
                    return found

                async def call(*arguments: object, **keywords: object) -> object:
                    fatal = steps._next(f"{type(port).__name__}.{name}")
                    if fatal and not steps._after:
                        steps.die(name)
                    result = await found(*arguments, **keywords)
                    if fatal:
                        steps.die(name)
                    return result

                return call

        return Counted()  # type: ignore[return-value]  # it has all that the port has

    def die(self, name: str) -> NoReturn:
        raise CrashError(name)

    def _next(self, name: str) -> bool:
        self.names.append(name)
        self.count += 1
        return self.count == self._fatal
