"""Summaries of runs in local mode in which all went well, to be doctored."""

import dataclasses
from typing import Any

from simulator.local.summary import LocalSummary
from tests.simulator.summaries import GOOD

_SHARED = {
    **dataclasses.asdict(GOOD),
    "mode": "local",
    "counters_equal": None,
    "epsilon": 4.0,
    "epsilon_spent": 4.0,
    "epsilon_left": 36.0,
    "mean_relative_error": 0.0213,
    "expected_relative_error": 0.0232,
}
GOOD_REPORTS = LocalSummary(
    **{**_SHARED, "deltas_sent": 1099, "deltas_counted": 1099, "bytes_per_record": 3.31},
    form="report",
    randomiser="k-rr",
    sketch="4,000 rows of 56 buckets",
    reports_sent=271_280,
    reports_acknowledged=271_280,
    reports_counted=271_280,
    report_bytes=3,
    report_bytes_max=4,
    bytes_searched=7_600_000,
    names_control=True,
    account_spent=4.0,
    account_left=36.0,
    central_relative_error=0.0141,
    central_sketch="1,000 rows of 1,024 buckets",
)
GOOD_SHUFFLED = dataclasses.replace(
    GOOD_REPORTS,
    shuffle_min=135_640,
    shuffler_restarts=1,
    shuffled_batches=1,
    amplified_epsilon=0.474,
    amplified_delta=1e-6,
)
GOOD_SILOS = LocalSummary(
    **{**_SHARED, "clients": 40, "deltas_sent": 40, "deltas_counted": 40},
    form="silo",
    sketch="800 rows of 128 buckets",
    submissions_acknowledged=40,
    submissions_released=40,
    submission_bytes=179_202,
    noise_variance_ratio=0.9968,
    noise_variance_z=-0.7,
    noise_mean_z=0.6,
    client_z=1.6,
    names_found=40,
    account_spent=4.0,
    account_left=36.0,
    central_relative_error=0.0136,
)


def doctored(good: LocalSummary, **changes: Any) -> LocalSummary:
    """The good run with some numbers changed."""
    return dataclasses.replace(good, **changes)
