"""A changed table is readable to whoever could read it, and to nobody else: else a service would keep the old one."""

import errno
import os
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aggregator.auth.tokens import TokenTable, TokenTableError, change_table, issue, read_table
from aggregator.model import Scope
from hushsum.entropy import OsEntropy

TOKEN = issue(OsEntropy(), "till-1", [Scope.SUBMIT], now_ms=1000)
OTHER = 12_345  # a user and a group that nobody is
LIST = "system.posix_acl_access"

as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.jsonl"
    change_table(path, lambda _: TokenTable([TOKEN.entry]))
    return path


def revoke(path: Path) -> None:
    change_table(path, lambda table: table.changed(without=[TOKEN.entry.id]))


def owned(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


@contextmanager
def acting_as(user: int, group: int) -> Iterator[None]:
    """As a process of another user, whom this one may go back from."""
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize(
    ("before", "after"), ((0o600, 0o600), (0o640, 0o640), (0o440, 0o440), (0o400, 0o400), (0o660, 0o640)), ids=oct
)
def test_the_mode_stays_but_that_nobody_else_may_write(path: Path, before: int, after: int) -> None:
    path.chmod(before)
    revoke(path)
    assert owned(path) == (after, os.geteuid(), os.getegid())
    assert len(read_table(path)) == 0


@as_root
@pytest.mark.parametrize(("user", "group"), ((0, OTHER), (OTHER, 0), (OTHER, OTHER)))
def test_owner_and_group_stay_where_secrets_are_laid_out_by_root(path: Path, user: int, group: int) -> None:
    os.chown(path, user, group)
    path.chmod(0o640)
    revoke(path)
    assert owned(path) == (0o640, user, group)


@as_root
def test_who_may_not_give_a_file_away_changes_nothing() -> None:
    """An operator of the folder's group: a file of its own would lie where the service's own one was."""
    with tempfile.TemporaryDirectory() as folder:  # one that another user reaches, unlike this test's
        path = Path(folder) / "tokens.jsonl"
        change_table(path, lambda _: TokenTable([TOKEN.entry]))
        for each, mode in ((path.parent, 0o770), (path, 0o640), (path.with_name("tokens.jsonl.lock"), 0o660)):
            os.chown(each, OTHER, OTHER)
            each.chmod(mode)
        before, data = owned(path), path.read_bytes()
        with (
            acting_as(OTHER + 1, OTHER),
            pytest.raises(TokenTableError, match=r"nothing is changed\. Do this as that user"),
        ):
            revoke(path)
        assert (owned(path), path.read_bytes()) == (before, data)
        assert sorted(each.name for each in path.parent.iterdir()) == ["tokens.jsonl", "tokens.jsonl.lock"]


def test_a_group_that_cannot_be_kept_is_told_and_nothing_is_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, data = owned(path), path.read_bytes()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refused)
    with pytest.raises(TokenTableError, match=r"cannot be made so \(Operation not permitted\); nothing is changed"):
        revoke(path)
    assert (owned(path), path.read_bytes()) == (before, data)
    assert sorted(each.name for each in path.parent.iterdir()) == ["tokens.jsonl", "tokens.jsonl.lock"]


def test_a_table_that_others_read_is_not_taken_from_them_unsaid(path: Path) -> None:
    path.chmod(0o644)
    data = path.read_bytes()
    with pytest.raises(TokenTableError, match="mode 644, others may read this table; nothing is changed"):
        revoke(path)
    assert path.read_bytes() == data


def test_an_access_list_stays(path: Path) -> None:
    entries = ((1, 6, 2**32 - 1), (2, 6, OTHER), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 0, 2**32 - 1))
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    if not hasattr(os, "setxattr"):
        pytest.skip("there are no such lists here")
    try:
        os.setxattr(path, LIST, access)
    except OSError as error:
        pytest.skip(f"there are no such lists here: {error.strerror}")
    revoke(path)
    kept = os.getxattr(path, LIST)
    assert struct.pack("<HHI", 2, 6, OTHER) in kept
    assert struct.pack("<HHI", 16, 4, 2**32 - 1) in kept, "the most that a list gives is to read"
