"""A changed table is its owner's alone; one that another user's service reads is not changed."""

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


@pytest.mark.parametrize("mode", (0o600, 0o400), ids=oct)
def test_a_changed_table_is_its_owners_alone(path: Path, mode: int) -> None:
    path.chmod(mode)
    revoke(path)
    assert owned(path) == (0o600, os.geteuid(), os.getegid())
    assert len(read_table(path)) == 0


def check_nothing_is_changed(path: Path, match: str) -> None:
    before, data = owned(path), path.read_bytes()
    with pytest.raises(TokenTableError, match=match):
        revoke(path)
    assert (owned(path), path.read_bytes()) == (before, data)
    assert sorted(each.name for each in path.parent.iterdir()) == ["tokens.jsonl", "tokens.jsonl.lock"]


@pytest.mark.parametrize("mode", (0o640, 0o440, 0o660, 0o644, 0o604), ids=oct)
def test_a_table_that_others_read_is_not_taken_from_them_unsaid(path: Path, mode: int) -> None:
    path.chmod(mode)
    check_nothing_is_changed(
        path, rf"mode {mode:03o}, the token file is readable by other users; nothing was changed.*chmod 600"
    )


@as_root
def test_a_table_of_another_user_is_not_taken_from_it(path: Path) -> None:
    os.chown(path, OTHER, OTHER)
    check_nothing_is_changed(path, r"belongs to user 12345, .* nothing was changed\. Run this command as that user")


@as_root
def test_an_operator_of_the_folders_group_changes_nothing() -> None:
    """A file of its own would be where the service's one was."""
    with tempfile.TemporaryDirectory() as folder:  # one that another user reaches, unlike this test's
        path = Path(folder) / "tokens.jsonl"
        change_table(path, lambda _: TokenTable([TOKEN.entry]))
        for each, mode in ((path.parent, 0o770), (path, 0o640), (path.with_name("tokens.jsonl.lock"), 0o660)):
            os.chown(each, OTHER, OTHER)
            each.chmod(mode)
        with acting_as(OTHER + 1, OTHER):
            check_nothing_is_changed(path, "nothing was changed")


def test_a_table_with_an_access_list_is_not_changed(path: Path) -> None:
    entries = ((1, 6, 2**32 - 1), (2, 4, OTHER), (4, 0, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1))
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    if not hasattr(os, "setxattr"):
        pytest.skip("there are no such lists here")
    try:
        os.setxattr(path, LIST, access)
    except OSError as error:
        pytest.skip(f"there are no such lists here: {error.strerror}")
    check_nothing_is_changed(path, "mode 640, the token file is readable by other users; nothing was changed")
