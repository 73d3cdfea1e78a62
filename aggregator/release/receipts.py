"""Receipts of outcomes: their format, the file of them, and their reconciliation with the store.

A receipt is one canonical JSON line. The first line holds the receipts' random id (in files of older formats a later
line does). The store keeps the id and how many lines it knows: receipts that are missing, shorter or another store's
are detected at the next start.

In a file, lines are chained: a checksum is CRC-32 over the line's other fields, seeded with the checksum of the line
before. So a line that is damaged, changed or missing is detected.

A line and its line break are one write, and a receipt counts once fsync has returned after it. So the receipt of a
visible release always has its line break, and only the bytes after the last break can be torn, by a crash during the
write; that release was never visible. A torn line is cut off and copied to another file, or completed if only its break
is missing. A bad line *with* its break was complete once, so it is damaged, the last one included, and nothing is
released until an operator restores the file.
"""

import errno
import hashlib
import os
import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from aggregator.data_dir import FILE_MODE, close_to_others
from aggregator.errors import ForeignReceiptsError, ReceiptsError
from aggregator.interfaces import Receipts
from aggregator.logs import journal
from aggregator.model import Outcome, ReceiptsMark, StoredOutcome
from aggregator.runtime import Runtime
from aggregator.store.store import Store
from hushsum import canonical
from hushsum.entropy import Entropy
from hushsum.errors import HushsumError
from hushsum.fsync import sync_folder
from hushsum.privacy.events import Spend

#: 1 had spends without their events, 2 no header; both are still read.
RECEIPTS_FORMAT: Final = 3
ID_BYTES: Final = 16
_HEADER_FORMAT: Final = 3  # the first that has one
_ID_SHOWN: Final = 8  # characters of an id, in errors
_RESTORE: Final = (
    "nothing is released until the receipts of this store are restored and the service is started again. If their copy "
    "survived, `hushsum admin begin-receipts-copy --reverse` makes them from it"
)
#: What is left where all receipts are lost.
ALL_LOST: Final = (
    "If all are lost, nothing can tell what was published: begin with a new store, and subtract what the ledger of the "
    "old one shows as spent from the limits of the new plans"
)
#: The end of an error where lost receipts are to be made from a copy.
NO_SOURCE: Final = (
    "the receipts are not made from it. Find the newest copy of this store's receipts, and name it by receipts_copy. "
    f"{ALL_LOST}"
)


class TornLineError(ReceiptsError):
    """A line that is torn or damaged."""


@dataclass(frozen=True)
class ReceiptsHeader:
    """The line that identifies receipts: the first, or in receipts of older formats a later one."""

    id: bytes

    def to_line(self, before: int = 0) -> tuple[bytes, int]:
        """As :meth:`Receipt.to_line`."""
        return _line_of({"format": RECEIPTS_FORMAT, "id": self.id.hex()}, before)


class Receipt(NamedTuple):
    """One outcome's digest and charge."""

    plan_id: bytes
    kind: str
    window: int
    sha256: bytes
    spend: Spend

    @property
    def key(self) -> tuple[bytes, str, int]:
        return self.plan_id, self.kind, self.window

    def to_line(self, before: int = 0) -> tuple[bytes, int]:
        """The line without its break, and its checksum; ``before`` is the checksum of the line before."""
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
    def from_outcome(cls, outcome: StoredOutcome, spend: Spend) -> Self:
        return cls(outcome.plan_id, outcome.kind, outcome.window, outcome.sha256, spend)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The receipt with a line's fields; ValueError or an error of a decoder if they are not a receipt's."""
        kind, window = fields["kind"], fields["window"]
        if not isinstance(kind, str) or type(window) is not int:
            raise ValueError("invalid kind or window")
        plan_id, sha256 = (bytes.fromhex(fields[key]) for key in ("plan_id", "sha256"))
        return cls(plan_id, kind, window, sha256, Spend.from_fields(fields["spend"]))


def read_line(line: bytes, before: int = 0) -> tuple[ReceiptsHeader | Receipt, int]:
    """The content of a line, and its checksum.

    Raises:
        ReceiptsError: A newer format.
        TornLineError: The line is damaged, or was not written after the line before it.
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
        raise TornLineError(f"not a receipt: {error}") from error
    newest = f"this version reads up to {RECEIPTS_FORMAT}"
    raise ReceiptsError(f"format {number}; {newest}: update the service; nothing is released before that")


class KeptLine(NamedTuple):
    """The bytes of a line, and its content."""

    line: bytes
    held: ReceiptsHeader | Receipt


class ReceiptLines:
    """Lines of receipts in their order, in a file or a topic: their id, the outcomes, and a digest of the lines so far.

    The digest after a line is SHA-256 over the digest after the line before it (32 zero bytes at the beginning) and the
    line's bytes. The reader computes it, so that it follows the order of a topic that several processes write to.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._id = b""
        self._receipts: dict[tuple[bytes, str, int], Receipt] = {}
        self._digests = [bytes(hashlib.sha256().digest_size)]
        self._kept: list[KeptLine] = []
        self._kept_digests = [self._digests[0]]
        self._kept_through = [0]  # by the number of lines, how many of them are kept

    @property
    def receipts(self) -> list[Receipt]:
        return [*self._receipts.values()]

    @property
    def kept(self) -> Sequence["KeptLine"]:
        """The lines that count: the first header, and the first line of each outcome."""
        return self._kept

    @property
    def mark(self) -> ReceiptsMark:
        return ReceiptsMark(self._id, len(self._digests) - 1, self._digests[-1])

    def kept_digest(self, lines: int) -> bytes:
        """The digest of the first ``lines`` lines that count, as that of a mark."""
        return self._kept_digests[lines]

    def kept_through(self, lines: int) -> int:
        """How many of the first ``lines`` lines count."""
        return self._kept_through[lines]

    def add(self, line: bytes, held: ReceiptsHeader | Receipt) -> None:
        """Adds the next line and its content. The first header counts, and the first receipt of an outcome.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest; nothing is added.
        """
        if isinstance(held, ReceiptsHeader):
            counts, self._id = not self._id, self._id or held.id
        elif counts := not self.knows(held):
            self._receipts[held.key] = held
        if counts:
            self._kept.append(KeptLine(line, held))
            self._kept_digests.append(hashlib.sha256(self._kept_digests[-1] + line).digest())
        self._kept_through.append(len(self._kept))
        self._digests.append(hashlib.sha256(self._digests[-1] + line).digest())

    def knows(self, receipt: Receipt) -> bool:
        """Whether there is a receipt for this outcome; its spend may be in the form of an older version.

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

    def check(self, bound: ReceiptsMark, advice: str = _RESTORE) -> None:
        """Compares the lines with the store's mark of its receipts; there may be more lines.

        A store of an older version knows no id: it accepts any receipts as its own. ``advice`` ends the error.

        Raises:
            ForeignReceiptsError: They are not this store's.
            ReceiptsError: They are this store's, but fewer than it knows, or others.
        """
        if not bound.id:
            return
        found, known = self.mark, f"{plural(bound.lines, 'line')} of receipts {_shown(bound.id)} of this store"
        if not found.id:
            came = f"{plural(found.lines, 'line')} without an id" if found.lines else "missing or empty"
            raise ForeignReceiptsError(f"{self.where}: {came}, expected the {known}; {advice}")
        if found.id != bound.id:
            raise ForeignReceiptsError(f"{self.where}: receipts {_shown(found.id)}, expected the {known}; {advice}")
        if found.lines < bound.lines:
            raise ReceiptsError(f"{self.where}: it has {found.lines} of the {known}: an older copy; {advice}")
        if self._digests[bound.lines] != bound.digest:
            came = "other lines with the same id, from another copy"
            raise ReceiptsError(f"{self.where}: {came}, expected the {known}; {advice}")


def plural(count: int, noun: str) -> str:
    """A number of things in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def missing(where: str) -> ForeignReceiptsError:
    """The error if there are no receipts although the store has had some."""
    return ForeignReceiptsError(f"{where}: missing, although this store has receipts; {_RESTORE}")


def _line_of(fields: Mapping[str, object], before: int) -> tuple[bytes, int]:
    checksum = zlib.crc32(canonical.encode(fields), before)
    return canonical.encode({**fields, "checksum": f"{checksum:08x}"}), checksum


def _of_fields(fields: Mapping[str, Any]) -> ReceiptsHeader | Receipt:
    if "id" not in fields:
        return Receipt.from_fields(fields)
    id_ = bytes.fromhex(fields["id"])
    if fields.keys() != {"format", "id"} or fields["format"] < _HEADER_FORMAT or len(id_) != ID_BYTES:
        raise ValueError("invalid header")
    return ReceiptsHeader(id_)


def _shown(id_: bytes) -> str:
    return id_.hex()[:_ID_SHOWN]


_UNTIL: Final = "nothing is released until it is restored and the service is started again"
_DAMAGED: Final = (
    f"{_UNTIL}. If the other one, the receipts or their copy, is whole and has no fewer lines, move this file away, "
    "and make it from that: `hushsum admin begin-receipts-copy` makes a copy, with --reverse the receipts"
)

#: Every line begins so, because its fields are sorted.
_BEGINNING: Final = b'{"checksum":"'

_journal = journal("receipts")


class ReceiptsFile:
    """See :class:`aggregator.interfaces.Receipts`. Made by :meth:`open`; one process writes."""

    def __init__(self, path: Path, runtime: Runtime, entropy: Entropy, *, repairs: bool) -> None:
        self._path, self._runtime, self._entropy, self._repairs = path, runtime, entropy, repairs
        self._guard = threading.Lock()
        self.lines = ReceiptLines(f"receipts {path}")
        self.is_torn = False  # whether the last line was incomplete
        self._exists = False
        self._checksum = 0  # of the last line
        self._size = 0  # of all complete lines, in bytes
        self._failed = set[bytes]()  # lines whose writes failed after the last one that did not: one may be there

    @classmethod
    async def open(cls, path: Path, runtime: Runtime, entropy: Entropy, *, repairs: bool = True) -> Self:
        """Opens the file and repairs a torn last line; only :meth:`begin` creates a file.

        Without ``repairs`` the file is read alone, and a torn line is logged; nothing may be written then.

        Raises:
            ReceiptsError: It is damaged, of a newer format, or cannot be read or written.
        """
        receipts = cls(path, runtime, entropy, repairs=repairs)
        await runtime.blocking(receipts._load)
        return receipts

    async def begin(self) -> ReceiptsMark:
        return await self._runtime.blocking(self._begin)

    async def check(self, bound: ReceiptsMark) -> str:
        if not self._exists:
            raise missing(self.lines.where)
        self.lines.check(bound)
        return ""

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        return await self._runtime.blocking(self._write, Receipt.from_outcome(outcome, spend))

    async def read(self) -> Sequence[Receipt]:
        return self.lines.receipts

    async def catch_up(self) -> ReceiptLines:
        """All lines; no other process writes."""
        return self.lines

    async def append(self, kept: KeptLine) -> None:
        """Appends a line of other receipts, which follow the same lines; durable when it returns.

        Raises:
            ReceiptsError: It cannot be written.
        """
        await self._runtime.blocking(self._append_kept, kept)

    def _load(self) -> None:
        try:
            if not self._path.exists():
                return
            self._exists = True
            if self._repairs:
                close_to_others(self._path)
            with self._path.open("rb") as file:
                os.fsync(file.fileno())  # bytes that a crash left in memory only are trusted from here on
                *lines, tail = file.read().split(b"\n")
            for number, line in enumerate(lines, 1):
                self._take(line, number)
            if tail:
                self._take_tail(tail, len(lines) + 1)
            sync_folder(self._path.parent)
        except OSError as error:
            raise ReceiptsError(f"receipts {self._path}: {error}; {_UNTIL}") from error

    def _take(self, line: bytes, number: int) -> None:
        try:
            held, checksum = read_line(line, self._checksum)
        except TornLineError as error:
            raise TornLineError(f"receipts {self._path}, line {number}: {error}; {_DAMAGED}") from error
        except ReceiptsError as error:  # a newer format, or two receipts of an outcome
            raise ReceiptsError(f"receipts {self._path}, line {number}: {error}") from error
        self.lines.add(line, held)
        self._checksum, self._size = checksum, self._size + len(line) + 1

    def _take_tail(self, tail: bytes, number: int) -> None:
        """Takes a line without its break; repairs add the break to a complete line, and cut off a torn one."""
        try:
            self._take(tail, number)
        except TornLineError:
            if number == 1 and not (tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)):
                raise ReceiptsError(f"receipts {self._path}: not a receipts file; {_DAMAGED}") from None
            self.is_torn = True
            torn = self._path.with_name(self._path.name + ".torn")
            if not self._repairs:
                text = "incomplete receipt will be truncated at the start"
                _journal.warning(text, line=number, size_bytes=len(tail), copy=torn.name)
                return
            # The copy is on the disk before the line is cut off.
            _append(torn, tail + b"\n")
            with self._path.open("r+b") as file:
                file.truncate(self._size)
                os.fsync(file.fileno())
            _journal.warning("incomplete receipt truncated", line=number, size_bytes=len(tail), copy=torn.name)
        else:
            if self._repairs:
                _append(self._path, b"\n")

    def _begin(self) -> ReceiptsMark:
        assert self._repairs, "opened to be read alone"
        with self._guard:
            if not self.lines.mark.id:
                self._make()
                self._append_next(ReceiptsHeader(self._entropy.read(ID_BYTES)))
            return self.lines.mark

    def _append_kept(self, kept: KeptLine) -> None:
        assert self._repairs, "opened to be read alone"
        with self._guard:
            self._make()
            _, checksum = read_line(kept.line, self._checksum)
            self._append_line(kept, checksum)

    def _make(self) -> None:
        """Creates the file, unless it was there at the start."""
        try:
            if not self._exists:
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
                sync_folder(self._path.parent)
        except FileExistsError as error:
            what = "it was created by another process after the start"
            raise ReceiptsError(f"receipts {self._path}: {what}; {_UNTIL}") from error
        except OSError as error:
            raise ReceiptsError(f"receipts {self._path}: {error}; {_UNTIL}") from error
        self._exists = True

    def _write(self, receipt: Receipt) -> ReceiptsMark:
        assert self._repairs, "opened to be read alone"
        with self._guard:
            if not self.lines.knows(receipt):
                self._append_next(receipt)
            return self.lines.mark

    def _append_next(self, held: ReceiptsHeader | Receipt) -> None:
        line, checksum = held.to_line(self._checksum)
        self._append_line(KeptLine(line, held), checksum)

    def _append_line(self, kept: KeptLine, checksum: int) -> None:
        data = kept.line + b"\n"
        try:
            _append(self._path, data, at=self._size, failed=self._failed)
        except OSError as error:
            self._failed.add(data)
            raise ReceiptsError(f"receipts {self._path}: {error}") from error
        self._failed.clear()
        self.lines.add(*kept)
        self._checksum, self._size = checksum, self._size + len(kept.line) + 1


class NoReceipts:
    """Stands for receipts that cannot be read or trusted: every call raises the reason, and nothing is released."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def begin(self) -> ReceiptsMark:
        raise ReceiptsError(self._why)

    async def check(self, bound: ReceiptsMark) -> str:  # noqa: ARG002  the form of Receipts
        raise ReceiptsError(self._why)

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:  # noqa: ARG002  the form of Receipts
        raise ReceiptsError(self._why)

    async def read(self) -> Sequence[Receipt]:
        raise ReceiptsError(self._why)


def _append(path: Path, data: bytes, at: int | None = None, failed: Collection[bytes] = ()) -> None:
    """Appends in one write, on disk when it returns; creates a missing file if ``at`` is not given.

    ``at`` is the known size of the file: bytes beyond it are of a write that failed half way, and are cut off; a whole
    line only if it is this one, or one that ``failed`` before.

    Raises:
        OSError: Not all bytes were written, the file is shorter than its known size, or it has another line after it.
    """
    flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if at is None else 0)
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        if at is not None:
            size = os.fstat(descriptor).st_size
            if size < at:
                raise OSError(f"it has {size} of {at} bytes written: restore it")
            if size > at:
                found = os.pread(descriptor, size - at, at)
                if b"\n" in found and found not in {data, *failed}:
                    raise OSError("another process has written to it: find out which; nothing was cut off")
                os.ftruncate(descriptor, at)
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def reconcile(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int | None) -> tuple[str, list[Spend]]:
    """Compares a plan's outcomes with its receipts; binds a store to receipts if it has none.

    Without a ``fence`` nothing is written, and the store stays as it is bound.

    An unpublished outcome may lack its receipt: the crash came in between, and the outcome was never visible. A
    published one never may. A receipt says that its outcome may have been visible: if the store does not hold that very
    outcome, it was restored from an older copy, and drawing again would show a second draw.

    Returns:
        Why no outcome may be drawn until an operator restores something (empty if all is well), and the spends of the
        receipts, to be counted in either case.

    Raises:
        ReceiptsError: The receipts cannot be read, or are not this store's: no outcome may be drawn.
    """
    problem = ""
    try:
        await _bind(plan_id, store, receipts, fence=fence)
    except ForeignReceiptsError:
        raise  # their spends were of other data
    except ReceiptsError as error:
        problem = str(error)
    # A start registers the plan before this; a look at the files does not.
    known = fence is not None or plan_id in {plan.plan_id for plan in await store.plans()}
    outcomes = await store.outcomes(plan_id) if known else []
    certified = await receipts.read()
    spends = [spend for *_, spend in certified]
    if problem:
        return problem, spends
    found = _compared(plan_id, outcomes, certified)
    if found.lost:
        problem = (
            f"there is a receipt for window {min(receipt.window for receipt in found.lost.values())}, but the store "
            "does not contain its outcome: the store is older than its receipts; restore a newer copy of the store, "
            "or, if there is none, use `hushsum admin mark-lost`"
        )
    return found.problem or problem, spends


class _Compared(NamedTuple):
    """Outcomes of a plan and its receipts: those that are lost (kind, window), and what else is wrong."""

    problem: str
    lost: dict[tuple[str, int], Receipt]


def _compared(plan_id: bytes, outcomes: Sequence[Outcome], certified: Sequence[tuple[Any, ...]]) -> _Compared:
    stored = {(outcome.kind, outcome.window): outcome for outcome in outcomes}
    published = {key for key, outcome in stored.items() if outcome.published}
    proved = {(each[1], each[2]): Receipt(*each) for each in certified if each[0] == plan_id}
    lost = {key: proved[key] for key in proved.keys() - stored.keys()}
    if unproved := [window for _, window in published - proved.keys()]:
        return _Compared(_unproved(len(published), min(unproved)), lost)
    if other := [key[1] for key, receipt in proved.items() if key in stored and stored[key].sha256 != receipt.sha256]:
        text = f"the receipt of window {min(other)} differs from the outcome in the store; restore the store"
        return _Compared(text, lost)
    return _Compared("", lost)


async def lost_outcomes(plan_id: bytes, store: Store, receipts: Receipts) -> list[Receipt]:
    """The receipts of a plan whose outcomes the store lacks, in the order of their windows.

    Raises:
        ReceiptsError: The receipts are not this store's, or something else is wrong with either.
    """
    await _bind(plan_id, store, receipts, fence=None)
    found = _compared(plan_id, await store.outcomes(plan_id), await receipts.read())
    if found.problem:
        raise ReceiptsError(found.problem)
    return sorted(found.lost.values(), key=lambda receipt: receipt.window)


async def check_published(store: Store, lines: ReceiptLines) -> bool:
    """Checks that lines of receipts are this store's, and prove every outcome that it has published, or more.

    Returns:
        Whether the store's id or an outcome that it has published shows that they are its own. Where it has neither,
        they may be another store's.

    Raises:
        ForeignReceiptsError: They have another id than the store knows, or lack a published outcome.
        ReceiptsError: One is of another outcome than the store's.
    """
    bound = await store.receipts_mark()
    if bound is not None and bound.id and bound.id != lines.mark.id:
        came = f"receipts {_shown(lines.mark.id)}" if lines.mark.id else "no receipts"
        known = f"expected receipts {_shown(bound.id)} of this store"
        raise ForeignReceiptsError(f"{lines.where}: {came}, {known}; {NO_SOURCE}")
    is_own = bound is not None and bool(bound.id)
    for plan in await store.plans():
        outcomes = await store.outcomes(plan.plan_id)
        if problem := _compared(plan.plan_id, outcomes, lines.receipts).problem:
            raise ReceiptsError(f"{lines.where}: {problem}; {NO_SOURCE}")
        is_own |= any(outcome.published for outcome in outcomes)
    return is_own


async def _bind(plan_id: bytes, store: Store, receipts: Receipts, *, fence: int | None) -> None:
    """Binds store and receipts to each other, once (with a ``fence``), and compares them.

    The header is written before the store knows it: a crash in between leaves receipts that no store knows, and the
    next start binds the store to them. In the other order a store would miss receipts that nobody has lost.

    A store that was bound before the receipts had a copy learns where it is, and of the topic that it knows the
    brokers of today. Another place than the store knows is recorded by an operator's command alone.
    """
    bound = await store.receipts_mark()  # before the receipts are read: they may be ahead of it, never behind
    copy = "" if bound is None else await receipts.check(bound)
    if bound is None or not bound.id:
        await _check_unbound(store, receipts)
        if fence is None:
            return
        bound = await store.bind_receipts(plan_id, await receipts.begin(), fence=fence)
        await receipts.check(bound)
    elif fence is not None and copy not in {"", bound.copy}:
        found = replace(bound, copy=copy)
        await receipts.check(await store.bind_receipts(plan_id, found, fence=fence, known_copy=bound.copy))


async def published_outcomes(store: Store) -> list[Outcome]:
    """Those of all plans that a store has published."""
    return [
        outcome for plan in await store.plans() for outcome in await store.outcomes(plan.plan_id) if outcome.published
    ]


async def _check_unbound(store: Store, receipts: Receipts) -> None:
    """Compares receipts with a store that is not bound to any: binding it to the wrong ones could not be undone.

    Raises:
        ForeignReceiptsError: They lack an outcome that a plan of the store has published.
    """
    published = [(outcome.plan_id, outcome.kind, outcome.window) for outcome in await published_outcomes(store)]
    proved = {receipt[:3] for receipt in await receipts.read()}
    unproved = [window for *key, window in published if (*key, window) not in proved]
    if unproved:
        raise ForeignReceiptsError(_unproved(len(published), min(unproved)))


def _unproved(published: int, window: int) -> str:
    return (
        f"{plural(published, 'published outcome')}, but window {window} has no receipt: the receipts are not those of "
        "this store; restore them"
    )
