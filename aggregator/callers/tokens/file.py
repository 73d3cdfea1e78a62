"""The file of tokens: read whole, and changed so that a reader sees the old one or the new one, and nothing between.

Who changes it holds a lock beside it (``tokens.jsonl.lock``), as the file itself is another one after each change. The
new one has owner, group and mode of the old: a service that could not read it would go on with the tokens that it knew.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aggregator.callers.tokens.table import TABLE_BYTES_MAX, Table, TokenTableError
from aggregator.private_files import FILE_MODE
from hushsum.durable import sync_folder

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH  # with an access list the group's bits are the most that anybody has
_KEPT: Final = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP
_ACCESS_LIST: Final = "system.posix_acl_access"
_NO_LIST: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})


def read_bytes(path: Path) -> bytes:
    """What stands in a table's file, a little more than a table may have at most.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(TABLE_BYTES_MAX + 1)


def read_guarded(path: Path) -> bytes:
    """The same, of a file that its owner alone may write: whoever writes it decides who is let in.

    Raises:
        OSError: It cannot be read.
        TokenTableError: Others may write it.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _WRITABLE:
            raise TokenTableError(f"mode {mode:03o}, others may write this table: chmod go-w {path}")
        return file.read(TABLE_BYTES_MAX + 1)


def read_table(path: Path) -> Table:
    """The table in a file; an empty one where there is no file.

    Raises:
        OSError: It cannot be read.
        TokenTableError: It holds no table.
    """
    try:
        return Table.from_bytes(read_bytes(path))
    except FileNotFoundError:
        return Table()
    except TokenTableError as error:
        raise TokenTableError(f"{path}: {error}") from error


def lacks(path: Path, ids: Iterable[str]) -> bool:
    """Whether it is certain that the table in a file has none of these."""
    try:
        table = read_table(path)
    except (OSError, TokenTableError):
        return False
    return not any(id in table for id in ids)


def change_table(path: Path, change: Callable[[Table], Table]) -> None:
    """Puts a changed table in the place of the one that is there, or of none; one change after another.

    A new file is its owner's alone. One that was there keeps owner, group, access list and mode, but that others than
    its owner may not write it.

    Raises:
        OSError: It cannot be read or written; it is then as it was.
        TokenTableError: It holds no table, or could not be read any more by whoever reads it now; it is then as it was,
            as it is after what ``change`` raises. Or it is changed, and nobody knows for how long: the text says so.
    """
    real = path.resolve()  # a link stays one
    with _locked(real):
        data = change(read_table(real)).to_bytes()
        temporary = real.with_name(f".{real.name}.new")
        temporary.unlink(missing_ok=True)  # of a change that was cut short
        write_private(temporary, data, like=real)
        try:
            temporary.replace(real)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        try:
            sync_folder(real.parent)
        except OSError as error:
            raise TokenTableError(
                f"{path}: is changed, but may be as it was after a loss of power: its folder cannot be made durable "
                f"({error.strerror}); look at it again then"
            ) from error


def write_private(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Writes a new file that nobody else may read, durably but for its name; nothing of it is left where that fails.

    Args:
        path: Where there is none yet.
        data: What it holds.
        like: Whose owner, group, access list and mode it gets, where there is such a file.

    Raises:
        OSError: There is one already, or it cannot be written.
        TokenTableError: This process may not make it like that one.
    """
    descriptor = os.open(path, _NEW, FILE_MODE)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
            if like is not None and like.exists():
                _make_like(like, descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        path.unlink()
        raise


def _make_like(like: Path, descriptor: int) -> None:
    old = like.stat()
    mode = stat.S_IMODE(old.st_mode)
    if mode & stat.S_IROTH:
        # It is not for others, and a service may be one of them: then it would read none of the changes.
        raise TokenTableError(
            f"{like}: mode {mode:03o}, others may read this table; nothing is changed. Make it its services' by user "
            f"or group, and then: chmod o= {like}"
        )
    try:
        if (old.st_uid, old.st_gid) != (os.fstat(descriptor).st_uid, os.fstat(descriptor).st_gid):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        if (access := _access_list(like)) is not None:
            os.setxattr(descriptor, _ACCESS_LIST, access)
        os.fchmod(descriptor, mode & _KEPT)
    except OSError as error:
        raise TokenTableError(
            f"{like}: belongs to user {old.st_uid} and group {old.st_gid}, and a new file of this process cannot be "
            f"made so ({error.strerror}); nothing is changed. Do this as that user or as root"
        ) from error


def _access_list(path: Path) -> bytes | None:
    """Who may use a file beside its owner and group; None: nobody, or there are no such lists here."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return os.getxattr(path, _ACCESS_LIST)
    except OSError as error:
        if error.errno in _NO_LIST:
            return None
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
