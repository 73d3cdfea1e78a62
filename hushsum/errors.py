"""Every error of the core.

HushsumError
├── the caller's
│   ├── PlanError                a key of a plan: what came, what was expected
│   │   └── NotBuiltError        a known value that this version does not offer yet
│   ├── RecordError              an array of records or queries that cannot be used at all
│   ├── KeyFileError             a private key's file: missing, open to others, or no key
│   ├── DirectoryError           a key of the directory: what came, what was expected
│   ├── ContributionError        more records of one client than its plan allows
│   ├── MergeError               two sketches that share a part
│   │   └── PlanMismatchError    two sketches of different plans
│   └── GuaranteeError           a mechanism that does not support what is claimed of it
├── the peer's
│   ├── CanonicalError           bytes that are not in the canonical encoding
│   ├── DeltaError               bytes of a delta that the plan does not allow, with a Reason
│   ├── SecureSumError           a message of a secure sum that its receiver refuses
│   └── ReleaseError             a release file that is truncated, altered, or newer than this version
└── nobody's
    └── BudgetError              a spend that a ledger's limits do not allow
"""

import enum
import sys
import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Final


class HushsumError(Exception):
    """Base class of Hushsum's errors."""


class HushsumWarning(UserWarning):
    """Base class of Hushsum's warnings."""


class DroppedRecordsWarning(HushsumWarning):
    """Records were dropped: unusable ones, or those above a client's limit."""


class ClippedRecordsWarning(HushsumWarning):
    """Records lay outside the plan's bounds and were moved to them: how many, and in which columns."""


class PlanWarning(HushsumWarning):
    """A plan that is valid but probably not intended."""


class Missing(enum.Enum):
    """Stands for what came where nothing did."""

    MISSING = "missing"


def repr_of(value: object) -> str:
    """The repr of whatever a peer sent, where it has one: of a million digits, or of a thousand lists, it has none."""
    try:
        return _written(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that is too large to be shown"


def _written(value: object) -> str:
    """As the author of a plan writes it: an exact number is its digits, not the constructor of its type."""
    if isinstance(value, Decimal):
        return str(value).replace("E+", "e").replace("E", "e").replace("Infinity", "inf").replace("NaN", "nan")
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, enum.Enum):
        return repr(value.value)
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_written(item)}' for key, item in value.items())}}}"
    return repr(value)


class PlanError(HushsumError):
    """A key of a plan is missing, unknown, or has an invalid value.

    Args:
        key: The key's full name, such as ``sketch.rows``.
        came: What stood there, as the author wrote it, or ``Missing.MISSING``.
        expected: What may stand there.
    """

    def __init__(self, key: str, came: object, expected: str) -> None:
        text = repr_of(came)
        what = "is missing" if came is Missing.MISSING else f"got {text if len(text) <= 100 else text[:99] + '…'}"
        super().__init__(f"{key}: {what}, expected {expected}")
        self.key = key
        self.came = came
        self.expected = expected


class NotBuiltError(PlanError):
    """A value that is reserved but not supported by this version."""

    def __init__(self, key: str, came: object, built: str) -> None:
        super().__init__(key, came, f"{built} (reserved, not supported by this version)")


class RecordError(HushsumError):
    """An array that cannot be read as records or queries of the plan: its type or its dimension."""


class NoUsableRecordsError(RecordError):
    """No record of a batch can be used. A caller that releases the sum goes on without the batch."""


class KeyFileError(HushsumError):
    """A file that should hold a private key: it is open to others, or holds no key of the expected kind."""


class DirectoryError(HushsumError):
    """A directory that cannot be used: an entry is unknown, damaged or ambiguous; the text names its key."""


class ContributionError(HushsumError):
    """A client would contribute more records to a window than ``privacy.records_per_client`` allows."""


class MergeError(HushsumError):
    """Two sketches that cannot be merged."""


class PlanMismatchError(MergeError):
    """Two sketches of different plans."""


class GuaranteeError(HushsumError):
    """A mechanism's parameters do not support the guarantee that is claimed."""


class CanonicalError(HushsumError):
    """A value that has no canonical encoding, or bytes that are not one."""


class SecureSumError(HushsumError):
    """A message of a secure sum that its receiver refuses, and after which it says nothing more in that round.

    Whoever sent it, or passed it on, did not keep to the protocol.
    """


class ReleaseError(HushsumError):
    """A release that cannot be trusted: truncated, altered, or of a newer format."""


class BudgetError(HushsumError):
    """A spend that would exceed a limit of the population's ledger."""


class LedgerError(HushsumError):
    """A ledger file that cannot be opened, read or written, is invalid, of a newer format, or not durable."""


class Reason(enum.StrEnum):
    """Why a delta is refused: stable names, used on the wire, in verdicts and in metrics."""

    MALFORMED = "malformed"
    NEWER_FORMAT = "newer_format"
    WRONG_PLAN = "wrong_plan"
    WRONG_SHAPE = "wrong_shape"
    EMPTY = "empty"
    BUCKET_OUT_OF_RANGE = "bucket_out_of_range"
    IMPOSSIBLE_COUNTS = "impossible_counts"
    TOO_MANY_RECORDS = "too_many_records"
    TOO_LARGE = "too_large"
    ID_REUSED = "id_reused"
    ID_OF_ANOTHER_WINDOW = "id_of_another_window"
    WINDOW_IN_PAST = "window_in_past"
    WINDOW_IN_FUTURE = "window_in_future"
    WRONG_PARTITION = "wrong_partition"
    UNSIGNED = "unsigned"
    WRONG_MODE = "wrong_mode"
    SECOND_DELTA = "second_delta"
    UNSHUFFLED = "unshuffled"
    TOO_FEW_REPORTS = "too_few_reports"
    TOO_MANY_WINDOWS = "too_many_windows"
    WINDOW_BEYOND_HORIZON = "window_beyond_horizon"


class DeltaError(HushsumError):
    """The bytes of a delta are not what its plan allows.

    Args:
        reason: The stable code that its sender gets.
        detail: One sentence with what came and what was expected.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


_INSIDE: Final = frozenset({"hushsum", "functools"})  # functools calls cached properties


def warn(warning: HushsumWarning) -> None:
    """Warns at the line outside this package that called it, however deep the call."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 -- the one way to it without reading source files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
