"""A receipt: what is certified of one outcome, apart from the store, and its bytes."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from aggregator.errors import ReceiptsError
from hushsum import canonical
from hushsum.errors import HushsumError
from hushsum.privacy.event import Spend

RECEIPTS_FORMAT: Final = 2  # 1 had spends without their events; it is still read


class NotWholeError(ReceiptsError):
    """A line that is torn or damaged."""


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
    def row(self) -> tuple[bytes, str, int, bytes, Spend]:
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
        checksum = zlib.crc32(canonical.encode(fields), before)
        return canonical.encode({**fields, "checksum": f"{checksum:08x}"}), checksum

    @classmethod
    def from_line(cls, line: bytes, before: int = 0) -> tuple[Self, int]:
        """The receipt of a line and its checksum.

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
                return cls._of(fields), checksum
        except (HushsumError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise NotWholeError(f"not a receipt: {error}") from error
        raise ReceiptsError(f"format {number}; this version reads up to {RECEIPTS_FORMAT}: update the service")

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> Self:
        kind, window = fields["kind"], fields["window"]
        if not isinstance(kind, str) or type(window) is not int:
            raise ValueError("a kind that is no text, or a window that is no number")
        plan_id, sha256 = (bytes.fromhex(fields[key]) for key in ("plan_id", "sha256"))
        return cls(plan_id, kind, window, sha256, Spend.from_fields(fields["spend"]))


def contradiction(where: str, window: int) -> ReceiptsError:
    """Two receipts for one outcome, with different digests."""
    return ReceiptsError(
        f"{where}: window {window} has a receipt for another outcome; "
        "nothing is released until the store or the receipts are restored"
    )
