"""A withheld window is final, charged with its test alone, and tells nothing but that it is withheld."""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from aggregator.errors import PartitionStoppedError, ReceiptsError, ReleasingStoppedError
from hushsum.entropy import KEY_BYTES, KeyedEntropy, ReplayableEntropy
from hushsum.outcomes import Withheld
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, spend_of
from tests.aggregator.deltas import tally_plan
from tests.aggregator.disk_site import DiskSite, client_for, disk_site, restore_store
from tests.aggregator.release.test_releaser import CountingEntropy
from tests.doubles import CrashError, ManualRuntime, Steps

SHARE = Fraction(1, 20)  # of ε = 1, for the test
PLAN = tally_plan(counters=1000, records_per_client=3, total_epsilon=10, min_clients=12)


def key_of(*, released: bool, plan: Plan = PLAN) -> bytes:
    """A key of noise that decides so of up to three clients, in the first windows that it is drawn for."""
    law = plan.privacy.mechanism.clients_noise()
    assert law is not None

    def first_noises(key: bytes) -> list[int]:
        source = ReplayableEntropy(key)
        keys = [source.read(KEY_BYTES) for _ in range(1 if released else 3)]
        return [int(law.sample(1, KeyedEntropy(each))[0]) for each in keys]

    keys = (number.to_bytes(2, "big") for number in itertools.count())
    least = plan.window.min_clients
    return next(key for key in keys if all((n >= least) if released else (n + 3 < least) for n in first_noises(key)))


WITHHOLDS, RELEASES = key_of(released=False), key_of(released=True)


async def test_a_withheld_window_is_published_as_such_and_charged_with_its_test_alone(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, entropy=ReplayableEntropy(WITHHOLDS), open_windows=2) as site:
        await site.send(0)
        await site.releaser.seal(early=True)
        stored = await site.releaser.release()
        assert stored.withheld
        assert stored.data == Withheld(PLAN.id, TUMBLING, site.window).to_bytes()
        assert await site.store.windows(PLAN.id) == {site.window: "withheld", site.window + 1: "open"}
        (outcome,) = await site.store.outcomes(PLAN.id)
        assert (outcome.withheld, outcome.published, outcome.sha256) == (True, True, stored.sha256)
        charged = spend_of(PLAN, kind=TUMBLING, window=site.window, withheld=True)
        account = await site.store.account("")
        assert (account.spends, account.spent.epsilon) == ((charged,), SHARE)
        assert await site.receipts.read() == [(PLAN.id, TUMBLING, site.window, stored.sha256, charged)]
        assert (site.observer.withholdings, site.observer.releases) == ([stored], [])
        await site.releaser.seal(early=True)
        await site.releaser.release()
        assert (await site.store.account("")).spent.epsilon == 2 * SHARE, "windows after it have theirs"


async def test_a_released_window_is_charged_with_its_test_and_its_counters(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, entropy=ReplayableEntropy(RELEASES)) as site:
        await site.releaser.seal(early=True)
        stored = await site.releaser.release()
        assert not stored.withheld
        assert Release.from_bytes(stored.data).counters.any()
        assert (await site.store.account("")).spent.epsilon == 1
        assert (site.observer.withholdings, site.observer.releases) == ([], [stored])


async def test_nothing_of_a_withheld_window_is_left_but_that_it_is_withheld(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, entropy=ReplayableEntropy(WITHHOLDS), open_windows=2) as site:
        forgotten = [await site.send(number) for number in range(3)]
        kept = await site.send(4, window=site.window + 1)
        await site.releaser.seal(early=True)
        assert all(delta in site.files() for delta in forgotten)
        await site.releaser.release()
        left = site.files()
        assert not any(delta in left for delta in forgotten)
        assert kept in left
        for table in ("blocks", "counts", "contributions"):
            assert await windows_in(site, table) <= {site.window + 1}
        assert not any(reason for reason in site.observer.pending)


async def windows_in(site: DiskSite, table: str) -> set[int]:
    query = f"SELECT window FROM {table}"
    found = await site.sqlite.reader.read(lambda db: db.execute(query).fetchall())
    return {window for (window,) in found}


# -------------------------------------------------------------------------------------------------------- never redrawn


async def test_a_withheld_window_that_is_asked_for_again_is_given_back_and_nothing_is_drawn(tmp_path: Path) -> None:
    entropy = CountingEntropy(WITHHOLDS)
    async with disk_site(tmp_path, PLAN, entropy=entropy) as site:
        await site.releaser.seal(early=True)
        first = await site.releaser.release()
        reads = entropy.reads
        for _ in range(3):
            assert await site.releaser.release(site.window) == first
            await site.releaser.take_due()
        assert entropy.reads == reads > 0
        assert (await site.store.account("")).spent.epsilon == SHARE


async def lived(folder: Path, runtime: ManualRuntime, steps: Steps, key: bytes) -> DiskSite:
    """One life of the service: to its end, or to its death at a step."""
    site = await DiskSite.open(folder, PLAN, runtime, steps=steps, entropy=ReplayableEntropy(key))
    try:
        await site.start()
        await site.releaser.seal(site.window, early=True)
        await site.releaser.release(site.window)
    except (CrashError, PartitionStoppedError):
        pass
    finally:
        await site.die()
    return site


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, 13))
async def test_killed_at_any_step_after_its_charge_a_window_stays_withheld_whatever_the_next_life_would_draw(
    tmp_path: Path, fatal: int, after: bool
) -> None:
    runtime, steps = ManualRuntime(), Steps(fatal, after=after)
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    await site.store.open_windows(PLAN.id, site.window, site.window)
    for number in range(3):
        await site.send(number)
    await site.die()
    first = await lived(tmp_path, runtime, steps, WITHHOLDS)
    assert steps.count >= fatal
    second = await lived(tmp_path, runtime, Steps(), RELEASES)
    done = steps.names if after else steps.names[:-1]
    withheld = "Store.reserve_outcome" in done
    shown = {
        stored.withheld for life in (first, second) for stored in life.observer.releases + life.observer.withholdings
    }
    assert shown <= {withheld}, "nobody was ever told of another outcome"
    site = await DiskSite.open(tmp_path, PLAN, runtime)
    (outcome,) = await site.store.outcomes(PLAN.id)
    assert (outcome.withheld, outcome.published) == (withheld, True)
    charged = spend_of(PLAN, kind=TUMBLING, window=site.window, withheld=withheld)
    assert (await site.store.account("")).spends == (charged,)
    assert await site.receipts.read() == [(PLAN.id, TUMBLING, site.window, outcome.sha256, charged)]
    assert site.counted() == {client_for(number): 1 for number in range(3)}
    await site.die()


@pytest.mark.parametrize(("fast", "first"), [(WITHHOLDS, RELEASES), (RELEASES, WITHHOLDS)])
async def test_whoever_stores_it_the_outcome_of_a_race_is_that_of_the_first_charge(
    tmp_path: Path, fast: bytes, first: bytes
) -> None:
    runtime = ManualRuntime()
    async with disk_site(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(fast)) as site:
        await site.releaser.seal(early=True)
        slow = await DiskSite.open(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(first), fence=site.fence)
        slow.releaser = slow.new_releaser(site.fence, folds=site.workers)
        honest = slow.store.commit_outcome

        async def overtaken(*arguments: object, **keywords: object) -> None:
            await site.releaser.release()
            await honest(*arguments, **keywords)  # type: ignore[arg-type]  # handed on as they came

        slow.store.commit_outcome = overtaken  # type: ignore[method-assign]  # the other comes in between
        assert (await slow.releaser.release()).withheld == (first == WITHHOLDS)
        assert (slow.observer.releases, slow.observer.withholdings) == ([], [])
        assert len((await site.store.account("")).spends) == len(await site.receipts.read()) == 1
        await slow.die()


async def test_a_withheld_window_whose_receipt_failed_is_what_a_repeated_call_gives(tmp_path: Path) -> None:
    entropy, receipts, away = CountingEntropy(WITHHOLDS), tmp_path / "receipts.jsonl", tmp_path / "away"
    async with disk_site(tmp_path, PLAN, entropy=entropy) as site:
        await site.releaser.seal(early=True)
        receipts.rename(away)
        for _ in range(2):
            with pytest.raises(ReceiptsError):
                await site.releaser.release()
            assert await site.store.outcome(PLAN.id, TUMBLING, site.window) is None
        reads = entropy.reads
        away.rename(receipts)
        assert (await site.releaser.release()).withheld
        assert entropy.reads == reads


async def test_a_store_from_before_a_window_was_withheld_draws_nothing_again(tmp_path: Path) -> None:
    runtime, entropy = ManualRuntime(), CountingEntropy(RELEASES)
    async with disk_site(tmp_path, PLAN, runtime, entropy=ReplayableEntropy(WITHHOLDS)) as site:
        await site.releaser.seal(early=True)
        await site.sqlite.writer.truncate()
        shutil.copy(tmp_path / "store.db", tmp_path / "store.old")
        await site.releaser.release()
    restore_store(tmp_path)
    async with disk_site(tmp_path, PLAN, runtime, entropy=entropy) as site:
        with pytest.raises(ReleasingStoppedError, match=f"a receipt for window {site.window}, but the store does not"):
            await site.releaser.release()
        await site.releaser.take_due()
        assert (await site.store.account("")).spent.epsilon == SHARE
        assert entropy.reads == 0


# --------------------------------------------------------------------------------------------------------------- budget


async def test_a_budget_that_pays_for_the_test_alone_draws_nothing(tmp_path: Path) -> None:
    plan = tally_plan(counters=1000, records_per_client=3, total_epsilon="1.04", min_clients=12)
    entropy = CountingEntropy(key_of(released=False, plan=plan))
    async with disk_site(tmp_path, plan, entropy=entropy, open_windows=2) as site:
        for _ in range(2):
            await site.releaser.seal(early=True)
        assert (await site.releaser.release()).withheld
        reads = entropy.reads
        with pytest.raises(ReleasingStoppedError, match=f"window {site.window + 1} stays sealed: Budget exceeded"):
            await site.releaser.release()
        assert entropy.reads == reads
        assert (await site.store.account("")).spent.epsilon == SHARE


# ------------------------------------------------------------------------------------------------------------ no number


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """Everything that the store keeps of outcomes."""
    connection = sqlite3.connect(folder / "store.db")
    of_outcomes = ("outcomes", "reservations", "spends", "windows", "receipts")
    for table in (*of_outcomes, "blocks", "counts", "contributions", "streams"):
        yield table, connection.execute(f"SELECT * FROM {table}").fetchall()
    connection.close()


async def test_what_is_kept_of_a_withheld_window_is_the_same_whoever_took_part(tmp_path: Path) -> None:
    kept = []
    for clients in (0, 3):
        folder = tmp_path / str(clients)
        folder.mkdir()
        async with disk_site(folder, PLAN, entropy=ReplayableEntropy(WITHHOLDS)) as site:
            for number in range(clients):
                await site.send(number, records=number % 3 + 1)
            await site.releaser.seal(early=True)
            await site.releaser.release()
            kept.append(([*rows(folder)], (folder / "receipts.jsonl").read_bytes()))
    assert kept[0] == kept[1]
    _, receipt = kept[0][1].splitlines()
    assert json.loads(receipt)["kind"] == TUMBLING
