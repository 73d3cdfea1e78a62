"""Windows of a secure plan, from the log to the release: nothing is drawn, the ledger is charged once, all is told."""

import json
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import PartitionStoppedError
from aggregator.model import NewEntry, SealedWindow, StoredOutcome
from aggregator.release.releaser import compute_outcome
from hushsum.delta import digest
from hushsum.errors import BudgetError
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, of_sums, spend_of
from hushsum.sketch import Sketch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry
from tests.aggregator.disk_site import PARTITIONS, DiskSite, disk_site
from tests.aggregator.release.test_releaser import CountingEntropy
from tests.aggregator.sums import LEAST, MOST, cohort_sum, dense, secure_plan
from tests.doubles import CrashError, ManualRuntime, Steps

PLAN = secure_plan(counters=50, total_epsilon=2)  # enough for two windows


async def collect(site: DiskSite, *entries: CohortSumEntry, charge: bool = True) -> None:
    """What a gateway does around a round: the charge before it, the append after it."""
    for each in entries:
        if charge:
            await site.charge(each.window)
        partition = each.id.stream % PARTITIONS
        await site.log.append([NewEntry(partition, each.window, entry_to_bytes(each))])


async def spent(site: DiskSite) -> list[int | None]:
    return [spend.window for spend in (await site.store.account("")).spends]


def two_sums(window: int) -> tuple[CohortSumEntry, CohortSumEntry]:
    """Of cohorts whose sums belong to different partitions."""
    return (
        cohort_sum(PLAN, window, {0: -7, 3: 2}, [-3], place=(0, PARTITIONS), submissions=LEAST),
        cohort_sum(PLAN, window, {0: 1, 49: 5}, [8], place=(1, PARTITIONS), submissions=MOST),
    )


def release_of_two(window: int) -> Release:
    return of_sums(
        PLAN,
        dense(PLAN, {0: -6, 3: 2, 49: 5}),
        np.array([5]),
        window=window,
        cohorts=2,
        submissions=LEAST + MOST,
    )


async def released(site: DiskSite) -> StoredOutcome:
    await site.releaser.seal(early=True)
    return await site.releaser.release()


async def test_a_release_is_the_sum_of_all_cohorts_as_it_is_with_their_number_and_submissions(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        sums = two_sums(site.window)
        await collect(site, *sums, *sums)  # each append is repeated, as after a reply that was lost
        stored = await released(site)
        assert stored.data == release_of_two(site.window).to_bytes()
        release = Release.from_bytes(stored.data)
        assert (release.cohorts, release.submissions, release.window) == (2, LEAST + MOST, site.window)
        assert (release.counters == dense(PLAN, {0: -6, 3: 2, 49: 5})).all()
        assert release.counts.tolist() == [5]
        assert release.accounted
        assert release.guarantee == PLAN.guarantee
        assert not stored.withheld


async def test_no_noise_is_drawn_and_every_repetition_gives_the_same_bytes(tmp_path: Path) -> None:
    entropy = CountingEntropy(b"key")
    async with disk_site(tmp_path, PLAN, entropy=entropy) as site:
        await collect(site, *two_sums(site.window))
        first = await released(site)
        reads = entropy.reads
        assert (await site.releaser.release(site.window)).data == first.data
        assert entropy.reads == reads == 1  # the key, which nothing was drawn from
    counters, counts = dense(PLAN, {0: -6, 3: 2, 49: 5}), np.array([5])
    sealed = SealedWindow(Sketch.of_counters(PLAN, counters, counts), LEAST + MOST, 2)
    drawn = CountingEntropy(b"other")
    assert compute_outcome(sealed, site.window, drawn) == (first.data, False)
    assert drawn.reads == 0


async def test_the_window_is_charged_once_and_its_receipt_proves_that_spend(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        await collect(site, *two_sums(site.window))
        assert await spent(site) == [site.window]
        await released(site)
        assert await spent(site) == [site.window]
        spend = spend_of(PLAN, kind=TUMBLING, window=site.window)
        assert [row[4] for row in await site.receipts.read()] == [spend]
    async with disk_site(tmp_path, PLAN) as again:  # receipts are compared with the store
        assert await spent(again) == [site.window]
        assert again.releaser.stopped == ""
    _, *lines = (tmp_path / "receipts.jsonl").read_text().splitlines()  # behind the header
    assert [json.loads(line)["window"] for line in lines] == [site.window]


@pytest.mark.parametrize("entered", [False, True])
async def test_an_empty_window_is_released_and_its_receipt_proves_what_was_charged_and_no_more(
    tmp_path: Path, *, entered: bool
) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        if entered:
            await site.charge(site.window)
        stored = await released(site)
        release = Release.from_bytes(stored.data)
        assert (release.cohorts, release.submissions) == (0, 0)
        assert not release.counters.any()
        spend = spend_of(PLAN, kind=TUMBLING, window=site.window, entered=entered)
        assert [row[4] for row in await site.receipts.read()] == [spend]
        assert (await site.store.account("")).spends == (spend,)
        assert bool(spend.events) is entered
    async with disk_site(tmp_path, PLAN) as again:
        assert again.releaser.stopped == ""
        assert (await again.store.account("")).spends == (spend,)


async def test_a_window_that_was_paid_for_is_released_although_nothing_is_left(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=3) as site:
        for window in (site.window, site.window + 1):
            await collect(site, *two_sums(window))
        for window in (site.window, site.window + 1):
            assert (await released(site)).data == release_of_two(window).to_bytes()
        with pytest.raises(BudgetError):
            await site.charge(site.window + 2)
        assert await spent(site) == [site.window, site.window + 1]


async def test_an_empty_window_holds_up_no_window_behind_it_that_was_paid_for(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=3) as site:
        for window in (site.window + 1, site.window + 2):
            await collect(site, *two_sums(window))
        assert (await released(site)).window == site.window
        for window in (site.window + 1, site.window + 2):
            assert (await released(site)).data == release_of_two(window).to_bytes()
        assert site.releaser.stopped == ""


async def test_what_comes_after_the_seal_is_late_and_in_no_release(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=2) as site:
        first, second = two_sums(site.window)
        await collect(site, first)
        await site.releaser.seal(early=True)
        await collect(site, second, charge=False)
        release = Release.from_bytes((await site.releaser.release()).data)
        assert (release.cohorts, release.submissions) == (1, LEAST)
        await site.workers.passed(second.id.stream % PARTITIONS, await site.log.end(second.id.stream % PARTITIONS) - 1)
        told = await site.workers.recall(1, "", second.id, digest(second.sum), second.window)
        assert told == ("unknown", None)  # for the window is forgotten


async def test_the_fold_tells_a_gateway_what_became_of_a_sum(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN, open_windows=2) as site:
        counted, late = two_sums(site.window)
        await collect(site, counted)
        await site.releaser.seal(early=True)
        await collect(site, late, charge=False)
        for sent, expected in ((counted, "counted"), (late, "late")):
            partition = sent.id.stream % PARTITIONS
            await site.workers.passed(partition, await site.log.end(partition) - 1)
            kind, reason = await site.workers.recall(partition, "", sent.id, digest(sent.sum), sent.window)
            assert (kind, reason) == (expected, None)


async def test_nothing_of_a_window_is_left_in_any_file_once_it_is_released(tmp_path: Path) -> None:
    async with disk_site(tmp_path, PLAN) as site:
        sent = cohort_sum(PLAN, site.window, dict.fromkeys(range(50), 3), place=(0, PARTITIONS))
        await collect(site, sent)
        await site.runtime.sleep(0)
        assert sent.sum in site.files()
        await released(site)
        assert sent.sum not in site.files()
        assert sent.round.hex().encode() not in site.files()


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_step_it_comes_to_the_one_release_and_the_one_charge(
    tmp_path: Path, *, after: bool
) -> None:
    fatal = 0
    while True:
        fatal += 1
        folder = tmp_path / str(fatal)
        folder.mkdir()
        runtime, steps = ManualRuntime(), Steps(fatal, after=after)
        site = await DiskSite.open(folder, PLAN, runtime, steps=steps)
        try:
            await site.store.open_windows(PLAN.id, site.window, site.window)
            await collect(site, *two_sums(site.window))
            await site.start()
            await released(site)
        except (CrashError, PartitionStoppedError):
            assert steps.count >= fatal
        await site.die()
        if steps.count < fatal:
            break
        async with disk_site(folder, PLAN, runtime) as again:
            if (await again.store.windows(PLAN.id))[again.window] in {"open", "closing"}:
                await again.releaser.seal(early=True)
            stored = await again.releaser.release(again.window)
            assert stored.data == release_of_two(again.window).to_bytes(), fatal
            assert await spent(again) == [again.window], fatal
    assert fatal > 8
