"""The folder that a service lives in: private files, one process at a time, and files that were replaced under it.

Files hold exact counts, and who contributed: nobody but this process's user may read them. The mode is given when a
file is made, never after, so that there is no moment in which others can open it; and no mask of the process is
changed, which its other threads would share.
"""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, Self

from aggregator.errors import ConfigError, StoreUnavailableError
from aggregator.logs import journal
from aggregator.runtime import Runtime

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_file(path: Path) -> None:
    """Makes an empty file where there is none; one that is there stays, and is closed to others.

    A file that is there is never opened: closing it again would drop the locks that SQLite holds on it here.

    Raises:
        OSError: It cannot be made, or is another user's and open to others.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        close_to_others(path)


def close_to_others(path: Path) -> bool:
    """Takes away what others may do with a file or a folder that is there; whether there was anything to take.

    Raises:
        OSError: It is not there, or is another user's.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)
    return bool(mode & _OTHERS)


_journal = journal("data")


class DataDir:
    """A folder that this process holds until :meth:`close`. Made by :meth:`open`."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Makes the folder where it is not there, and takes hold of it.

        Raises:
            ConfigError: It cannot be written, or another process holds it: what lies in it has one writer.
        """
        try:
            _make_private(path)
            lock = held(path / "lock", f"data: {path}")
        except OSError as error:
            raise ConfigError(f"data: {path} cannot be used as a folder: {error.strerror}") from error
        folder = cls(path, lock)
        folder.forget_listening()  # a process that was killed could not
        try:
            folder._close_files()
        except OSError as error:
            folder.close()
            raise ConfigError(f"data: {error.filename} cannot be closed to others: {error.strerror}") from error
        return folder

    @property
    def log(self) -> Path:
        """The log's file."""
        return self.path / "log.db"

    @property
    def store(self) -> Path:
        """The store's file."""
        return self.path / "store.db"

    @property
    def receipts(self) -> Path:
        """The receipts' file, where no setting puts it elsewhere."""
        return self.path / "receipts.jsonl"

    @property
    def listening(self) -> Path:
        """Where this process listens, while it is ready."""
        return self.path / "listening.json"

    def announce(self, *, grpc: str, metrics: str, health: str) -> None:
        """Says, in one step, where this process listens: whoever sees the file can connect."""
        written = self.path / "listening.json.new"
        make_private_file(written)
        said = {"grpc": grpc, "metrics": metrics, "health": health, "pid": os.getpid()}
        written.write_text(json.dumps(said) + "\n", encoding="utf-8")
        written.replace(self.listening)

    def forget_listening(self) -> None:
        """Says that nobody listens."""
        self.listening.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the folder."""
        self._lock.close()

    def _close_files(self) -> None:
        """Closes to others what an older version left open to them."""
        for path in (self.log, self.store):
            for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                if file.exists():
                    close_to_others(file)
        if self.receipts.exists():
            close_to_others(self.receipts)


def _make_private(path: Path) -> None:
    """Makes the folder for this user alone, or closes one that is there to others.

    Raises:
        ConfigError: It is there, others may use it, and it is not this user's own, or is one for everybody's files.
        OSError: It cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    found = path.stat()
    if not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        raise ConfigError(f"data: {path} is open to others and not this user's own: take another folder, or chmod 700")
    close_to_others(path)
    _journal.warning("the data folder was open to others and is no longer", data=str(path))


def held(path: Path, what: str) -> IO[str]:
    """A lock file, made where it is not there, and held until it is closed or this process ends in any way.

    Raises:
        ConfigError: Another process holds it: ``what`` is in use.
        OSError: It cannot be made.
    """
    import fcntl

    make_private_file(path)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(f"{what} is in use by another aggregator") from error
    return lock


class ReplacedFileCheck:
    """Files that were there when this was made.

    Args:
        paths: Their names; one that is not there now is nobody's business.
        runtime: Threads.
    """

    def __init__(self, paths: Iterable[Path], runtime: Runtime) -> None:
        self._runtime = runtime
        self._known = {path: found for path in paths if (found := _identity(path)) is not None}

    async def look(self) -> None:
        """Looks whether each is still there.

        Raises:
            StoreUnavailableError: One is gone, or another one stands in its place.
        """
        await self._runtime.blocking(self._look)

    def _look(self) -> None:
        for path, known in self._known.items():
            if _identity(path) != known:
                raise StoreUnavailableError(
                    f"{path} is gone, or is another file: what is stored now is lost with this process; stop it, and "
                    "put the file back"
                )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
