"""An async iterable is added item by item: each is durable before the next is asked for."""

import asyncio
import gc
import warnings
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edge_client import Config, DroppedRecordsWarning, EdgeClient, PlanChangedError, blocking
from edge_client.testing import MemoryService
from hushsum.errors import Reason, RecordError
from tests.plans import small_plan


async def test_each_item_of_an_async_iterable_is_durable_before_the_next_is_asked_for(path: Path) -> None:
    plan = small_plan(record={"names": ["x", "y"]})
    asked: list[int] = []
    async with EdgeClient(MemoryService(plan), spool=path) as client:

        async def readings() -> AsyncIterator[object]:
            for each in ({"x": 1.0, "y": 2.0}, [[3.0, 4.0], [5.0, 6.0]], np.ones((3, 2))):
                asked.append(client.status().records)
                yield each

        await client.add(readings())
        await client.flush(60)
        assert asked == [0, 1, 3]
        assert client.status().acknowledged == 3


async def test_memory_for_an_async_iterable_is_that_of_one_item(path: Path) -> None:
    plan = small_plan()
    alive: list[weakref.ref[npt.NDArray[np.float64]]] = []

    async def readings() -> AsyncIterator[npt.NDArray[np.float64]]:
        for _ in range(50):
            batch = np.full((100, 2), 3.0)
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            gc.collect()
            assert sum(each() is not None for each in alive) <= 1

    async with EdgeClient(MemoryService(plan), spool=path) as client:
        await client.add(readings())
        assert client.status().records == 5000


async def test_an_error_names_the_item_and_what_comes_after_it_can_be_added(path: Path) -> None:
    plan = small_plan()

    async def readings() -> AsyncIterator[object]:
        yield [1.0, 2.0]
        yield [[1.0, 2.0], [3.0, 4.0]]
        yield np.ones((2, 2, 2))
        yield [7.0, 8.0]

    given = readings()
    async with EdgeClient(MemoryService(plan), spool=path) as client:
        with pytest.raises(RecordError, match=r"got an array of shape \(2, 2, 2\)") as raised:
            await client.add(given)
        assert raised.value.__notes__ == ["item 2 of the async iterable, counted from 0: all before it were added"]
        assert client.status().records == 3
        await client.add(given)
        assert client.status().records == 4
        with pytest.raises(RecordError, match="labels: got several for an async iterable"):
            await client.add(given, labels=["a", "b"])


async def test_the_warnings_of_an_items_records_are_those_of_its_own_add(path: Path) -> None:
    async def readings() -> AsyncIterator[object]:
        yield [1.0, 2.0]
        yield [[np.nan, 2.0], [3.0, 4.0]]

    async with EdgeClient(MemoryService(small_plan()), spool=path) as client:
        with pytest.warns(DroppedRecordsWarning) as warned:
            await client.add(readings())
        assert [warning.filename for warning in warned] == [__file__]
        with warnings.catch_warnings(action="error"), pytest.raises(DroppedRecordsWarning) as raised:
            await client.add(readings())
        assert raised.value.__notes__ == ["item 1 of the async iterable, counted from 0: all before it were added"]
        assert client.status().records == 3


async def test_a_note_says_whether_the_item_of_a_warning_or_a_cancellation_was_added(path: Path) -> None:
    plan = small_plan(privacy={"unit": "client", "records_per_client": 2})
    waiting = asyncio.Event()

    async def readings() -> AsyncIterator[object]:
        yield [1.0, 2.0]
        yield [[1.0, 2.0], [3.0, 4.0]]

    async def slow() -> AsyncIterator[object]:
        waiting.set()
        await asyncio.Event().wait()
        yield [1.0, 2.0]

    item = "item {} of the async iterable, counted from 0: {}"
    async with EdgeClient(MemoryService(plan), spool=path) as client:
        with warnings.catch_warnings(action="error"), pytest.raises(DroppedRecordsWarning) as raised:
            await client.add(readings())  # of the second item one record is beyond the bound
        assert raised.value.__notes__ == [item.format(1, "it and all before it were added")]
        assert client.status().records == 2
        adding = asyncio.create_task(client.add(slow()))
        await waiting.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await adding
        assert cancelled.value.__notes__ == [item.format(0, "all before it were added, it may have been")]


async def endless(asked: list[int]) -> AsyncIterator[object]:
    while True:
        asked.append(len(asked))
        yield [1.0, 2.0]
        await asyncio.sleep(0)


async def test_a_client_that_has_stopped_asks_for_no_further_item(path: Path) -> None:
    asked: list[int] = []
    service = MemoryService(small_plan())

    async with EdgeClient(service, spool=path, config=Config(close_flush_s=0.0)) as client:
        await client.add([1.0, 2.0])
        await client.flush(60)
        service.refuse(Reason.WRONG_PLAN, "another one")
        with pytest.raises(PlanChangedError):
            await client.add(endless(asked))
        taken = len(asked)
        with pytest.raises(PlanChangedError):
            await client.add(endless(asked))
        assert len(asked) == taken


def test_the_blocking_client_says_what_takes_an_async_iterable(path: Path) -> None:
    with (
        blocking.EdgeClient(MemoryService(small_plan()), spool=path) as client,
        pytest.raises(RecordError, match=r"got an async iterable, expected its items: edge_client.EdgeClient.add"),
    ):
        client.add(endless([]))
