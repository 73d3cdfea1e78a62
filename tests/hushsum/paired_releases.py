"""Releases of the paired family for tests: noise of any size, from a seed."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum import Plan, Release
from tests.plans import small_plan

Floats = npt.NDArray[np.float64]
BOUNDS: dict[str, object] = {"dim": 3, "lower": [-2, -2, -2], "upper": [2, 2, 2]}
PLAIN: dict[str, object] = {"kernel": ..., "bandwidth": ..., "buckets": ...}


def paired_plan(**sketch: Any) -> Plan:
    return small_plan(record=BOUNDS, sketch={**PLAIN, "family": "paired", **sketch})


def release_of(plan: Plan, records: Floats, noise: float = 0.0, seed: int = 0) -> Release:
    counters = np.zeros((1, *plan.family.shape), np.int64)
    plan.family.add(counters[0], plan.family.accept(records)[0])
    counters += np.rint(np.random.default_rng(seed).normal(0, noise, counters.shape)).astype(np.int64)
    return Release(
        plan, "in-process", None, counters, np.zeros(plan.count_counters, np.int64), plan.guarantee, accounted=False
    )


def regression_records(rng: np.random.Generator, n: int) -> Floats:
    x = rng.uniform(-1, 1, (n, 2))
    return np.column_stack([x, x @ [0.5, -0.3] + rng.uniform(-0.4, 0.4, n)])
