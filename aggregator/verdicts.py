"""What a fold says: of an entry when it passes it, and of an id when it is asked later."""

import enum
from typing import NamedTuple

from hushsum.delta import DeltaId
from hushsum.errors import Reason


class VerdictKind(enum.StrEnum):
    """What became of an entry; stored and counted under these names."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"
    LATE = "late"
    REFUSED = "refused"


class Verdict(NamedTuple):
    """What the fold says of one delta, or of bytes in the log that are none.

    Attributes:
        kind: What became of it.
        reason: Why, for REFUSED alone.
        id: The delta's; None where it could not be read.
        client_id: Whose; None where the entry could not be read.
        window: The delta's; None where it could not be read.
        position: Of the entry, in its partition.
    """

    kind: VerdictKind
    reason: Reason | None
    id: DeltaId | None
    client_id: str | None
    window: int | None
    position: int


class RememberedKind(enum.StrEnum):
    """What the fold can still say of a delta whose window it has closed."""

    COUNTED = "counted"
    REFUSED = "refused"
    LATE = "late"
    OUT_OF_REACH = "out_of_reach"  # an id so old that it was answered before; whatever its bytes, it never counts again
    UNKNOWN = "unknown"  # that knowledge is forgotten: it may have been counted


class Remembered(NamedTuple):
    """How an id was used.

    Attributes:
        kind: COUNTED or REFUSED.
        digest: 8 bytes of the delta that used it.
        window: That delta's.
        reason: Why it was refused; None where it was counted.
    """

    kind: VerdictKind
    digest: bytes
    window: int
    reason: Reason | None
