import asyncio

from aggregator.ingest.window_tracker import WindowTracker
from aggregator.windows import WindowState
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
