"""How far the answers of a release are from the truth, and how far they should be."""

import math
from dataclasses import dataclass
from typing import Final

from hushsum import query
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator.records import Floats

#: Where fewer than a thousandth of all records are near, a relative error divides by next to nothing.
FLOOR_SHARE: Final = 1e-3


@dataclass(frozen=True)
class Accuracy:
    """Errors over the queries whose exact kernel sum is above a floor.

    Attributes:
        mean_relative: Mean of |f̂ − f|/f; None where no query is above the floor.
        expected_relative: Mean of √(2/π)·√(V_hash + V_noise)/f: what that mean should be; None where one row alone
            does not show its V_hash.
        queries: How many are above the floor.
        floor: In records.
        mean_kernel_sum: Of the exact sums of those queries; 0 where there are none.
    """

    mean_relative: float | None
    expected_relative: float | None
    queries: int
    floor: float
    mean_kernel_sum: float


def measure(release: Release, bulk: Sketch, queries: Floats, exact: Floats) -> Accuracy:
    """Compares a release with the truth.

    V_noise is the mechanism's, from the plan alone. V_hash is the variance that the random hashes bring, estimated from
    the spread of the rows of the exact sketch: only who holds the records can do that. A normal error of standard
    deviation s has the mean absolute value √(2/π)·s.

    Args:
        release: What an analyst has.
        bulk: The exact sketch of the same records.
        queries: (m, d).
        exact: (m,), their exact kernel sums.
    """
    floor = FLOOR_SHARE * bulk.records
    above = exact > floor
    if not above.any():
        return Accuracy(None, None, 0, floor, 0.0)
    some, truth = queries[above], exact[above]
    error = abs(release.kernel_sum(some).value - truth)
    hashing = bulk.plan.family.answer(bulk.counters.sum(axis=0), some).std_error
    # The answer is that of all classes together, each with its own noise.
    deviation = (hashing**2 + len(bulk.counters) * query.noise_std_error(bulk.plan) ** 2) ** 0.5
    return Accuracy(
        mean_relative=float((error / truth).mean()),
        expected_relative=_finite(math.sqrt(2 / math.pi) * (deviation / truth).mean()),
        queries=int(above.sum()),
        floor=floor,
        mean_kernel_sum=float(truth.mean()),
    )


def compare(values: Floats, std_errors: Floats, exact: Floats, records: int) -> Accuracy:
    """How far answers are from the truth, and how far they say themselves that they may be.

    Args:
        values: (m,) answers,
        std_errors: their standard errors,
        exact: and the exact kernel sums.
        records: All of them.
    """
    floor = FLOOR_SHARE * records
    above = exact > floor
    if not above.any():
        return Accuracy(None, None, 0, floor, 0.0)
    truth = exact[above]
    return Accuracy(
        mean_relative=float((abs(values[above] - truth) / truth).mean()),
        expected_relative=_finite(math.sqrt(2 / math.pi) * (std_errors[above] / truth).mean()),
        queries=int(above.sum()),
        floor=floor,
        mean_kernel_sum=float(truth.mean()),
    )


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
