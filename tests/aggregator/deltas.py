"""Deltas whose every one is told apart in the sum: number i adds 1 to counter i, and nothing else.

So a loss shows as 0 and a double count as 2.
"""

from functools import cache

import numpy as np

from hushsum import Plan
from hushsum.delta import Delta, DeltaId, Run
from hushsum.families import Increments
from hushsum_proto.entries import DeltaEntry, partition_of
from tests.plans import small_plan, tables

COUNTERS = 10_000  # three blocks, the last one not full


def tally_plan(
    *,
    records_per_client: int | None = None,
    counters: int = COUNTERS,
    total_epsilon: object = 100,
    min_clients: int = 0,
    participation: str = "protected",
) -> Plan:
    """A plan of one row, so that a delta of one record is one counter."""
    privacy: dict[str, object] = {"total_epsilon": total_epsilon, "participation": participation}
    if records_per_client is not None:
        privacy |= {"unit": "client", "records_per_client": records_per_client}
    window: dict[str, object] = {"min_clients": min_clients}
    return small_plan(sketch={"rows": 1, "buckets": counters}, privacy=privacy, window=window)


def cumulative_plan(
    *,
    name: str = "test",
    horizon: int = 100,
    counters: int = COUNTERS,
    total_epsilon: object = 100,
    delta: str = "0",
    late: str = "drop",
) -> Plan:
    """A plan of cumulative releases and unit record: with a δ by buffers, without by a tree."""
    privacy: dict[str, object] = {"total_epsilon": total_epsilon, "delta": delta, "total_delta": delta}
    if delta != "0":
        privacy["noise"] = "gaussian"
    window: dict[str, object] = {"release": "cumulative", "horizon": horizon, "late": late}
    fields = tables(sketch={"rows": 1, "buckets": counters}, privacy=privacy, window=window)
    return Plan.from_fields({**fields, "name": name})


def windowed_plan(
    windows_per_client: int, *, horizon: int = 100, records_per_client: int = 5, **window: object
) -> Plan:
    """A plan of cumulative releases and unit client; ``window`` has other keys of that table."""
    window |= {"release": "cumulative", "horizon": horizon, "windows_per_client": windows_per_client}
    privacy = {"unit": "client", "records_per_client": records_per_client}
    return small_plan(sketch={"rows": 1, "buckets": COUNTERS}, privacy=privacy, window=window)


def tally(plan: Plan, number: int, window: int, stream: int, sequence: int, records: int = 1) -> bytes:
    """The packed delta that adds ``records`` to counter ``number``."""
    increments = Increments(np.array([number]), np.array([records]))
    run = Run(0, records, increments)
    return Delta(plan.id, window, DeltaId(stream, sequence), (run,)).pack(plan)


def entry(client_id: str, delta: bytes) -> DeltaEntry:
    return DeltaEntry(client_id, delta, 0)


@cache
def clients_of(partition: int, partitions: int) -> tuple[str, ...]:
    """Client ids that belong to a partition."""
    names = (f"client-{index}" for index in range(10_000))
    return tuple(name for name in names if partition_of(name, partitions) == partition)


def client_of(partition: int, partitions: int, number: int = 0) -> str:
    """The ``number``-th client id that belongs to a partition."""
    return clients_of(partition, partitions)[number]
