"""Hushsum: answers about data that never leaves the devices that hold it.

Hash at the edge, add in the middle, noise once, query for ever:

    >>> import hushsum as hs
    >>> plan = hs.Plan.from_toml("plan.toml")
    >>> sketch = hs.Sketch(plan)
    >>> sketch.add(records)
    >>> release = hs.release(sketch)
    >>> release.kernel_sum(queries).interval(0.95)
"""

from hushsum.errors import (
    BudgetError,
    CanonicalError,
    ClippedRecordsWarning,
    ContributionError,
    DeltaError,
    DroppedRecordsWarning,
    GuaranteeError,
    HushsumError,
    HushsumWarning,
    LedgerError,
    MergeError,
    NotBuiltError,
    PlanError,
    PlanMismatchError,
    PlanWarning,
    Reason,
    RecordError,
    ReleaseError,
)
from hushsum.families import Answer, Interval
from hushsum.plan import Plan
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.ledger import Ledger
from hushsum.releases import Release, load, release
from hushsum.sketch import Sketch

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BudgetError",
    "CanonicalError",
    "ClippedRecordsWarning",
    "ContributionError",
    "DeltaError",
    "DroppedRecordsWarning",
    "Guarantee",
    "GuaranteeError",
    "HushsumError",
    "HushsumWarning",
    "Interval",
    "Ledger",
    "LedgerError",
    "MergeError",
    "NotBuiltError",
    "Plan",
    "PlanError",
    "PlanMismatchError",
    "PlanWarning",
    "Reason",
    "RecordError",
    "Release",
    "ReleaseError",
    "Sketch",
    "load",
    "release",
]
