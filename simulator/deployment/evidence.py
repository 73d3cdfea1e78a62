"""A release's own counters beside those of exactly the records that must be in it: what is left is noise, or a fault.

Every counter's noise is independent and of a known variance, so three numbers say whether all is there: the count, what
multiple of the exact counters the release holds, and how large its noise is.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from hushsum import query
from hushsum.privacy.mechanism import DISCRETE_LAPLACE
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator.material import Material

# Standard errors that one number may be off, and how often a service without a fault is more. Of one normal variable
# P(|Z| > 6) = 2e-9; of one Laplace variable P(|X| > 10σ) = exp(-10·√2) = 7e-7. Sums over thousands of counters are
# normal, with a kurtosis of 6 at most for each counter (discrete Laplace).
_NORMAL_MAX: Final = 6.0
_LAPLACE_MAX: Final = 10.0
_SQUARES_VARIANCE: Final = 5.0  # Var(X²)/Var(X)² of Laplace noise; of all others it is less
_COUNTERS_MIN: Final = 2000  # of fewer, sums are not normal so far out
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Expected:
    """How many records must be in a release.

    Attributes:
        least: At least so many,
        most: and at most.
        reports: They are counted exactly, in reports.
    """

    least: int
    most: int
    reports: bool = False


def count_fault(release: Release, expected: Expected) -> str:
    """What is wrong with the release's count, as the end of a sentence; empty where nothing is.

    False alarms: none for reports, at most 7e-7 a window for others.
    """
    found = release.count
    if expected.reports:
        wrong = not expected.least <= found <= expected.most
        return f"holds {found:,.0f} reports, expected {_between(expected)}" if wrong else ""
    error = query.count_std_error(release.plan, submissions=release.submissions)
    allowed = _count_errors_max(release) * error + _ROUNDING
    if expected.least - allowed <= found <= expected.most + allowed:
        return ""
    return f"counts {found:,.0f} records ± {error:.3g}, expected {_between(expected)}"


def counter_faults(release: Release, inside: Material) -> list[str]:
    """The same of its counters, where they are of exactly these records; false alarms: at most 1e-8 a window.

    Args:
        release: With noise on its counters, and not of reports.
        inside: What must be in it.
    """
    plan = release.plan
    exact = Sketch(plan)
    exact.add(inside.counted[np.isfinite(inside.counted).all(axis=1)])
    truth = exact.counters.astype(np.float64).ravel()
    noise = release.counters.astype(np.float64).ravel() - truth
    variance = query.noise_variance(plan, release.submissions)
    faults = []
    length = float(truth @ truth)
    if length > 0:
        multiple, error = 1 + float(noise @ truth) / length, math.sqrt(variance / length)
        if abs(multiple - 1) > _NORMAL_MAX * error + _ROUNDING:
            faults.append(f"holds {multiple:.3g} ± {error:.2g} times the records that were counted, expected 1")
    if variance > 0 and noise.size >= _COUNTERS_MIN:
        ratio, error = float(noise @ noise) / (noise.size * variance), math.sqrt(_SQUARES_VARIANCE / noise.size)
        if abs(ratio - 1) > _NORMAL_MAX * error:
            faults.append(f"errs by {ratio:.3g} ± {error:.2g} times the variance of its plan's noise, expected 1")
    return faults


def _count_errors_max(release: Release) -> float:
    return _LAPLACE_MAX if release.plan.privacy.mechanism.name == DISCRETE_LAPLACE else _NORMAL_MAX


def _between(expected: Expected) -> str:
    if expected.least == expected.most:
        return f"{expected.least:,}"
    return f"{expected.least:,} to {expected.most:,}"
