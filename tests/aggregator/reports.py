"""Batches of reports and noised whole deltas for tests: plans of few counters, and entries as gateways write them."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from hushsum import Plan
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy, OsEntropy
from hushsum.local.report_batch import ReportBatch
from hushsum.local.silo import submission
from hushsum_proto.entries import DeltaEntry, ReportsEntry
from tests.plans import small_plan

SHUFFLE_MIN = 100


@cache
def report_plan(
    *, rows: int = 20, buckets: int = 64, shuffle_min: int = 0, min_reports: int = 0, total_epsilon: object = 100
) -> Plan:
    """A plan of k-RR reports: rows times buckets counters."""
    shuffled = {"shuffle_min": shuffle_min} if shuffle_min else {}
    delta = {"delta": "0.000001", "total_delta": "0.001"} if shuffle_min else {}
    privacy = {"mode": "local", "epsilon": 1, "total_epsilon": total_epsilon, "local": shuffled, **delta}
    window: Mapping[str, object] = {"min_reports": min_reports} if min_reports else {}
    return small_plan(sketch={"rows": rows, "buckets": buckets}, privacy=privacy, window=window)


def reports_of(
    plan: Plan, window: int, reports: Sequence[int], *, stream: int, sequence: int = 0, shuffled: bool = False
) -> ReportsEntry:
    """A batch of these reports, as a gateway writes it."""
    batch = ReportBatch(plan.id, window, DeltaId(stream, 0), np.array(reports, np.int64)).pack(plan)
    if sequence:
        batch = renumbered_batch(batch, sequence)
    return ReportsEntry(batch, shuffled, plan.window.start_ms(window))


def renumbered_batch(batch: bytes, sequence: int) -> bytes:
    """The same batch under a sequence number below 128, which no device gives it."""
    assert batch[41] == 0
    return batch[:41] + bytes([sequence]) + batch[42:]


@cache
def silo_plan(
    *, counters: int = 50, min_clients: int = 0, total_epsilon: object = 100, unit: str = "client", classes: int = 1
) -> Plan:
    """A plan of noised whole deltas, of one row."""
    record = {"classes": [f"class {index}" for index in range(classes)]} if classes > 1 else {}
    bound = {"records_per_client": 3} if unit == "client" else {}
    privacy = {"mode": "local", "unit": unit, "total_epsilon": total_epsilon, "local": {"form": "silo"}, **bound}
    window: Mapping[str, object] = {"min_clients": min_clients} if min_clients else {}
    return small_plan(record=record, sketch={"rows": 1, "buckets": counters}, privacy=privacy, window=window)


def silo_of(
    plan: Plan,
    client_id: str,
    window: int,
    counted: Mapping[int, int],
    *,
    stream: int = 1,
    sequence: int = 0,
    entropy: Entropy | None = None,
) -> DeltaEntry:
    """A client's noised sum of these counters, by their index over all classes; the others are 0 before the noise."""
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.counters_shape[:1], np.int64)
    counters.reshape(-1)[list(counted)] = list(counted.values())
    id = DeltaId(stream, sequence)
    data = submission(plan, counters, counts, window=window, id=id, entropy=entropy or OsEntropy())
    return DeltaEntry(client_id, data, plan.window.start_ms(window))
