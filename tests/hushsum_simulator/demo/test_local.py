"""The search for names finds what is there; a shuffled run waits as long as its machine needs."""

import sqlite3
from pathlib import Path

import pytest

from aggregator.shuffler.reports_file import close_ms
from hushsum_simulator.demo.local import search, window_to_shuffle
from hushsum_simulator.errors import SettingsConflictError
from tests.aggregator.shuffler.shuffled import shuffled_plan

NAMES = ("client-01", "client-02")
NOW_MS = 480_000 * 3_600_000


def test_a_name_in_a_write_ahead_log_is_found_while_the_file_is_open(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (name TEXT)")
    connection.execute("INSERT INTO t VALUES ('client-02')")
    found = search([tmp_path], NAMES, b"CREATE TABLE t")
    connection.close()
    assert found.names == {"client-02"}
    assert found.control
    assert found.bytes > 4096


def test_a_name_in_a_file_in_a_folder_and_on_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "journal").write_text("... peer=client-01 ...")
    assert search([tmp_path], NAMES, b"...").names == {"client-01"}
    assert search([tmp_path / "deep" / "er" / "journal"], NAMES, b"...").names == {"client-01"}
    assert search([], NAMES, b"...", page=b'sent{by="client-02"}').names == {"client-02"}


def test_a_search_that_missed_what_is_surely_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"plan and client-01")
    good, bad = search([tmp_path], NAMES, b"plan"), search([tmp_path / "none"], NAMES, b"plan")
    assert (good.control, bad.control, (good | bad).control) == (True, False, False)
    assert (good | bad).names == {"client-01"}


@pytest.mark.parametrize(("started_s", "spare_s"), ((0.5, 15), (8.0, 48), (60.0, 90)))
def test_the_fleet_of_a_shuffled_run_has_more_time_where_processes_start_slowly(started_s: float, spare_s: int) -> None:
    plan = shuffled_plan()
    left_ms = close_ms(plan.window, window_to_shuffle(plan, NOW_MS, started_s)) - NOW_MS
    assert spare_s * 1000 <= left_ms < spare_s * 1000 + 10_000


def test_a_window_that_ends_much_later_is_refused() -> None:
    with pytest.raises(SettingsConflictError, match="use windows of seconds"):
        window_to_shuffle(shuffled_plan(window={"length": "1h"}), NOW_MS, 1.0)
