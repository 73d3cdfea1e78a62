"""A spool spends a window once, before its vector may leave, and by its own account, whatever happens around it."""

import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edge_client.encoding import counters_of, split
from edge_client.errors import NoPartError, SpoolError, SpoolFullError
from edge_client.spool.changes import NO_ID
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import SecureTransaction
from edge_client.spool.window_submissions import SecureSubmissions
from edge_client.status import Counts, SendStats
from hushsum import Plan, Sketch
from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError
from hushsum.privacy.cohort import ATTEMPTS_MAX
from hushsum.privacy.events import Spend
from hushsum.privacy.spending import spend_of
from hushsum_proto.rounds import RoundResult
from tests.edge_client.secure_plans import secure_plan
from tests.edge_client.spools import opened
from tests.plans import small_plan

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
#: A spool of format 1 that was written by the software of that time: one delta answered, two not.
SAMPLE = ROOT / "tests" / "vectors" / "spool" / "format-1-protected.zip"
#: Likewise, of a plan with the removed participation "public": two presences, and a delta of each of two windows.
PUBLIC_SAMPLE = ROOT / "tests" / "vectors" / "spool" / "format-1.zip"
PLAN = secure_plan()
CLIENT_PLAN = secure_plan(unit="client", records_per_client=3, total_epsilon=2, epsilon=1)
ROUND = b"r" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def rounds_of(spool: Spool, plan: Plan = PLAN, windows: range | None = range(7, 9)) -> SecureSubmissions:
    rounds = SecureSubmissions(spool, plan)
    if windows is not None:
        rounds.update(windows)
    return rounds


def add(spool: Spool, records: object, window: int = 7, plan: Plan = PLAN) -> object:
    (result,) = spool.commit([split(plan, records, window)])
    return result


def tallies(spool: Spool) -> Counts:
    return Counts.of(spool.tallies, SendStats())


# --------------------------------------------------------------------------------------------------------- what waits


def test_records_wait_for_their_window_and_add_up_to_its_counters(path: Path, rng: np.random.Generator) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    first, second, other = (rng.uniform(0, 10, (count, 2)) for count in (5, 3, 2))
    add(spool, first)
    add(spool, other, window=8)
    add(spool, second)
    sketch = Sketch(PLAN)
    sketch.add(first)
    sketch.add(second)
    counters, counts = counters_of(PLAN, rounds.pending(7).deltas)
    assert counters.dtype == counts.dtype == np.int64
    assert counters.shape == (PLAN.words.size,)
    np.testing.assert_array_equal(counters, sketch.counters.reshape(-1))
    np.testing.assert_array_equal(counts, sketch.counts)
    assert counts.tolist() == [8 * PLAN.privacy.mechanism.count_scale]
    assert spool.unanswered() == ()  # nothing that the uplink would send
    spool.close()


def test_a_window_without_records_adds_up_to_zeros(path: Path) -> None:
    spool = opened(path)
    counters, counts = counters_of(PLAN, rounds_of(spool).pending(7).deltas)
    assert not counters.any()
    assert not counts.any()
    spool.close()


@pytest.mark.parametrize("window", [6, 9])
def test_records_of_a_window_in_which_the_client_does_not_take_part_are_left_out(path: Path, window: int) -> None:
    spool = opened(path)
    rounds_of(spool)
    assert add(spool, [[1.0, 2.0]], window) == ()
    assert tallies(spool) == Counts(records_absent=1)
    spool.close()


@pytest.mark.parametrize("more", [0, 1, 4096])
def test_an_emptied_record_changes_what_waits_by_itself_alone_however_many_there_are(
    tmp_path: Path, more: int, rng: np.random.Generator
) -> None:
    """Unit record: batches on both sides of the 4096 records that the words assume, and of those a delta may hold."""
    emptied, *others = (rng.uniform(0, 10, (count, 2)) for count in (1, 2047, 2048 + more, 4095))
    waits: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for first in (emptied, np.full((1, 2), np.nan)):
        spool = opened(tmp_path / f"{len(waits)}.db")
        rounds = rounds_of(spool)
        for records in (np.vstack([first, others[0]]), *others[1:]):
            assert isinstance(add(spool, records), tuple)
        waits.append(counters_of(PLAN, rounds.pending(7).deltas))
        spool.close()
    alone = Sketch(PLAN)
    alone.add(emptied)
    np.testing.assert_array_equal(waits[0][0] - waits[1][0], alone.counters.reshape(-1))
    np.testing.assert_array_equal(waits[0][1] - waits[1][1], alone.counts)
    assert waits[0][1].tolist() == [(8191 + more) * PLAN.privacy.mechanism.count_scale]


def test_what_waits_adds_up_modulo_2_to_the_64_whatever_it_is() -> None:
    """No plan of today comes near: its count scale is made up."""
    plan = Plan.from_bytes(PLAN.to_bytes())
    delta = split(plan, np.ones((4096, 2)), 7).deltas[0].pack(NO_ID)
    object.__setattr__(plan.privacy.mechanism, "count_scale", 2**50)
    _, counts = counters_of(plan, [delta] * 3)
    assert counts.tolist() == [3 * 2**62 - 2**64]


def test_a_client_adds_no_more_records_to_a_window_than_a_plan_of_unit_client_allows_whatever_is_restarted(
    path: Path,
) -> None:
    plan, most = CLIENT_PLAN, 3
    spool = opened(path)
    rounds_of(spool, plan)
    assert isinstance(add(spool, np.ones((most - 1, 2)), plan=plan), tuple)
    spool.close()
    spool = opened(path)
    rounds_of(spool, plan)
    assert isinstance(add(spool, np.ones((2, 2)), plan=plan), tuple)
    assert isinstance(add(spool, np.ones((1, 2)), plan=plan), ContributionError)
    assert (tallies(spool).records, tallies(spool).records_refused) == (most, 1)
    spool.close()


def test_what_waits_counts_against_the_spools_limit_and_a_spend_makes_room(path: Path) -> None:
    spool = opened(path)
    rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    size = spool._state.bytes
    assert size > 0
    spool.close()
    spool = opened(path, bytes_max=size)
    rounds = rounds_of(spool)
    assert isinstance(add(spool, [[1.0, 2.0]]), SpoolFullError)
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    assert rounds.erase()
    assert spool.is_empty
    assert isinstance(add(spool, [[1.0, 2.0]], window=8), tuple)
    spool.close()


# ---------------------------------------------------------------------------------------------------------- the spend


def test_a_spent_window_is_never_spent_again_takes_no_records_and_has_no_attempts(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    for again in range(2):
        assert rounds.pending(7).deltas == ()
        assert rounds.is_spent(7)
        assert rounds.update(range(7, 9)).open == (8,)
        with pytest.raises(NoPartError, match=r"window 7: .*(spent|charged)"):
            rounds.spend(7, b"s" * 32, 0)
        with pytest.raises(NoPartError, match="window 7: already submitted"):
            rounds.count_attempt(7)
        assert add(spool, [[1.0, 2.0]]) == ()
        assert tallies(spool).submissions_spent == 1
        assert tallies(spool).records_absent == again + 1
        spool.close()
        spool = opened(path)
        rounds = rounds_of(spool)
    spool.close()


def test_a_spend_holds_the_plans_own_charge_and_its_round(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    rounds.spend(8, ROUND, 0)
    spend = spend_of(PLAN, kind="tumbling", window=8)
    ((window, round_id, data),) = spool.rows("SELECT window, round, spend FROM rounds")
    assert (window, round_id, data) == (8, ROUND, spend.to_bytes())
    assert isinstance(data, bytes)
    assert Spend.from_bytes(data) == spend
    assert rounds.account.spends == (spend,)
    assert rounds.update(range(7, 9)).unreported == ((8, ROUND),)
    spool.close()
    spool = opened(path)
    assert rounds_of(spool).account.spends == (spend,)
    spool.close()


def test_the_devices_own_account_refuses_what_it_cannot_pay_whatever_was_asked(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool, CLIENT_PLAN, range(5, 9))
    add(spool, [[1.0, 2.0]], 7, CLIENT_PLAN)
    rounds.spend(5, ROUND, 0)
    rounds.spend(6, ROUND, 0)
    with pytest.raises(NoPartError, match=r"window 7: .*Budget exceeded"):
        rounds.spend(7, ROUND, 0)
    assert not rounds.is_spent(7)
    assert tallies(spool).submissions_spent == 2
    assert len(rounds.pending(7).deltas) == 1
    spool.close()
    spool = opened(path)
    rounds = rounds_of(spool, CLIENT_PLAN, range(7, 10))
    with pytest.raises(NoPartError, match="Budget exceeded"):
        rounds.spend(7, ROUND, 0)
    assert 9 not in rounds.update(range(7, 10)).open  # it began when nothing was left
    assert add(spool, [[1.0, 2.0]], 9, CLIENT_PLAN) == ()
    spool.close()


def test_a_spend_that_the_disk_refuses_has_spent_nothing(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    spool._database.execute(
        "CREATE TRIGGER broken BEFORE UPDATE ON attempts BEGIN SELECT raise(ABORT, 'no space'); END"
    )
    with pytest.raises(SpoolError, match="no space"):
        rounds.spend(7, ROUND, rounds.pending(7).upto)
    spool._database.execute("DROP TRIGGER broken")
    assert not rounds.is_spent(7)
    assert rounds.account.spends == ()
    assert len(rounds.pending(7).deltas) == 1
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    assert rounds.is_spent(7)
    spool.close()


def test_no_spend_is_made_when_synchronous_is_not_full(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    spool._database.execute("PRAGMA synchronous = NORMAL")
    with pytest.raises(SpoolError, match="synchronous is 1"):
        rounds.spend(7, ROUND, 0)
    spool._database.execute("PRAGMA synchronous = FULL")
    assert not rounds.is_spent(7)
    spool.close()


def test_what_came_after_the_vector_was_summed_goes_with_the_spend_and_is_told(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    pending = rounds.pending(7)
    add(spool, [[1.0, 2.0], [3.0, 4.0]])
    add(spool, [[1.0, 2.0]], window=8)
    rounds.spend(7, ROUND, pending.upto)
    assert len(pending.deltas) == 1
    assert rounds.pending(7).deltas == ()
    spool.close()
    spool = opened(path)  # after a kill in between, it is told all the same
    rounds = rounds_of(spool)
    assert rounds.erase()
    assert rounds.pending(7).deltas == ()
    assert len(rounds.pending(8).deltas) == 1
    assert tallies(spool).records_unspent == 2
    spool.close()


def test_a_kill_between_a_spend_and_the_erasure_gives_the_records_out_to_nobody(path: Path, tmp_path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, np.random.default_rng(5).uniform(0, 10, (20, 2)))
    (secret,) = rounds.pending(7).deltas
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    left = tmp_path / "left.db"
    for name in ("", "-wal"):
        left.with_name(left.name + name).write_bytes(path.with_name(path.name + name).read_bytes())
    spool.close()
    spool = opened(left)
    assert spool.rows("SELECT bytes FROM pending") == [(secret,)]
    rounds = rounds_of(spool)
    assert rounds.pending(7).deltas == ()
    for act in (lambda: rounds.begin(7), lambda: rounds.count_attempt(7), lambda: rounds.spend(7, b"s" * 32, 0)):
        with pytest.raises(NoPartError):
            act()
    assert rounds.erase()
    assert secret not in left.read_bytes() + left.with_name(left.name + "-wal").read_bytes()
    assert tallies(spool).records_unspent == 0  # they are in the vector, if it ever left
    spool.close()


def test_an_erasure_that_the_disk_refuses_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    spool._database.execute("CREATE TRIGGER broken BEFORE DELETE ON pending BEGIN SELECT raise(ABORT, 'no space'); END")
    assert not rounds.erase()
    assert rounds.is_spent(7)
    spool._database.execute("DROP TRIGGER broken")
    with monkeypatch.context() as full:
        full.setattr(spool, "erase_answered", lambda: False)
        assert not rounds.erase()
    assert rounds.erase()
    assert spool.is_empty
    spool.close()


def test_nothing_is_erased_while_a_round_is_under_way(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    add(spool, [[1.0, 2.0]], window=8)
    rounds.begin(8)
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    assert not rounds.erase()
    rounds.update(range(8, 10))
    assert len(spool.rows("SELECT 1 FROM pending")) == 2
    rounds.end(8)
    assert rounds.erase()
    assert len(spool.rows("SELECT 1 FROM pending")) == 1
    spool.close()


def test_whoever_has_no_attempt_left_does_not_enter(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    for _ in range(ATTEMPTS_MAX):
        rounds.begin(7)
        rounds.require_part(7)
        rounds.count_attempt(7)
        rounds.end(7)
    for act in (rounds.begin, rounds.require_part):
        with pytest.raises(NoPartError, match="window 7: 8 rounds"):
            act(7)
    spool.close()


def test_windows_that_are_under_way_at_once_are_paid_for_together_or_not_entered(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool, CLIENT_PLAN, range(5, 9))
    rounds.begin(5)
    rounds.begin(6)
    with pytest.raises(NoPartError, match=r"window 7: .*Budget exceeded"):
        rounds.begin(7)
    rounds.end(6)
    rounds.begin(7)
    rounds.spend(5, ROUND, 0)  # which was set aside for it
    rounds.require_part(7)
    rounds.end(5)
    with pytest.raises(NoPartError, match=r"window 6: .*Budget exceeded"):
        rounds.begin(6)
    rounds.spend(7, ROUND, 0)
    spool.close()


def test_no_spend_is_made_where_a_sync_may_not_reach_the_disk(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    for name in ("fullfsync", "checkpoint_fullfsync"):
        spool._database.execute(f"PRAGMA {name} = OFF")
        with pytest.raises(SpoolError, match=f"{name} is 0"):
            rounds.spend(7, ROUND, 0)
        spool._database.execute(f"PRAGMA {name} = ON")
    rounds.spend(7, ROUND, 0)
    spool.close()


def test_what_was_spent_is_erased_from_the_file_and_its_log(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, np.random.default_rng(5).uniform(0, 10, (20, 2)))
    (secret,) = rounds.pending(7).deltas
    log = path.with_name(path.name + "-wal")
    assert secret in path.read_bytes() + log.read_bytes()
    rounds.spend(7, ROUND, rounds.pending(7).upto)
    assert rounds.erase()
    assert secret not in path.read_bytes() + log.read_bytes()
    spool.close()


SPENDER = """
import sys
from edge_client.spool.window_submissions import SecureSubmissions
from edge_client.spool.spool import Spool
from hushsum.entropy import OsEntropy
from tests.edge_client.secure_plans import secure_plan
spool = Spool(sys.argv[1], client_id=None, entropy=OsEntropy(), bytes_max=2**30)
rounds = SecureSubmissions(spool, secure_plan())
rounds.update(range(1000))
for window in range(1000):
    rounds.spend(window, window.to_bytes(32, "big"), 0)
    print(window, flush=True)
"""


def test_every_spend_that_returned_is_there_after_a_kill(path: Path) -> None:
    command = [sys.executable, "-c", SPENDER, str(path)]
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, text=True) as device:
        assert device.stdout is not None
        said = [device.stdout.readline() for _ in range(40)]
        device.kill()
        said += device.stdout.readlines()
    assert device.returncode == -signal.SIGKILL
    returned = [int(line) for line in said if line.endswith("\n")]
    spool = opened(path)
    rounds = rounds_of(spool, windows=None)
    assert returned == list(range(len(returned)))
    assert all(map(rounds.is_spent, returned))
    assert [spend.window for spend in rounds.account.spends][: len(returned)] == returned
    with pytest.raises(NoPartError):
        rounds.spend(returned[-1], ROUND, 0)
    spool.close()


# ----------------------------------------------------------------------------------------------- attempts and windows


def test_a_window_has_eight_attempts_whatever_is_restarted(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    assert [rounds.count_attempt(7) for _ in range(ATTEMPTS_MAX - 1)] == [1, 2, 3, 4, 5, 6, 7]
    spool.close()
    spool = opened(path)
    rounds = rounds_of(spool)
    assert rounds.update(range(7, 9)).open == (7, 8)
    assert rounds.count_attempt(7) == ATTEMPTS_MAX == 8
    with pytest.raises(NoPartError, match="window 7: 8 rounds"):
        rounds.count_attempt(7)
    assert rounds.update(range(7, 9)).open == (8,)
    assert rounds.count_attempt(8) == 1
    spool.close()


@pytest.mark.parametrize("window", [6, 9])
def test_neither_attempt_nor_spend_is_had_for_a_window_in_which_the_client_did_not_run(path: Path, window: int) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    for act in (lambda: rounds.count_attempt(window), lambda: rounds.spend(window, ROUND, 0)):
        with pytest.raises(NoPartError, match="was not running"):
            act()
    spool.close()


def test_what_ended_while_the_client_did_not_run_is_told_at_its_next_start_alone(path: Path) -> None:
    spool = opened(path)
    rounds_of(spool).spend(7, ROUND, 0)
    spool.close()
    rounds = rounds_of(opened(path), windows=None)
    status = rounds.update(range(20, 21))
    assert (status.passed, status.lost, status.unreported) == ((8,), (7,), ())
    status = rounds.update(range(20, 21))
    assert (status.passed, status.lost) == ((), ())


def test_a_window_that_passes_unspent_is_over_for_ever_and_what_waited_for_it_is_erased(path: Path) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    add(spool, [[1.0, 2.0]])
    rounds.spend(8, ROUND, 0)
    assert rounds.update(range(9, 10)).open == (9,)
    assert rounds.pending(7).deltas == ()
    assert rounds.update(range(7, 10)).open == (9,)  # a clock that was set back
    with pytest.raises(NoPartError, match="window 7: it is over"):
        rounds.spend(7, ROUND, 0)
    told = tallies(spool)
    assert (told.windows_unspent, told.records, told.records_unspent) == (1, 1, 1)
    assert (told.submissions_spent, told.submissions_lost, told.submissions_counted) == (1, 1, 0)  # nobody told of 8
    spool.close()


@pytest.mark.parametrize("result", list(RoundResult))
def test_the_first_word_on_a_submission_stands(path: Path, result: RoundResult) -> None:
    spool = opened(path)
    rounds = rounds_of(spool)
    rounds.spend(7, ROUND, 0)
    assert rounds.settle(7, result)
    assert not rounds.settle(7, RoundResult.COUNTED if result is not RoundResult.COUNTED else RoundResult.ABORTED)
    assert not rounds.settle(8, RoundResult.COUNTED)
    assert rounds.update(range(7, 9)).unreported == ()
    rounds.update(range(9, 10))
    counted = int(result is RoundResult.COUNTED)
    told = tallies(spool)
    assert (told.submissions_spent, told.submissions_counted, told.submissions_lost) == (1, counted, 1 - counted)
    with pytest.raises(NoPartError):
        rounds.spend(7, ROUND, 0)
    spool.close()


def test_the_spools_key_is_drawn_once(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "one", "two"):
        spool = opened(tmp_path / name)
        keys.append(rounds_of(spool, windows=None).identity_key(OsEntropy()).verify_key.raw)
        spool.close()
    assert keys[0] == keys[1] != keys[2]


# ------------------------------------------------------------------------------------------------------------ formats


def format_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database, database:
        ((version,),) = database.execute("PRAGMA user_version")
    database.close()
    return int(version)


def dump(path: Path, tables: str) -> list[str]:
    with closing(sqlite3.connect(path)) as database, database:
        lines = [line for line in database.iterdump() if line.startswith(f'INSERT INTO "{tables}')]
    database.close()
    return lines


@pytest.fixture
def sample(path: Path) -> Path:
    with zipfile.ZipFile(SAMPLE) as archive:
        archive.extractall(path.parent)
    return path


def test_a_spool_of_format_1_is_read_as_it_is_and_gone_on_with(sample: Path) -> None:
    spool = opened(sample)
    plan = Plan.from_bytes(spool.plan or b"")
    assert plan == small_plan(window={"length": "1h", "lateness": "5m"})
    assert (spool.client_id, spool.stream, spool.unanswered()) == ("device-1", 11602837897552557615, (1, 2))
    assert tallies(spool) == Counts(records=5, deltas=3, acknowledged=1)
    assert isinstance(add(spool, [[1.0, 2.0]], 7, plan), tuple)
    assert spool.unanswered() == (1, 2, 3)
    spool.close()
    assert format_of(sample) == 1  # the plan has no secure sum: older software reads it on


def test_a_spool_of_public_participation_is_refused_and_left_as_it_is(path: Path) -> None:
    with zipfile.ZipFile(PUBLIC_SAMPLE) as archive:
        archive.extractall(path.parent)
    before = dump(path, "")
    for _ in range(2):
        with pytest.raises(SpoolError, match=r"participation 'public', which was removed: .* with a new spool"):
            opened(path)
    assert dump(path, "") == before


def test_an_upgrade_keeps_everything_and_happens_at_once_or_not_at_all(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ("identity", "next", "plan", "deltas", "contributions", "tallies")
    before = {table: dump(sample, table) for table in tables}
    assert all(before[table] for table in tables if table != "contributions")
    spool = opened(sample)
    with monkeypatch.context() as broken:
        broken.setattr("edge_client.spool.spool._ROUND_TABLES", ("CREATE TABLE pending (x)", "no SQL"))
        with pytest.raises(SpoolError, match="syntax error"):
            spool.keep_budget(PLAN, SecureTransaction)
    assert spool.rows("SELECT name FROM sqlite_master WHERE name = 'pending'") == []
    spool.keep_budget(PLAN, SecureTransaction)
    spool.keep_budget(PLAN, SecureTransaction)
    spool.close()
    assert format_of(sample) == 3
    before["deltas"] = [line.replace(");", ",NULL);") for line in before["deltas"]]  # nothing is set aside beside them
    assert {table: dump(sample, table) for table in tables} == before


def test_a_fresh_spool_is_of_format_1_until_it_belongs_to_a_plan_with_a_secure_sum(path: Path) -> None:
    spool = opened(path)
    spool.close()
    assert format_of(path) == 1
    spool = opened(path)
    rounds_of(spool)
    spool.close()
    assert format_of(path) == 3
    spool = opened(path)
    assert rounds_of(spool).update(range(7, 9)).open == (7, 8)
    spool.close()


def test_a_spend_that_cannot_be_read_stops_the_client(path: Path) -> None:
    spool = opened(path)
    rounds_of(spool).spend(7, ROUND, 0)
    spool._database.execute("UPDATE rounds SET spend = x'7b7d'")
    spool.close()
    spool = opened(path)
    with pytest.raises(SpoolError, match="a spend in it cannot be read"):
        rounds_of(spool)
    spool.close()
