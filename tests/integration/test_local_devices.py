"""Devices in local mode and the real service: both forms, counted right, and charged on both sides."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from edge_client import Config, DroppedRecordsWarning, EdgeClient, NotCountedError, Policy, SystemRuntime
from hushsum import Plan
from tests.edge_client.clocks import until
from tests.plans import small_plan
from tests.services import NOW_MS, WINDOW, RawClient, SetRuntime, config_of, service_of

CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.2, close_flush_s=0.0)


class DeviceClock(SystemRuntime):
    """A device's wall clock that the test sets; what a silo does ahead of its moment is not waited for."""

    def __init__(self) -> None:
        super().__init__(2)
        self.set_ms = NOW_MS

    @override
    def now_ms(self) -> int:
        return self.set_ms

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.05 if seconds <= 5 else seconds)


@pytest.fixture
async def clock() -> AsyncIterator[DeviceClock]:
    clock = DeviceClock()
    yield clock
    clock.close()


def local_plan(local: dict[str, object], epsilon: int = 40, **sketch: object) -> Plan:
    """A plan whose devices draw so little noise that what is counted can be told: ε is large."""
    privacy = {"mode": "local", "epsilon": epsilon, "total_epsilon": 100, "local": local}
    return small_plan(sketch=sketch, privacy=privacy)


@pytest.mark.parametrize("memoise", [False, True])
async def test_each_record_of_a_device_is_one_report_in_the_release(
    tmp_path: Path, clock: DeviceClock, rng: np.random.Generator, memoise: bool
) -> None:
    plan = local_plan({"memoise": memoise}, epsilon=4)
    async with (
        service_of(config_of(tmp_path, plan)) as service,
        EdgeClient(
            service.grpc, spool=tmp_path / "spool.db", policy=Policy(memoise=memoise), config=CONFIG, runtime=clock
        ) as client,
    ):
        await client.add(rng.uniform(0, 10, (40, 2)))
        with pytest.warns(DroppedRecordsWarning):
            await client.add([[1.0, 2.0], [np.nan, 3.0]])
        await client.flush(timeout_s=120)
        async with RawClient(service.grpc) as operator:
            assert await operator.seal() == WINDOW
        sealed = await service.store.sealed_window(plan, WINDOW)
        assert sealed is not None
        assert sealed.sketch.counters.sum() == sealed.sketch.counts.sum() == 42
        account = client.status().account
        assert account is not None
        assert account.newest is not None
        assert account.newest.window == WINDOW
    tallies = client.status()
    assert (tallies.records, tallies.records_dropped, tallies.reports) == (41, 1, 42)
    assert (tallies.deltas, tallies.acknowledged) == (2, 2)


@pytest.mark.parametrize("rows", [20, 4000])
async def test_a_silo_submits_its_noised_sum_once_however_large_it_is(
    tmp_path: Path, clock: DeviceClock, rng: np.random.Generator, rows: int
) -> None:
    plan = local_plan({"form": "silo"}, rows=rows)
    records = rng.uniform(0, 10, (30, 2))
    assert (plan.upload_bytes_max > 256 * 1024) == (rows > 1000)
    async with (
        service_of(config_of(tmp_path, plan)) as service,
        EdgeClient(service.grpc, spool=tmp_path / "a.db", client_id="a", config=CONFIG, runtime=clock) as one,
        EdgeClient(service.grpc, spool=tmp_path / "b.db", client_id="b", config=CONFIG, runtime=clock) as other,
    ):
        await one.add(records)
        await asyncio.gather(one.flush(timeout_s=120), other.flush(timeout_s=120))
        async with RawClient(service.grpc) as operator:
            assert await operator.seal() == WINDOW
        sealed = await service.store.sealed_window(plan, WINDOW)
        assert sealed is not None
        noise_sd = float(plan.privacy.mechanism.scale) * 2
        count = sealed.sketch.counts.sum() / plan.privacy.mechanism.count_scale
        assert abs(count - 30) < 40 * noise_sd / plan.privacy.mechanism.count_scale
        assert sealed.sketch.counters.any()
    for client in (one, other):
        tallies = client.status()
        assert (tallies.submissions_spent, tallies.submissions_counted, tallies.submissions_lost) == (1, 1, 0)
        assert (tallies.deltas_sent, tallies.acknowledged) == (1, 1)


async def test_a_silo_that_comes_late_has_lost_its_window_and_says_so(tmp_path: Path, clock: DeviceClock) -> None:
    plan = local_plan({"form": "silo"})
    async with (
        service_of(config_of(tmp_path, plan)) as service,
        EdgeClient(service.grpc, spool=tmp_path / "spool.db", config=CONFIG, runtime=clock) as client,
    ):
        await client.add([1.0, 2.0])
        async with RawClient(service.grpc) as operator:
            assert await operator.seal() == WINDOW
        with pytest.raises(NotCountedError, match="late"):
            await client.flush(timeout_s=120)
        await client.flush(timeout_s=120)
    tallies = client.status()
    assert (tallies.submissions_spent, tallies.submissions_counted, tallies.submissions_lost) == (1, 0, 1)
    assert (tallies.deltas_sent, tallies.late) == (1, 1)


async def test_a_silo_submits_by_itself_after_the_windows_end_records_or_none(
    tmp_path: Path, clock: DeviceClock
) -> None:
    plan = local_plan({"form": "silo"})
    there = SetRuntime()
    async with (
        service_of(config_of(tmp_path, plan), there) as service,
        EdgeClient(service.grpc, spool=tmp_path / "spool.db", config=CONFIG, runtime=clock) as client,
    ):
        await asyncio.sleep(0.3)
        assert client.status().submissions_spent == 0
        clock.set_ms = there.set_ms = plan.window.end_ms(WINDOW) + plan.window.lateness_ms // 2
        await until(lambda: client.status().submissions_counted + client.status().submissions_lost > 0, "it submits")
        assert client.status().acknowledged == 1
