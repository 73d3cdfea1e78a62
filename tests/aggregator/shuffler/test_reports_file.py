"""What lies in a shuffler's file, and what does not: nothing in it joins a batch's id to its reports."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import StoreError
from aggregator.shuffler.reports_file import ClosedState, KeptPlan, OutgoingBatch, PoolAnswer, TakenBatch
from hushsum.delta import digest
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import Reason
from tests.aggregator.shuffler.shuffled import FILE, bytes_in, copied, opened, taken
from tests.doubles import ManualRuntime

ACKNOWLEDGED = PoolAnswer(is_open=True, known=False, state=None)
KNOWN = PoolAnswer(is_open=True, known=True, state=None)


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return rows


async def filled(folder: Path, groups: list[list[TakenBatch]]) -> None:
    """A file that took these groups, and was opened once more since."""
    folder.mkdir()  # noqa: ASYNC240  a test waits for it
    for each in (groups, []):
        file = await opened(folder, ManualRuntime())
        for group in each:
            await file.take(group)
            await file.tidy()
        await file.close()


async def test_a_batch_is_added_once_and_its_resend_is_known(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    batch = taken([5, 7, 7], window=3, stream=1)
    assert await file.take([batch, batch]) == [ACKNOWLEDGED, KNOWN]
    assert await file.take([batch]) == [KNOWN]
    await file.close_through(3)
    assert (await file.pool(3)).reports().tolist() == [5, 7, 7]
    await file.close()


async def test_an_id_is_bound_to_its_bytes_and_its_window(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    await file.take([taken([5], window=3, stream=1)])
    assert await file.take([taken([6], window=3, stream=1)]) == [Reason.ID_REUSED]
    assert await file.take([taken([5], window=4, stream=1)]) == [Reason.ID_OF_ANOTHER_WINDOW]
    await file.close_through(4)
    assert await file.closed_pools() == [3]
    assert (await file.pool(3)).reports().tolist() == [5]
    await file.close()


async def test_after_a_restart_a_known_id_is_known_whatever_its_bytes(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    await file.take([taken([5], window=3, stream=1)])
    await file.close()
    file = await opened(tmp_path, ManualRuntime())
    assert await file.take([taken([6], window=3, stream=1)]) == [KNOWN]
    await file.close_through(3)
    assert (await file.pool(3)).reports().tolist() == [5]
    await file.close()


async def test_nothing_is_added_to_a_window_that_was_cut(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    await file.take([taken([5], window=3, stream=1)])
    await file.close_through(3)
    await file.close_through(2)  # never back
    assert await file.closed_through() == 3
    late, known = taken([6], window=3, stream=2), taken([5], window=3, stream=1)
    assert await file.take([late, known]) == [
        PoolAnswer(False, False, None),
        PoolAnswer(False, True, None),
    ]
    assert (await file.pool(3)).reports().tolist() == [5]
    await file.close()


@pytest.mark.parametrize("groups", [1, 2])
async def test_two_files_that_differ_in_which_batch_held_which_reports_are_the_same_bytes(
    groups: int, tmp_path: Path
) -> None:
    """Nothing in the file joins ids and reports: it does not depend on how the ones held the others."""
    a, b = [11, 500, 900], [3, 500, 1200]
    for name, first, second in (("one", a, b), ("other", b, a)):
        batches = [taken(first, window=0, stream=1), taken(second, window=0, stream=2)]
        await filled(tmp_path / name, [batches] if groups == 1 else [batches[:1], batches[1:]])
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "other" / FILE).read_bytes()


async def test_the_order_in_which_batches_of_a_group_came_leaves_no_trace(tmp_path: Path) -> None:
    group = [taken([number], window=0, stream=number << 40) for number in range(1, 40)]
    await filled(tmp_path / "one", [group])
    await filled(tmp_path / "other", [group[::-1]])
    assert (tmp_path / "one" / FILE).read_bytes() == (tmp_path / "other" / FILE).read_bytes()


async def test_an_emptied_write_ahead_log_and_keyed_digests_leave_no_joint(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    file = await opened(tmp_path, ManualRuntime())
    batches = [taken(rng.integers(0, 1280, 50).tolist(), window=0, stream=1 << 40 | n) for n in range(5)]
    for batch in batches:
        await file.take([batch])
        await file.tidy()
        assert (tmp_path / f"{FILE}-wal").stat().st_size == 0
    held = bytes_in(tmp_path)
    for batch in batches:
        assert batch.stream in held
        assert batch.data[-100:] not in held
        for unkeyed in (digest(batch.data), hashlib.sha256(batch.data).digest(), hashlib.blake2b(batch.data).digest()):
            assert unkeyed[:8] not in held
    copy = copied(tmp_path, tmp_path.parent / "copy")
    assert all(row[2] is not None for row in tables(copy / FILE)["ids"])
    await file.close()
    reopened = await opened(tmp_path, ManualRuntime())
    await reopened.close()
    assert [row[1:] for row in tables(tmp_path / FILE)["ids"]] == [(0, None)] * 5
    assert len(tables(tmp_path / FILE)["pools"]) == 1


async def test_what_a_kill_leaves_in_the_write_ahead_log_is_gone_after_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    file = await opened(tmp_path / "live", ManualRuntime())
    await file.take([taken([5, 6], window=0, stream=9)])  # and killed before it is tidied
    dead = copied(tmp_path / "live", tmp_path / "dead")
    await file.close()
    assert (dead / f"{FILE}-wal").stat().st_size > 0
    file = await opened(dead, ManualRuntime())
    assert (dead / f"{FILE}-wal").stat().st_size == 0
    assert await file.take([taken([5, 6], window=0, stream=9)]) == [KNOWN]
    await file.close()


async def test_what_is_dropped_or_erased_is_in_no_file_any_more(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    marks = [
        taken([1000 + n for n in range(40)], window=window, stream=0xABCDEF00_00000000 + window) for window in (0, 1)
    ]
    for mark in marks:
        await file.take([mark])
        await file.tidy()
    pools = [(await file.pool(window)).to_bytes() for window in (0, 1)]
    assert all(pool in bytes_in(tmp_path) for pool in pools)
    await file.close_through(1)
    await file.drop(0)
    await file.fix(1, [OutgoingBatch(1, b"outgoing", b"the bytes that leave", b"signature")])
    assert all(pool not in bytes_in(tmp_path) for pool in pools)
    assert marks[0].stream not in bytes_in(tmp_path)
    assert await file.answered(1, b"outgoing", lost=False) is ClosedState.FORWARDED
    assert b"the bytes that leave" not in bytes_in(tmp_path)
    assert await file.finished() == [(0, ClosedState.DROPPED), (1, ClosedState.FORWARDED)]
    for window in (0, 1):
        await file.erase(window)
    assert marks[1].stream not in bytes_in(tmp_path)
    await file.close()
    left = {name: rows for name, rows in tables(tmp_path / FILE).items() if rows}
    assert left == {"progress": [(1, 1)]}


async def test_a_window_is_lost_where_one_of_its_batches_is_and_forwarded_where_all_arrived(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    for window, losses in ((0, (False, False)), (1, (True, False)), (2, (False, True))):
        pair = [OutgoingBatch(window, bytes([window, n] * 4), b"x", b"y") for n in range(2)]
        await file.fix(window, pair)
        states = [await file.answered(window, each.stream, lost=lost) for each, lost in zip(pair, losses, strict=True)]
        assert states[1] is (ClosedState.LOST if any(losses) else ClosedState.FORWARDED)
    await file.close()


async def test_a_plan_is_kept_for_ever(tmp_path: Path) -> None:
    file = await opened(tmp_path, ManualRuntime())
    assert await file.plan() is None
    kept = KeptPlan(b"bundle", "planner", 1, b"s" * 64)
    await file.keep_plan(kept)
    with pytest.raises(StoreError):
        await file.keep_plan(kept)
    await file.close()
    file = await opened(tmp_path, ManualRuntime())
    assert await file.plan() == kept
    await file.close()


async def test_two_processes_never_give_a_batch_the_same_digest(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        file = await opened(tmp_path / name, ManualRuntime(), ReplayableEntropy(name.encode()))
        await file.take([taken([5], window=0, stream=1)])
        await file.close()
        seen.append(tables(tmp_path / name / FILE)["ids"][0][2])
    assert seen[0] != seen[1]
