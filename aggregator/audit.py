"""The audit log: what operators did on the web page, by whom, when and how it ended; an append-only file that is kept.

Each action has two lines of JSON: one before it begins, without which it does not begin, and one once it has ended.
Each is on disk when it is appended. An action with a first line alone was cut short: nobody knows how it ended.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aggregator.data_dir import FILE_MODE
from aggregator.errors import AggregatorError
from hushsum.fsync import sync_folder

#: A file that has reached it is renamed to audit-1.jsonl, audit-2.jsonl, ... and kept; a new one is begun.
FILE_BYTES_MAX: Final = 2**24
#: Of the end of the file that are read to be shown.
SHOWN_BYTES: Final = 2**18
SHOWN_ACTIONS: Final = 200
_TEXT_MAX: Final = 500

BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"
_OUTCOMES: Final = (BEGUN, DONE, FAILED)


class AuditError(AggregatorError):
    """The audit log cannot be written or read."""


@dataclass(frozen=True)
class AuditEntry:
    """One line of the log.

    Attributes:
        action: The id of the action, the same in both of its lines.
        at_ms: When, in ms since 1970 UTC.
        who: The name of the token.
        token: Its id.
        what: Such as ``seal window``.
        about: What it was done to, such as ``{"window": "472222"}``; no secret.
        outcome: ``begun``, ``done`` or ``failed``.
        detail: What came of it, or why it failed.
    """

    action: str
    at_ms: int
    who: str
    token: str
    what: str
    about: Mapping[str, str]
    outcome: str
    detail: str = ""

    def to_line(self) -> bytes:
        """Its line, with the line break; texts are cut to 500 characters."""
        fields = {
            "action": self.action,
            "at": f"{datetime.fromtimestamp(self.at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "who": self.who[:_TEXT_MAX],
            "token": self.token,
            "what": self.what,
            "about": {key: value[:_TEXT_MAX] for key, value in self.about.items()},
            "outcome": self.outcome,
            "detail": self.detail[:_TEXT_MAX],
        }
        return json.dumps(fields).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "AuditEntry | None":
        """The entry of a line; None for one that is damaged, or of a write that was cut short."""
        try:
            fields: Any = json.loads(line)
            texts = [fields[key] for key in ("action", "who", "token", "what", "outcome", "detail")]
            about = {str(key): str(value) for key, value in fields["about"].items()}
            at_ms = round(datetime.fromisoformat(fields["at"]).timestamp() * 1000)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return None
        if not all(isinstance(each, str) for each in texts) or fields["outcome"] not in _OUTCOMES:
            return None
        action, who, token, what, outcome, detail = texts
        return cls(action, at_ms, who, token, what, about, outcome, detail)


class AuditLog:
    """The file. Its methods block, and are called one at a time.

    Args:
        path: Of the file, which need not exist; its folder does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: AuditEntry) -> None:
        """Appends a line, on disk when it returns.

        Raises:
            AuditError: It may not be there.
        """
        try:
            self._append(entry)
        except OSError as error:
            raise AuditError(f"the audit log {self.path} cannot be written: {error.strerror}") from error

    def _append(self, entry: AuditEntry) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= FILE_BYTES_MAX:
            self.path.rename(self._kept_name())
            size = 0
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            # A write that was cut short has no line break: what follows it begins a line of its own.
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            with open(descriptor, "ab", buffering=0, closefd=False) as file:
                data = b"\n" * is_torn + entry.to_line()
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if size == 0:
            sync_folder(self.path.parent)

    def _kept_name(self) -> Path:
        """A name for a file that is full, which no other one has."""
        number = 1
        while (kept := self.path.with_name(f"{self.path.stem}-{number}{self.path.suffix}")).exists():
            number += 1
        return kept

    def newest(self) -> list[AuditEntry]:
        """One entry for each of the newest actions, the newest first: its end, or its beginning where that is all.

        Raises:
            AuditError: The file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - SHOWN_BYTES))
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AuditError(f"the audit log {self.path} cannot be read: {error.strerror}") from error
        lines = data.split(b"\n")[1 if size > SHOWN_BYTES else 0 :]
        found: dict[str, AuditEntry] = {}
        for line in lines:
            if (entry := AuditEntry.from_line(line)) is not None:
                found.pop(entry.action, None)  # it stands where its last line is
                found[entry.action] = entry
        return list(found.values())[: -SHOWN_ACTIONS - 1 : -1]
