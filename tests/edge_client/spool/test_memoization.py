"""What a memo promises about one window: a record's numbers of comings never start again in it."""

from pathlib import Path

import pytest

from edge_client.errors import EventTimeError
from edge_client.spool import memoization
from hushsum.local.report_batch import unpack
from tests.edge_client.local_plans import ReportSpool, report_plan

PLAN = report_plan(memoise=True)
NOW = 500_000
RECORD = [[0.3, 0.7]]


@pytest.fixture
def spool(tmp_path: Path) -> ReportSpool:
    return ReportSpool(tmp_path / "spool.db", PLAN)


def report(spool: ReportSpool, window: int, record: object = RECORD) -> int:
    (bound,) = spool.add(record, window)
    (value,) = unpack(bound.data, PLAN).reports.tolist()
    return int(value)


def rows(spool: ReportSpool) -> list[tuple[object, ...]]:
    return spool.spool.rows("SELECT window, comings FROM memo_windows ORDER BY window")


def test_an_event_time_far_ahead_starts_no_window_again(spool: ReportSpool) -> None:
    came = [report(spool, NOW) for _ in range(2)]
    for ahead in (1025, 10**6):
        report(spool, NOW + ahead, [[0.1, 0.2]])
        spool.anew()
        came += [report(spool, NOW) for _ in range(2)]
    assert spool.spool.rows("SELECT count(*) FROM memo WHERE coming < 6") == [(7,)]
    assert rows(spool) == [(NOW, 6), (NOW + 1025, 1), (NOW + 10**6, 1)]
    assert [report(spool, NOW + 1) for _ in range(6)] == came


def test_an_event_time_far_behind_counts_its_comings_as_well(spool: ReportSpool) -> None:
    report(spool, NOW)
    for _ in range(3):
        report(spool, NOW - 2000)
    assert rows(spool) == [(NOW - 2000, 3), (NOW, 1)]


def test_the_key_of_a_record_is_another_one_in_each_spool(tmp_path: Path) -> None:
    keys = []
    for name in ("a.db", "b.db"):
        spool = ReportSpool(tmp_path / name, PLAN)
        report(spool, NOW)
        keys += spool.spool.rows("SELECT record FROM memo")
    assert len(set(keys)) == 2, "else whoever knows a record finds it in a spool"


def test_only_the_newest_windows_are_known_and_older_ones_refused(
    spool: ReportSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memoization, "WINDOWS_KEPT", 3)
    for window in (1, 5, 3, 9):
        report(spool, window)
    assert rows(spool) == [(3, 1), (5, 1), (9, 1)]
    for window in (1, 2):
        refused = spool.result(RECORD, window)
        assert isinstance(refused, EventTimeError)
        assert "expected 3 or later" in str(refused)
    spent = spool.spool.rows("SELECT window FROM rounds ORDER BY window")
    assert spent == [(1,), (3,), (5,), (9,)]
    spool.anew()
    assert isinstance(spool.result(RECORD, 2), EventTimeError)
    report(spool, 3)
    report(spool, 4)
    assert rows(spool) == [(4, 1), (5, 1), (9, 1)]
    assert isinstance(spool.result(RECORD, 3), EventTimeError)


def test_the_adds_of_one_transaction_are_held_to_that_together(
    spool: ReportSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memoization, "WINDOWS_KEPT", 2)
    adds = [spool.encoder.encode(RECORD, window) for window in (4, 5, 6, 3, 4)]
    results = spool.spool.commit(adds)
    assert [isinstance(result, tuple) for result in results] == [True, True, True, False, True]
    assert rows(spool) == [(5, 1), (6, 1)]
    assert isinstance(spool.result(RECORD, 4), EventTimeError)
