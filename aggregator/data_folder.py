"""The folder that a service lives in: its files' names, one process at a time, and where that process listens."""

import json
import os
from pathlib import Path
from typing import IO, Self

from aggregator.errors import ConfigError


class DataFolder:
    """A folder that this process holds until :meth:`close`. Made by :meth:`open`."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Makes the folder where it is not there, and takes hold of it.

        Raises:
            ConfigError: It cannot be written, or another process holds it: the log has one writer.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / "lock").open("a+")
        except OSError as error:
            raise ConfigError(f"data: {path} cannot be used as a folder: {error.strerror}") from error
        try:
            _hold(lock)
        except OSError as error:
            lock.close()
            raise ConfigError(f"data: {path} is in use by another aggregator") from error
        folder = cls(path, lock)
        folder.forget_listening()  # a process that was killed could not
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
        """The receipts' file."""
        return self.path / "receipts.jsonl"

    @property
    def listening(self) -> Path:
        """Where this process listens, while it is ready."""
        return self.path / "listening.json"

    def announce(self, *, grpc: str, metrics: str) -> None:
        """Says, in one step, where this process listens: whoever sees the file can connect."""
        written = self.path / "listening.json.new"
        written.write_text(json.dumps({"grpc": grpc, "metrics": metrics, "pid": os.getpid()}) + "\n", encoding="utf-8")
        written.replace(self.listening)

    def forget_listening(self) -> None:
        """Says that nobody listens."""
        self.listening.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the folder."""
        self._lock.close()


def _hold(lock: IO[str]) -> None:
    """Holds a file until it is closed, or this process ends in any way.

    Raises:
        OSError: Another process holds it.
    """
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
