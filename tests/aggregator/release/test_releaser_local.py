"""Windows of local plans, from the log to the outcome: nothing is drawn, charged once and for good, all is told."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import PartitionStoppedError
from aggregator.model import NewEntry, SealedWindow, StoredOutcome
from aggregator.release.catalog import NotFoundError, ReleaseCatalog
from aggregator.release.releaser import compute_outcome
from aggregator.store.store import read_verdicts
from hushsum.delta import read_header
from hushsum.errors import BudgetError
from hushsum.local.report_batch import unpack
from hushsum.local.silo import unpack as unpack_silo
from hushsum.outcomes import Withheld
from hushsum.plan import Plan
from hushsum.privacy.events import TUMBLING
from hushsum.releases import Release, of_reports, of_silos, spend_of
from hushsum.sketch import Sketch
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry, ReportsEntry, partition_of, partition_of_sum
from tests.aggregator.deltas import client_of
from tests.aggregator.disk_site import PARTITIONS, DiskSite, disk_site
from tests.aggregator.release.test_releaser import CountingEntropy
from tests.aggregator.reports import SHUFFLE_MIN, report_plan, reports_of, silo_of, silo_plan
from tests.doubles import CrashError, ManualRuntime, Steps

REPORTS = report_plan()
SILOS = silo_plan(total_epsilon=2)  # enough for two windows
Entries = Sequence[DeltaEntry | ReportsEntry]


async def collect(site: DiskSite, *entries: DeltaEntry | ReportsEntry) -> None:
    """What a gateway does: the charge before a window's first submission, then the append."""
    appended = []
    for each in entries:
        if isinstance(each, DeltaEntry):
            header, partition = read_header(each.delta), partition_of(each.client_id, PARTITIONS)
        else:
            header = read_header(each.batch)
            partition = partition_of_sum(header.id, PARTITIONS)
        appended.append(NewEntry(partition, header.window, entry_to_bytes(each)))
    for window in sorted({each.window for each in appended}):
        await site.charge(window)
    await site.log.append(appended)


def entries_of(plan: Plan, window: int, count: int = 6) -> Entries:
    """Submissions of several clients in both partitions."""
    if plan.privacy.local is not None and plan.privacy.local.reports:
        size = max(2, plan.privacy.local.shuffle_min)
        shuffled = plan.privacy.local.shuffle_min > 0
        return [
            reports_of(plan, window, [number] + [7] * (size - 1), stream=window << 40 | number, shuffled=shuffled)
            for number in range(count)
        ]
    clients = [client_of(number % PARTITIONS, PARTITIONS, number) for number in range(count)]
    return [silo_of(plan, client, window, {number: 3}, stream=window) for number, client in enumerate(clients)]


def release_of(plan: Plan, window: int, entries: Entries) -> Release:
    """What a window of these comes to, without a log, a fold or a store."""
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    for each in entries:
        if isinstance(each, DeltaEntry):
            unpack_silo(each.delta, plan).add_to(counters, counts)
        else:
            unpack(each.batch, plan).count_into(counters, counts)
    local = plan.privacy.local
    assert local is not None
    if local.reports:
        return of_reports(plan, counters, counts, window=window, shuffled=local.shuffle_min > 0)
    return of_silos(plan, counters, counts, window=window, submissions=len(entries))


async def released(site: DiskSite) -> StoredOutcome:
    await site.releaser.seal(early=True)
    return await site.releaser.release()


async def spent(site: DiskSite) -> list[int | None]:
    return [spend.window for spend in (await site.store.account("")).spends]


@pytest.mark.parametrize("plan", [REPORTS, SILOS], ids=["reports", "silos"])
async def test_a_release_is_the_sum_of_what_was_sent_as_it_is(tmp_path: Path, plan: Plan) -> None:
    async with disk_site(tmp_path, plan) as site:
        sent = entries_of(plan, site.window)
        await collect(site, *sent, *sent)  # each append is repeated, as after a reply that was lost
        stored = await released(site)
        expected = release_of(plan, site.window, sent)
        assert stored.data == expected.to_bytes()
        assert not stored.withheld
        assert expected.counters.any()
        assert await spent(site) == [site.window]
        spend = spend_of(plan, kind=TUMBLING, window=site.window)
        assert [row[4] for row in await site.receipts.read()] == [spend]
    async with disk_site(tmp_path, plan) as again:  # receipts are compared with the store
        assert again.releaser.stopped == ""
        assert await spent(again) == [again.window]


async def test_the_number_of_clients_of_a_silo_window_is_told_and_exact(tmp_path: Path) -> None:
    async with disk_site(tmp_path, SILOS) as site:
        sent = entries_of(SILOS, site.window, 5)
        second = silo_of(SILOS, client_of(0, PARTITIONS, 0), site.window, {}, stream=9)  # of the first
        await collect(site, *sent, second)
        assert Release.from_bytes((await released(site)).data).submissions == 5


async def test_reports_of_a_plan_with_a_shuffler_are_released_as_shuffled_and_those_of_another_are_not(
    tmp_path: Path,
) -> None:
    plan = report_plan(shuffle_min=SHUFFLE_MIN)
    async with disk_site(tmp_path, plan, open_windows=2) as site:
        sent = entries_of(plan, site.window, 2)
        bare = reports_of(plan, site.window, [3] * SHUFFLE_MIN, stream=77)
        await collect(site, *sent, bare)
        release = Release.from_bytes((await released(site)).data)
        assert release.shuffled
        assert release.counts.tolist() == [2 * SHUFFLE_MIN], "what came round the shuffler is in no release"
        empty = Release.from_bytes((await released(site)).data)  # nobody came to the next window
        assert empty.counts.tolist() == [0]
    folder = tmp_path / "plain"
    folder.mkdir()
    async with disk_site(folder, REPORTS) as site:
        await collect(site, *entries_of(REPORTS, site.window))
        assert not Release.from_bytes((await released(site)).data).shuffled


@pytest.mark.parametrize("plan", [REPORTS, SILOS], ids=["reports", "silos"])
async def test_no_noise_is_drawn_and_every_repetition_gives_the_same_bytes(tmp_path: Path, plan: Plan) -> None:
    entropy = CountingEntropy(b"key")
    async with disk_site(tmp_path, plan, entropy=entropy) as site:
        sent = entries_of(plan, site.window)
        await collect(site, *sent)
        first = await released(site)
        assert (await site.releaser.release(site.window)).data == first.data
        assert entropy.reads == 1  # the key, which nothing was drawn from
    release = release_of(plan, site.window, sent)
    sealed = SealedWindow(Sketch.of_counters(plan, release.counters, release.counts), release.submissions or 0)
    drawn = CountingEntropy(b"other")
    assert compute_outcome(sealed, site.window, drawn) == (first.data, False)
    assert drawn.reads == 0


@pytest.mark.parametrize("plan", [REPORTS, SILOS], ids=["reports", "silos"])
@pytest.mark.parametrize("entered", [False, True])
async def test_an_empty_window_is_released_and_only_charged_where_somebody_might_have_come(
    tmp_path: Path, plan: Plan, *, entered: bool
) -> None:
    async with disk_site(tmp_path, plan) as site:
        if entered:
            await site.charge(site.window)
        stored = await released(site)
        assert stored.data == release_of(plan, site.window, []).to_bytes()
        spend = spend_of(plan, kind=TUMBLING, window=site.window, entered=entered)
        assert bool(spend.events) is entered
        assert (await site.store.account("")).spends == (spend,)
        assert [row[4] for row in await site.receipts.read()] == [spend]
    async with disk_site(tmp_path, plan) as again:
        assert again.releaser.stopped == ""
        assert (await again.store.account("")).spends == (spend,)


@pytest.mark.parametrize(
    ("plan", "few", "what"),
    [(report_plan(min_reports=7), 3, "reports"), (silo_plan(min_clients=4), 3, "clients")],
    ids=["reports", "silos"],
)
async def test_a_window_of_too_few_is_withheld_and_stays_charged_for_what_was_accepted(
    tmp_path: Path, plan: Plan, few: int, what: str
) -> None:
    async with disk_site(tmp_path, plan, open_windows=3) as site:
        windows = [site.window + number for number in range(3)]
        await collect(site, *entries_of(plan, windows[0], few), *entries_of(plan, windows[1], few + 1))
        stored = [await released(site) for _ in windows]
        assert [each.withheld for each in stored] == [True, False, True]
        assert stored[0].data == Withheld(plan.id, TUMBLING, windows[0]).to_bytes()
        spends = tuple(
            spend_of(plan, kind=TUMBLING, window=window, entered=entered)
            for window, entered in zip(windows, (True, True, False), strict=True)
        )
        assert (await site.store.account("")).spends == spends
        assert spends[0].events == spends[1].events != ()
        assert [row[4] for row in await site.receipts.read()] == [*spends]
        with pytest.raises(NotFoundError, match=f"withheld: it has too few {what}"):
            await ReleaseCatalog(plan, site.store).release(TUMBLING, windows[0])
    async with disk_site(tmp_path, plan) as again:
        assert again.releaser.stopped == ""
        assert (await again.store.account("")).spends == spends


async def test_a_window_that_was_paid_for_is_released_although_nothing_is_left(tmp_path: Path) -> None:
    async with disk_site(tmp_path, SILOS, open_windows=3) as site:
        sent = {window: entries_of(SILOS, window) for window in (site.window, site.window + 1)}
        for entries in sent.values():
            await collect(site, *entries)
        with pytest.raises(BudgetError):
            await site.charge(site.window + 2)
        for window, entries in sent.items():
            assert (await released(site)).data == release_of(SILOS, window, entries).to_bytes()
        assert await spent(site) == [site.window, site.window + 1]


@pytest.mark.parametrize("plan", [REPORTS, SILOS], ids=["reports", "silos"])
async def test_nothing_of_a_submission_is_left_in_any_file_once_its_window_is_released(
    tmp_path: Path, plan: Plan
) -> None:
    async with disk_site(tmp_path, plan) as site:
        sent = entries_of(plan, site.window)
        await collect(site, *sent)
        body = sent[0].delta if isinstance(sent[0], DeltaEntry) else sent[0].batch
        assert body in site.files()
        await released(site)
        assert body not in site.files()


@pytest.mark.parametrize("plan", [REPORTS, SILOS], ids=["reports", "silos"])
@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_step_nothing_is_lost_and_nothing_doubled(
    tmp_path: Path, plan: Plan, *, after: bool
) -> None:
    fatal, sent = 0, None
    verdicts: Counter[str] = Counter()
    while True:
        fatal += 1
        folder = tmp_path / str(fatal)
        folder.mkdir()
        runtime, steps = ManualRuntime(), Steps(fatal, after=after)
        site = await DiskSite.open(folder, plan, runtime, steps=steps)
        sent = sent or entries_of(plan, site.window, 30)  # more than are between two checkpoints
        try:
            await site.store.open_windows(plan.id, site.window, site.window)
            await collect(site, *sent, *sent[:5])
            await site.start()
            await released(site)
        except (CrashError, PartitionStoppedError):
            assert steps.count >= fatal
        await site.die()
        if steps.count < fatal:
            break
        async with disk_site(folder, plan, runtime) as again:
            if (await again.store.windows(plan.id))[again.window] in {"open", "closing"}:
                await collect(again, *sent[-3:])  # their clients had no answer
                await again.releaser.seal(early=True)
            stored = await again.releaser.release(again.window)
            assert stored.data == release_of(plan, again.window, sent).to_bytes(), fatal
            assert await spent(again) == [again.window], fatal
        verdicts.update(verdict.kind for _, verdict in read_verdicts(folder / "store.db", plan))
    assert fatal > 8
    assert verdicts["counted"] == len(sent) * (fatal - 1), "each submission once in each of these lives"
    assert verdicts["refused"] == 0
