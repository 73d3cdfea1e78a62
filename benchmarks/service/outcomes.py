"""The outcome of a window: a tumbling release, a step of a cumulative sequence beside it, and what databases add."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import numpy as np

from aggregator.fold.fold import Fold
from aggregator.model import ClaimedFold, HeldState, ReceiptsMark, ReservedStep, SealedWindow
from aggregator.release.releaser import compute_outcome, compute_step
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store, open_sqlite_store
from benchmarks.report import Row
from benchmarks.service.deltas import Deltas, plan_of
from benchmarks.stopwatch import Rounds
from hushsum import cumulative, releases
from hushsum.cumulative import chained
from hushsum.entropy import KeyedEntropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE, TUMBLING
from hushsum.sketch import Sketch
from hushsum_proto.entries import DeltaEntry, LogEntry, SealEntry
from hushsum_simulator.testbed.postgres import PostgresServer

TITLE = (
    "The outcome of a window, R = 1000, W = 1024, a step of a cumulative sequence of 10,000 beside a tumbling release, "
    "medians of wall time: drawn (noise, and the state after it), as bytes (of the file, too), and with a database "
    "(the counters are read, the outcome is reserved, drawn and committed)"
)
_RECORDS = 20_000
_RECORDS_STORED = 2000
_HORIZON = 10_000
_MARK = ReceiptsMark(b"receipts of benchmark", 1, bytes(32))


def measure(*, quick: bool) -> list[Row]:
    """One row for each δ, and how far the outcome goes."""
    releases.warm_up()
    rounds, rows = 2 if quick else 11, list[Row]()
    for delta in ("0", "0.000001"):
        tumbling, steps = _plan(TUMBLING, delta), _plan(CUMULATIVE, delta)
        rows += _in_memory(tumbling, steps, delta, rounds)
        rows += asyncio.run(_stored(tumbling, steps, delta, rounds))
    return rows


def _plan(kind: str, delta: str) -> Plan:
    window = {"release": CUMULATIVE, "horizon": _HORIZON} if kind == CUMULATIVE else {}
    return plan_of(1000, privacy={"delta": delta, "total_delta": delta}, window=window)


def _row(delta: str, what: str, tumbling_s: float, cumulative_s: float, ratio: float) -> Row:
    return {
        "delta": delta,
        "outcome": what,
        "tumbling ms": 1e3 * tumbling_s,
        "cumulative ms": 1e3 * cumulative_s,
        "cumulative / tumbling": ratio,
    }


def _in_memory(tumbling: Plan, steps: Plan, delta: str, rounds: int) -> list[Row]:
    alone, step = _sealed(tumbling), _sealed(steps)
    state, key = cumulative.initial(steps), bytes(32)
    digest = chained(steps.id, bytes(32))
    for number in range(3):  # one for each buffer, so that all hold noise
        reserved = ReservedStep(number + 1, bytes([number + 1]) * 32, bytes(32), digest, state)
        state, digest = compute_step(step, number, reserved)[1], chained(digest, bytes(32))

    def drawn() -> object:
        return releases.draw(alone.sketch, kind=TUMBLING, window=3, entropy=KeyedEntropy(key), accounted=True)

    def stepped() -> object:
        entropy = KeyedEntropy(key)
        return cumulative.step(steps, state, step.sketch, window=3, sealed=bytes(32), entropy=entropy, accounted=True)

    cases: dict[str, Callable[[], object]] = {
        "drawn": drawn,
        "stepped": stepped,
        "bytes": lambda: compute_outcome(alone, 3, KeyedEntropy(key)),
        "bytes of step": lambda: compute_step(step, 3, ReservedStep(4, key, bytes(32), digest, state)),
    }
    found = Rounds(cases, repeats=rounds)
    return [
        _row(delta, what, found.seconds(one), found.seconds(other), found.ratio([other], [one]))
        for what, one, other in (("drawn", "drawn", "stepped"), ("as bytes", "bytes", "bytes of step"))
    ]


def _sealed(plan: Plan) -> SealedWindow:
    sketch = Sketch(plan).add(np.random.default_rng(1).normal(5, 1, (_RECORDS, 2)))
    return SealedWindow(sketch, _RECORDS)


async def _stored(tumbling: Plan, steps: Plan, delta: str, rounds: int) -> list[Row]:
    rows, runtime = list[Row](), SystemRuntime(threads=2)
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:

        async def sqlite(plan: Plan) -> Store:
            return await open_sqlite_store(Path(folder) / f"{plan.hex_id}.db", runtime)

        async def postgres(plan: Plan) -> Store:
            del plan
            return Store(await PostgresDatabase.open(PostgresSettings(server.fresh_database(), pool=2), runtime))

        for name, opened in (("SQLite", sqlite), ("PostgreSQL", postgres)):
            async with AsyncExitStack() as stack:
                windows = []
                for plan in (tumbling, steps):
                    store = await opened(plan)
                    stack.push_async_callback(store.close)
                    windows.append(await _Windows.of(plan, store))
                seconds = [[await each.outcome() for each in windows] for _ in range(rounds + 4)][4:]
            one, other = zip(*seconds, strict=True)
            ratio = statistics.median(b / a for a, b in seconds)
            rows.append(_row(delta, name, statistics.median(one), statistics.median(other), ratio))
    return rows


class _Windows:
    """Windows of one plan in one store, each collected, sealed and released in turn; made by :meth:`of`."""

    def __init__(self, plan: Plan, store: Store, claimed: ClaimedFold, fence: int) -> None:
        self._plan, self._store, self._fence, self._claim = plan, store, fence, claimed.fence
        self._fold, self._windows, self._entropy = Fold(plan, 0, 1, claimed.state), count(), OsEntropy()
        self._held: HeldState | None = None

    @classmethod
    async def of(cls, plan: Plan, store: Store) -> "_Windows":
        await store.register(plan, 1, 0)
        claimed, fence = await store.claim_partition(plan, 0, "bench"), await store.acquire_lease(plan.id, "", "", 600)
        assert claimed is not None, "registered above"
        assert fence is not None, "nobody else has it"
        await store.bind_receipts(plan.id, _MARK, fence=fence)
        return cls(plan, store, claimed, fence)

    async def outcome(self) -> float:
        """Seconds that the outcome of the next window takes; the window's data is erased as ever."""
        window = next(self._windows)
        await self._collect(window)
        kind = TUMBLING if self._plan.privacy.cumulation is None else CUMULATIVE
        start = time.perf_counter()
        sealed = await self._store.sealed_window(self._plan, window)
        assert sealed is not None, "sealed above"
        await (self._release(sealed, window) if kind == TUMBLING else self._step(sealed, window))
        seconds = time.perf_counter() - start
        await self._store.publish(self._plan.id, kind, window, receipts=_MARK, fence=self._fence)
        self._fold.forget(window)
        await self._store.checkpoint(self._plan, 0, self._fold.checkpoint(), fence=self._claim)
        await self._store.forget(self._plan, window, fence=self._fence)
        return seconds

    async def _collect(self, window: int) -> None:
        await self._store.open_windows(self._plan.id, window, window)
        packed = Deltas(self._plan, window).packed(window, 0, _RECORDS_STORED)
        entries: list[LogEntry] = [DeltaEntry("client", delta, window) for delta in packed]
        entries.append(SealEntry(self._plan.id, window, 0))
        await self._store.mark_closing(self._plan.id, window, fence=self._fence)
        at = self._fold.position
        self._fold.apply([*enumerate(entries, at)], at + len(entries))
        await self._store.checkpoint(self._plan, 0, self._fold.checkpoint(), fence=self._claim)

    async def _release(self, sealed: SealedWindow, window: int) -> None:
        plan, store, fence = self._plan, self._store, self._fence
        key = await store.reserve_outcome(plan, TUMBLING, window, sealed.digest(), self._entropy, fence=fence)
        data, withheld = compute_outcome(sealed, window, KeyedEntropy(key))
        await store.commit_outcome(plan, TUMBLING, window, data, fence=fence, withheld=withheld)

    async def _step(self, sealed: SealedWindow, window: int) -> None:
        plan, store, fence = self._plan, self._store, self._fence
        digest, held = sealed.digest(), self._held
        reserved = await store.reserve_step(plan, window, digest, self._entropy, fence=fence, held=held)
        data, state = compute_step(sealed, window, reserved)
        await store.commit_step(plan, window, data, state, step=reserved.step, fence=fence)
        self._held = HeldState(reserved.digest, state)
