"""A summary of a run in which all went well, to be doctored."""

import dataclasses
from typing import Any

from simulator import Summary

GOOD = Summary(
    records=271_280,
    records_dropped=0,
    deltas_sent=5121,
    deltas_resent=124,
    duplicates_dropped=77,
    deltas_counted=5121,
    deltas_lost=0,
    deltas_double_counted=0,
    counters_equal=True,
    bytes_per_record=794.2,
    restarts=1,
    seconds=31.5,
    mean_relative_error=0.0207,
    expected_relative_error=0.0323,
    epsilon_spent=1.0,
    epsilon_left=9.0,
    clients=200,
    queries=2000,
    queries_held_out=2000,
    error_floor=271.28,
    mean_kernel_sum=8600.0,
    noise_std_error=47.1,
    epsilon=1.0,
    delta=0.0,
    unit="record",
    records_per_client=None,
    unacknowledged_at_kill=77,
    seed=7,
    plan_id="25" * 32,
)


def doctored(**changes: Any) -> Summary:
    """The good run with some numbers changed."""
    return dataclasses.replace(GOOD, **changes)
