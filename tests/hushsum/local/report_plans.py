"""Small plans of reports, and what their devices and an aggregator do in one step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum import Plan
from hushsum.entropy import Entropy, ReplayableEntropy
from hushsum.local import reports as encoding
from tests.plans import small_plan

Int64 = npt.NDArray[np.int64]
BOTH = ("k-rr", "projective")


def report_plan(randomiser: str = "k-rr", epsilon: float = 2, **changes: Mapping[str, object]) -> Plan:
    """Of the hashed family; buckets are direct unless there are many rows."""
    local = {"form": "report", "randomiser": randomiser}
    privacy = {"mode": "local", "epsilon": epsilon, **changes.pop("privacy", {}), "local": local}
    return small_plan(privacy=privacy, **changes)


def rehashed_plan(randomiser: str = "k-rr", epsilon: float = 2, **changes: Mapping[str, object]) -> Plan:
    """The same with codes that never fit into its 8 buckets."""
    sketch = {"bandwidth": "0.25", "buckets": 8, **changes.pop("sketch", {})}
    return report_plan(randomiser, epsilon, sketch=sketch, **changes)


def wave_plan(epsilon: float = 2, **sketch: object) -> Plan:
    """Of the fourier family."""
    keys = {"family": "fourier", "kernel": "gaussian", "buckets": ..., "rows": 20, **sketch}
    return small_plan(privacy={"mode": "local", "epsilon": epsilon}, sketch=keys)


def entropy_of(rng: np.random.Generator) -> Entropy:
    """Replayable, of the test's seed."""
    return ReplayableEntropy(rng.bytes(16))


def counted(plan: Plan, reports: Int64) -> Int64:
    """(1, R, outputs)."""
    shape = plan.counters_shape
    return np.bincount(reports, minlength=int(np.prod(shape))).reshape(shape).astype(np.int64)


def collected(plan: Plan, records: Any, entropy: Entropy, labels: object = None) -> Int64:
    """The counters of one report a record."""
    return counted(plan, encoding.reports(plan, records, labels, entropy)[0])
