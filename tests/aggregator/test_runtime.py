"""Work that has a time-out: its result, its error, and what becomes of it when nobody waits any more."""

import asyncio
import errno
import gc
import threading
import weakref
from contextlib import suppress

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


async def test_a_call_in_a_thread_that_is_cancelled_before_it_begins_never_runs() -> None:
    runtime, go, ran = SystemRuntime(threads=1), threading.Event(), list[str]()

    def wait() -> None:
        assert go.wait(60)
        ran.append("first")

    first = asyncio.create_task(runtime.blocking(wait))
    second = asyncio.create_task(runtime.blocking(ran.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    await runtime.blocking(ran.append, "third")
    assert ran == ["first", "third"]


class Large:
    """An argument that can be referred to weakly."""


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), ValueError("wrong")], ids=lambda each: type(each).__name__
)
async def test_a_call_in_a_thread_that_fails_keeps_none_of_its_arguments(error: Exception) -> None:
    runtime, large = SystemRuntime(threads=1), Large()
    seen = weakref.ref(large)

    def refuse(_: Large) -> None:
        raise type(error)(*error.args)

    gc.disable()
    try:
        with suppress(type(error)):
            await runtime.blocking(refuse, large)
        del large
        await runtime.blocking(int)  # the thread has let go of the call before
        assert seen() is None
    finally:
        gc.enable()


async def test_a_call_in_a_thread_that_is_cancelled_runs_to_its_end_and_its_error_is_nobodys() -> None:
    runtime, begun, go = SystemRuntime(threads=1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(60)
        raise ValueError("nobody waits for it")

    call = asyncio.create_task(runtime.blocking(work))
    assert await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go.set()
    assert await runtime.blocking(lambda: 7) == 7
