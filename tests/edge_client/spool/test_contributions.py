"""Unit client: a device takes the first records that its window has room for, and refuses the rest one by one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from edge_client.encoding import counters_of, left_out, split
from edge_client.errors import SpoolFullError
from edge_client.spool.changes import Change, Result
from edge_client.spool.spool import Spool
from edge_client.spool.window_submissions import SiloSubmissions
from edge_client.status import Counts, SendStats
from hushsum import Plan, Sketch
from hushsum.errors import ContributionError, DroppedRecordsWarning
from hushsum.local.report_batch import unpack
from tests.edge_client.local_plans import WINDOW, ReportSpool, report_plan
from tests.edge_client.secure_plans import secure_plan
from tests.edge_client.spools import opened
from tests.plans import classed_plan, set_plan, small_plan

M = 10
UNIT = {"unit": "client", "records_per_client": M, "epsilon": M, "total_epsilon": 100}
SKETCH = {"rows": 4, "buckets": 16}


def tallies(spool: Spool) -> Counts:
    return Counts.of(spool.tallies, SendStats())


def central(path: Path, plan: Plan) -> Spool:
    del plan
    return opened(path)


def at_home(path: Path, plan: Plan) -> Spool:
    spool = opened(path)
    SiloSubmissions(spool, plan).update(range(6, 9))
    return spool


Opening = Callable[[Path, Plan], Spool]
LABELS = ("a", "b", "c")
KINDS: dict[str, tuple[Opening, Plan]] = {
    "central": (central, classed_plan(*LABELS, privacy=UNIT, sketch=SKETCH)),
    "secure": (at_home, secure_plan(**UNIT)),
    "silo": (
        at_home,
        small_plan(privacy={"mode": "local", "local": {"form": "silo"}, **UNIT}, sketch=SKETCH, window=WINDOW),
    ),
}


def held(spool: Spool, plan: Plan) -> tuple[Any, Any]:
    """(counters, counts) of everything of window 7 that is in the spool."""
    if plan.privacy.mode == "central":
        return counters_of(plan, [bound.data for bound in spool.load(0, 1000, 2**20)])
    rows = spool.rows("SELECT bytes FROM pending WHERE records > 0")
    return counters_of(plan, [bytes(data) for (data,) in rows])


def change(plan: Plan, records: Any, labels: Any = None) -> Change:
    return split(plan, records, 7, labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [True, False], ids=["in one transaction", "with a restart after each"])
def test_a_window_holds_the_first_usable_records_that_its_bound_allows_however_they_are_batched(
    tmp_path: Path, kind: str, together: bool, rng: np.random.Generator
) -> None:
    for trial in range(6):
        (opening, plan), path = KINDS[kind], tmp_path / f"{trial}.db"
        records = rng.uniform(0, 10, (24, 2))
        bad, unknown = np.split(rng.choice(24, 9, replace=False), [5])  # 15 are left
        records[bad] = np.nan
        labels: Any = rng.choice(LABELS, 24).tolist() if plan.classes else None
        for number in unknown if labels else ():
            labels[number] = "?"
        ends = [0, *sorted(rng.choice(np.arange(1, 24), 3, replace=False).tolist()), 24]
        cuts = [slice(start, end) for start, end in itertools.pairwise(ends)]
        changes = [change(plan, records[cut], labels and labels[cut]) for cut in cuts]
        spool, results = opening(path, plan), list[Result]()
        for some in [changes] if together else [[each] for each in changes]:
            results += spool.commit(some)
            if not together:
                spool.close()
                spool = opening(path, plan)
        usable = ~np.isnan(records[:, 0])
        if labels:
            usable &= np.array(labels) != "?"
        first = np.flatnonzero(usable)[:M]
        expected = Sketch(plan)
        expected.add(records[first], ["me"] * M, labels and [labels[number] for number in first])
        counters, counts = held(spool, plan)
        np.testing.assert_array_equal(counters, expected.counters.reshape(-1))
        np.testing.assert_array_equal(counts, expected.counts)
        whole = [cut for cut, result in zip(cuts, results, strict=True) if isinstance(result, tuple)]
        refused = sum(int(usable[cut].sum()) for cut in whole) - M
        assert (tallies(spool).records, tallies(spool).records_refused) == (M, refused)
        assert all(isinstance(result, tuple | ContributionError) for result in results)
        assert [isinstance(result, tuple) for result in results] == [
            usable[: cut.start].sum() < M or not usable[cut].any() for cut in cuts
        ]
        spool.close()


def test_eleven_records_at_a_bound_of_ten_keep_ten_and_one_is_told_of(tmp_path: Path) -> None:
    plan = small_plan(privacy=UNIT, sketch=SKETCH)
    spool, batch = opened(tmp_path / "spool.db"), split(plan, np.ones((M + 1, 2)), 7)
    (bound,) = spool.commit([batch])
    assert isinstance(bound, tuple)
    assert [(type(told), str(told)) for told in left_out(batch, bound)] == [
        (
            DroppedRecordsWarning,
            "the plan allows 10 records per client and window: 1 of 11 were refused (the last ones)",
        )
    ]
    assert isinstance(spool.commit([change(plan, [[1.0, 1.0]])])[0], ContributionError)
    assert tallies(spool) == Counts(records=10, records_refused=1, deltas=1)
    spool.close()


@pytest.mark.parametrize("memoise", [False, True])
def test_reports_are_those_of_the_first_records_unusable_ones_too(tmp_path: Path, memoise: bool) -> None:
    plan = report_plan(memoise=memoise, **UNIT)
    spool = ReportSpool(tmp_path / "spool.db", plan)
    records = np.random.default_rng(7).uniform(0, 10, (14, 2))
    records[[1, 3, 12]] = np.nan
    spool.add(records[:4])
    batch = spool.encoder.encode(records[4:], 7)
    (bound,) = spool.spool.commit([batch])
    assert isinstance(bound, tuple)
    assert [len(unpack(each.data, plan).reports) for each in bound] == [6]
    assert [str(told) for told in left_out(batch, bound)] == [
        "6 reports were added, with uniformly random ones for unusable records",
        "the plan allows 10 records per client and window: 4 of 10 were refused (the last ones)",
    ]
    spool.anew()
    assert isinstance(spool.result([1.0, 1.0]), ContributionError)
    # Two of the first four could not be used, and none of the next six.
    assert tallies(spool.spool) == Counts(records=8, records_dropped=2, records_refused=4, reports=10, deltas=2)
    if memoise:
        assert spool.spool.rows("SELECT count(*) FROM memo") == [(10,)]
    spool.spool.close()


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([[float(number), 1.0] for number in range(14)], id="list"),
        pytest.param(np.array([[float(number), 1.0] for number in range(14)], object), id="objects"),
        pytest.param(np.arange(28).reshape(14, 2), id="integers"),
    ],
)
def test_the_first_records_are_found_in_whatever_records_come_in(tmp_path: Path, records: Any) -> None:
    plan = small_plan(privacy=UNIT, sketch=SKETCH)
    spool = opened(tmp_path / "spool.db")
    assert isinstance(spool.commit([change(plan, records)])[0], tuple)
    expected = Sketch(plan)
    expected.add(np.array(records[:M], float), ["me"] * M)
    np.testing.assert_array_equal(held(spool, plan)[0], expected.counters.reshape(-1))
    spool.close()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_first_sets_are_found_as_the_first_vectors_are(tmp_path: Path, sparse: bool) -> None:
    plan = set_plan(privacy=UNIT)
    sets: Any = [np.array([number, number + 20]) for number in range(14)]
    sets[2] = np.array([], int)
    if sparse:
        ends = np.cumsum([0, *map(len, sets)])
        sets = csr_matrix((np.ones(ends[-1]), np.concatenate(sets), ends), shape=(14, 100))
    spool = opened(tmp_path / "spool.db")
    assert isinstance(spool.commit([change(plan, sets)])[0], tuple)
    expected = Sketch(plan)
    with pytest.warns(DroppedRecordsWarning):
        expected.add(sets[:11], ["me"] * 11)
    np.testing.assert_array_equal(held(spool, plan)[0], expected.counters.reshape(-1))
    assert (tallies(spool).records_dropped, tallies(spool).records_refused) == (1, 3)
    spool.close()


def test_what_is_taken_of_a_batch_needs_as_much_room_whichever_of_its_records_can_be_used() -> None:
    plan, usable = small_plan(privacy=UNIT, sketch=SKETCH), np.full((40, 2), 0.5)
    late = usable.copy()
    late[:20] = np.nan
    whole = [split(plan, records, 7) for records in (usable, late)]
    first = [addition.first(3) for addition in whole if addition.first is not None]
    assert [addition.contributed for addition in first] == [3, 3]
    assert first[0].price == first[1].price


def test_what_fits_the_bound_and_not_the_spool_is_refused_whole_and_costs_nothing_of_the_bound(tmp_path: Path) -> None:
    plan = small_plan(privacy=UNIT, sketch=SKETCH)
    spool = opened(tmp_path / "spool.db", bytes_max=10)
    assert isinstance(spool.commit([change(plan, np.ones((M + 1, 2)))])[0], SpoolFullError)
    assert tallies(spool) == Counts()
    spool.close()
    spool = opened(tmp_path / "spool.db")
    assert isinstance(spool.commit([change(plan, np.ones((M, 2)))])[0], tuple)
    assert tallies(spool).records == M
    spool.close()
