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
import hashlib
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from aggregator.data_dir import FILE_MODE, close_to_others
from aggregator.errors import ForeignReceiptsError, ReceiptsError
from aggregator.interfaces import Receipts
from aggregator.logs import journal
from aggregator.model import Outcome, ReceiptsMark, StoredOutcome
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from hushsum import canonical
from hushsum.durable import sync_folder
from hushsum.entropy import Entropy
from hushsum.errors import HushsumError
from hushsum.privacy.event import Spend

#: 1 had spends without their events, 2 no header; both are still read.
RECEIPTS_FORMAT: Final = 3
ID_BYTES: Final = 16
_HEADER_FORMAT: Final = 3  # the first that has one
_ID_SHOWN: Final = 8  # characters of an id, in errors
_RESTORE: Final = "nothing is released until the receipts of this store are restored and the service is started again"

Row = tuple[bytes, str, int, bytes, Spend]


class NotWholeError(ReceiptsError):
    """A line that is torn or damaged."""


@dataclass(frozen=True)
class ReceiptsHeader:
    """The line by which receipts are told from others: the first, or in receipts of older formats a later one."""

    id: bytes

    def to_line(self, before: int = 0) -> tuple[bytes, int]:
        """As :meth:`Receipt.to_line`."""
        return _line_of({"format": RECEIPTS_FORMAT, "id": self.id.hex()}, before)


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

    @property
    def row(self) -> Row:
        """As :meth:`aggregator.interfaces.Receipts.read` tells it."""
        return self.plan_id, self.kind, self.window, self.sha256, self.spend

    def to_line(self, before: int = 0) -> tuple[bytes, int]:
        """The line without its break, and its checksum, after a line with the checksum ``before``."""
        fields: dict[str, object] = {
            "format": RECEIPTS_FORMAT,
            "plan_id": self.plan_id.hex(),
            "kind": self.kind,
            "window": self.window,
            "sha256": self.sha256.hex(),
            "spend": self.spend.to_fields(),
        }
        return _line_of(fields, before)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The receipt of a line's fields.

        Raises:
            ValueError: They are not those of a receipt; or another error of what they are made of.
        """
        kind, window = fields["kind"], fields["window"]
        if not isinstance(kind, str) or type(window) is not int:
            raise ValueError("a kind that is no text, or a window that is no number")
        plan_id, sha256 = (bytes.fromhex(fields[key]) for key in ("plan_id", "sha256"))
        return cls(plan_id, kind, window, sha256, Spend.from_fields(fields["spend"]))


def read_line(line: bytes, before: int = 0) -> tuple[ReceiptsHeader | Receipt, int]:
    """What a line holds, and its checksum.

    Raises:
        ReceiptsError: A newer format.
        NotWholeError: The line is not what was written after the line before it.
    """
    try:
        fields = canonical.decode(line)
        assert isinstance(fields, dict)
        written = fields.pop("checksum")
        checksum = zlib.crc32(canonical.encode(fields), before)
        if written != f"{checksum:08x}":
            raise ValueError("the checksum does not match")
        if (number := fields["format"]) in range(1, RECEIPTS_FORMAT + 1):
            return _of_fields(fields), checksum
    except (HushsumError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise NotWholeError(f"not a receipt: {error}") from error
    raise ReceiptsError(f"format {number}; this version reads up to {RECEIPTS_FORMAT}: update the service")


class ReceiptLines:
    """Lines of receipts in their order: their id, the outcomes that they certify, and a digest of the lines so far.

    The digest after a line is SHA-256 over the digest after the line before it (32 zero bytes at the beginning) and the
    line's bytes. It is the reader's: where several write, as into a topic, the order in which they stand decides it.

    Args:
        where: What the lines are in, for errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._id = b""
        self._receipts: dict[tuple[bytes, str, int], Receipt] = {}
        self._digests = [bytes(hashlib.sha256().digest_size)]

    @property
    def rows(self) -> list[Row]:
        """All receipts, in their order."""
        return [receipt.row for receipt in self._receipts.values()]

    @property
    def mark(self) -> ReceiptsMark:
        """All lines."""
        return ReceiptsMark(self._id, len(self._digests) - 1, self._digests[-1])

    def add(self, line: bytes, held: ReceiptsHeader | Receipt) -> None:
        """Adds the next line and what it holds. The first header counts, and the first receipt of an outcome.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest; nothing is added.
        """
        if isinstance(held, ReceiptsHeader):
            self._id = self._id or held.id
        elif not self.knows(held):
            self._receipts[held.key] = held
        self._digests.append(hashlib.sha256(self._digests[-1] + line).digest())

    def knows(self, receipt: Receipt) -> bool:
        """Whether there is a receipt for this outcome; its spend may be in the words of an older version.

        Raises:
            ReceiptsError: There is one with another digest.
        """
        known = self._receipts.get(receipt.key)
        if known is not None and known.sha256 != receipt.sha256:
            raise ReceiptsError(
                f"{self.where}: window {receipt.window} has a receipt for another outcome; "
                "nothing is released until the store or the receipts are restored"
            )
        return known is not None

    def check(self, bound: ReceiptsMark) -> None:
        """Compares the lines with what the store knows of its receipts; there may be more lines.

        A store of an older version knows no id: any receipts are taken for its own, if they are there.

        Raises:
            ForeignReceiptsError: They are not this store's.
            ReceiptsError: They are this store's, and fewer than it knows, or others.
        """
        if not bound.id:
            return
        found, known = self.mark, f"{bound.lines} lines of receipts {_shown(bound.id)}, which this store knows"
        if not found.id:
            raise ForeignReceiptsError(f"{self.where}: {found.lines} lines without an id, not the {known}; {_RESTORE}")
        if found.id != bound.id:
            raise ForeignReceiptsError(f"{self.where}: receipts {_shown(found.id)}, not the {known}; {_RESTORE}")
        if found.lines < bound.lines:
            raise ReceiptsError(f"{self.where}: {found.lines} of the {known}: an older copy; {_RESTORE}")
        if self._digests[bound.lines] != bound.digest:
            raise ReceiptsError(f"{self.where}: not the {known}, but others of the same id: another copy; {_RESTORE}")


def missing(where: str) -> ForeignReceiptsError:
    """There are no receipts, although the store has had some."""
    return ForeignReceiptsError(f"{where}: missing, although this store has had receipts; {_RESTORE}")


def _line_of(fields: Mapping[str, object], before: int) -> tuple[bytes, int]:
    checksum = zlib.crc32(canonical.encode(fields), before)
    return canonical.encode({**fields, "checksum": f"{checksum:08x}"}), checksum


def _of_fields(fields: Mapping[str, Any]) -> ReceiptsHeader | Receipt:
    if "id" not in fields:
        return Receipt.of_fields(fields)
    id_ = bytes.fromhex(fields["id"])
    if fields.keys() != {"format", "id"} or fields["format"] < _HEADER_FORMAT or len(id_) != ID_BYTES:
        raise ValueError("a header that is none")
    return ReceiptsHeader(id_)


def _shown(id_: bytes) -> str:
    return id_.hex()[:_ID_SHOWN]


_UNTIL: Final = "nothing is released until it is restored and the service is started again"

#: Of every line: its fields are sorted.
_BEGINNING: Final = b'{"checksum":"'

_journal = journal("receipts")


class ReceiptsFile:
    """See :class:`aggregator.interfaces.Receipts`. Made by :meth:`open`; one process writes."""

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
                self._append_line(ReceiptsHeader(self._entropy.read(ID_BYTES)))
            return self._lines.mark

    def _write(self, receipt: Receipt) -> ReceiptsMark:
        with self._guard:
            if not self._lines.knows(receipt):
                self._append_line(receipt)
            return self._lines.mark

    def _append_line(self, held: ReceiptsHeader | Receipt) -> None:
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


@dataclass(frozen=True)
class Reconciliation:
    """What a start has to do.

    Attributes:
        problem: Why no outcome may be taken until an operator has restored something; empty where all is well.
        spends: Of the receipts: to be counted, whatever the problem.
    """

    problem: str
    spends: tuple[Spend, ...]


async def reconciled(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int) -> Reconciliation:
    """Compares a plan's store with its receipts; a store that never had receipts is bound to them first.

    Raises:
        ReceiptsError: They cannot be read, or are not this store's: no outcome may be taken.
    """
    problem = ""
    try:
        await _bound(plan_id, store, receipts, fence=fence)
    except ForeignReceiptsError:
        raise  # what they say was spent was spent of other data
    except ReceiptsError as error:
        problem = str(error)
    outcomes = await store.outcomes(plan_id)
    found = reconcile(plan_id, outcomes, await receipts.read())
    return replace(found, problem=problem or found.problem)


async def _bound(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int) -> None:
    """Binds store and receipts to each other, once, and compares them.

    The header is written before the store knows it: a crash in between leaves receipts that no store knows, and a store
    that takes them for its own. The other way round a store would miss receipts that nobody has lost.
    """
    bound = await store.receipts_mark()  # before the receipts are read: they may be ahead of it, never behind
    if bound is not None:
        await receipts.check(bound)
    if bound is None or not bound.id:
        await _check_unbound(store, receipts)
        bound = await store.bind_receipts(plan_id, await receipts.begin(), fence=fence)
        await receipts.check(bound)


async def _check_unbound(store: Store, receipts: Receipts) -> None:
    """Compares receipts with a store that is not bound to any: the wrong ones would be its own for ever.

    Raises:
        ForeignReceiptsError: They lack an outcome that a plan of the store has published.
    """
    published = [
        (plan.plan_id, outcome.kind, outcome.window)
        for plan in await store.plans()
        for outcome in await store.outcomes(plan.plan_id)
        if outcome.published
    ]
    proved = {receipt[:3] for receipt in await receipts.read()}
    unproved = [window for *key, window in published if (*key, window) not in proved]
    if unproved:
        raise ForeignReceiptsError(_unproved(len(published), min(unproved)))


def reconcile(
    plan_id: bytes, outcomes: Sequence[Outcome], receipts: Sequence[tuple[bytes, str, int, bytes, Spend]]
) -> Reconciliation:
    """Compares a plan's outcomes with its receipts (PRIVACY: receipts).

    An outcome that is not published may lack its receipt: the crash came in between, and nobody has seen it. A
    published one never may, and a receipt says that its outcome may have been shown: where the store does not hold that
    very outcome, it was restored from an older copy, and drawing again would show a second draw.
    """
    spends = tuple(receipt[4] for receipt in receipts)
    proved = {(kind, window): digest for plan, kind, window, digest, _ in receipts if plan == plan_id}
    stored = {(outcome.kind, outcome.window): outcome for outcome in outcomes}
    return Reconciliation(_problem(proved, stored), spends)


def _problem(proved: dict[tuple[str, int], bytes], stored: dict[tuple[str, int], Outcome]) -> str:
    published = {key for key, outcome in stored.items() if outcome.published}
    missing = sorted(window for _, window in published - proved.keys())
    if missing:
        return _unproved(len(published), missing[0])
    lost = sorted(window for _, window in proved.keys() - stored.keys())
    if lost:
        return (
            f"there is a receipt for window {lost[0]}, but the store does not hold its outcome: the store is older "
            "than its receipts; restore a newer copy of it"
        )
    other = sorted(key[1] for key, digest in proved.items() if stored[key].sha256 != digest)
    if other:
        return f"the receipt of window {other[0]} is for another outcome than the store holds; restore the store"
    return ""


def _unproved(published: int, window: int) -> str:
    return (
        f"{published} outcomes are published, but window {window} has no receipt: the receipts are not those of this "
        "store; restore them"
    )
