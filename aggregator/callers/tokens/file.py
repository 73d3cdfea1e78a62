"""The file of tokens: read whole, and changed so that a reader sees the old one or the new one, and nothing between.

Who changes it holds a lock beside it (``tokens.jsonl.lock``), as the file itself is another one after each change.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aggregator.callers.tokens.table import TABLE_BYTES_MAX, Table, TokenTableError
from aggregator.private_files import FILE_MODE
from hushsum.durable import sync_folder

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def read_bytes(path: Path) -> bytes:
    """What stands in a table's file, a little more than a table may have at most.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
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


def change_table(path: Path, change: Callable[[Table], Table]) -> None:
    """Puts a changed table in the place of the one that is there, or of none; one change after another.

    Nobody else may read the file. It stays its owner's where this process may see to that.

    Raises:
        OSError: It cannot be read or written; it is then as it was.
        TokenTableError: It holds no table. What ``change`` raises leaves it as it was, too.
    """
    real = path.resolve()  # a link stays one
    with _locked(real):
        data = change(read_table(real)).to_bytes()
        temporary = real.with_name(f".{real.name}.new")
        temporary.unlink(missing_ok=True)  # of a change that was cut short
        try:
            write_private(temporary, data, like=real)
            temporary.replace(real)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(real.parent)


def write_private(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Writes a new file that nobody else may read, durably but for its name.

    Args:
        path: Where there is none yet.
        data: What it holds.
        like: Whose owner it gets, where there is such a file and this process may give it away.

    Raises:
        OSError: There is one already, or it cannot be written.
    """
    descriptor = os.open(path, _NEW, FILE_MODE)
    with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
        if like is not None:
            _give_to_owner_of(like, descriptor)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _give_to_owner_of(like: Path, descriptor: int) -> None:
    with suppress(FileNotFoundError, PermissionError):
        owner = like.stat()
        if owner.st_uid != os.geteuid():
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
