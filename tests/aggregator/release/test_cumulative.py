"""Cumulative plans: each window is a step of one sequence, drawn once, whatever dies and whoever comes second."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.errors import PartitionStoppedError, ReleasingStoppedError, StoreError
from aggregator.model import ReservedStep, SealedWindow
from aggregator.release.releaser import compute_step
from aggregator.store.outcomes import _keyed
from aggregator.store.store import Store
from aggregator.store.transaction import Transaction
from hushsum.cumulative import CumulativeState, chained, initial
from hushsum.cumulative import step as draw_step
from hushsum.entropy import KEY_BYTES, KeyedEntropy, ReplayableEntropy
from hushsum.plan import Plan
from hushsum.privacy.events import CUMULATIVE
from hushsum.releases import Release, spend_of
from hushsum.sketch import Sketch
from tests.aggregator.deltas import cumulative_plan
from tests.aggregator.disk_site import PARTITIONS, DiskSite, client_for, disk_site, restore_store
from tests.doubles import CrashError, ManualRuntime, Steps

COUNTERS = 1000
PLANS = {
    "tree": cumulative_plan(horizon=20, counters=COUNTERS),
    "buffers": cumulative_plan(horizon=20, counters=COUNTERS, delta="0.000001"),
}
SPENDS = {name: spend_of(plan, kind=CUMULATIVE, window=None) for name, plan in PLANS.items()}


def exact(plan: Plan, numbers: dict[int, int]) -> Sketch:
    """The sketch of deltas by number and records."""
    sketch = Sketch(plan)
    for number, records in numbers.items():
        sketch.counters[0, 0, number] = records
    if len(sketch.counts):
        sketch.counts[0] = sum(numbers.values()) * plan.privacy.mechanism.count_scale
    return sketch


def drawn(plan: Plan, state: bytes, key: bytes, window: int, numbers: dict[int, int]) -> tuple[bytes, bytes]:
    """What a releaser makes of a window under a key, and the state after it."""
    sketch = exact(plan, numbers)
    digest = SealedWindow(sketch, 0).digest()
    entropy = KeyedEntropy(key)
    sealed = _keyed(key, digest)
    release, after = draw_step(plan, state, sketch, window=window, sealed=sealed, entropy=entropy, accounted=True)
    return release.to_bytes(), after


def keys_of(life: bytes, number: int) -> list[bytes]:
    source = ReplayableEntropy(life)
    return [source.read(KEY_BYTES) for _ in range(number)]


@pytest.mark.parametrize("name", PLANS)
async def test_each_window_is_a_step_of_one_sequence_that_is_charged_once(tmp_path: Path, name: str) -> None:
    plan, state = PLANS[name], initial(PLANS[name])
    async with disk_site(tmp_path, plan, entropy=ReplayableEntropy(b"key"), open_windows=2) as site:
        await site.store.open_windows(plan.id, site.window + 4, site.window + 4)  # two are skipped
        for number, key in enumerate(keys_of(b"key", 3)):
            window = site.window + (0, 1, 4)[number]
            await site.send(number, window=window, records=number + 1)
            await site.releaser.seal(window, early=True)
            stored = await site.releaser.release()
            data, state = drawn(plan, state, key, window, {number: number + 1})
            assert stored.data == data
            release = Release.from_bytes(data)
            assert (stored.kind, release.step, release.window) == (CUMULATIVE, number + 1, window)
            assert release.accounted
            assert await site.releaser.release(window) == stored
            assert (await site.store.account("")).spends == (SPENDS[name],)
        windows = [site.window, site.window + 1, site.window + 4]
        assert [receipt.window for receipt in await site.receipts.read()] == windows
        assert {receipt.spend for receipt in await site.receipts.read()} == {SPENDS[name]}
        assert set((await site.store.windows(plan.id)).values()) == {"released", "skipped"}
    async with disk_site(tmp_path, plan) as again:  # the receipts prove one spend, three times
        assert again.releaser.stopped == ""
        assert (await again.store.account("")).spends == (SPENDS[name],)


# ------------------------------------------------------------------------------------------------------------ crashes


async def prepared(folder: Path, plan: Plan, runtime: ManualRuntime) -> None:
    site = await DiskSite.open(folder, plan, runtime)
    await site.store.open_windows(plan.id, site.window, site.window + 1)
    for number in range(4):
        await site.send(number, window=site.window + number // 2)
    await site.die()


async def lived(folder: Path, plan: Plan, runtime: ManualRuntime, steps: Steps, life: bytes) -> DiskSite:
    """One life of the service: to its end, or to its death at a step."""
    site = await DiskSite.open(folder, plan, runtime, steps=steps, entropy=ReplayableEntropy(life))
    try:
        await site.start()
        for window in (site.window, site.window + 1):
            await site.releaser.seal(window, early=True)
            await site.releaser.release(window)
    except (CrashError, PartitionStoppedError):
        pass
    finally:
        await site.die()
    return site


def sequences(plan: Plan, first: int) -> Iterator[list[bytes]]:
    """Every sequence of two releases that keys of the two lives give."""
    keys = [*keys_of(b"first", 2), *keys_of(b"second", 2)]
    for pair in itertools.permutations(keys, 2):
        state, made = initial(plan), []
        for turn, key in enumerate(pair):
            data, state = drawn(plan, state, key, first + turn, dict.fromkeys((2 * turn, 2 * turn + 1), 1))
            made.append(data)
        yield made


async def check_all_is_well(folder: Path, name: str, lives: list[DiskSite], runtime: ManualRuntime) -> None:
    plan = PLANS[name]
    site = await DiskSite.open(folder, plan, runtime)
    windows = [site.window, site.window + 1]
    outcomes = await site.store.outcomes(plan.id)
    assert [(outcome.window, outcome.published) for outcome in outcomes] == [(window, True) for window in windows]
    assert (await site.store.account("")).spends == (SPENDS[name],)
    receipts = await site.receipts.read()
    assert [(window, digest) for _, _, window, digest, _ in receipts] == [
        (outcome.window, outcome.sha256) for outcome in outcomes
    ]
    shown = {(release.window, release.sha256) for life in lives for release in life.observer.releases}
    assert shown <= {(outcome.window, outcome.sha256) for outcome in outcomes}
    stored = [await site.store.outcome(plan.id, CUMULATIVE, window) for window in windows]
    assert [each.data for each in stored if each] in [*sequences(plan, site.window)]
    assert site.counted() == {client_for(number): 1 for number in range(4)}
    await site.die()


@pytest.mark.parametrize("name", PLANS)
async def test_every_step_of_an_outcome_is_one_that_can_be_died_at(tmp_path: Path, name: str) -> None:
    runtime, steps = ManualRuntime(), Steps()
    await prepared(tmp_path, PLANS[name], runtime)
    await lived(tmp_path, PLANS[name], runtime, steps, b"first")
    of_one_window = [
        *("Store.mark_closing", "SqliteLog.append", *["Store.checkpoint"] * PARTITIONS),
        *("Store.reserve_step", "Store.commit_step", "ReceiptsFile.write", "Store.publish"),
        *(*["Store.checkpoint"] * PARTITIONS, "SqliteLog.forget", "Store.forget"),
    ]
    assert steps.names == ["ReceiptsFile.begin", "Store.bind_receipts", *of_one_window, *of_one_window]


@pytest.mark.parametrize(("name", "after"), [("tree", False), ("buffers", True)], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 27))
async def test_killed_at_any_step_there_is_one_sequence_one_charge_and_one_receipt_a_window(
    tmp_path: Path, fatal: int, after: bool, name: str
) -> None:
    runtime, plan = ManualRuntime(), PLANS[name]
    await prepared(tmp_path, plan, runtime)
    steps = Steps(fatal, after=after)
    first = await lived(tmp_path, plan, runtime, steps, b"first")
    assert steps.count >= fatal
    second = await lived(tmp_path, plan, runtime, Steps(), b"second")
    await check_all_is_well(tmp_path, name, [first, second], runtime)


# ----------------------------------------------------------------------------------------------- another second digest


async def reserved_only(folder: Path, plan: Plan, runtime: ManualRuntime) -> None:
    """A window whose step is reserved, and perhaps drawn, and not stored."""
    site = await DiskSite.open(folder, plan, runtime)
    await site.store.open_windows(plan.id, site.window, site.window)
    await site.send(0)
    await site.die()
    steps = Steps(8)  # the commit, after the reservation
    dying = await DiskSite.open(folder, plan, runtime, steps=steps)
    await dying.start()
    await dying.releaser.seal(early=True)
    with pytest.raises(CrashError):
        await dying.releaser.release()
    assert steps.names[-1] == "Store.commit_step"
    await dying.die()


async def test_a_delta_that_comes_into_a_sealed_window_after_the_reservation_is_never_released(tmp_path: Path) -> None:
    plan, runtime = PLANS["tree"], ManualRuntime()
    await reserved_only(tmp_path, plan, runtime)

    async def add(tx: Transaction) -> None:
        """What no fold does: counters of a sealed window change."""
        (data,) = await tx.fetch_row("SELECT data FROM blocks") or (b"",)
        await tx.execute("UPDATE blocks SET data = $1", data[:-1] + bytes([data[-1] ^ 1]))

    async with disk_site(tmp_path, plan, runtime) as site:
        await site.store.database.write(add)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"counters of window .* differ from those that its step"):
                await site.releaser.release()
        assert await site.store.outcomes(plan.id) == []


async def test_a_second_releaser_draws_the_same_step_and_it_is_stored_once(tmp_path: Path) -> None:
    plan, runtime = PLANS["buffers"], ManualRuntime()
    async with disk_site(tmp_path, plan, runtime, entropy=ReplayableEntropy(b"fast")) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        slow = await DiskSite.open(tmp_path, plan, runtime, entropy=ReplayableEntropy(b"slow"), fence=site.fence)
        slow.releaser = slow.new_releaser(site.fence, folds=site.workers)
        honest = slow.store.commit_step

        async def overtaken(plan: Plan, window: int, data: bytes, state: bytes, **keywords: Any) -> None:
            assert (await site.releaser.release()).data == data
            await honest(plan, window, data, state, **keywords)

        slow.store.commit_step = overtaken  # type: ignore[method-assign]  # the other comes in between
        release = await slow.releaser.release()
        assert release.data == drawn(plan, initial(plan), keys_of(b"slow", 1)[0], site.window, {0: 1})[0]
        assert len(await site.store.outcomes(plan.id)) == 1
        assert slow.releaser.stopped == ""
        await slow.die()


async def test_a_store_that_is_older_than_its_receipts_draws_no_step_again(tmp_path: Path) -> None:
    plan, runtime = PLANS["tree"], ManualRuntime()
    await reserved_only(tmp_path, plan, runtime)
    shutil.copy(tmp_path / "store.db", tmp_path / "store.old")
    async with disk_site(tmp_path, plan, runtime) as site:
        await site.releaser.release()
    restore_store(tmp_path)
    async with disk_site(tmp_path, plan, runtime) as restored:
        assert "the store is older than its receipts" in restored.releaser.stopped
        with pytest.raises(ReleasingStoppedError):
            await restored.releaser.release()
        assert (await restored.store.account("")).spends == (SPENDS["tree"],)


async def test_a_process_reads_no_state_that_it_has_stored_and_the_next_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, runtime, found = PLANS["buffers"], ManualRuntime(), list[bytes | None]()

    def noted(sealed: SealedWindow, window: int, reserved: ReservedStep) -> tuple[bytes, bytes]:
        found.append(reserved.state)
        return compute_step(sealed, window, reserved)

    monkeypatch.setattr("aggregator.release.releaser.compute_step", noted)
    async with disk_site(tmp_path, plan, runtime, open_windows=3) as site:
        for _ in range(2):
            await site.releaser.seal(early=True)
            await site.releaser.release()
        (first,) = await site.store.database.read(_states)
        assert found[0] is None
        assert site.releaser._held is not None
        assert site.releaser._held.state == first
    async with disk_site(tmp_path, plan, runtime) as again:
        assert again.releaser._held is None
        await again.releaser.seal(early=True)
        await again.releaser.release()
        assert found[2] == first


async def test_a_state_of_another_step_than_the_row_says_is_never_stepped(tmp_path: Path) -> None:
    plan, runtime = PLANS["buffers"], ManualRuntime()
    async with disk_site(tmp_path, plan, runtime, open_windows=3) as site:
        states = []
        for _ in range(2):
            await site.releaser.seal(early=True)
            await site.releaser.release()
            states += await site.store.database.read(_states)

        async def set_back(tx: Transaction) -> None:
            await tx.execute("UPDATE sequences SET state = $1", states[0])

        await site.store.database.write(set_back)
    async with disk_site(tmp_path, plan, runtime) as site:
        await site.releaser.seal(early=True)
        with pytest.raises(StoreError, match="the state of the sequence is not that before step 3"):
            await site.releaser.release()
        assert len(await site.store.outcomes(plan.id)) == 2


async def test_beyond_the_horizon_nothing_is_released_and_no_state_is_kept(tmp_path: Path) -> None:
    plan, runtime = cumulative_plan(horizon=2, counters=COUNTERS), ManualRuntime()
    state, held = initial(plan), set[bytes]()
    async with disk_site(tmp_path, plan, runtime, open_windows=3) as site:
        first = site.window
        for number, key in enumerate(keys_of(b"test", 2)):
            await site.send(number, window=first + number)
            await site.releaser.seal(first + number, early=True)
            data, state = drawn(plan, state, key, first + number, {number: 1})
            assert (await site.releaser.release()).data == data
            held |= {each.hex().encode() for each in CumulativeState.from_bytes(plan, state).keys.values()}
            kept = await site.store.database.read(_states)
            assert kept == [b"" if number else state]
            assert any(each in site.files() for each in held) == (not number)  # the keys of nodes, which give the noise
        await site.releaser.seal(first + 2, early=True)
        with pytest.raises(ReleasingStoppedError, match="beyond the horizon: the plan pays for 2 outcomes"):
            await site.releaser.release()
        assert len(await site.store.outcomes(plan.id)) == 2


# ------------------------------------------------------------------------------------ no exact counters as they stand


def found(folder: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[str]:
    """Files that hold these neighbouring counters in any width and either order of bytes."""
    patterns = [values.astype(f"{order}i{width}").tobytes() for order in "<>" for width in (2, 4, 8)]
    return [
        path.name
        for path in sorted(folder.iterdir())
        if path.is_file() and any(pattern in path.read_bytes() for pattern in patterns)
    ]


async def two_windows(site: DiskSite) -> tuple[np.ndarray[Any, np.dtype[np.int64]], ...]:
    """Eight neighbouring counters of two released windows; returns those of each window, and the exact total."""
    windows = [np.arange(8, dtype=np.int64) * 131 + 700, np.arange(8, dtype=np.int64) * 57 + 901]
    for turn, counters in enumerate(windows):
        for number, records in enumerate(counters.tolist()):
            await site.send(number, window=site.window + turn, records=records)
        await site.releaser.seal(early=True)
        await site.releaser.release()
    return windows[0], windows[1], windows[0] + windows[1]


@pytest.mark.parametrize("name", PLANS)
async def test_no_file_holds_an_exact_total_or_an_exact_window_as_it_stands(tmp_path: Path, name: str) -> None:
    async with disk_site(tmp_path, PLANS[name], open_windows=2) as site:
        values = await two_windows(site)
        (row,) = await site.store.database.read(_states)
        for each in values:
            assert found(tmp_path, each) == []
        last = CumulativeState.from_bytes(PLANS[name], row)
        assert last.step == 2
        (tmp_path / "control").write_bytes(values[2].astype("<i4").tobytes())
        assert found(tmp_path, values[2]) == ["control"]


async def _states(tx: Transaction) -> list[bytes]:
    return [bytes(state) for (state,) in await tx.fetch("SELECT state FROM sequences")]


async def test_a_store_that_keeps_an_exact_total_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS["buffers"]
    total = np.zeros(COUNTERS, np.int64)

    def planted(sealed: SealedWindow, window: int, reserved: ReservedStep) -> tuple[bytes, bytes]:
        data, state = compute_step(sealed, window, reserved)
        total[:] += sealed.sketch.counters.reshape(-1)
        kept[window] = total.astype("<i8").tobytes()
        return data, state

    kept: dict[int, bytes] = {}
    monkeypatch.setattr("aggregator.release.releaser.compute_step", planted)
    async with disk_site(tmp_path, plan, open_windows=2) as site:
        honest = site.store.commit_step

        async def keeps(plan: Plan, window: int, data: bytes, state: bytes, **keywords: Any) -> None:
            await honest(plan, window, data, state, **keywords)

            async def keep(tx: Transaction) -> None:
                await tx.execute("UPDATE sequences SET digest = $1", kept[window])

            if window > site.window:  # else the next step would miss its digest
                await site.store.database.write(keep)

        site.releaser = site.new_releaser(site.fence, store=_with_commit(site.store, keeps))
        *_, exact_total = await two_windows(site)
        assert any(name.startswith("store.db") for name in found(tmp_path, exact_total))


def _with_commit(store: Store, commit: Any) -> Store:
    store.commit_step = commit  # type: ignore[method-assign]  # a store with a planted mistake
    return store


async def test_what_is_left_of_a_digest_verifies_no_guess_of_counters(tmp_path: Path) -> None:
    plan = PLANS["tree"]
    async with disk_site(tmp_path, plan) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        await site.releaser.release()
        guess = SealedWindow(exact(plan, {0: 1}), 0).digest()
        left = site.files()
        assert guess not in left
        assert chained(plan.id, guess) not in left  # the step's key is in it, and is erased
        key = keys_of(b"test", 1)[0]
        assert chained(plan.id, _keyed(key, guess)) in left
        assert key not in left
