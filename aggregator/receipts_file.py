"""Receipts in a file apart from the store: one canonical JSON line for each outcome, on disk before it returns.

The first line holds the file's random id (in files of older formats a later one). The store keeps the id and how far it
knows the lines: a file that is missing, shorter or another store's is found at the next start.

Lines are a chain: a checksum is CRC-32 over the line's other fields, begun from the checksum of the line before. So a
line that is damaged, changed or missing is found.

A line and its break are one write, and a receipt counts once an fsync has returned after it. So the receipt of a
release that anybody has seen always has its break, and only what follows the last break can be torn, by a crash while
it was written: nobody has seen that release. It is cut off, and a copy is kept beside the file; or it is completed,
where only its break is missing. A bad line *with* its break was whole once: it is damaged, the last one like any other,
and nothing is released until an operator has restored it.
"""

import errno
import os
import threading
from pathlib import Path
from typing import Final, Self

from aggregator.errors import ReceiptsError
from aggregator.journal import journal
from aggregator.ports import Receipts, ReceiptsMark, Runtime, StoredOutcome
from aggregator.private_files import FILE_MODE, close_to_others
from aggregator.receipt import ID_BYTES, Header, NotWholeError, Receipt, ReceiptLines, missing, read_line
from hushsum.durable import sync_folder
from hushsum.entropy import Entropy
from hushsum.privacy.event import Spend

_UNTIL: Final = "nothing is released until it is restored and the service is started again"

#: Of every line: its fields are sorted.
_BEGINNING: Final = b'{"checksum":"'

_journal = journal("receipts")


class ReceiptsFile:
    """See :class:`aggregator.ports.Receipts`. Made by :meth:`open`; one process writes."""

    def __init__(self, path: Path, runtime: Runtime, entropy: Entropy) -> None:
        self._path, self._runtime, self._entropy = path, runtime, entropy
        self._guard = threading.Lock()
        self._lines = ReceiptLines(f"receipts {path}")
        self._is_there = False
        self._checksum = 0  # of the last line
        self._size = 0  # of what is known to be whole

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, entropy: Entropy) -> Self:
        """Opens the file and repairs a torn tail; a file that is not there is made by :meth:`begin` alone.

        Args:
            path: The file.
            runtime: Runs what blocks.
            entropy: Of the id.

        Raises:
            ReceiptsError: It is damaged, is of a newer format, or cannot be read or written.
        """
        receipts = cls(path, runtime, entropy)
        await runtime.blocking(receipts._load)
        return receipts

    async def begin(self) -> ReceiptsMark:
        """Makes the file where it is not there, and appends a header where there is none."""
        return await self._runtime.blocking(self._begin)

    async def check(self, bound: ReceiptsMark) -> None:
        """Compares the file with what the store knows of it."""
        if not self._is_there:
            raise missing(self._lines.where)
        self._lines.check(bound)

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        """Appends a receipt, unless it is there."""
        receipt = Receipt(outcome.plan_id, outcome.kind, outcome.window, outcome.sha256, spend)
        return await self._runtime.blocking(self._write, receipt)

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """All receipts, in the order in which they were written."""
        return self._lines.rows

    def _load(self) -> None:
        try:
            if not self._path.exists():
                return
            self._is_there = True
            close_to_others(self._path)
            with self._path.open("rb") as file:
                os.fsync(file.fileno())  # what a crash left in memory alone is believed from here on
                *lines, tail = file.read().split(b"\n")
            for number, line in enumerate(lines, 1):
                self._take(line, number)
            if tail:
                self._repair(tail, len(lines) + 1)
            sync_folder(self._path.parent)
        except OSError as error:
            raise ReceiptsError(f"receipts {self._path}: {error}; {_UNTIL}") from error

    def _take(self, line: bytes, number: int) -> None:
        try:
            held, checksum = read_line(line, self._checksum)
        except ReceiptsError as error:
            raise type(error)(f"receipts {self._path}, line {number}: {error}; {_UNTIL}") from error
        self._lines.add(line, held)
        self._checksum, self._size = checksum, self._size + len(line) + 1

    def _repair(self, tail: bytes, number: int) -> None:
        """Adds the missing break to what is whole, and cuts off what is not."""
        try:
            self._take(tail, number)
        except NotWholeError:
            if number == 1 and not (tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)):
                raise ReceiptsError(f"receipts {self._path}: this is no file of receipts; {_UNTIL}") from None
            torn = self._path.with_name(self._path.name + ".torn")
            # Nothing is cut off before its copy is on the disk.
            _append(torn, tail + b"\n")
            with self._path.open("r+b") as file:
                file.truncate(self._size)
                os.fsync(file.fileno())
            _journal.warning("a torn receipt was cut off", line=number, size_bytes=len(tail), copy=torn.name)
        else:
            _append(self._path, b"\n")

    def _begin(self) -> ReceiptsMark:
        with self._guard:
            if not self._lines.mark.id:
                try:
                    if not self._is_there:
                        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
                        sync_folder(self._path.parent)
                except FileExistsError as error:
                    what = "it was not there when this process started, and is there now"
                    raise ReceiptsError(f"receipts {self._path}: {what}; {_UNTIL}") from error
                except OSError as error:
                    raise ReceiptsError(f"receipts {self._path}: {error}; {_UNTIL}") from error
                self._is_there = True
                self._append_line(Header(self._entropy.read(ID_BYTES)))
            return self._lines.mark

    def _write(self, receipt: Receipt) -> ReceiptsMark:
        with self._guard:
            if not self._lines.knows(receipt):
                self._append_line(receipt)
            return self._lines.mark

    def _append_line(self, held: Header | Receipt) -> None:
        line, checksum = held.to_line(self._checksum)
        try:
            _append(self._path, line + b"\n", at=self._size)
        except OSError as error:
            raise ReceiptsError(f"receipts {self._path}: {error}") from error
        self._lines.add(line, held)
        self._checksum, self._size = checksum, self._size + len(line) + 1


class NoReceipts:
    """Stands for receipts that cannot be read or trusted: whoever asks is told why, and nothing is released."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def begin(self) -> ReceiptsMark:
        """Makes nothing."""
        raise ReceiptsError(self._why)

    async def check(self, bound: ReceiptsMark) -> None:  # noqa: ARG002  as of all receipts
        """Compares nothing."""
        raise ReceiptsError(self._why)

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:  # noqa: ARG002  as of all receipts
        """Writes nothing."""
        raise ReceiptsError(self._why)

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """Reads nothing."""
        raise ReceiptsError(self._why)


async def open_receipts(path: Path, runtime: Runtime, entropy: Entropy) -> Receipts:
    """The receipts in a file, or, where they are damaged or unreadable, receipts that say so to whoever asks."""
    try:
        return await ReceiptsFile.open(path, runtime, entropy)
    except ReceiptsError as error:
        return NoReceipts(str(error))


def _append(path: Path, data: bytes, at: int | None = None) -> None:
    """Appends in one write, on disk when it returns.

    Args:
        path: The file; made where it is not there and ``at`` is not given.
        data: What is appended.
        at: The size that the file is known to have: what follows is a write that failed half way, and is cut off.

    Raises:
        OSError: It is not all written, or the file is shorter than it is known to be.
    """
    flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT if at is None else 0)
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        if at is not None:
            size = os.fstat(descriptor).st_size
            if size < at:
                raise OSError(f"it has {size} bytes of {at} that were written: restore it")
            if size > at:
                os.ftruncate(descriptor, at)
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
