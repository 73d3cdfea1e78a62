"""The audit log: lines that were cut short or damaged, a file that is full, and texts of any kind."""

import os
import resource
from pathlib import Path

import pytest

from aggregator import audit
from aggregator.audit import AuditEntry, AuditError, AuditLog


def entry(action: str, outcome: str = "done", *, at_ms: int = 1_700_000_000_123, who: str = "Ann") -> AuditEntry:
    return AuditEntry(action, at_ms, who, "0123456789abcdef", "seal window", {"window": "7"}, outcome, "d")


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


def test_an_entry_is_read_as_it_was_written() -> None:
    for who in ("Ann", 'a"b\\c\n{}', "<b>é</b>", "\ud800"):
        written = entry("a", who=who)
        line = written.to_line()
        assert line.count(b"\n") == 1
        assert AuditEntry.from_line(line) == written
    assert len(entry("a", who="x" * 10_000).to_line()) < 1000


def test_the_newest_action_is_first_and_stands_once_with_its_end(log: AuditLog) -> None:
    assert log.newest() == []
    for each in (entry("a", "begun"), entry("b", "begun"), entry("b", "failed"), entry("c", "begun"), entry("a")):
        log.append(each)
    assert [(each.action, each.outcome) for each in log.newest()] == [("a", "done"), ("c", "begun"), ("b", "failed")]


@pytest.mark.parametrize("torn", [b'{"action": "b', b"\xff\xfe", b"{}", b"[" * 5000, b'{"action":1}', b"\n\n", b"null"])
def test_a_line_that_was_cut_short_takes_no_other_with_it(log: AuditLog, torn: bytes) -> None:
    log.append(entry("a"))
    with log.path.open("ab") as file:
        file.write(torn)
    log.append(entry("c"))
    assert [each.action for each in log.newest()] == ["c", "a"]


def test_a_file_that_is_full_is_kept_under_another_name(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 400)
    for number in range(10):
        log.append(entry(str(number)))
    files = sorted(log.path.parent.iterdir())
    assert [each.name for each in files] == ["audit-1.jsonl", "audit-2.jsonl", "audit-3.jsonl", "audit.jsonl"]
    assert sum(each.read_bytes().count(b"\n") for each in files) == 10
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}


def test_of_a_long_file_the_end_is_read(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "SHOWN_BYTES", 1000)
    for number in range(50):
        log.append(entry(str(number)))
    shown = [each.action for each in log.newest()]
    assert shown == [str(number) for number in range(49, 49 - len(shown), -1)]
    assert 2 < len(shown) < 10


def test_what_is_not_all_on_disk_is_an_error(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(AuditError, match=r"audit.jsonl cannot be written: Input/output error"):
        log.append(entry("a"))


def test_a_line_that_a_full_disk_cuts_short_is_an_error_and_takes_no_other_with_it(log: AuditLog) -> None:
    """The limit of a process on the size of files cuts a write short, as a full disk does."""
    log.append(entry("a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 30, hard))
    try:
        with pytest.raises(AuditError, match="cannot be written"):
            log.append(entry("b", "begun"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.append(entry("c"))
    assert [each.action for each in log.newest()] == ["c", "a"]
    assert log.path.read_bytes().count(b"\n") == 3
