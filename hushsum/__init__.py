"""Hushsum: answers about data that never leaves the devices that hold it.

Hash at the edge, add in the middle, noise once, query for ever:

    >>> import hushsum as hs
    >>> plan = hs.Plan.from_toml("plan.toml")
    >>> sketch = hs.Sketch(plan)
    >>> sketch.add(records)
    >>> release = hs.release(sketch)
    >>> release.kernel_sum(queries).interval(0.95)
"""

from typing import TYPE_CHECKING, Final

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
from hushsum.sketch import Sketch

if TYPE_CHECKING:
    from hushsum.privacy.ledger import Ledger
    from hushsum.releases import Release, Series, load, release

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
    "Series",
    "Sketch",
    "load",
    "release",
]

# A device needs no releases and no ledger: these names load their modules at the first use.
_LOADED_AT_FIRST_USE: Final = {
    "Ledger": "hushsum.privacy.ledger",
    "Release": "hushsum.releases",
    "Series": "hushsum.releases",
    "load": "hushsum.releases",
    "release": "hushsum.releases",
}

if not TYPE_CHECKING:  # a type checker knows the names above, and reports all others

    def __getattr__(name: str) -> object:
        if name not in _LOADED_AT_FIRST_USE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_LOADED_AT_FIRST_USE[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
