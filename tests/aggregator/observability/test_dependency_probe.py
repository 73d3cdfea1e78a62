"""Who looks at a service from outside: what does not answer for long is told, and what another process publishes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from structlog.testing import capture_logs

from aggregator.errors import StoreUnavailableError
from aggregator.model import NewEntry, Outcome
from aggregator.observability.health import LOOK_S, PATIENCE_S, DependencyProbe, ReadinessProbe
from aggregator.observability.metrics import Metrics
from aggregator.release.catalog import ReleaseCatalog
from aggregator.store.store import Store
from tests.doubles import ManualRuntime, MemoryStore, PowerLossLog
from tests.hooks import Hooks
from tests.plans import small_plan

PLAN = small_plan()


async def unreachable(_: Callable[[], Awaitable[object]]) -> object:
    """It cannot be asked."""
    raise StoreUnavailableError("no answer")


class Looked:
    """Soundings over a log and a store in memory, of which calls may fail."""

    def __init__(self) -> None:
        self.runtime, self.hooks, self.metrics = ManualRuntime(), Hooks(), Metrics()
        self.log, self.store = PowerLossLog(2, self.runtime), MemoryStore(self.runtime)
        self.told: list[bool] = []

    async def tell(self, is_ready: bool) -> None:
        self.told.append(is_ready)

    def gauge(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    async def fail_for(self, seconds: float) -> None:
        """The store cannot be reached for so long."""
        looks = round(seconds / LOOK_S)
        for _ in range(looks):
            self.hooks.put("fold_marks", unreachable)
            await self.runtime.advance(LOOK_S)


@asynccontextmanager
async def looked() -> AsyncIterator[Looked]:
    world = Looked()
    await world.store.register(PLAN, 2, 0)
    log, store = world.hooks.around(world.log), world.hooks.around(world.store)
    looking = DependencyProbe(PLAN.id, log, store, world.runtime, world.metrics, world.tell)
    task = asyncio.create_task(looking.run())
    await world.runtime.settle()
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_store_that_is_away_for_a_moment_is_nobodys_business() -> None:
    async with looked() as world:
        await world.fail_for(PATIENCE_S - LOOK_S - 1)
        await world.runtime.advance(LOOK_S)

        assert world.told == []
        assert world.gauge("hushsum_ready") == 1


async def test_a_store_that_is_away_for_long_is_told_once_and_once_more_when_it_is_back() -> None:
    async with looked() as world:
        await world.fail_for(PATIENCE_S + 3 * LOOK_S)
        assert world.told == [False]
        assert world.gauge("hushsum_ready") == 0

        await world.runtime.advance(LOOK_S)
        assert world.told == [False, True]
        assert world.gauge("hushsum_ready") == 1


async def test_what_does_not_answer_for_long_is_an_error_in_the_log_whatever_it_is() -> None:
    """Of log and store, and of a shuffler's file."""
    world = Looked()
    await world.store.register(PLAN, 2, 0)
    log, store = world.hooks.around(world.log), world.hooks.around(world.store)
    looks = (lambda: store.fold_marks(PLAN.id),)
    for probe in (
        DependencyProbe(PLAN.id, log, store, world.runtime, world.metrics, world.tell),
        ReadinessProbe("the reports file", looks, world.runtime, world.metrics, world.tell),
    ):
        with capture_logs() as lines:
            task = asyncio.create_task(probe.run())
            await world.runtime.settle()
            await world.fail_for(PATIENCE_S + 3 * LOOK_S)
            await world.runtime.advance(LOOK_S)
            task.cancel()
            await asyncio.wait([task])
        assert [line["log_level"] for line in lines] == ["error", "info"]


async def test_lags_are_shown_of_every_partition_whoever_folds_it() -> None:
    async with looked() as world:
        await world.log.append([NewEntry(1, 0, b"entry")] * 3)
        await world.runtime.advance(LOOK_S)

        assert world.gauge("hushsum_stored_fold_lag", partition="0") == 0
        assert world.gauge("hushsum_stored_fold_lag", partition="1") == 3
        assert world.gauge("hushsum_log_end", partition="1") == 3


def test_lags_count_messages_where_a_position_is_a_message_and_an_index() -> None:
    metrics = Metrics(step=1 << 16)
    metrics.sounded({0: 5 << 16, 1: (5 << 16) + 7, 2: 5 << 16}, {0: 3 << 16, 1: 5 << 16, 2: 6 << 16})

    lags = [metrics.registry.get_sample_value("hushsum_stored_fold_lag", {"partition": str(each)}) for each in range(3)]
    assert lags == [2, 1, 0]


def test_a_partition_that_is_folded_elsewhere_leaves_no_lag_behind() -> None:
    metrics = Metrics()
    metrics.appended(1, 9)
    metrics.folded(1, 4, ())
    metrics.partitions_held([0, 1])
    assert metrics.registry.get_sample_value("hushsum_fold_lag", {"partition": "1"}) == 5

    metrics.partitions_held([0])
    metrics.appended(1, 12)
    assert metrics.registry.get_sample_value("hushsum_fold_lag", {"partition": "1"}) is None
    assert metrics.registry.get_sample_value("hushsum_partitions_held") == 1


def test_a_partition_that_has_stopped_here_is_another_process_business_once_it_goes_there() -> None:
    metrics = Metrics()
    metrics.partition_stopped(1, "a gap")
    assert metrics.registry.get_sample_value("hushsum_partition_stopped", {"partition": "1"}) == 1

    metrics.partitions_held([0])
    assert metrics.registry.get_sample_value("hushsum_partition_stopped", {"partition": "1"}) == 0


class Published:
    """A store whose outcomes another process publishes.

    Attributes:
        asked: How often somebody looked.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._outcomes: list[Outcome] = []

    def publish(self, window: int) -> None:
        self._outcomes.append(Outcome(PLAN.id, "tumbling", window, 1, bytes(32), published=True))

    async def outcomes(self, _: bytes) -> list[Outcome]:
        self.asked += 1
        return [*self._outcomes]


async def test_who_watches_hears_of_what_another_process_publishes_and_the_store_is_asked_only_meanwhile() -> None:
    runtime, store = ManualRuntime(), Published()
    catalog = ReleaseCatalog(PLAN, cast("Store", store))
    looking = asyncio.create_task(catalog.look_out(runtime))
    await runtime.advance(60.0)
    assert store.asked == 0, "nobody watches"

    heard: list[int] = []

    async def watch() -> None:
        async for info in catalog.watch(None):
            heard.append(info.window)  # noqa: PERF401  they come one by one

    store.publish(0)
    watching = asyncio.create_task(watch())
    await runtime.settle()
    assert heard == [0]
    for window in (1, 2):
        store.publish(window)
        await runtime.advance(1.0)
    assert heard == [0, 1, 2]

    catalog.close()
    await watching
    asked = store.asked
    await runtime.advance(60.0)
    assert store.asked == asked, "nobody watches any more"
    looking.cancel()
    await asyncio.wait([looking])
