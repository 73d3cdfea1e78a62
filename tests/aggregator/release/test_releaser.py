import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.errors import PartitionStoppedError, ReleasingStoppedError, WindowNotOverError, WindowOrderError
from aggregator.model import StoredOutcome
from aggregator.windows import due_ms
from hushsum.entropy import KEY_BYTES, KeyedEntropy, ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, draw
from hushsum.sketch import Sketch
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import PARTITIONS, DiskSite, client_for, disk_site
from tests.doubles import CrashError, ManualRuntime, Steps

HOUR_S = 3600
PLAN = tally_plan(counters=1000, records_per_client=3, total_epsilon=2)  # enough for two windows


class CountingEntropy(ReplayableEntropy):
    """Tells whether anything was drawn."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.reads = 0

    def read(self, size: int) -> bytes:
        self.reads += 1
        return super().read(size)


def exact(numbers: dict[int, int]) -> Sketch:
    """The sketch of deltas by number and records."""
    sketch = Sketch(PLAN)
    for number, records in numbers.items():
        sketch.counters[0, 0, number] = records
    sketch.counts[0] = sum(numbers.values()) * PLAN.privacy.mechanism.count_scale
    return sketch


def drawn(key: bytes, window: int, numbers: dict[int, int]) -> bytes:
    """What a releaser whose keys come from ``key`` makes of a window first."""
    entropy = KeyedEntropy(ReplayableEntropy(key).read(KEY_BYTES))
    return draw(exact(numbers), kind=TUMBLING, window=window, entropy=entropy, accounted=True).to_bytes()


# ---------------------------------------------------------------------------------------------------------- sealing


async def test_a_seal_reaches_every_partition_and_closes_the_window(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        await site.send(0)
        assert await site.releaser.seal(site.window, early=True) == site.window
        assert [await site.log.end(partition) for partition in range(PARTITIONS)] == [2, 1]
        assert await site.store.windows(PLAN.id) == {site.window: "sealed"}
        await site.send(1)
        sealed = await site.store.sealed_window(PLAN, site.window)
        assert sealed is not None
        assert np.flatnonzero(sealed.sketch.counters).tolist() == [0]


async def test_sealing_again_appends_nothing(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        await site.releaser.seal(early=True)
        await site.releaser.seal(site.window, early=True)
        assert await site.log.end(0) == 1


async def test_windows_are_sealed_in_order(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=2) as site:
        with pytest.raises(WindowOrderError, match=f"window {site.window} is open"):
            await site.releaser.seal(site.window + 1, early=True)
        assert [await site.releaser.seal(early=True) for _ in range(2)] == [site.window, site.window + 1]
        with pytest.raises(WindowOrderError, match="no window is open"):
            await site.releaser.seal(early=True)
        with pytest.raises(WindowOrderError, match="it was never opened by a gateway"):
            await site.releaser.seal(site.window + 2, early=True)


async def test_a_window_stays_closing_while_a_fold_is_stopped_and_is_sealed_at_the_next_start(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime) as site:
        await site.send(0)
        await runtime.settle()
        await site.workers.revoked([1])
        with pytest.raises(PartitionStoppedError):
            await site.releaser.seal(early=True)
        assert await site.store.windows(PLAN.id) == {site.window: "closing"}
    async with disk_site(tmp_path, PLAN, runtime) as again:
        assert await again.store.windows(PLAN.id) == {again.window: "sealed"}


# -------------------------------------------------------------------------------------------------------- releasing


async def test_a_release_is_the_sealed_sum_of_all_partitions_and_noise_drawn_once(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, entropy=ReplayableEntropy(b"key")) as site:
        for number, records in ((0, 1), (1, 2), (2, 3)):
            await site.send(number, records=records)
        await site.releaser.seal(early=True)
        stored = await site.releaser.release(site.window)
        assert stored.data == drawn(b"key", site.window, {0: 1, 1: 2, 2: 3})
        assert stored.sha256 == hashlib.sha256(stored.data).digest()
        release = Release.from_bytes(stored.data)
        assert (release.window, release.kind, release.accounted) == (site.window, TUMBLING, True)


async def test_releasing_again_gives_back_what_is_stored_and_draws_nothing(tmp_path: Path) -> None:
    entropy = CountingEntropy(b"key")
    async with disk_site(tmp_path, PLAN, entropy=entropy) as site:
        await site.releaser.seal(early=True)
        first = await site.releaser.release()
        reads = entropy.reads
        assert await site.releaser.release(site.window) == first
        assert entropy.reads == reads > 0
        assert (await site.store.account("")).spent.epsilon == 1


async def test_outcomes_are_taken_in_order(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=3) as site:
        with pytest.raises(WindowOrderError, match="no sealed window to release"):
            await site.releaser.release()
        await site.releaser.seal(early=True)
        await site.releaser.seal(early=True)
        with pytest.raises(WindowOrderError, match=f"window {site.window} is sealed"):
            await site.releaser.release(site.window + 1)
        with pytest.raises(WindowOrderError, match="it is open, not sealed"):
            await site.releaser.release(site.window + 2)
        assert [(await site.releaser.release()).window for _ in range(2)] == [site.window, site.window + 1]


async def test_an_empty_window_is_released_like_any_other_and_one_that_nobody_had_open_is_skipped(
    tmp_path: Path,
) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        await site.store.open_windows(PLAN.id, site.window + 2, site.window + 2)
        for _ in range(2):
            await site.releaser.seal(early=True)
            await site.releaser.release()
        assert await site.store.windows(PLAN.id) == {
            site.window: "released",
            site.window + 1: "skipped",
            site.window + 2: "released",
        }
        spends = (await site.store.account("")).spends
        assert [spend.window for spend in spends] == [site.window, site.window + 2]
        released = await site.store.outcome(PLAN.id, TUMBLING, site.window)
        assert released is not None
        assert Release.from_bytes(released.data).counters.any()  # noise


async def test_nobody_is_told_of_a_release_before_its_receipt_is_written(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        seen: list[int] = []

        def released(release: StoredOutcome) -> None:
            assert f'"sha256":"{release.sha256.hex()}"' in (tmp_path / "receipts.jsonl").read_text()
            seen.append(release.window)

        site.observer.released = released  # type: ignore[method-assign]  # looks at the file at the very moment
        await site.releaser.seal(early=True)
        await site.releaser.release()
        assert seen == [site.window]


async def test_nothing_of_a_released_window_is_left_but_its_release(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=2) as site:
        forgotten = [await site.send(number) for number in range(6)]
        kept = [await site.send(number, window=site.window + 1) for number in range(6, 9)]
        await site.releaser.seal(early=True)
        assert all(delta in site.files() for delta in (*forgotten, *kept))
        release = await site.releaser.release()
        left = site.files()
        assert not any(delta in left for delta in forgotten)
        assert all(delta in left for delta in kept)
        assert release.data in unpaged(tmp_path, release)
        sketch_blocks = await site.sqlite.reader.read(lambda db: db.execute("SELECT window FROM blocks").fetchall())
        assert {window for (window,) in sketch_blocks} <= {site.window + 1}


def unpaged(folder: Path, release: StoredOutcome) -> bytes:
    """The release as another process reads it."""
    from aggregator.store.schema import STORE_FILE

    connection = STORE_FILE.open_reading(folder / "store.db")
    data: bytes = connection.execute("SELECT data FROM outcomes WHERE window = ?", (release.window,)).fetchone()[0]
    connection.close()
    return data


# ----------------------------------------------------------------------------------------------------------- budget


async def test_an_exhausted_budget_stops_releasing_and_draws_nothing_but_windows_are_still_sealed(
    tmp_path: Path,
) -> None:
    entropy, runtime = CountingEntropy(b"key"), ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=entropy, open_windows=4) as site:
        for _ in range(3):
            await site.releaser.seal(early=True)
        for _ in range(2):
            await site.releaser.release()
        reads = entropy.reads
        with pytest.raises(ReleasingStoppedError, match=f"window {site.window + 2} stays sealed: Budget exceeded"):
            await site.releaser.release()
        assert "Budget exceeded" in site.releaser.stopped
        assert site.observer.stops == [site.releaser.stopped]
        await runtime.advance(10 * HOUR_S)
        await site.releaser.take_due()
        assert await site.store.unfinished(PLAN.id) == {site.window + 2: "sealed", site.window + 3: "sealed"}
        with pytest.raises(ReleasingStoppedError):
            await site.releaser.release(site.window + 2)
    async with disk_site(tmp_path, PLAN, runtime, entropy=entropy) as again:
        await again.releaser.take_due()
        assert "Budget exceeded" in again.releaser.stopped
        assert len(await again.store.outcomes(PLAN.id)) == 2
    assert entropy.reads == reads


# -------------------------------------------------------------------------------------------------------- automatic


async def test_windows_are_sealed_and_released_by_the_clock_alone(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        running = asyncio.ensure_future(site.releaser.run())
        schedule = PLAN.window
        for turn in range(2):
            window = site.window + turn
            due_ms = schedule.end_ms(window) + schedule.lateness_ms
            await runtime.advance((due_ms - 1 - runtime.now_ms()) / 1000)
            assert (await site.store.windows(PLAN.id))[window] == "open"
            await runtime.advance(0.001)
            await runtime.settle(2000)
            assert (await site.store.windows(PLAN.id))[window] == "released"
        running.cancel()


@pytest.mark.parametrize("ahead_days", [3, -3])
async def test_the_clock_of_the_store_decides_which_windows_are_sealed(tmp_path: Path, ahead_days: int) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=2) as site:
        ahead_ms = ahead_days * 86_400_000
        releaser = site.new_releaser(site.fence, runtime=ManualRuntime(runtime.now_ms() + ahead_ms))
        for _ in range(2):
            await releaser.take_due()
        with pytest.raises(WindowOrderError, match=f"window {site.window} is not over"):
            await releaser.seal()
        assert set((await site.store.windows(PLAN.id)).values()) == {"open"}
        assert site.observer.refused_seals == ([(site.window, ahead_ms)] if ahead_days > 0 else [])
        await runtime.advance((due_ms(PLAN.window, site.window) - runtime.now_ms()) / 1000)
        await releaser.take_due()
        assert await site.store.windows(PLAN.id) == {site.window: "released", site.window + 1: "open"}


async def test_the_seal_itself_compares_the_clock_of_the_store(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime) as site:
        honest = site.store.now_ms

        async def ahead() -> int:
            return due_ms(PLAN.window, site.window)

        site.store.now_ms = ahead  # type: ignore[method-assign]  # it is set back after this answer
        await site.releaser.take_due()
        with pytest.raises(WindowNotOverError, match="by the store's clock: it can be sealed in"):
            await site.releaser.seal()
        site.store.now_ms = honest  # type: ignore[method-assign]  # the clock is right again
        assert await site.store.windows(PLAN.id) == {site.window: "open"}
        await site.releaser.seal(early=True)
        assert await site.store.windows(PLAN.id) == {site.window: "sealed"}


async def test_by_hand_a_window_is_sealed_before_it_is_over_only_if_that_is_said(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, open_windows=3) as site:
        first, releaser = site.window, site.releaser
        for window in (None, first):
            with pytest.raises(WindowOrderError, match=f"window {first} is not over"):
                await releaser.seal(window)
        assert (await site.store.windows(PLAN.id))[first] == "open"
        await runtime.advance((due_ms(PLAN.window, first + 1) - runtime.now_ms()) / 1000)
        assert [await releaser.seal(), await releaser.seal()] == [first, first + 1]
        with pytest.raises(WindowOrderError, match=f"window {first + 2} is not over"):
            await releaser.seal()
        assert await releaser.seal(first) == first  # it is sealed already
        assert await releaser.seal(first + 2, early=True) == first + 2


# ------------------------------------------------------------------------------------------------- crashes and races

Scenario = Callable[[DiskSite], Coroutine[object, object, None]]


async def two_windows(site: DiskSite) -> None:
    """Everything that a releaser does for two windows, from wherever it is."""
    for window in (site.window, site.window + 1):
        await site.releaser.seal(window, early=True)
        await site.releaser.release(window)


async def lived(folder: Path, runtime: ManualRuntime, steps: Steps, life: bytes, *, copied: bool = False) -> DiskSite:
    """One life of the service: to its end, or to its death at a step."""
    entropy = ReplayableEntropy(life)
    site = await DiskSite.open(folder, PLAN, runtime, steps=steps, entropy=entropy, copied=copied)
    try:
        await site.start()
        await two_windows(site)
    except (CrashError, PartitionStoppedError):
        pass
    finally:
        await site.die()
    return site


async def prepared(folder: Path, runtime: ManualRuntime) -> None:
    """Three deltas in each of two open windows, in the log and not folded yet."""
    site = await DiskSite.open(folder, PLAN, runtime)
    await site.store.open_windows(PLAN.id, site.window, site.window + 1)
    for number in range(6):
        await site.send(number, window=site.window + number // 3)
    await site.die()


async def check_all_is_well(folder: Path, lives: list[DiskSite], runtime: ManualRuntime) -> None:
    site = await DiskSite.open(folder, PLAN, runtime)
    outcomes = await site.store.outcomes(PLAN.id)
    windows = [site.window, site.window + 1]
    assert [(outcome.window, outcome.published) for outcome in outcomes] == [(window, True) for window in windows]
    assert [spend.window for spend in (await site.store.account("")).spends] == windows
    receipts = await site.receipts.read()
    assert [(window, digest) for _, _, window, digest, _ in receipts] == [
        (outcome.window, outcome.sha256) for outcome in outcomes
    ]
    shown = {(release.window, release.sha256) for life in lives for release in life.observer.releases}
    assert shown <= {(outcome.window, outcome.sha256) for outcome in outcomes}
    for turn, window in enumerate(windows):
        stored = await site.store.outcome(PLAN.id, TUMBLING, window)
        assert stored is not None
        noise = (
            Release.from_bytes(stored.data).counters - exact(dict.fromkeys(range(3 * turn, 3 * turn + 3), 1)).counters
        )
        assert any(np.array_equal(noise, first) for first in noises())
    assert site.counted() == {client_for(number): 1 for number in range(6)}
    await site.die()


def noises() -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """The noise that a life draws first, and second."""
    found = []
    for life in (b"first", b"second"):
        source = ReplayableEntropy(life)
        for _ in range(2):
            entropy = KeyedEntropy(source.read(KEY_BYTES))
            made = draw(Sketch(PLAN), kind=TUMBLING, window=0, entropy=entropy, accounted=True)
            found.append(made.counters)
    return found


async def step_names(folder: Path) -> list[str]:
    runtime, steps = ManualRuntime(), Steps()
    await prepared(folder, runtime)
    await lived(folder, runtime, steps, b"first")
    return steps.names


async def test_every_step_of_a_release_is_one_that_can_be_died_at(tmp_path: Path) -> None:
    names = await step_names(tmp_path)
    of_one_window = [
        "Store.mark_closing",
        "SqliteLog.append",
        *["Store.checkpoint"] * PARTITIONS,
        "Store.reserve_outcome",
        "Store.commit_outcome",
        "ReceiptsFile.write",
        "Store.publish",
        *["Store.checkpoint"] * PARTITIONS,
        "SqliteLog.forget",
        "Store.forget",
    ]
    assert names == ["ReceiptsFile.begin", "Store.bind_receipts", *of_one_window, *of_one_window]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 27))
async def test_killed_at_any_step_and_started_again_there_is_one_outcome_one_charge_and_one_receipt(
    tmp_path: Path, fatal: int, after: bool
) -> None:
    runtime = ManualRuntime()
    await prepared(tmp_path, runtime)
    steps = Steps(fatal, after=after)
    first = await lived(tmp_path, runtime, steps, b"first")
    assert steps.count >= fatal
    second = await lived(tmp_path, runtime, Steps(), b"second")
    await check_all_is_well(tmp_path, [first, second], runtime)


async def test_two_releasers_that_race_draw_the_same_and_it_is_stored_once(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(b"fast")) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        slow = await DiskSite.open(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(b"slow"), fence=site.fence)
        slow.releaser = slow.new_releaser(site.fence, folds=site.workers)
        honest = slow.store.commit_outcome

        async def overtaken(plan: Plan, kind: str, window: int, data: bytes, **keywords: Any) -> None:
            assert (await site.releaser.release()).data == data
            await honest(plan, kind, window, data, **keywords)

        slow.store.commit_outcome = overtaken  # type: ignore[method-assign]  # the other comes in between
        release = await slow.releaser.release()
        assert release.data == drawn(b"slow", site.window, {0: 1}), "who charges fixes what is drawn"
        assert [each.window for each in site.observer.releases] == [site.window]
        assert slow.observer.releases == []
        assert len(await site.receipts.read()) == len(await slow.receipts.read()) + 1 == 1
        assert len((await site.store.account("")).spends) == 1
        assert slow.releaser.stopped == ""
        await slow.die()


async def test_who_finds_the_window_charged_by_another_is_no_spent_budget(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(b"winner")) as site:
        await site.releaser.seal(early=True)
        slow = await DiskSite.open(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(b"loser"), fence=site.fence)
        slow.releaser = slow.new_releaser(site.fence, folds=site.workers)
        honest = slow.store.reserve_outcome

        async def overtaken(*arguments: object, **keywords: object) -> bytes:
            await site.releaser.release()
            return await honest(*arguments, **keywords)  # type: ignore[arg-type]  # handed on as they came

        slow.store.reserve_outcome = overtaken  # type: ignore[method-assign]  # the winner comes in between
        assert (await slow.releaser.release()).data == drawn(b"winner", site.window, {})
        assert slow.releaser.stopped == ""
        await slow.die()
