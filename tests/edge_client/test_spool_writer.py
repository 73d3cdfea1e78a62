"""Group commit: what arrives while one transaction reaches the disk shares the next one; each hears its own result."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from typing_extensions import override

from edge_client.draft import Bound
from edge_client.errors import SpoolError
from edge_client.ports import SystemRuntime, T
from edge_client.spool_writer import SpoolWriter
from hushsum.errors import ContributionError
from tests.edge_client.spools import addition, opened


class GatedRuntime(SystemRuntime):
    """Holds every blocking call back until it is let through, and counts them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.calls = 0
        self.gate = asyncio.Semaphore(0)

    @override
    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        self.calls += 1
        await self.gate.acquire()
        return await super().blocking(function, *arguments)


async def test_adds_that_arrive_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    runtime = GatedRuntime()
    writer = SpoolWriter(spool, runtime, commits_max=100)
    first = writer.put(addition("0"))
    await asyncio.wait([first], timeout=0)
    later = [writer.put(addition(str(number))) for number in range(1, 51)]
    runtime.gate.release()
    assert [bound.sequence for bound in await first] == [0]
    assert not any(future.done() for future in later)
    runtime.gate.release()
    assert [bound.sequence for bound in sum(await asyncio.gather(*later), ())] == list(range(1, 51))
    assert runtime.calls == 2
    await writer.close()
    spool.close()
    runtime.close()


async def test_a_change_that_is_refused_alone_spoils_no_other(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    runtime = SystemRuntime(1)
    writer = SpoolWriter(spool, runtime, commits_max=100)
    too_many = writer.put(addition("a", "b", records_max=1))
    fine = writer.put(addition("c"))
    with pytest.raises(ContributionError):
        await too_many
    assert [type(bound) for bound in await fine] == [Bound]
    await writer.close()
    spool.close()
    runtime.close()


async def test_a_failed_transaction_is_told_to_all_and_the_next_change_is_tried(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    runtime = SystemRuntime(1)
    writer = SpoolWriter(spool, runtime, commits_max=100)
    spool._database.execute("PRAGMA synchronous = NORMAL")
    futures = [writer.put(addition(str(number))) for number in range(3)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [SpoolError] * 3
    spool._database.execute("PRAGMA synchronous = FULL")
    assert len(await writer.put(addition("again"))) == 1
    await writer.close()
    spool.close()
    runtime.close()


async def test_a_change_is_made_even_if_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    runtime = SystemRuntime(1)
    writer = SpoolWriter(spool, runtime, commits_max=1)
    writer.put(addition("a")).cancel()
    writer.put(addition("b")).cancel()
    await writer.close()
    assert spool.unanswered() == (0, 1)
    spool.close()
    runtime.close()
