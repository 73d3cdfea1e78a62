"""A silo's spool submits once for a window: bytes, charge and the window's end are one transaction."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_client.encoding import split
from edge_client.errors import NoPartError, SpoolError
from edge_client.participation.silo import prepared
from edge_client.spool.changes import Remove, StoredDelta, Submit
from edge_client.spool.spool import Spool
from edge_client.spool.window_submissions import SiloSubmissions
from edge_client.status import Counts, SendStats
from hushsum import Plan
from hushsum.delta import read_header
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from tests.edge_client.local_plans import silo_plan
from tests.edge_client.spools import opened

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
PLAN = silo_plan()
#: Noise of this plan is zero but for one draw in 10^8: what is submitted is the sum of the records.
EXACT = silo_plan(epsilon=20_000, total_epsilon=100_000)
#: Pays for one window alone.
POOR = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def submissions_of(spool: Spool, plan: Plan = PLAN) -> SiloSubmissions:
    submissions = SiloSubmissions(spool, plan)
    submissions.update(range(7, 9))
    return submissions


def add(spool: Spool, records: object, window: int = 7, plan: Plan = PLAN) -> object:
    (result,) = spool.commit([split(plan, records, window)])
    return result


def submit(spool: Spool, submissions: SiloSubmissions, window: int = 7, plan: Plan = PLAN) -> StoredDelta:
    change = prepared(plan, window, submissions.begin(window), OsEntropy())
    (result,) = spool.commit([change])
    submissions.end(window)
    if not isinstance(result, tuple):
        raise result
    submissions.submitted(window)
    (bound,) = result
    return bound


def tallies(spool: Spool) -> Counts:
    return Counts.of(spool.tallies, SendStats())


def test_a_submission_is_the_sum_of_what_waits_under_the_id_that_it_gets(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool, EXACT)
    records = np.arange(20.0).reshape(10, 2) / 2
    add(spool, records[:4], plan=EXACT)
    add(spool, records[4:], plan=EXACT)
    add(spool, records[:1], window=8, plan=EXACT)
    submitted = [submit(spool, submissions, window, EXACT) for window in (7, 8)]
    for number, (bound, window, count) in enumerate(zip(submitted, (7, 8), (10, 1), strict=True)):
        read = silo.unpack(bound.data, EXACT)
        assert (read.window, read.id, bound.sequence) == (window, read_header(bound.data).id, number)
        assert (read.id.stream, read.id.sequence) == (spool.stream, number)
        assert read.counts.sum() == count * EXACT.privacy.mechanism.count_scale
        assert read.counters.sum() == count * 4
    spool.close()


def test_a_window_without_records_is_submitted_for_with_as_many_bytes(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    add(spool, np.ones((500, 2)), window=8)
    empty, full = (submit(spool, submissions, window) for window in (7, 8))
    assert len(empty.data) == len(full.data)
    spool.close()


def test_there_is_no_second_submission_for_a_window_now_or_later(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    ready = prepared(PLAN, 7, submissions.begin(7), OsEntropy())
    bound = submit(spool, submissions)
    for _ in range(2):
        with pytest.raises(NoPartError, match="already submitted"):
            submit(spool, submissions)
        (result,) = spool.commit([ready])
        assert isinstance(result, NoPartError)
        assert spool.load(0, 64, 2**30) == (bound,)
        assert len(submissions.account.spends) == 1
        spool.close()
        spool = opened(path)
        submissions = submissions_of(spool)
    (result,) = spool.commit([Remove(bound.sequence, "late")])
    assert result == ()
    with pytest.raises(NoPartError, match="already submitted"):
        submit(spool, submissions)
    spool.close()


def test_two_submissions_of_one_transaction_for_a_window_are_one(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    ready = prepared(PLAN, 7, submissions.begin(7), OsEntropy())
    first, second = spool.commit([ready, ready])
    assert isinstance(first, tuple)
    assert isinstance(second, NoPartError)
    assert len(spool.load(0, 64, 2**30)) == 1
    spool.close()


def test_what_comes_after_the_submission_is_left_out_and_what_came_while_it_was_made_is_counted(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool, EXACT)
    add(spool, [1.0, 2.0], plan=EXACT)
    ready = prepared(EXACT, 7, submissions.begin(7), OsEntropy())
    add(spool, [3.0, 4.0], plan=EXACT)
    spool.commit([ready])
    (bound,) = spool.load(0, 64, 2**30)
    submissions.submitted(7)
    assert add(spool, [5.0, 6.0], plan=EXACT) == ()
    assert silo.unpack(bound.data, EXACT).counts.sum() == EXACT.privacy.mechanism.count_scale
    assert submissions.erase()
    assert spool.rows("SELECT 1 FROM pending") == []
    assert (tallies(spool).records, tallies(spool).records_unspent, tallies(spool).records_absent) == (2, 1, 1)
    spool.close()


def test_the_account_pays_before_anything_is_bound(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool, POOR)
    ready = prepared(POOR, 8, submissions.begin(8), OsEntropy())
    submissions.end(8)
    submit(spool, submissions, 7, POOR)
    (result,) = spool.commit([ready])
    assert isinstance(result, NoPartError)
    assert "Budget exceeded" in str(result)
    assert len(spool.load(0, 64, 2**30)) == len(submissions.account.spends) == 1
    assert submissions.update(range(8, 10)).unpaid == (9,)
    assert add(spool, [1.0, 2.0], window=9, plan=POOR) == ()
    spool.close()


def test_an_answer_is_kept_once_with_what_became_of_the_window(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    first, second = submit(spool, submissions, 7), submit(spool, submissions, 8)
    assert submissions.numbers() == {first.sequence: 7, second.sequence: 8}
    spool.commit([Remove(first.sequence, "acknowledged")])
    spool.commit([Remove(second.sequence, "late")])
    assert submissions.numbers() == {}
    became = tallies(spool)
    assert (became.submissions_spent, became.submissions_counted, became.submissions_lost) == (2, 1, 1)
    spool.close()


def test_a_submission_that_has_no_answer_is_sent_on_after_its_window(path: Path) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    bound = submit(spool, submissions)
    submissions.update(range(20, 22))
    assert spool.unanswered() == (bound.sequence,)
    assert tallies(spool).submissions_lost == 0
    spool.close()


def test_a_full_spool_submits_all_the_same(path: Path) -> None:
    spool = opened(path, bytes_max=1)
    assert submit(spool, submissions_of(spool)).data
    spool.close()


@pytest.mark.parametrize("table", ["rounds", "deltas"])
def test_a_transaction_that_fails_spends_nothing_and_binds_nothing(path: Path, table: str) -> None:
    spool = opened(path)
    submissions = submissions_of(spool)
    add(spool, [1.0, 2.0])
    stop = f"CREATE TEMP TRIGGER no BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
    spool._database.execute(stop)
    with pytest.raises(SpoolError):
        submit(spool, submissions)
    assert not submissions.account.spends
    assert not submissions.is_spent(7)
    assert not spool.unanswered()
    spool._database.execute("DROP TRIGGER no")
    assert submit(spool, submissions).sequence == 0
    assert [spend.window for spend in submissions.account.spends] == [7]
    spool.close()


KILLED = """
import os, sys
from pathlib import Path
from tests.edge_client.spool.test_silo import *
spool = opened(Path(sys.argv[1]))
submissions = submissions_of(spool)
add(spool, [1.0, 2.0])
step = sys.argv[2]
ready = prepared(PLAN, 7, submissions.begin(7), OsEntropy())
if step == "inside":
    spool._database.set_authorizer(None)
    spool._database.set_trace_callback(lambda text: os.kill(os.getpid(), 9) if text == "COMMIT" else None)
if step != "before":
    ((bound,),) = spool.commit([ready])
    sys.stdout.write(bound.data.hex())
    sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("step", ["before", "inside", "after"])
def test_a_kill_at_any_step_leaves_one_submission_or_none(path: Path, step: str) -> None:
    command = [sys.executable, "-c", KILLED, str(path), step]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    spool = opened(path)
    submissions = submissions_of(spool)
    held = [bound.data.hex() for bound in spool.load(0, 64, 2**30)]
    if step == "after":
        assert held == [done.stdout]
        assert submissions.is_spent(7)
        with pytest.raises(NoPartError, match="already submitted"):
            submit(spool, submissions)
    else:
        assert held == []
        assert not submissions.is_spent(7)
        assert len(submissions.pending(7).deltas) == 1  # the records are in it still, and nothing has left
        submit(spool, submissions)
    assert len(spool.load(0, 64, 2**30)) == len(submissions.account.spends) == 1
    spool.close()


def test_what_is_submitted_shows_in_no_text() -> None:
    change = Submit(7, lambda _: b"noised", 3)
    assert "noised" not in repr(change)
    assert "lambda" not in repr(change)
