"""The data directory of a service: private files, one process at a time; and whether files have changed.

Files hold exact counts, and who contributed: only this process's user may read them. A file gets its mode when it is
made, never after, so that others can open it at no moment; and the process's umask, which all its threads share, is not
changed.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Final, Generic, NamedTuple, Self, TypeVar

from aggregator.errors import AggregatorError, ConfigError, StoreUnavailableError
from aggregator.logs import journal
from aggregator.runtime import Runtime

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

T = TypeVar("T")


def make_private_file(path: Path) -> None:
    """Makes an empty file; one that exists stays, and is closed to others.

    An existing file is never opened: closing it again would drop the locks that SQLite holds on it in this process.

    Raises:
        OSError: It cannot be made, or belongs to another user and is open to others.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        close_to_others(path)


def close_to_others(path: Path) -> bool:
    """Removes all permissions of others from a file or folder; whether there were any.

    Raises:
        OSError: It does not exist, or belongs to another user.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OTHERS:
        path.chmod(mode & ~OTHERS)
    return bool(mode & OTHERS)


_journal = journal("data")


class DataDir:
    """A folder that this process holds locked until :meth:`close`. Made by :meth:`open`.

    Receipts are in it unless a setting puts them elsewhere; ``listening`` says where this process listens, while it is
    ready.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self.log, self.store = path / "log.db", path / "store.db"
        self.receipts, self.listening = path / "receipts.jsonl", path / "listening.json"
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, changes: bool = True) -> Self:
        """Makes the folder if it does not exist, and locks it.

        Without ``changes`` permissions and files of an existing folder stay as they are.

        Raises:
            ConfigError: It cannot be written, or another process holds it: its files have one writer.
        """
        try:
            _make_private(path, changes=changes)
            lock = held(path / "lock", f"data: {path}")
        except OSError as error:
            raise ConfigError(f"data: {path} cannot be used as the data directory: {error.strerror}") from error
        folder = cls(path, lock)
        if not changes:
            return folder
        folder.forget_listening()  # a process that was killed could not
        try:
            folder._close_files()
        except OSError as error:
            folder.close()
            raise ConfigError(
                f"data: {error.filename}: its permissions cannot be restricted to the owner: {error.strerror}"
            ) from error
        return folder

    def announce(self, *, grpc: str, metrics: str, health: str) -> None:
        """Writes where this process listens, in one step: whoever sees the file can connect."""
        written = self.path / "listening.json.new"
        make_private_file(written)
        said = {"grpc": grpc, "metrics": metrics, "health": health, "pid": os.getpid()}
        written.write_text(json.dumps(said) + "\n", encoding="utf-8")
        written.replace(self.listening)

    def forget_listening(self) -> None:
        self.listening.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()

    def _close_files(self) -> None:
        """Closes files to others that an older version left open."""
        for path in (self.log, self.store):
            for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                if file.exists():
                    close_to_others(file)
        for file in (self.receipts, *self.path.glob("audit*.jsonl")):
            if file.exists():
                close_to_others(file)


def _make_private(path: Path, *, changes: bool) -> None:
    """Makes the folder for this user alone, or with ``changes`` closes an existing one to others.

    Raises:
        ConfigError: Others may use it, and it belongs to another user or is a shared one (sticky bit).
        OSError: It cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    found = path.stat()
    if not found.st_mode & OTHERS:
        return
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"data: {path} is accessible to other users and owned by another user: use another directory, or chmod 700"
        )
    if not changes:
        return
    close_to_others(path)
    _journal.warning("data directory permissions restricted to the owner", data=str(path))


def held(path: Path, what: str) -> IO[str]:
    """A lock file, held until it is closed or this process ends in any way.

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
        raise ConfigError(f"{what} is in use by another process of the service: stop it first") from error
    return lock


class _Stamp(NamedTuple):
    """What of a file changes when it is written, its mode changes, or another file takes its place."""

    device: int
    inode: int
    mode: int
    size: int
    modified_ns: int
    changed_ns: int

    @property
    def identity(self) -> tuple[int, int]:
        """What only another file changes."""
        return self.device, self.inode


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()  # through links, as secrets are mounted
    except OSError:
        return None
    return _Stamp(found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class ReplacedFileCheck:
    """Notices when a file that this process writes is gone, or another file takes its place.

    A file that does not exist at first is not watched.
    """

    def __init__(self, paths: Iterable[Path], runtime: Runtime) -> None:
        self._runtime = runtime
        self._known = {path: found.identity for path in paths if (found := _stamp(path)) is not None}

    async def look(self) -> None:
        """Compares each file with the one that was there at first.

        Raises:
            StoreUnavailableError: One is gone, or another one is in its place.
        """
        await self._runtime.blocking(self._look)

    def _look(self) -> None:
        for path, known in self._known.items():
            found = _stamp(path)
            if found is None or found.identity != known:
                raise StoreUnavailableError(
                    f"{path} was deleted or replaced while in use: data stored now is lost when this process ends; "
                    "stop it and restore the file"
                )


#: No file system that is in use has coarser time stamps (FAT; most have some milliseconds).
STAMP_S_MAX: Final = 2.0


class _Seen(NamedTuple):
    """Files as one look found them.

    Attributes:
        stamps: None for a file that does not exist.
        since_s: Since when they are known to have these stamps, by the monotonic clock.
        is_final: Whether any later write changes a stamp.
    """

    stamps: list[_Stamp | None]
    digests: list[bytes]
    since_s: float
    is_final: bool


class ReloadedFiles(Generic[T]):
    """A value that is read from files, and read again when one of them changes; from any thread.

    Time stamps are as coarse as the clock of the file system: two writes in place within one of its ticks can leave the
    same stamp. So stamps alone are trusted only when they have stayed the same for :data:`STAMP_S_MAX` and the bytes
    were compared after that; until then each refresh compares the bytes.

    New files that cannot be used leave the value as it is; ``on_failure`` gets the reason, once for each and not at
    each attempt. The constructor raises what ``read`` raises.

    Attributes:
        failure: Why the files cannot be used now; empty where they can.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], T],
        on_failure: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._paths, self._read, self._on_failure, self._clock = tuple(paths), read, on_failure, clock
        self._seen: _Seen | None = self._look(None)
        self.value, self.failure = read(), ""

    def refresh(self) -> bool:
        """Reads the files if they have changed; whether that gave a new value."""
        last = self._seen
        seen = self._look(last)  # before they are read: a change meanwhile is found the next time
        if last is not None and (seen.stamps, seen.digests) == (last.stamps, last.digests):
            self._seen = seen
            return False
        try:
            self.value = self._read()
        except (OSError, AggregatorError) as error:
            # An error of the system may pass without a change of the files, wrong contents do not.
            self._seen = None if isinstance(error.__cause__ or error, OSError) else seen
            if str(error) != self.failure:
                self.failure = str(error)
                self._on_failure(self.failure)
            return False
        self._seen, self.failure = seen, ""
        return True

    def _look(self, last: _Seen | None) -> _Seen:
        stamps = [_stamp(path) for path in self._paths]
        is_same = last is not None and last.stamps == stamps
        if last is not None and is_same and last.is_final:
            return last
        now_s = self._clock()  # before the bytes: a write after they are read is later than this
        since_s = last.since_s if last is not None and is_same else now_s
        digests = [_digest(path, stamp) for path, stamp in zip(self._paths, stamps, strict=True)]
        return _Seen(stamps, digests, since_s, is_final=now_s - since_s >= STAMP_S_MAX)


def _digest(path: Path, stamp: _Stamp | None) -> bytes:
    """SHA-256 of a file's bytes; empty where they cannot be read."""
    if stamp is None:
        return b""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""


def bytes_and_stat(path: Path, bytes_max: int) -> tuple[bytes, os.stat_result]:
    """A file's bytes (of a larger file, ``bytes_max + 1`` of them), and the owner and permissions that it had then.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(bytes_max + 1), os.fstat(file.fileno())
