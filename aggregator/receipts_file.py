"""Receipts in a file apart from the store: one canonical JSON line for each outcome, on disk before it returns.

Lines are a chain: a checksum is CRC-32 over the line's other fields, begun from the checksum of the line before. So a
line that is damaged, changed or missing in the middle is found. The last line alone may be torn, by a crash while it
was written: nobody has seen that release, so it is cut off, or completed where only its line break is missing.
"""

import os
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from aggregator.errors import ReceiptsError
from aggregator.ports import Runtime, StoredRelease
from hushsum import canonical
from hushsum.errors import HushsumError
from hushsum.privacy.event import Spend

RECEIPTS_FORMAT: Final = 1


@dataclass(frozen=True)
class Receipt:
    """What is certified of one outcome."""

    plan_id: bytes
    kind: str
    window: int
    sha256: bytes
    spend: Spend

    @property
    def key(self) -> tuple[bytes, str, int]:
        """What there is one receipt for."""
        return self.plan_id, self.kind, self.window

    def to_line(self, before: int) -> tuple[bytes, int]:
        """The line without its break, and its checksum, after a line with the checksum ``before``."""
        fields: dict[str, object] = {
            "format": RECEIPTS_FORMAT,
            "plan_id": self.plan_id.hex(),
            "kind": self.kind,
            "window": self.window,
            "sha256": self.sha256.hex(),
            "spend": self.spend.to_fields(),
        }
        checksum = zlib.crc32(canonical.encode(fields), before)
        return canonical.encode({**fields, "checksum": f"{checksum:08x}"}), checksum

    @classmethod
    def from_line(cls, line: bytes, before: int) -> tuple[Self, int]:
        """The receipt of a line and its checksum.

        Raises:
            ReceiptsError: A newer format.
            _NotWholeError: The line is not what was written after the line before it.
        """
        try:
            fields = canonical.decode(line)
            assert isinstance(fields, dict)
            checksum = int(str(fields.pop("checksum")), 16)
            if zlib.crc32(canonical.encode(fields), before) != checksum:
                raise ValueError("the checksum does not match")
        except (HushsumError, ValueError, KeyError, AssertionError) as error:
            raise _NotWholeError(f"not a receipt: {error}") from error
        if fields["format"] != RECEIPTS_FORMAT:
            raise ReceiptsError(
                f"format {fields['format']}; this version reads up to {RECEIPTS_FORMAT}: update the service"
            )
        receipt = cls(
            bytes.fromhex(fields["plan_id"]),
            fields["kind"],
            fields["window"],
            bytes.fromhex(fields["sha256"]),
            Spend.from_fields(fields["spend"]),
        )
        return receipt, checksum


class _NotWholeError(ReceiptsError):
    """A line that is torn or damaged."""


class ReceiptsFile:
    """See :class:`aggregator.ports.Receipts`. Made by :meth:`open`; one process writes."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self._path, self._runtime = path, runtime
        self._guard = threading.Lock()
        self._receipts: dict[tuple[bytes, str, int], Receipt] = {}
        self._checksum = 0  # of the last line
        self._size = 0  # of what is known to be whole

    @classmethod
    async def open(cls, path: Path, runtime: Runtime) -> Self:
        """Opens the file, repairs a torn last line, and makes the file where it is not there.

        Raises:
            ReceiptsError: It is damaged before its last line, is of a newer format, or cannot be written.
        """
        receipts = cls(path, runtime)
        await runtime.blocking(receipts._load)
        return receipts

    async def write(self, release: StoredRelease, spend: Spend) -> None:
        """Appends a receipt, unless it is there."""
        receipt = Receipt(release.plan_id, release.kind, release.window, release.sha256, spend)
        await self._runtime.blocking(self._write, receipt)

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """All receipts, in the order in which they were written."""
        return [(each.plan_id, each.kind, each.window, each.sha256, each.spend) for each in self._receipts.values()]

    def _load(self) -> None:
        try:
            self._path.touch()
            data = self._path.read_bytes()
        except OSError as error:
            raise ReceiptsError(f"receipts {self._path}: {error}") from error
        lines = data.split(b"\n")
        unended = lines.pop()  # empty where the last line has its break
        last = len(lines) - (0 if unended else 1)
        for number, line in enumerate([*lines, *([unended] if unended else [])]):
            try:
                receipt, self._checksum = Receipt.from_line(line, self._checksum)
            except ReceiptsError as error:
                if number == last and isinstance(error, _NotWholeError):
                    break  # torn while it was written
                raise ReceiptsError(
                    f"receipts {self._path}, line {number + 1}: {error}; nothing is released until it is restored"
                ) from error
            self._receipts[receipt.key] = receipt
            self._size += len(line) + 1
        if self._size != len(data):
            self._repair(complete=self._size == len(data) + 1)
        self._sync_folder()

    def _repair(self, *, complete: bool) -> None:
        """Adds the missing line break, or cuts off what follows the last whole line."""
        with self._path.open("r+b") as file:
            if complete:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(self._size)
            file.flush()
            os.fsync(file.fileno())

    def _write(self, receipt: Receipt) -> None:
        with self._guard:
            known = self._receipts.get(receipt.key)
            if known is not None:
                if known != receipt:
                    raise ReceiptsError(
                        f"receipts {self._path}: window {receipt.window} has a receipt for another release; "
                        "nothing is released until the store or the receipts are restored"
                    )
                return
            line, checksum = receipt.to_line(self._checksum)
            try:
                self._append(line + b"\n")
            except OSError as error:
                raise ReceiptsError(f"receipts {self._path}: {error}") from error
            self._receipts[receipt.key] = receipt
            self._checksum, self._size = checksum, self._size + len(line) + 1

    def _append(self, line: bytes) -> None:
        with self._path.open("r+b") as file:
            # A write that failed half way may have left a torn line behind.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
