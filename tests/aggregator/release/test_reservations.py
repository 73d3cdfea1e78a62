"""What charges an outcome fixes it: whatever fails between its charge and its storing, every draw of it is the same."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.errors import AggregatorError, PartitionStoppedError, StoreError
from aggregator.model import SealedWindow, StoredOutcome
from hushsum import outcomes
from hushsum.entropy import KEY_BYTES, ReplayableEntropy
from hushsum.outcomes import Withheld
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, spend_of
from hushsum.sketch import Sketch
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import DiskSite, disk_site
from tests.aggregator.release.test_outcomes import key_of
from tests.aggregator.stores import sqlite_of
from tests.doubles import CrashError, ManualRuntime, Steps

PLAN = tally_plan(counters=30_000, records_per_client=3, total_epsilon=10, min_clients=12)  # a release of some pages
Outcome = Release | Withheld


class Alternating:
    """Keys of which the first decides one way, and all later ones the other."""

    def __init__(self, *, released: bool, plan: Plan = PLAN) -> None:
        first, later = (key_of(released=way, plan=plan) for way in (released, not released))
        self.keys = [ReplayableEntropy(key).read(KEY_BYTES) for key in (first, later)]
        self.given = 0

    def read(self, size: int) -> bytes:
        assert size == KEY_BYTES
        self.given += 1
        return self.keys[min(self.given - 1, 1)]


class Draws:
    """All that was drawn, in order; ``then`` is called after each draw, with the number of those so far."""

    def __init__(self, patch: pytest.MonkeyPatch, then: Callable[[int], None] = lambda _: None) -> None:
        self.all: list[bytes] = []

        def noted(*arguments: Any, **keywords: Any) -> Outcome:
            drawn = outcomes.decide(*arguments, **keywords)
            self.all.append(drawn.to_bytes())
            then(len(self.all))
            return drawn

        patch.setattr("aggregator.release.releaser.decide", noted)


@pytest.fixture(params=[True, False], ids=["released", "withheld"])
def released(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def charged(site: DiskSite, plan: Plan = PLAN) -> bool | None:
    """Whether the window's charge is that of a withheld one; None: it has none."""
    spends = (await site.store.account("")).spends
    both = {spend_of(plan, kind=TUMBLING, window=site.window, withheld=way): way for way in (True, False)}
    assert len(spends) <= 1
    return both[spends[0]] if spends else None


# ------------------------------------------------------------------------------------------------- between the two


async def test_on_a_full_disk_every_draw_of_a_release_is_the_same_and_it_is_stored_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disk_site(tmp_path, PLAN, entropy=Alternating(released=True)) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        database = sqlite_of(site.store).writer._connection

        def fill(draws: int) -> None:
            if draws == 1:
                pages = database.execute("PRAGMA page_count").fetchone()[0]
                database.execute(f"PRAGMA max_page_count={pages + 1}")

        draws = Draws(monkeypatch, fill)
        for _ in range(5):
            with pytest.raises(StoreError, match="full"):
                await site.releaser.release()
            assert await charged(site) is False
        with suppress(AggregatorError):
            await site.releaser.take_due()
        assert len(draws.all) == 6
        database.execute("PRAGMA max_page_count=1000000")
        stored = await site.releaser.release()
        assert set(draws.all) == {stored.data}
        assert (stored.withheld, await charged(site)) == (False, False)


async def test_the_charge_itself_fits_or_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, draws = Alternating(released=True), Draws(monkeypatch)
    async with disk_site(tmp_path, PLAN, entropy=source) as site:
        await site.releaser.seal(early=True)
        database = sqlite_of(site.store).writer._connection
        database.execute("CREATE TABLE filler (data BLOB)")
        database.execute(
            "CREATE TRIGGER large AFTER INSERT ON reservations BEGIN INSERT INTO filler VALUES (zeroblob(90000)); END"
        )
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count={pages + 1}")
        for _ in range(3):
            with pytest.raises(StoreError, match="full"):
                await site.releaser.release()
        assert (draws.all, await charged(site)) == ([], None)


async def test_a_draw_that_fails_half_way_is_the_same_when_it_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    def fail(draws: int) -> None:
        if draws < 4:
            raise MemoryError

    draws = Draws(monkeypatch, fail)
    async with disk_site(tmp_path, PLAN, entropy=Alternating(released=released)) as site:
        await site.releaser.seal(early=True)
        for _ in range(3):
            with pytest.raises(MemoryError):
                await site.releaser.release()
            assert await charged(site) is False, "the dearest until it is known"
        stored = await site.releaser.release()
        assert draws.all == [stored.data] * 4
        assert (stored.withheld, await charged(site)) == (not released, not released)


async def test_a_draw_whose_caller_goes_away_is_the_same_when_it_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    draws, runtime = Draws(monkeypatch), ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=Alternating(released=released)) as site:
        await site.releaser.seal(early=True)
        honest, drawn = runtime.blocking, asyncio.Event()

        async def slow(function: Callable[..., Any], *arguments: object) -> Any:
            before = len(draws.all)
            result = await honest(function, *arguments)
            if len(draws.all) > before and len(draws.all) < 4:
                drawn.set()
                await asyncio.Event().wait()
            return result

        monkeypatch.setattr(runtime, "blocking", slow)
        for _ in range(3):
            call = asyncio.create_task(site.releaser.release())
            await drawn.wait()
            drawn.clear()
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            assert await charged(site) is False
        stored = await site.releaser.release()
        assert draws.all == [stored.data] * 4
        assert (stored.withheld, await charged(site)) == (not released, not released)


@pytest.mark.parametrize("step", ["Store.reserve_outcome", "Store.commit_outcome"])
async def test_killed_between_its_charge_and_its_storing_a_window_gets_the_outcome_that_was_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool, step: str
) -> None:
    runtime, draws, source = ManualRuntime(), Draws(monkeypatch), Alternating(released=released)
    for life in range(4):
        steps = Steps(fatal_of(step, life), after=step.endswith("reserve_outcome"))
        site = await DiskSite.open(tmp_path, PLAN, runtime, steps=steps, entropy=source)
        if life == 0:
            await site.store.open_windows(PLAN.id, site.window, site.window)
        with suppress(CrashError, PartitionStoppedError):
            await site.start()
            await site.releaser.seal(site.window, early=True)
            await site.releaser.release(site.window)
        if life < 3:
            assert steps.names[-1] == step
            assert (site.observer.releases, site.observer.withholdings) == ([], [])
            assert await charged(site) is False
        else:
            (stored,) = site.observer.releases + site.observer.withholdings
            assert set(draws.all) == {stored.data}
            assert await charged(site) == stored.withheld == (not released)
            assert len(await site.receipts.read()) == 1
        await site.die()
    assert source.given == 1


def fatal_of(step: str, life: int) -> int | None:
    """Which counted call of a life is this step; the last life has none that kills it."""
    before = 6 if life == 0 else 0  # begin, bind_receipts, mark_closing, append, and a checkpoint of each partition
    return None if life == 3 else before + 1 + step.endswith("commit_outcome")


async def test_a_full_disk_and_a_second_releaser_draw_what_the_first_one_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    runtime, draws = ManualRuntime(), Draws(monkeypatch)
    async with disk_site(tmp_path, PLAN, runtime, entropy=Alternating(released=released)) as site:
        await site.releaser.seal(early=True)
        honest = site.store.commit_outcome

        async def failing(*_: object, **__: object) -> None:
            raise StoreError("store: no room")

        monkeypatch.setattr(site.store, "commit_outcome", failing)
        with pytest.raises(StoreError, match="no room"):
            await site.releaser.release()
        source = Alternating(released=not released)
        other = await DiskSite.open(tmp_path, PLAN, runtime, entropy=source, fence=site.fence)
        other.releaser = site.new_releaser(site.fence, store=other.store)
        stored = await other.releaser.release()
        monkeypatch.setattr(site.store, "commit_outcome", honest)
        assert (await site.releaser.release(site.window)).data == stored.data
        assert draws.all == [stored.data] * 2
        assert (stored.withheld, await charged(site)) == (not released, not released)
        await other.die()


# ------------------------------------------------------------------------------------------------------ what is kept


async def test_counters_that_changed_after_their_charge_are_damage_and_are_not_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise MemoryError

    draws = Draws(monkeypatch, fail)
    async with disk_site(tmp_path, PLAN, entropy=Alternating(released=True)) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        with pytest.raises(MemoryError):
            await site.releaser.release()
        await sqlite_of(site.store).writer.write(lambda db: db.execute("UPDATE counts SET data = x'0109'").rowcount)
        for _ in range(3):
            with pytest.raises(StoreError, match="differ from those that were charged"):
                await site.releaser.release()
        assert len(draws.all) == 1
        assert await charged(site) is False


def test_the_digest_is_of_every_counter_every_count_and_the_number_of_clients() -> None:
    counters, counts = np.zeros(PLAN.counters_shape, np.int64), np.zeros(PLAN.count_counters, np.int64)
    last = np.zeros_like(counters)
    last[..., -1] = 2**40
    first = SealedWindow(Sketch.of_counters(PLAN, counters, counts), 3)
    same = SealedWindow(Sketch.of_counters(PLAN, np.asfortranarray(counters), counts.copy()), 3)
    others = [
        SealedWindow(Sketch.of_counters(PLAN, last, counts), 3),
        SealedWindow(Sketch.of_counters(PLAN, -last, counts), 3),
        SealedWindow(Sketch.of_counters(PLAN, counters, counts + 1), 3),
        SealedWindow(Sketch.of_counters(PLAN, counters, counts), 4),
    ]
    assert first.digest() == same.digest()
    assert len({each.digest() for each in (first, *others)}) == 5
    assert {len(each.digest()) for each in others} == {32}


@pytest.mark.parametrize("reader", [False, True], ids=["", "under a reader that stays until it is forgotten"])
async def test_once_it_has_its_outcome_a_windows_key_and_digest_are_in_no_file(
    tmp_path: Path, released: bool, reader: bool
) -> None:
    source, runtime = Alternating(released=released), ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=source) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        sealed = await site.store.sealed_window(PLAN, site.window)
        assert sealed is not None
        secrets = (source.keys[0], sealed.digest())
        held = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        honest = site.store.commit_outcome

        async def looked(*arguments: Any, **keywords: Any) -> None:
            assert all(secret in site.files() for secret in secrets), "it is looked for in the right place"
            if reader:
                held.execute("BEGIN")
                held.execute("SELECT count(*) FROM reservations").fetchone()
            await honest(*arguments, **keywords)
            assert any(secret in site.files() for secret in secrets) == reader
            held.close()

        site.releaser._store.commit_outcome = looked  # type: ignore[method-assign]  # looks at the files
        await site.releaser.release()
        assert not any(secret in site.files() for secret in secrets)
        assert not await sqlite_of(site.store).reader.read(
            lambda db: db.execute("SELECT * FROM reservations").fetchall()
        )
    assert not any(secret in site.files() for secret in secrets)


async def test_what_a_charge_writes_has_the_same_size_whatever_was_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise MemoryError

    Draws(monkeypatch, fail)
    sizes = []
    for clients in (0, 1, 40):
        folder = tmp_path / str(clients)
        folder.mkdir()
        async with disk_site(folder, PLAN, entropy=Alternating(released=True)) as site:
            for number in range(clients):
                await site.send(number, records=number % 3 + 1)
            await site.releaser.seal(early=True)
            await sqlite_of(site.store).writer.truncate()
            with pytest.raises(MemoryError):
                await site.releaser.release()
            query = (
                "SELECT total_changes(), length(kind), length(key), length(digest), length(fields), "
                "typeof(key), typeof(digest) FROM reservations JOIN spends USING (kind, window)"
            )
            before = sqlite_of(site.store).writer._connection.execute(query).fetchall()
            sizes.append((before[0][1:], len(before), (folder / "store.db-wal").stat().st_size))
    assert len(set(sizes)) == 1, sizes


async def test_a_store_from_before_reservations_is_released_from(tmp_path: Path) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
    database = sqlite3.connect(tmp_path / "store.db")
    later = (
        "reservations",
        "leases",
        "plan_signatures",
        "round_claims",
        *("receipts", "sequences", "sequence_parts", "client_windows", "receipts_copy"),
    )
    for table in later:
        database.execute(f"DROP TABLE {table}")
    for index in ("sequence_spends", "unpublished"):
        database.execute(f"DROP INDEX {index}")
    database.execute("PRAGMA user_version=1")
    database.commit()
    database.close()
    async with disk_site(tmp_path, PLAN, runtime, entropy=Alternating(released=True)) as site:
        stored: StoredOutcome = await site.releaser.release()
        assert (stored.withheld, await charged(site)) == (False, False)
