"""The search for names finds what is there, where a service keeps things."""

import sqlite3
from pathlib import Path

from hushsum_simulator.demo.local import search

NAMES = ("client-01", "client-02")


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
