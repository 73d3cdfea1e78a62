"""Whose messages come in at once: by bytes, by name, and nobody's given up for one that has not begun."""

import asyncio
from contextlib import ExitStack

import pytest

from aggregator.api.admission_control import (
    NAMELESS_CALLS_MAX,
    UNREAD_BYTES_MAX,
    UNREAD_MAX,
    CancellableCall,
    RequestAdmission,
)
from aggregator.errors import RefusedError
from hushsum_proto.answers import ServiceReason

MESSAGE = UNREAD_BYTES_MAX // 7


class Awaited:
    """Calls whose message never comes."""

    def __init__(self, calls: RequestAdmission) -> None:
        self.calls = calls
        self.reading: list[asyncio.Task[None]] = []

    async def one(self, name: str) -> CancellableCall:
        call, begun = CancellableCall(), asyncio.Event()

        async def read() -> None:
            with self.calls.under_way(name):
                begun.set()
                async with self.calls.unread(name, call):
                    await asyncio.Event().wait()

        task = asyncio.create_task(read())
        self.reading.append(task)
        await begun.wait()
        await asyncio.sleep(0)
        if task.done():
            task.result()
        return call

    async def close(self) -> None:
        for task in self.reading:
            task.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)


async def test_who_has_no_name_holds_few_messages_however_large_they_may_be() -> None:
    awaited = Awaited(RequestAdmission(3072, MESSAGE))
    calls = [await awaited.one("") for _ in range(20)]
    assert [call.ended is None for call in calls] == [False] * 12 + [True] * 8, "the oldest make room"
    await awaited.close()


async def test_a_message_that_is_on_its_way_is_not_given_up_for_one_that_has_not_begun() -> None:
    awaited = Awaited(RequestAdmission(4 * UNREAD_MAX, 1024))
    calls = [await awaited.one(f"till-{number}") for number in range(UNREAD_MAX)]
    with pytest.raises(RefusedError) as caught:
        await awaited.one("one more")
    assert caught.value.refusal.reason is ServiceReason.OVERLOADED
    assert all(call.ended is None for call in calls)
    await awaited.close()


async def test_who_awaits_most_makes_room_for_who_awaits_less() -> None:
    awaited = Awaited(RequestAdmission(4 * UNREAD_MAX, 1024))
    greedy = [await awaited.one("greedy") for _ in range(UNREAD_MAX - 1)]
    honest = [await awaited.one("a"), await awaited.one("b")]
    assert [call.ended is None for call in greedy[:2]] == [False, True]
    assert all(call.ended is None for call in honest)
    with pytest.raises(RefusedError):
        await awaited.one("greedy")
    await awaited.close()


def test_calls_without_a_name_are_bounded_and_take_nothing_from_those_that_have_one() -> None:
    calls = RequestAdmission(16, 1024)
    with ExitStack() as open_calls:
        for _ in range(NAMELESS_CALLS_MAX):
            open_calls.enter_context(calls.under_way(""))
        with pytest.raises(RefusedError, match="without a client id"), calls.under_way(""):
            pass
        for name in ("a", "a", "b", "b"):
            open_calls.enter_context(calls.under_way(name))
        assert len(calls) == 4
    assert len(calls) == 0
