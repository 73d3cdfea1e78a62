import asyncio

import pytest

from aggregator.errors import RefusedError
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.store.store import memory_store
from aggregator.windows import WindowState
from hushsum.errors import Reason
from tests.aggregator.deltas import windowed_plan
from tests.doubles import ManualRuntime, MemoryStore
from tests.plans import small_plan
from tests.services import NOW_MS

PLAN = small_plan()


class SlowStore(MemoryStore):
    """Its next read of states is answered once the test says so, with what was so when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.held: asyncio.Event | None = None

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        found = await super().states(plan_id, first, last)
        held, self.held = self.held, None
        if held is not None:
            await held.wait()
        return found


async def test_a_read_that_ends_after_a_newer_one_opens_no_window_again() -> None:
    store, runtime, window = SlowStore(), ManualRuntime(NOW_MS), PLAN.window.index_at(NOW_MS)
    await store.register(PLAN, 1, window)
    tracker = WindowTracker(PLAN, store, runtime, skew_ms=0, first_window=window)
    await tracker.open_accepted()
    held = store.held = asyncio.Event()
    older = asyncio.create_task(tracker.refresh())
    await runtime.settle()
    await store.mark_closing(PLAN.id, window, fence=0)
    await tracker.refresh()
    assert tracker.state(window) is WindowState.CLOSING

    held.set()
    await older

    assert tracker.state(window) is WindowState.CLOSING


async def test_no_window_beyond_the_horizon_is_opened_and_its_deltas_are_refused_by_that_reason() -> None:
    plan, runtime = windowed_plan(1, horizon=2), ManualRuntime(NOW_MS)
    window = plan.window.index_at(NOW_MS)
    for make in (MemoryStore, memory_store):
        runtime = ManualRuntime(NOW_MS)
        store = make(runtime)
        await store.register(plan, 1, window)
        tracker = WindowTracker(plan, store, runtime, skew_ms=0, first_window=window)
        for turn in range(4):
            await tracker.open_accepted()
            if turn < 2:
                tracker.check(window + turn)
            await runtime.advance(3600)
        assert await store.windows(plan.id) == {window: "open", window + 1: "open"}
        for again in (tracker, WindowTracker(plan, store, runtime, skew_ms=0, first_window=window)):
            await again.load()
            await again.open_accepted()
            with pytest.raises(RefusedError, match="horizon of the plan is 2 outcomes") as caught:
                again.check(window + 4)
            assert (caught.value.refusal.reason, caught.value.refusal.retry) == (Reason.WINDOW_BEYOND_HORIZON, False)
        await store.close()


async def test_a_skipped_window_takes_nothing_of_the_horizon() -> None:
    runtime, window = ManualRuntime(NOW_MS), PLAN.window.index_at(NOW_MS)
    store = memory_store(runtime, exclusive=True)
    await store.register(PLAN, 1, window)
    fence = await store.acquire_lease(PLAN.id, "test", "", 10) or 0
    await store.open_windows(PLAN.id, window + 3, window + 3, horizon=2)
    await store.mark_closing(PLAN.id, window + 3, fence=fence)
    assert [*(await store.windows(PLAN.id)).values()] == [*["skipped"] * 3, "closing"]
    await store.open_windows(PLAN.id, window + 3, window + 9, horizon=2)
    assert {each for each, state in (await store.windows(PLAN.id)).items() if state == "open"} == {window + 4}
    await store.close()


async def test_a_gateway_whose_clock_is_ahead_uses_up_nothing_of_the_horizon() -> None:
    plan, window = small_plan(window={"release": "cumulative", "horizon": 4}), PLAN.window.index_at(NOW_MS)
    store = memory_store(ManualRuntime(NOW_MS), exclusive=True)
    await store.register(plan, 1, window)
    days_ahead = ManualRuntime(NOW_MS + 400 * 86_400_000)
    fast = WindowTracker(plan, store, days_ahead, skew_ms=0, first_window=window)
    await fast.open_accepted()
    assert await store.windows(plan.id) == {}
    honest = WindowTracker(plan, store, ManualRuntime(NOW_MS), skew_ms=0, first_window=window)
    await honest.open_accepted()
    honest.check(window)
    assert await store.windows(plan.id) == {window: "open"}
    await store.close()
