"""Work that has a time-out: its result, its error, and what becomes of it when nobody waits any more."""

import asyncio
import gc

import pytest

from aggregator.runtime import SystemRuntime, within


async def answer() -> int:
    await asyncio.sleep(0)
    return 7


async def fail() -> int:
    raise OSError("broken")


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_result_an_error_and_a_time_out() -> None:
    runtime = SystemRuntime()
    assert await within(60, answer(), runtime=runtime) == 7
    with pytest.raises(OSError, match="broken"):
        await within(60, fail(), runtime=runtime)
    with pytest.raises(TimeoutError, match=r"no response within 0\.001 s"):
        await within(0.001, never(), runtime=runtime)


async def test_work_that_never_begins_is_closed() -> None:
    waiting = within(60, answer(), runtime=SystemRuntime())
    waiting.send(None)  # its tasks are made, and have not run
    waiting.close()
    await asyncio.sleep(0)
    gc.collect()  # pytest raises Python's warning about a coroutine that was never awaited
