"""Sums of cohorts for tests: plans of small cohorts, and entries whose counters and counts a test chooses."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from hushsum import Plan
from hushsum_proto.entries import CohortSumEntry, partition_of_sum
from tests.plans import small_plan

COHORT: Mapping[str, object] = {"cohort": 10, "corrupt": "0.1", "dropout": "0.2"}  # 8 to 10 submissions
LEAST, MOST = 8, 10


@cache
def secure_plan(*, counters: int = 5000, total_epsilon: object = 100, classes: int = 1, unit: str = "client") -> Plan:
    """A secure plan of one row."""
    record = {"classes": [f"class {index}" for index in range(classes)]} if classes > 1 else {}
    bound = {"records_per_client": 3} if unit == "client" else {}
    privacy: dict[str, object] = {
        "mode": "secure",
        "total_epsilon": total_epsilon,
        "total_delta": "0.001",
        "unit": unit,
    } | bound
    privacy["secure"] = COHORT
    return small_plan(record=record, sketch={"rows": 1, "buckets": counters}, privacy=privacy)


def packed(plan: Plan, counters: Mapping[int, int], counts: Sequence[int] = ()) -> bytes:
    """The packed sum of these counters, by their index over all classes, and counts; the others are 0."""
    words = plan.words
    values, numbers = np.zeros(words.size, np.int64), np.zeros(words.classes, np.int64)
    values[list(counters)] = list(counters.values())
    numbers[: len(counts)] = counts
    return words.pack(words.of(values, numbers))


def cohort_sum(
    plan: Plan,
    window: int,
    counters: Mapping[int, int],
    counts: Sequence[int] = (),
    *,
    number: int = 0,
    place: tuple[int, int] = (0, 1),
    submissions: int = MOST,
) -> CohortSumEntry:
    """The sum of the ``number``-th round whose id belongs to ``place``: a partition of so many."""
    return sum_of(plan, window, packed(plan, counters, counts), number=number, place=place, submissions=submissions)


def sum_of(
    plan: Plan,
    window: int,
    data: bytes,
    *,
    number: int = 0,
    place: tuple[int, int] = (0, 1),
    submissions: int = MOST,
) -> CohortSumEntry:
    """As :func:`cohort_sum`, of these bytes."""
    return CohortSumEntry(plan.id, window, round_of(plan.id, window, number, *place), submissions, data, 0)


@cache
def round_of(plan_id: bytes, window: int, number: int, partition: int, partitions: int) -> bytes:
    """The ``number``-th id of a round of a window that belongs to a partition."""
    candidate = 0
    while True:
        round_id = candidate.to_bytes(32, "big")
        if partition_of_sum(CohortSumEntry(plan_id, window, round_id, 1, b"", 0).id, partitions) == partition:
            if number == 0:
                return round_id
            number -= 1
        candidate += 1


def dense(plan: Plan, counters: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """These counters in the shape of the plan's."""
    values = np.zeros(plan.words.size, np.int64)
    values[list(counters)] = list(counters.values())
    return values.reshape(plan.counters_shape)
