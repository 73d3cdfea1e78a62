"""The table that counts now: its file is read again when it changes, and the last good one stays where that fails."""

import hashlib
import os
from pathlib import Path
from typing import Final, NamedTuple, Self

from aggregator.callers.tokens.file import read_guarded
from aggregator.callers.tokens.metrics import TokenMetrics
from aggregator.callers.tokens.table import Table, TokenTableError
from aggregator.errors import ConfigError, OpenFilesError
from aggregator.journal import journal
from aggregator.ports import Runtime

LOOK_S: Final = 1.0

_journal = journal("tokens")


class _Mark(NamedTuple):
    """What of a file changes when it is written, or another one takes its place."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        found = os.stat(path)  # noqa: PTH116  the mark is of the system call's own numbers
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class _Reading(NamedTuple):
    mark: _Mark
    digest: bytes
    table: Table | TokenTableError


class TokenFile:
    """A file of tokens that is watched. Made by :meth:`open`.

    Attributes:
        table: What stood in it when it was last good.
    """

    def __init__(self, path: Path, table: Table, runtime: Runtime, metrics: TokenMetrics) -> None:
        self.table = table
        self._path = path
        self._runtime = runtime
        self._metrics = metrics
        self._last: _Reading | None = None
        self._is_settled = False  # whether two readings have found the last one
        self._trouble = ""
        metrics.read(len(table))

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, metrics: TokenMetrics) -> Self:
        """Reads it for the first time.

        Raises:
            ConfigError: It cannot be read, others may write it, or it holds no table: a service does not start without.
        """
        try:
            table = Table.from_bytes(await runtime.blocking(read_guarded, path))
        except OSError as error:
            raise ConfigError(f"tokens: {path} cannot be read: {error.strerror}") from error
        except TokenTableError as error:
            raise ConfigError(f"tokens: {path}: {error}") from error
        if not table:
            _journal.warning("there are no tokens: nobody is answered")
        return cls(path, table, runtime, metrics)

    async def run(self) -> None:
        """Looks again and again, for ever."""
        while True:
            await self._runtime.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Reads it again if it has changed."""
        last = self._last
        try:
            reading = await self._runtime.blocking(_read_if_changed, self._path, last, self._is_settled)
        except (OSError, OpenFilesError) as error:
            self._last = None
            self._failed(str(error) if isinstance(error, OpenFilesError) else error.strerror or type(error).__name__)
            return
        if reading is None:
            return
        # A file's times are no finer than the system's tick: what is written right after it was read may leave them as
        # they were, and is found by reading it a second time.
        self._last, self._is_settled = reading, last is not None and last.mark == reading.mark
        if isinstance(reading.table, TokenTableError):
            self._failed(str(reading.table))
        elif reading.table is not self.table or self._trouble:
            self._take(reading.table)

    def _take(self, table: Table) -> None:
        is_news = table != self.table or self._trouble
        self.table, self._trouble = table, ""
        self._metrics.read(len(table))
        if is_news:
            _journal.info("tokens were read again", tokens=len(table))

    def _failed(self, why: str) -> None:
        self._metrics.unreadable()
        if why != self._trouble:
            self._trouble = why
            _journal.error("the file of tokens cannot be read, its last good state counts", error=why)


def _read_if_changed(path: Path, last: _Reading | None, is_settled: bool) -> _Reading | None:  # noqa: FBT001  a fact, not a switch
    mark = _Mark.of(path)  # before its bytes: what changes in between is read once more
    if is_settled and last is not None and last.mark == mark:
        return None
    try:
        data = read_guarded(path)
    except TokenTableError as error:
        return _Reading(mark, b"", error)
    digest = hashlib.sha256(data).digest()
    if last is not None and last.digest == digest:
        return _Reading(mark, digest, last.table)
    try:
        return _Reading(mark, digest, Table.from_bytes(data))
    except TokenTableError as error:
        return _Reading(mark, digest, error)
