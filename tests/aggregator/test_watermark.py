import asyncio

import pytest

from aggregator.runtime import Watermark
from tests.doubles import ManualRuntime


async def test_those_who_wait_are_woken_in_order_and_not_before() -> None:
    watermark, woken = Watermark(0), []

    async def wait(value: int) -> None:
        await watermark.reached(value)
        woken.append(value)

    waiting = [asyncio.create_task(wait(value)) for value in (3, 1, 2, 5)]
    await asyncio.sleep(0)
    watermark.reach(2)
    await asyncio.sleep(0)
    assert sorted(woken) == [1, 2]
    watermark.reach(1)
    watermark.reach(5)
    await asyncio.gather(*waiting)
    assert watermark.value == 5


async def test_a_failure_reaches_those_who_wait_and_those_who_come_later_but_not_what_was_reached() -> None:
    watermark = Watermark(0)
    waiting = asyncio.create_task(watermark.reached(2))
    await asyncio.sleep(0)
    watermark.reach(1)
    watermark.fail(lambda: ValueError("over"))
    for late in (waiting, watermark.reached(3)):
        with pytest.raises(ValueError, match="over"):
            await late
    await watermark.reached(1)


async def test_waiting_ends_when_its_time_is_over() -> None:
    runtime, watermark = ManualRuntime(), Watermark(0)
    waiting = asyncio.create_task(watermark.reached_within(1, runtime, 5.0))
    await runtime.advance(4.9)
    assert not waiting.done()
    await runtime.advance(0.2)
    assert await waiting is False


async def test_waiting_ends_when_it_is_reached() -> None:
    runtime, watermark = ManualRuntime(), Watermark(0)
    waiting = asyncio.create_task(watermark.reached_within(1, runtime, 5.0))
    await runtime.settle()
    watermark.reach(1)
    assert await waiting is True
    assert await watermark.reached_within(1, runtime, 0.0) is True
    assert await watermark.reached_within(2, runtime, 0.0) is False


async def test_those_who_gave_up_are_not_kept() -> None:
    runtime, watermark = ManualRuntime(), Watermark(0)
    timed = asyncio.create_task(watermark.reached_within(1, runtime, 5.0))
    cancelled = asyncio.create_task(watermark.reached(1))
    stays = asyncio.create_task(watermark.reached(2))
    await runtime.settle()
    cancelled.cancel()
    await runtime.advance(6)
    assert await timed is False
    assert len(watermark._waiting) == 1
    watermark.reach(2)
    await stays
