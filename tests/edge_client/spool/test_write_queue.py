"""Group commit: what arrives while one transaction reaches the disk shares the next one; each hears its own result."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typing_extensions import override

from edge_client import EdgeClient
from edge_client.errors import SpoolError
from edge_client.runtime import SystemRuntime, T
from edge_client.spool.changes import Add, Change, Remove, Result, StoredDelta, Submit
from edge_client.spool.spool import Spool
from edge_client.spool.window_submissions import SiloSubmissions
from edge_client.spool.write_queue import SpoolWriter
from edge_client.testing import MemoryService
from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError
from tests.edge_client.local_plans import silo_plan
from tests.edge_client.spools import addition, bytes_of, opened
from tests.plans import small_plan


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


class SteppedRuntime(SystemRuntime):
    """A clock that moves when somebody sleeps, and then at once; at a chosen sleep something happens."""

    def __init__(self, at_sleep: int = 0, happens: Callable[[], None] = lambda: None) -> None:
        super().__init__(1)
        self.now = 0.0
        self.slept: list[float] = []
        self.at_sleep = at_sleep
        self.happens = happens

    @override
    def monotonic(self) -> float:
        return self.now

    @override
    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        if len(self.slept) == self.at_sleep:
            self.happens()
        await super().sleep(0)
        self.now += seconds


@contextmanager
def writing(spool: Spool, runtime: SystemRuntime) -> Iterator[SpoolWriter]:
    yield SpoolWriter(spool, runtime, commits_max=100)
    spool.close()
    runtime.close()


async def until_idle(writer: SpoolWriter) -> None:
    """Whatever the writer does by itself is over."""
    while tasks := [task for task in (writer._task, writer._timer) if task is not None and not task.done()]:
        await asyncio.wait(tasks)


def set_read_only(spool: Spool, value: str) -> None:
    """A disk that refuses every write for a while: commits raise sqlite3.OperationalError."""
    with spool._lock:
        spool._database.execute(f"PRAGMA query_only = {value}")


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
    assert [type(bound) for bound in await fine] == [StoredDelta]
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


async def test_an_add_that_meets_a_full_disk_is_refused_alone_and_the_removal_beside_it_makes_room(
    tmp_path: Path,
) -> None:
    spool = opened(tmp_path / "spool.db")
    with writing(spool, SystemRuntime(1)) as writer:
        await writer.put(addition("a" * 100_000))
        pages = spool._database.execute("PRAGMA page_count").fetchone()[0]
        spool._database.execute(f"PRAGMA max_page_count = {pages}")
        removed, added = writer.put(Remove(0, "acknowledged")), writer.put(addition("b" * 300_000))
        with pytest.raises(SpoolError, match="full"):
            await added
        assert await removed == ()
        assert spool.unanswered() == ()
        (bound,) = await writer.put(addition("c" * 90_000))
        assert spool.unanswered() == (bound.sequence,) == (1,)
        await writer.close()


async def test_a_removal_that_fails_is_tried_again_ever_less_often_until_it_is_durable(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    runtime = SteppedRuntime(9, lambda: set_read_only(spool, "OFF"))
    with writing(spool, runtime) as writer:
        await writer.put(addition("a"))
        await writer.put(addition("b"))
        set_read_only(spool, "ON")
        removed, added = writer.put(Remove(0, "acknowledged")), writer.put(addition("c"))
        with pytest.raises(SpoolError, match="readonly"):
            await added
        assert not removed.done()
        assert spool.unanswered() == (0, 1)
        assert await removed == ()
        assert spool.unanswered() == (1,)
        assert spool.tallies["acknowledged"] == 1
        assert runtime.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        assert len(await writer.put(addition("d"))) == 1
        set_read_only(spool, "ON")
        runtime.at_sleep = 11
        assert await writer.put(Remove(1, "acknowledged")) == ()
        assert runtime.slept[9:] == [0.1, 0.2]  # the next trouble begins anew
        await writer.close()


async def test_adds_go_on_while_a_removal_waits_and_hear_their_own_errors_alone(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    with writing(spool, SystemRuntime(1)) as writer:
        await writer.put(addition("a"))
        spool._database.execute("CREATE TEMP TRIGGER t BEFORE DELETE ON deltas BEGIN SELECT raise(ABORT, 'torn'); END")
        removed = writer.put(Remove(0, "acknowledged"))
        for text in "bcdef":
            assert len(await writer.put(addition(text))) == 1
        assert not removed.done()
        with spool._lock:
            spool._database.execute("DROP TRIGGER t")
        assert await removed == ()
        await writer.close()


async def test_closing_on_a_broken_disk_tries_removals_once_more_and_leaves_them_to_the_next_start(
    tmp_path: Path,
) -> None:
    for healed in (False, True):
        spool = opened(tmp_path / f"{healed}.db")
        with writing(spool, GatedRuntime()) as writer:
            runtime = writer._runtime
            assert isinstance(runtime, GatedRuntime)
            runtime.gate = asyncio.Semaphore(100)
            await writer.put(addition("a"))
            set_read_only(spool, "ON")
            removed = writer.put(Remove(0, "acknowledged"))
            while writer._timer is None:
                await asyncio.wait([removed], timeout=0)
            if healed:
                set_read_only(spool, "OFF")
            await writer.close()
            assert removed.cancelled() is not healed
            assert spool.unanswered() == (() if healed else (0,))
            assert runtime.calls == 3
            set_read_only(spool, "OFF")


async def test_what_was_answered_is_erased_from_the_log_once_the_spool_is_empty_at_most_every_five_seconds(
    tmp_path: Path,
) -> None:
    spool, runtime = opened(tmp_path / "spool.db"), SteppedRuntime()
    log = tmp_path / "spool.db-wal"
    with writing(spool, runtime) as writer:
        for turn in range(3):
            first, second = await writer.put(addition("secret-colour", "secret-taste"))
            await writer.put(Remove(first.sequence, "acknowledged"))
            await until_idle(writer)
            assert b"secret-taste" in log.read_bytes()  # one is unanswered: the log is not touched
            await writer.put(Remove(second.sequence, "acknowledged"))
            await until_idle(writer)
            assert log.stat().st_size == 0
            assert b"secret" not in (tmp_path / "spool.db").read_bytes()
            assert runtime.slept == [5.0] * turn
        await writer.close()


async def test_an_erasure_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, runtime = opened(tmp_path / "spool.db"), SteppedRuntime(2, monkeypatch.undo)
    with writing(spool, runtime) as writer:
        monkeypatch.setattr(spool, "erase_answered", lambda: False)
        await writer.put(addition("secret-colour"))
        await writer.put(Remove(0, "acknowledged"))
        await until_idle(writer)
        assert runtime.slept == [5.0, 5.0]
        assert (tmp_path / "spool.db-wal").stat().st_size == 0
        await writer.close()


class Watched(Spool):
    """Notes what each transaction is made of; refuses those with an addition, as a disk does that has little room."""

    def __init__(self, path: Path) -> None:
        self.seen: list[list[str]] = []
        self.full = False
        super().__init__(path, client_id=None, entropy=OsEntropy(), bytes_max=2**30)

    @override
    def commit(self, changes: Sequence[Change]) -> list[Result]:
        self.seen.append([type(change).__name__ for change in changes])
        if self.full and "Add" in self.seen[-1]:
            raise SpoolError("the disk is full")
        return super().commit(changes)


@pytest.mark.parametrize("full", [False, True])
async def test_submissions_go_before_everything_that_waits_and_share_no_transaction_with_it(
    tmp_path: Path, full: bool
) -> None:
    spool, runtime = Watched(tmp_path / "spool.db"), GatedRuntime()
    SiloSubmissions(spool, silo_plan()).update(range(4, 9))
    writer = SpoolWriter(spool, runtime, commits_max=2)
    spool.commit([Submit(window, bytes_of, 0) for window in (4, 5, 6)])
    spool.seen.clear()
    spool.full = full
    under_way = writer.put(Remove(0, "acknowledged"))
    await asyncio.wait([under_way], timeout=0)
    waiting = [writer.put(Remove(number, "acknowledged")) for number in (1, 2)]
    adds = [writer.put(addition(str(number))) for number in range(3)]
    submitted = [writer.put(Submit(window, bytes_of, 0)) for window in (7, 8)]
    for _ in range(20):
        runtime.gate.release()
    assert [bound.sequence for (bound,) in await asyncio.gather(*submitted)] == [3, 4]
    assert not any(future.done() for future in (*waiting, *adds))
    results = await asyncio.gather(*adds, return_exceptions=True)
    assert [isinstance(result, SpoolError) for result in results] == [full] * 3
    await asyncio.wait(waiting)
    assert spool.seen[:3] == [["Remove"], ["Submit", "Submit"], ["Remove", "Remove"]]
    assert "Submit" not in {name for names in spool.seen[2:] for name in names}
    await writer.close()
    spool.close()
    runtime.close()


async def test_a_record_and_its_answer_are_one_transaction_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[list[type[Change]]] = []
    commit = Spool.commit

    def counted(spool: Spool, changes: Sequence[Change]) -> list[Result]:
        commits.append([type(change) for change in changes])
        return commit(spool, changes)

    monkeypatch.setattr(Spool, "commit", counted)
    async with EdgeClient(MemoryService(small_plan()), spool=tmp_path / "spool.db") as client:
        for _ in range(3):
            await client.add([1.5, 2.5])
            await client.flush(30)
    assert commits == 3 * [[Add], [Remove]]
