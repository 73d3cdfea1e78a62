import asyncio

import pytest

from aggregator.runtime import Watermark
from tests.doubles import ManualRuntime


async def test_those_who_wait_are_woken_in_order_and_not_before() -> None:
    milestone, woken = Watermark(0), []

    async def wait(value: int) -> None:
        await milestone.reached(value)
        woken.append(value)

    waiting = [asyncio.create_task(wait(value)) for value in (3, 1, 2, 5)]
    await asyncio.sleep(0)
    milestone.reach(2)
    await asyncio.sleep(0)
    assert sorted(woken) == [1, 2]
    milestone.reach(1)
    milestone.reach(5)
    await asyncio.gather(*waiting)
    assert milestone.value == 5


async def test_a_failure_reaches_those_who_wait_and_those_who_come_later_but_not_what_was_reached() -> None:
    milestone = Watermark(0)
    waiting = asyncio.create_task(milestone.reached(2))
    await asyncio.sleep(0)
    milestone.reach(1)
    milestone.fail(ValueError("over"))
    for late in (waiting, milestone.reached(3)):
        with pytest.raises(ValueError, match="over"):
            await late
    await milestone.reached(1)


async def test_waiting_ends_when_its_time_is_over() -> None:
    runtime, milestone = ManualRuntime(), Watermark(0)
    waiting = asyncio.create_task(milestone.reached_within(1, runtime, 5.0))
    await runtime.advance(4.9)
    assert not waiting.done()
    await runtime.advance(0.2)
    assert await waiting is False


async def test_waiting_ends_when_it_is_reached() -> None:
    runtime, milestone = ManualRuntime(), Watermark(0)
    waiting = asyncio.create_task(milestone.reached_within(1, runtime, 5.0))
    await runtime.settle()
    milestone.reach(1)
    assert await waiting is True
    assert await milestone.reached_within(1, runtime, 0.0) is True
    assert await milestone.reached_within(2, runtime, 0.0) is False


async def test_those_who_gave_up_are_not_kept() -> None:
    runtime, milestone = ManualRuntime(), Watermark(0)
    timed = asyncio.create_task(milestone.reached_within(1, runtime, 5.0))
    cancelled = asyncio.create_task(milestone.reached(1))
    stays = asyncio.create_task(milestone.reached(2))
    await runtime.settle()
    cancelled.cancel()
    await runtime.advance(6)
    assert await timed is False
    assert len(milestone._waiting) == 1
    milestone.reach(2)
    await stays
