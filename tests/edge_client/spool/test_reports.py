"""Reports in a spool: a record is randomised once, a batch is alone in its stream, a window is paid for once."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_client import AccountError
from edge_client.config import LARGE_BYTES
from edge_client.encoding import ReportEncoder, reports_max
from edge_client.errors import SpoolError, SpoolFullError
from edge_client.spool.changes import Remove
from edge_client.status import Counts, SendStats
from hushsum.delta import DeltaId, read_header
from hushsum.errors import ContributionError
from hushsum.local.report_batch import unpack
from tests.edge_client.local_plans import ReportSpool, report_plan
from tests.edge_client.spools import opened

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
PLAN = report_plan()
MEMO = report_plan(memoise=True)
CLIENT = report_plan(unit="client", records_per_client=3, epsilon=3, total_epsilon=6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def sent(spool: ReportSpool, records: object, window: int = 7, labels: object = None) -> list[int]:
    """The reports of an add, in ascending order: batches tell no other."""
    return [each for bound in spool.add(records, window, labels) for each in unpack(bound.data, spool.plan).reports]


def tallies(spool: ReportSpool) -> Counts:
    return Counts.of(spool.spool.tallies, SendStats())


# --------------------------------------------------------------------------------------------------------- batches


def test_an_add_is_one_batch_alone_in_a_stream_that_is_not_the_spools(path: Path) -> None:
    spool = ReportSpool(path, PLAN)
    streams = set()
    for _ in range(20):
        (bound,) = spool.add([[1.0, 2.0], [3.0, 4.0]])
        header = read_header(bound.data)
        assert header.id.sequence == 0
        streams.add(header.id.stream)
        assert spool.spool.stream.to_bytes(8, "big") not in bound.data
    assert len(streams) == 20
    assert spool.spool.streams() == {n: stream for n, stream in spool.spool.streams().items() if stream in streams}
    assert len(spool.spool.streams()) == 20


def test_every_record_has_one_report_an_unusable_one_too(path: Path) -> None:
    spool = ReportSpool(path, PLAN)
    assert len(sent(spool, [[1.0, 2.0], [np.nan, 1.0], [3.0, np.inf], "nothing"])) == 4
    assert len(sent(spool, [np.nan, 1.0])) == 1
    assert tallies(spool) == Counts(records=1, records_dropped=4, reports=5, deltas=2)


def test_what_is_too_large_for_one_batch_is_split_to_fit_one_message() -> None:
    wide = report_plan()
    most = reports_max(wide)
    addition = ReportEncoder(wide).encode(np.ones((most + 1, 2)), 7, None)
    assert [delta.records for delta in addition.deltas] == [most, 1]
    assert all(len(delta.pack(DeltaId(0, 0))) <= LARGE_BYTES for delta in addition.deltas)
    assert len({read_header(delta.pack(DeltaId(0, 0))).id.stream for delta in addition.deltas}) == 2


def test_the_spool_keeps_reports_alone_of_a_record(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    record = np.array([[1.2345678, 8.7654321]])
    accepted, _ = MEMO.family.accept(record)
    spool.add(record)
    spool.spool.close()
    held = path.read_bytes()
    for secret in (record.tobytes(), record.astype(np.float32).tobytes(), np.asarray(accepted).tobytes()):
        assert secret not in held


def test_bytes_are_those_of_the_add_for_ever(path: Path) -> None:
    spool = ReportSpool(path, PLAN)
    bound = [each for _ in range(5) for each in spool.add([[1.0, 2.0]] * 30)]
    spool.anew()
    assert spool.spool.load(0, 64, 2**30) == tuple(bound)
    spool.spool.commit([Remove(2, "late")])
    spool.anew()
    assert [each.sequence for each in spool.spool.load(0, 64, 2**30)] == [0, 1, 3, 4]


# --------------------------------------------------------------------------------------------------- bounds, account


def test_a_clients_bound_counts_reports_unusable_ones_too(path: Path) -> None:
    spool = ReportSpool(path, CLIENT)
    spool.add([[1.0, 2.0], [np.nan, 2.0]])
    assert len(sent(spool, [[np.nan, 2.0], [1.0, 2.0]])) == 1
    assert (tallies(spool).records, tallies(spool).records_dropped, tallies(spool).records_refused) == (1, 2, 1)
    assert isinstance(spool.result([1.0, 2.0]), ContributionError)
    spool.anew()
    assert isinstance(spool.result([1.0, 2.0]), ContributionError)
    assert tallies(spool).reports == 3


def test_a_window_is_charged_with_its_first_batch_and_never_again(path: Path) -> None:
    spool = ReportSpool(path, CLIENT)
    left = []
    for window in (7, 7, 8, 7):
        spool.add([1.0, 2.0], window)
        left.append(spool.budget.account.left.epsilon)
    assert left[0] == left[1] > left[2] == left[3]
    assert len(spool.budget.account.spends) == 2
    spool.anew()
    assert spool.budget.account.left.epsilon == left[-1]


def test_what_the_account_does_not_pay_for_is_refused_whole(path: Path) -> None:
    spool = ReportSpool(path, CLIENT)
    for window in (7, 8):
        spool.add([1.0, 2.0], window)
    before, counted = spool.spool.load(0, 64, 2**30), tallies(spool)
    refused = spool.result([1.0, 2.0], 9)
    assert isinstance(refused, AccountError)
    assert (refused.window, refused.left) == (9, spool.budget.account.left)
    assert "Budget exceeded" in str(refused)
    spool.anew()
    assert isinstance(spool.result([1.0, 2.0], 9), AccountError)
    assert (spool.spool.load(0, 64, 2**30), tallies(spool)) == (before, counted)
    assert len(sent(spool, [1.0, 2.0], 8)) == 1  # a window that is paid for takes more


def test_two_windows_of_one_transaction_are_not_paid_for_with_the_same_money(path: Path) -> None:
    spool = ReportSpool(path, CLIENT)
    spool.add([1.0, 2.0], 7)
    changes = [spool.encoder.encode([1.0, 2.0], window) for window in (8, 9, 8)]
    first, second, third = spool.spool.commit(changes)
    assert isinstance(second, AccountError)
    assert isinstance(first, tuple)
    assert isinstance(third, tuple)
    assert len(spool.budget.account.spends) == 2


def test_an_add_that_is_refused_charges_nothing(path: Path) -> None:
    spool = ReportSpool(path, CLIENT, bytes_max=10)
    assert isinstance(spool.result([1.0, 2.0]), SpoolFullError)
    assert isinstance(spool.result([[1.0, 2.0]] * 4), SpoolFullError)
    assert spool.budget.account.spends == ()
    spool.anew()
    assert spool.budget.account.spends == ()


def test_a_commit_that_fails_binds_and_charges_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = ReportSpool(path, CLIENT)
    spool.spool._database.execute("CREATE TEMP TRIGGER no BEFORE INSERT ON rounds BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(SpoolError):
        spool.result([1.0, 2.0])
    assert spool.budget.account.spends == ()
    assert spool.spool.load(0, 64, 2**30) == ()
    spool.spool._database.execute("DROP TRIGGER no")
    spool.add([1.0, 2.0])
    assert len(spool.budget.account.spends) == 1


def test_what_is_spent_counts_when_nothing_of_it_is_left_to_send(path: Path) -> None:
    spool = ReportSpool(path, CLIENT)
    for window in (7, 8):
        for bound in spool.add([1.0, 2.0], window):
            spool.spool.commit([Remove(bound.sequence, "refused:budget")])
    spool.anew()
    assert isinstance(spool.result([1.0, 2.0], 9), AccountError)


KILLED = """
import sys, os
from pathlib import Path
from tests.edge_client.local_plans import ReportSpool, report_plan
from tests.edge_client.spool.test_reports import CLIENT
spool = ReportSpool(Path(sys.argv[1]), CLIENT)
for window in range(7, 9):
    (bound,) = spool.add([[1.0, 2.0], [3.0, 4.0]], window)
    sys.stdout.write(bound.data.hex() + "\\n")
    sys.stdout.flush()
os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_no_batch_that_was_bound_and_no_charge(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    spool = ReportSpool(path, CLIENT)
    assert [bound.data.hex() for bound in spool.spool.load(0, 64, 2**30)] == done.stdout.split()
    assert len(spool.budget.account.spends) == 2
    assert isinstance(spool.result([1.0, 2.0], 9), AccountError)


# --------------------------------------------------------------------------------------------------------- memoising


def test_the_same_record_sends_the_same_report_in_every_window_over_restarts(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    first = sent(spool, [1.0, 2.0])
    for window in range(8, 12):
        spool.anew()
        assert sent(spool, [[1.0, 2.0]], window) == first
    # 256,000 reports: two fresh ones are equal once in 10^5 times at most.
    assert sent(spool, [1.0, 2.5], 12) != first


def test_without_memoising_a_record_is_randomised_anew_each_time(path: Path) -> None:
    spool = ReportSpool(path, PLAN)
    assert len({report for window in range(7, 17) for report in sent(spool, [1.0, 2.0], window)}) > 1


def test_equal_records_of_a_window_have_reports_of_their_own_which_come_again_together(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    together = sent(spool, [[1.0, 2.0]] * 5)
    assert len(set(together)) > 1  # all equal: once in 10^21 times
    spool.anew()
    apart = [report for _ in range(5) for report in sent(spool, [1.0, 2.0], 8)]
    assert sorted(apart) == together
    assert set(sent(spool, [[1.0, 2.0]] * 3, 9)) <= set(together)


def test_an_unusable_record_comes_again_as_others_do(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    bad = [[np.nan, 1.0], [np.nan, 2.0], [np.inf, 1.0]]
    reports = [sent(spool, record, 7)[0] for record in bad]
    assert len(set(reports)) > 1
    spool.anew()
    assert [sent(spool, record, 8)[0] for record in bad] == reports
    assert sent(spool, bad, 9) == sorted(reports)


def test_a_label_belongs_to_what_is_memoised(path: Path) -> None:
    spool = ReportSpool(path, report_plan("a", "b", memoise=True))
    first = {label: sent(spool, [[1.0, 2.0]], 7, [label]) for label in ("a", "b", "c", "d")}
    assert len(set(map(tuple, first.values()))) > 1
    spool.anew()
    for label, report in first.items():
        assert sent(spool, [[1.0, 2.0]], 8, [label]) == report


def test_adds_of_one_transaction_share_what_they_memoise(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    changes = [spool.encoder.encode([1.0, 2.0], window) for window in (7, 8, 9)]
    spool.spool.commit(changes)
    reports = [unpack(bound.data, MEMO).reports.tolist() for bound in spool.spool.load(0, 64, 2**30)]
    assert reports[0] == reports[1] == reports[2]


def test_what_is_memoised_counts_towards_the_spools_limit_for_good(path: Path) -> None:
    spool = ReportSpool(path, MEMO, bytes_max=3000)
    (bound,) = spool.add(np.arange(20.0).reshape(10, 2))
    spool.spool.commit([Remove(bound.sequence, "acknowledged")])
    assert spool.spool.is_empty
    spool.anew()
    refused = spool.result(np.arange(100.0, 140.0).reshape(20, 2))
    assert isinstance(refused, SpoolFullError)
    assert "memoised" in str(refused)
    assert len(sent(spool, np.arange(20.0).reshape(10, 2), 8)) == 10  # known ones need no more room


def test_the_memos_secret_is_the_spools_own_and_stays(tmp_path: Path) -> None:
    one, other = (ReportSpool(tmp_path / name, MEMO) for name in ("a.db", "b.db"))
    secret = one.secret
    assert secret is not None
    assert len(secret) == 32
    assert other.secret != secret
    one.anew()
    assert one.secret == secret
    assert secret.hex() not in repr(one.encoder)


def test_only_the_memos_keys_show_what_is_memoised(path: Path) -> None:
    spool = ReportSpool(path, MEMO)
    spool.add([[1.0, 2.0], [3.0, 4.0]])
    spool.spool.close()
    database = sqlite3.connect(path)
    rows = database.execute("SELECT record, report FROM memo").fetchall()
    database.close()
    assert len(rows) == 2
    assert all(len(record) == 32 for record, _ in rows)


def test_a_spool_without_a_memo_has_no_such_tables(path: Path) -> None:
    ReportSpool(path, PLAN).spool.close()
    spool = opened(path)
    assert spool.rows("SELECT name FROM sqlite_master WHERE name LIKE 'memo%'") == []
    spool.close()
