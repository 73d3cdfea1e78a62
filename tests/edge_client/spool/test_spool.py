"""The spool keeps what a commit has returned, through a kill, and gives no id twice."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_client.encoding import split
from edge_client.errors import SettingsError, SpoolError, SpoolFullError, SpoolInUseError
from edge_client.spool import spool as spool_file
from edge_client.spool.changes import Remove, StoredDelta
from edge_client.status import Counts, SendStats
from hushsum import Plan
from hushsum.delta import Delta, DeltaId, encode, encode_all, read_header
from hushsum.errors import ContributionError
from tests.edge_client.adder import PLAN, record
from tests.edge_client.spools import addition, bytes_of, opened
from tests.plans import classed_plan, set_plan, small_plan

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def adder(path: Path, first: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.edge_client.adder", str(path), str(first)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def buckets(data: bytes) -> bytes:
    """What a one-record delta says of its record, whatever its id."""
    return Delta.unpack(data, PLAN).runs[0].increments.indices.tobytes()


def test_every_add_that_returned_is_there_after_a_kill_with_the_same_bytes_and_no_number_is_used_twice(
    path: Path,
) -> None:
    fresh = opened(path)
    fresh.keep_plan(PLAN.to_bytes())
    stream = fresh.stream
    fresh.close()
    held: dict[int, bytes] = {}
    returned: set[int] = set()
    for kill in range(2):
        with adder(path, 10_000 * kill) as device:
            assert device.stdout is not None
            lines = [device.stdout.readline() for _ in range(50)]
            device.kill()
            lines += device.stdout.readlines()
        assert device.returncode == -signal.SIGKILL
        returned |= {int(line) for line in lines if line.endswith("\n")}  # the last one may be cut short
        spool = opened(path)
        now = {bound.sequence: bound.data for bound in spool.load(0, 10**6, 2**30)}
        assert spool.stream == stream
        spool.close()
        assert now.items() >= held.items()
        assert all(read_header(data).id == DeltaId(stream, sequence) for sequence, data in now.items())
        held = now
    there = Counter(map(buckets, held.values()))
    assert {number: there[buckets_of(number)] for number in returned} == dict.fromkeys(returned, 1)
    assert set(there.values()) == {1}
    assert len(returned) >= 2 * 49


def buckets_of(number: int) -> bytes:
    delta, _ = encode(PLAN, record(number)[np.newaxis], window=0, id=DeltaId(0, 0))
    assert delta is not None
    return delta.runs[0].increments.indices.tobytes()


def test_a_spool_opened_again_goes_on_where_it_was(path: Path) -> None:
    spool = opened(path)
    stream, owner = spool.stream, spool.client_id
    spool.keep_plan(b"the plan")
    spool.commit([addition("a", "b", dropped=2), addition("c", window=3)])
    spool.commit([Remove(1, "acknowledged")])
    spool.close()
    again = opened(path)
    assert (again.stream, again.client_id, again.plan, again.unanswered()) == (stream, owner, b"the plan", (0, 2))
    assert again.load(0, 10, 1000) == tuple(
        StoredDelta(sequence, bytes_of(DeltaId(stream, sequence), text)) for sequence, text in ((0, "a"), (2, "c"))
    )
    assert Counts.of(again.tallies, SendStats()) == Counts(records=3, records_dropped=2, deltas=3, acknowledged=1)
    assert again.commit([addition("d")]) == [(StoredDelta(3, bytes_of(DeltaId(stream, 3), "d")),)]
    again.close()


def test_streams_and_drawn_client_ids_differ(tmp_path: Path) -> None:
    spools = [opened(tmp_path / f"{number}.db") for number in range(5)]
    assert len({spool.stream for spool in spools}) == 5
    assert len({spool.client_id for spool in spools}) == 5
    for spool in spools:
        spool.close()


def test_every_commit_is_refused_when_synchronous_is_not_full(path: Path) -> None:
    spool = opened(path)
    spool._database.execute("PRAGMA synchronous = NORMAL")
    with pytest.raises(SpoolError, match="synchronous is 1, expected 2"):
        spool.commit([addition("a")])
    spool._database.execute("PRAGMA synchronous = FULL")
    assert spool.unanswered() == ()
    spool.close()


@pytest.mark.parametrize("planted", ["synchronous = NORMAL", "journal_mode = DELETE", "secure_delete = OFF"])
def test_a_spool_does_not_open_without_what_durability_and_erasure_rest_on(
    path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_file, "_PRAGMAS", (*spool_file._PRAGMAS, planted))
    with pytest.raises(SpoolError, match=planted.partition(" ")[0]):
        opened(path)


def test_a_second_process_is_refused(path: Path) -> None:
    spool = opened(path)
    with adder(path, 0) as second:
        _, said = second.communicate(timeout=300)
    assert second.returncode != 0
    assert f"SpoolInUseError: spool {path}" in said
    spool.commit([addition("a")])
    spool.close()


def test_a_second_client_of_the_same_process_is_refused_until_the_first_one_closes(path: Path) -> None:
    spool = opened(path)
    with pytest.raises(SpoolInUseError):
        opened(path)
    spool.close()
    opened(path).close()


def test_another_client_id_than_the_spools_is_refused(path: Path) -> None:
    opened(path, "device-0").close()  # no service has accepted that name yet
    spool = opened(path, "device-1")
    spool.keep_plan(small_plan().bundle)
    spool.close()
    with pytest.raises(SpoolError, match="belongs to client 'device-1'"):
        opened(path, "device-2")
    opened(path).close()


def test_a_spool_takes_the_name_that_the_service_gives_it_with_the_plan(path: Path) -> None:
    spool = opened(path)
    spool.keep_plan(small_plan().bundle, None, "till-3")
    assert spool.client_id == "till-3"
    spool.close()
    again = opened(path)
    assert again.client_id == "till-3"
    again.close()


@pytest.mark.parametrize("client_id", ["", "a" * 129, "line\nbreak", "e\u0301"])
def test_a_client_id_that_no_service_accepts_is_refused(path: Path, client_id: str) -> None:
    with pytest.raises(SettingsError, match="client_id"):
        opened(path, client_id)


def test_a_newer_spool_is_refused_and_left_alone(path: Path) -> None:
    opened(path).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 5")
    database.close()
    before = path.read_bytes()
    with pytest.raises(SpoolError, match="format 5, this version knows up to 4"):
        opened(path)
    assert path.read_bytes() == before


def test_what_is_no_spool_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE somebody_elses (x)")
    database.close()
    with pytest.raises(SpoolError, match="not a spool file"):
        opened(path)
    path.write_bytes(b"not a database at all, but long enough to look at" * 100)
    with pytest.raises(SpoolError, match="not a database"):
        opened(path)
    with pytest.raises(SpoolError, match="cannot be opened"):
        opened(path.parent / "nowhere" / "spool.db")


def test_a_spool_is_readable_by_its_owner_alone(path: Path) -> None:
    spool = opened(path)
    spool.commit([addition("a")])
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    spool.close()


def test_what_was_answered_is_erased_from_the_file(path: Path) -> None:
    spool = opened(path)
    spool.commit([addition("secret-colour")])
    spool.commit([Remove(0, "acknowledged")])
    spool.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert b"secret-colour" not in path.read_bytes()


def test_a_record_and_its_answer_write_five_small_pages_to_the_log_and_one_block_to_the_file(path: Path) -> None:
    spool = opened(path)
    spool.keep_plan(PLAN.to_bytes())
    spool.commit([addition("a" * 150)])
    spool.commit([Remove(0, "acknowledged")])
    spool.erase_answered()
    log, frame = path.with_name(f"{path.name}-wal"), 512 + 24
    assert log.stat().st_size == 0
    spool.commit([addition("b" * 150)])
    assert log.stat().st_size == 32 + 3 * frame
    spool.commit([Remove(1, "acknowledged")])
    assert log.stat().st_size == 32 + 5 * frame
    before = path.read_bytes()
    spool.erase_answered()
    changed = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(path.read_bytes(), np.uint8))
    assert len(changed) > 0
    assert {int(place) // 4096 for place in changed} == {0}
    spool.close()


def test_a_spool_of_larger_pages_stays_as_it_is_and_its_log_has_the_same_size_in_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(spool_file, "_PRAGMAS", ("page_size = 4096", *spool_file._PRAGMAS[1:]))
        spool = opened(path)
        spool.commit([addition("a")])
        spool.close()
    for file, pages in ((path, 1024), (path.with_name("new.db"), 8192)):
        spool = opened(file)
        assert spool._database.execute("PRAGMA wal_autocheckpoint").fetchone() == (pages,)
        assert spool._database.execute("PRAGMA page_size").fetchone() == (2**22 // pages,)
        spool.close()


def test_a_client_adds_no_more_records_to_a_window_than_its_bound_whatever_is_sent_or_restarted(path: Path) -> None:
    spool = opened(path)
    results = spool.commit(
        [
            addition("a", "b", window=7, records_max=3),
            addition("c", "d", window=7, records_max=3),
            addition("e", window=7, records_max=3),
            addition("f", window=8, records_max=3),
        ]
    )
    assert isinstance(results[1], ContributionError)
    assert "expected at most 1" in str(results[1])
    assert [len(result) for result in results if isinstance(result, tuple)] == [2, 1, 1]
    spool.commit([Remove(sequence, "late") for sequence in spool.unanswered()])
    spool.close()
    again = opened(path)
    (refused,) = again.commit([addition("g", window=7, records_max=3)])
    assert isinstance(refused, ContributionError)
    assert again.unanswered() == ()
    assert Counts.of(again.tallies, SendStats()) == Counts(records=4, deltas=4, late=4)
    again.close()


def test_a_full_spool_takes_nothing_of_a_batch_and_has_room_again_after_answers(path: Path) -> None:
    size = len(bytes_of(DeltaId(0, 0), "a"))
    spool = opened(path, bytes_max=2 * size)
    assert isinstance(spool.commit([addition("a", "b", "c")])[0], SpoolFullError)
    assert isinstance(spool.commit([addition("a", "b")])[0], tuple)
    assert isinstance(spool.commit([addition("c")])[0], SpoolFullError)
    spool.close()
    again = opened(path, bytes_max=2 * size)
    assert isinstance(again.commit([Remove(0, "acknowledged"), addition("c")])[1], tuple)
    assert again.unanswered() == (1, 2)
    again.close()


def test_a_transaction_that_fails_changes_nothing(path: Path) -> None:
    spool = opened(path)
    spool.commit([addition("a")])
    spool._database.execute("CREATE TRIGGER broken BEFORE INSERT ON deltas BEGIN SELECT raise(ABORT, 'no space'); END")
    with pytest.raises(SpoolError, match="no space"):
        spool.commit([Remove(0, "acknowledged"), addition("b", dropped=5)])
    spool._database.execute("DROP TRIGGER broken")
    assert spool.unanswered() == (0,)
    assert Counts.of(spool.tallies, SendStats()) == Counts(records=1, deltas=1)
    assert spool.commit([addition("c")]) == [(StoredDelta(1, bytes_of(DeltaId(spool.stream, 1), "c")),)]
    spool.close()


def test_as_many_deltas_are_read_at_once_as_fit_and_one_at_least(path: Path) -> None:
    spool = opened(path)
    spool.commit([addition(*"abcdef")])
    size = len(bytes_of(DeltaId(spool.stream, 0), "a"))
    assert [bound.sequence for bound in spool.load(1, 10, 3 * size)] == [1, 2, 3]
    assert [bound.sequence for bound in spool.load(1, 2, 100 * size)] == [1, 2]
    assert [bound.sequence for bound in spool.load(5, 10, 1)] == [5]
    assert spool.load(6, 10, 1) == ()
    spool.close()


@pytest.mark.parametrize("plan", [small_plan(), set_plan(), classed_plan()], ids=["vectors", "sets", "classes"])
def test_what_was_packed_before_it_had_an_id_is_what_is_packed_with_it(plan: Plan, rng: np.random.Generator) -> None:
    records = [np.array([1, 5]), np.array([7])] if plan.record == set_plan().record else rng.uniform(0, 10, (2, 2))
    labels = ["a", "c"] if plan.classes else None
    edges = (0, 1, 127, 128, 2**32, 2**63 - 1)
    for window in (-(2**40), -1, 0, 63, 64, 480_000):
        (packed,) = split(plan, records, window, labels).deltas
        for sequence in (*edges, int(rng.integers(2**62))):
            id = DeltaId(int(rng.integers(2**63)), sequence)
            (delta,), _ = encode_all(plan, records, window=window, id=id, labels=labels)
            assert packed.pack(id) == delta.pack(plan)
            assert packed.records == delta.records == 2
