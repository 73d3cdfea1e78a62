"""Receipts, what is certified of outcomes apart from the store: their bytes, and what lines of them come to. Pure."""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from aggregator.errors import ForeignReceiptsError, ReceiptsError
from aggregator.records import ReceiptsMark
from hushsum import canonical
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
class Header:
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
        """As :meth:`aggregator.ports.Receipts.read` tells it."""
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


def read_line(line: bytes, before: int = 0) -> tuple[Header | Receipt, int]:
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

    def add(self, line: bytes, held: Header | Receipt) -> None:
        """Adds the next line and what it holds. The first header counts, and the first receipt of an outcome.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest; nothing is added.
        """
        if isinstance(held, Header):
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


def _of_fields(fields: Mapping[str, Any]) -> Header | Receipt:
    if "id" not in fields:
        return Receipt.of_fields(fields)
    id_ = bytes.fromhex(fields["id"])
    if fields.keys() != {"format", "id"} or fields["format"] < _HEADER_FORMAT or len(id_) != ID_BYTES:
        raise ValueError("a header that is none")
    return Header(id_)


def _shown(id_: bytes) -> str:
    return id_.hex()[:_ID_SHOWN]
