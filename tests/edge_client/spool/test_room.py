"""Unit record: what is in one record decides nothing about whether a spool has room for others."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edge_client.encoding import ReportEncoder, split
from edge_client.errors import SpoolFullError
from edge_client.spool.changes import Change, Remove
from edge_client.spool.memoization import REPORT_BYTES
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import ReportTransaction
from edge_client.spool.window_submissions import SiloSubmissions
from hushsum import Plan
from hushsum.delta import DeltaId, encode_all
from hushsum.entropy import OsEntropy
from tests.edge_client.local_plans import report_plan, silo_plan
from tests.edge_client.secure_plans import secure_plan
from tests.edge_client.spools import opened
from tests.plans import classed_plan, small_plan

SAMPLE = Path(__file__).parents[3] / "tests" / "vectors" / "spool" / "format-1-protected.zip"
SIZES = (1, 3, 2, 5, 1, 4)  # of batches, in this order
LIMITS = 8
SKETCH = {"rows": 20, "buckets": 256}
Records = npt.NDArray[np.float64]


class World:
    """Devices of one plan: their spools, and batches as changes to them."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.labels = plan, plan.classes
        local = plan.privacy.local
        self.reports = plan.report_sizes is not None
        self.memoises = local is not None and local.memoise

    def spool(self, path: Path, bytes_max: int = 2**30) -> tuple[Spool, ReportEncoder | None]:
        spool = opened(path, bytes_max=bytes_max)
        if self.plan.privacy.mode == "central":
            return spool, None
        if self.reports:
            spool.keep_budget(self.plan, ReportTransaction)
            secret = spool.keep_memo(OsEntropy()) if self.memoises else None
            return spool, ReportEncoder(self.plan, secret)
        SiloSubmissions(spool, self.plan).update(range(6, 9))
        return spool, None

    def changes(self, batches: "list[Batch]", encoder: ReportEncoder | None) -> list[Change]:
        return [encoder.encode(*batch) if encoder is not None else split(self.plan, *batch) for batch in batches]


Batch = tuple[Records, int, list[str] | None]
WORLDS = {
    "central": World(small_plan(sketch=SKETCH)),
    "classes": World(classed_plan("a", "b", "c", sketch=SKETCH)),
    "fourier": World(
        small_plan(sketch={"buckets": ..., "family": "fourier", "kernel": "gaussian", "rows": 20, "fraction_bits": 10})
    ),
    "secure": World(secure_plan()),
    "silo": World(silo_plan()),
    "reports": World(report_plan()),
    "memoised": World(report_plan(memoise=True)),
    "memoised classes": World(report_plan("a", "b", memoise=True)),
}


def neighbours(world: World, rng: np.random.Generator, batch: int) -> Iterator[list[Batch]]:
    """Batches, and the same with one record replaced: by another, by ones that came before, by unusable ones."""
    values = [rng.uniform(0, 10, (size, 2)) for size in SIZES]
    names = [rng.choice(world.labels, size).tolist() if world.labels else None for size in SIZES]
    others = [[9.0, 1.0], values[0][0], values[batch][-1], values[batch - 1][-1], [np.nan, 1.0], [np.inf, np.inf]]
    for other in (values[batch][0], *others):
        mine = [value.copy() for value in values]
        mine[batch][0] = other
        yield list(zip(mine, [7] * len(SIZES), names, strict=True))
    if world.labels:
        for label in (*world.labels, "?"):
            mine_too = [None if name is None else list(name) for name in names]
            chosen = mine_too[batch]
            assert chosen is not None
            chosen[0] = label
            yield list(zip(values, [7] * len(SIZES), mine_too, strict=True))


def decisions(world: World, path: Path, history: list[list[Batch]], bytes_max: int, restarts: bool) -> list[bool]:
    """Which batches a device takes; with a restart after each of some, or without."""
    path.unlink(missing_ok=True)
    (spool, encoder), results = world.spool(path, bytes_max), []
    for some in history:
        results += spool.commit(world.changes(some, encoder))
        if restarts:
            spool.close()
            spool, encoder = world.spool(path, bytes_max)
    spool.close()
    assert all(isinstance(result, tuple | SpoolFullError) for result in results)
    return [isinstance(result, tuple) for result in results]


def room(world: World, path: Path, batches: list[Batch]) -> int:
    """Bytes that a device sets aside for all of them."""
    spool, encoder = world.spool(path)
    spool.commit(world.changes(batches, encoder))
    taken = spool._state.bytes + spool._state.memo
    spool.close()
    spool, _ = world.spool(path)
    assert spool._state.bytes + spool._state.memo == taken
    spool.close()
    return taken


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("name", WORLDS)
def test_no_record_decides_which_batches_a_nearly_full_spool_takes(
    tmp_path: Path, name: str, restarts: bool, rng: np.random.Generator
) -> None:
    """In the centre the record's batch has another one that can be used: else nothing of it would wait."""
    world = WORLDS[name]
    alone = world.plan.privacy.mode != "central"
    batches = list(neighbours(world, rng, 0 if alone else 1))
    again: list[Batch] = [(values, 8, names) for values, _, names in batches[0]]  # of what may have come before, or not
    histories = [[some, again] for some in batches]
    most = room(world, tmp_path / "unlimited.db", [*batches[0], *again])
    for limit in np.linspace(most / 8, 1.1 * most, LIMITS).astype(int).tolist():
        found = [decisions(world, tmp_path / "spool.db", history, limit, restarts) for history in histories]
        assert found == [found[0]] * len(histories)


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_room_is_set_aside_whatever_is_in_a_record(
    tmp_path: Path, name: str, rng: np.random.Generator
) -> None:
    world = WORLDS[name]
    found = [
        room(world, tmp_path / f"{number}.db", batches) for number, batches in enumerate(neighbours(world, rng, 3))
    ]
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize("name", ["central", "classes", "fourier"])
def test_what_was_set_aside_is_free_again_once_all_is_answered(
    tmp_path: Path, name: str, rng: np.random.Generator
) -> None:
    world = WORLDS[name]
    for restarts in (False, True):
        for batches in neighbours(world, rng, 0):
            path = tmp_path / "spool.db"
            path.unlink(missing_ok=True)
            spool, encoder = world.spool(path)
            spool.commit(world.changes(batches, encoder))
            if restarts:
                spool.close()
                spool, _ = world.spool(path)
            spool.commit([Remove(number, "acknowledged") for number in spool.unanswered()])
            assert spool.is_empty
            spool.close()


@pytest.mark.parametrize("name", ["secure", "silo"])
def test_unusable_records_alone_keep_their_room_until_their_window_is_over_and_add_nothing(
    tmp_path: Path, name: str
) -> None:
    world, path = WORLDS[name], tmp_path / "spool.db"
    spool, _ = world.spool(path)
    spool.commit(world.changes([(np.full((3, 2), np.nan), 7, None)], None))
    assert spool._state.bytes == world.plan.delta_sizes.batch_bytes_max(3)
    submissions = SiloSubmissions(spool, world.plan)
    assert submissions.pending(7).deltas == ()
    submissions.update(range(8, 10))
    assert submissions.erase()
    assert spool.is_empty
    assert spool.tallies["records_unspent"] == 0
    spool.close()


@pytest.mark.parametrize("name", ["central", "classes", "fourier", "secure"])
@pytest.mark.parametrize("most", [1, 7, 4096, 5000])
def test_no_deltas_take_more_than_what_is_set_aside_for_them(name: str, most: int, rng: np.random.Generator) -> None:
    plan = WORLDS[name].plan
    for count in {1, most // 2, most - 1, most} - {0}:
        for records in (rng.uniform(0, 10, (count, 2)), np.full((count, 2), 3.0)):
            shares = rng.dirichlet([0.5] * len(plan.classes)) if plan.classes else None
            labels = rng.choice(plan.classes, count, p=shares).tolist() if plan.classes else None
            deltas, _ = encode_all(plan, records, window=2**52, id=DeltaId(2**64 - 1, 2**63 - 1), labels=labels)
            assert sum(len(delta.pack(plan)) for delta in deltas) <= plan.delta_sizes.batch_bytes_max(most)


def test_a_record_that_is_known_counts_as_a_new_one_does(tmp_path: Path) -> None:
    world, path = WORLDS["memoised"], tmp_path / "spool.db"
    spool, encoder = world.spool(path)
    for window in (7, 8, 9):
        spool.commit(world.changes([(np.array([[1.0, 2.0], [3.0, 4.0]]), window, None)], encoder))
    assert spool.rows("SELECT count(*) FROM memo") == [(2,)]
    assert spool._state.memo == 6 * REPORT_BYTES
    spool.close()


def test_an_older_spool_counts_with_its_bytes_and_its_next_delta_with_what_is_set_aside(tmp_path: Path) -> None:
    with zipfile.ZipFile(SAMPLE) as archive:
        archive.extractall(tmp_path)
    spool = opened(tmp_path / "spool.db")
    held = sum(len(bound.data) for bound in spool.load(0, 100, 2**20))
    assert spool._state.bytes == held > 0
    plan = Plan.from_bytes(spool.plan or b"")
    (bound,) = spool.commit([split(plan, np.ones((1, 2)), 7)])
    assert bound
    spool.close()
    spool = opened(tmp_path / "spool.db")
    assert spool._state.bytes == held + plan.delta_sizes.batch_bytes_max(1)
    spool.close()
