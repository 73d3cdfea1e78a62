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
    ContributionError,
    DeltaError,
    GuaranteeError,
    HushsumError,
    LedgerError,
    MergeError,
    NotBuiltError,
    PlanError,
    PlanMismatchError,
    Reason,
    RecordError,
    ReleaseError,
)
from hushsum.families import Answer
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
    "ContributionError",
    "DeltaError",
    "Guarantee",
    "GuaranteeError",
    "HushsumError",
    "Ledger",
    "LedgerError",
    "MergeError",
    "NotBuiltError",
    "Plan",
    "PlanError",
    "PlanMismatchError",
    "Reason",
    "RecordError",
    "Release",
    "ReleaseError",
    "Sketch",
    "load",
    "release",
]
