"""A year of hourly windows: devices that are mostly idle, and clocks of devices and processes that jump by days."""

import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.errors import RefusedError
from aggregator.fold.verdicts import VerdictKind
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.model import NewEntry, SealedWindow
from aggregator.release.releaser import Releaser
from aggregator.runtime import Runtime
from aggregator.store.store import memory_store
from aggregator.windows import due_ms
from aggregator.workers.pool import WorkerPool
from aggregator.workers.worker import WorkerSettings
from edge_client.encoding import moved, split
from edge_client.spool.changes import Rebind, Remove
from edge_client.spool.spool import Spool
from hushsum.delta import read_header
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE
from hushsum.releases import Release, spend_of
from hushsum.sketch import Sketch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry
from tests.doubles import ManualRuntime, MemoryReceipts, PowerLossLog, RecordingObserver
from tests.plans import small_plan

HOURS = 365 * 24
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DEVICES = 3
ACTIVE = 0.02  # of the hours of a device
PLAN = small_plan(
    sketch={"rows": 1, "buckets": 16},
    window={"release": "cumulative", "horizon": HOURS + 24 * 12, "late": "next"},
    privacy={"delta": "0.000001", "total_delta": "0.000001", "noise": "gaussian"},
)


class JumpingClock(ManualRuntime):
    """A process whose wall clock may be days away from the store's."""

    def __init__(self, world: ManualRuntime) -> None:
        super().__init__()
        self.world, self.ahead_ms = world, 0

    def now_ms(self) -> int:
        return self.world.now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return self.world.monotonic()

    async def blocking(self, function: Any, *arguments: object) -> Any:
        return function(*arguments)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> Any:
        return self.world.spawn(work, name)

    def jump(self, drawn: random.Random) -> None:
        """Now and then by days, in either direction; right again after a while."""
        if drawn.random() < 0.01:
            self.ahead_ms = drawn.randint(-5, 5) * DAY_MS + drawn.randint(-HOUR_MS, HOUR_MS)
        elif drawn.random() < 0.1:
            self.ahead_ms = 0


class YearOfWindows:
    """The service and its devices, hour by hour."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan, self.drawn = plan, random.Random(27)
        self.world = ManualRuntime(1_700_000_000_000)
        self.gateway, self.releasing, *self.devices = (JumpingClock(self.world) for _ in range(2 + DEVICES))
        self.store = memory_store(self.world, exclusive=True)
        self.log, self.observer = PowerLossLog(1, self.world), RecordingObserver()
        runtime: Runtime = self.releasing
        self.workers = WorkerPool(plan, self.log, self.store, runtime, self.observer, WorkerSettings())
        self.spools = [
            Spool(folder / name, client_id=name, entropy=ReplayableEntropy(name.encode()), bytes_max=2**24)
            for name in (f"device-{number}" for number in range(DEVICES))
        ]
        self.sealed_at: dict[int, int] = {}
        self.exact: dict[int, Sketch] = {}
        self.added = self.refused = 0

    async def begin(self) -> None:
        first = self.plan.window.index_at(self.world.now_ms())
        await self.store.register(self.plan, 1, first)
        self.tracker = WindowTracker(self.plan, self.store, self.gateway, skew_ms=60_000, first_window=first)
        fence = await self.store.acquire_lease(self.plan.id, "year", "", 1) or 0
        honest = self.store.mark_closing
        read = self.store.sealed_window

        async def marked(plan_id: bytes, window: int, **keywords: Any) -> None:
            await honest(plan_id, window, **keywords)
            self.sealed_at.setdefault(window, self.world.now_ms())

        async def noted(plan: Plan, window: int) -> SealedWindow | None:
            sealed = await read(plan, window)
            assert sealed is not None
            self.exact[window] = sealed.sketch
            return sealed

        self.store.mark_closing = marked  # type: ignore[method-assign]  # notes when each window was sealed
        self.store.sealed_window = noted  # type: ignore[method-assign]  # notes what each step is of
        await self.workers.start()
        self.releaser = Releaser(
            self.plan,
            fence,
            log=self.log,
            store=self.store,
            receipts=MemoryReceipts(),
            folds=self.workers,
            entropy=ReplayableEntropy(b"year"),
            runtime=self.releasing,
            observer=self.observer,
        )
        await self.releaser.start()

    async def hour(self, *, quiet: bool = False) -> None:
        """An hour passes: windows open, a few devices send, what is late moves on, what is due is released."""
        for clock in (self.gateway, self.releasing, *self.devices):
            if quiet:
                clock.ahead_ms = 0
            else:
                clock.jump(self.drawn)
        await self.tracker.open_accepted()
        for spool, clock in zip(self.spools, self.devices, strict=True):
            if not quiet and self.drawn.random() < ACTIVE:
                records = np.array([[self.drawn.uniform(0, 10), self.drawn.uniform(0, 10)]])
                spool.commit([split(self.plan, records, self.plan.window.index_at(clock.now_ms()))])
                self.added += 1
        await self.send()
        if self.releasing.ahead_ms > 0:  # the open window is over by this clock alone
            await self.releaser.take_due()
        self.world._elapsed.reach(self.world._elapsed.value + HOUR_MS)
        await self.releaser.take_due()

    async def send(self) -> None:
        """Every device sends what it holds, until each of it is answered or refused for now."""
        for spool in self.spools:
            for number in spool.unanswered():
                await self.send_one(spool, number)

    async def send_one(self, spool: Spool, number: int) -> None:
        (delta,) = spool.load(number, 1, 1)
        window = read_header(delta.data).window
        try:
            self.tracker.check(window)
        except RefusedError:  # beyond this gateway's clock, or never opened: it is given up
            spool.commit([Remove(number, "refused:window")])
            self.refused += 1
            return
        entry = entry_to_bytes(DeltaEntry(spool.client_id, delta.data, 0))
        (position,) = await self.log.append([NewEntry(0, window, entry)])
        await self.workers.passed(0, position)
        kind = self.observer.verdicts[-1][1].kind
        if kind is not VerdictKind.LATE:
            assert kind is VerdictKind.COUNTED
            spool.commit([Remove(number, "counted")])
            return
        now = self.plan.window.index_at(self.world.now_ms())
        (stored,) = spool.commit([Rebind(number, "late", lambda data: moved(self.plan, data, now))])
        assert not isinstance(stored, Exception)
        await self.send_one(spool, stored[0].sequence)


@pytest.mark.parametrize("days", [30, pytest.param(365, marks=pytest.mark.long)])
async def test_hourly_windows_with_idle_devices_and_clocks_that_jump_by_days(tmp_path: Path, days: int) -> None:
    year = YearOfWindows(tmp_path, PLAN)
    await year.begin()
    for _ in range(24 * days):
        await year.hour()
    for _ in range(24 * 6):  # until the windows have passed that clocks were ahead for
        await year.hour(quiet=True)
    schedule = PLAN.window
    assert all(at_ms >= due_ms(schedule, window) for window, at_ms in year.sealed_at.items())
    states = await year.store.windows(PLAN.id)
    finished = [window for window, state in states.items() if state == "released"]
    assert {state for window, state in states.items() if window <= max(finished)} == {"released", "skipped"}
    assert len(finished) > 0.8 * 24 * days
    assert (await year.store.account("")).spends == (spend_of(PLAN, kind=CUMULATIVE, window=None),)
    # Each record that a device holds a promise of is in one window, once.
    counted = [sum(spool.tallies[name] for spool in year.spools) for name in ("counted", "deltas_moved")]
    total = sum(int(sketch.counters.sum()) for sketch in year.exact.values())
    assert counted[0] == total == year.added - year.refused
    assert counted[1] > 0, "nothing was late"
    assert year.refused > 0
    assert year.observer.refused_seals, "no clock was ahead"
    last = await year.store.outcome(PLAN.id, CUMULATIVE, max(finished))
    assert last is not None
    release = Release.from_bytes(last.data)
    assert release.step == len(finished)
    off = release.counters.sum() - total
    sigma = float(PLAN.privacy.mechanism.scale) ** 0.5 * 4 * 4  # of 16 counters, at the worst step
    assert abs(off) < 6 * sigma
    for spool in year.spools:
        spool.close()
    await year.store.close()
