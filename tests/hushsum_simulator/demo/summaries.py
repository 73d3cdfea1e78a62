"""Summaries of runs in which all went well, to be doctored."""

import dataclasses
from typing import Any

from hushsum_simulator import Summary
from hushsum_simulator.demo.evaluation import Residual
from hushsum_simulator.demo.local import LocalSummary
from hushsum_simulator.demo.secure import SecureSummary
from hushsum_simulator.demo.summary import residual_checks

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


GOOD_SECURE = SecureSummary(
    **{
        **dataclasses.asdict(GOOD),
        "deltas_sent": 0,
        "deltas_resent": 0,
        "duplicates_dropped": 0,
        "deltas_counted": 0,
        "counters_equal": None,
        "restarts": 0,
        "unacknowledged_at_kill": 0,
        "mean_relative_error": 0.0265,
        "noise_std_error": 7.6,
        "delta": 1e-6,
        "mode": "secure",
        "clients_dropped": 20,
        "cohorts": 2,
        "rounds_aborted": 3,
        "submissions_spent": 189,
        "upload_bytes_per_client": 261_940.0,
    },
    dropout_rate=0.1,
    cohort_size=100,
    clients_unspent=11,
    submissions_counted=187,
    submissions_lost=2,
    submissions_asked=8,
    submissions_released=187,
    noise_variance_ratio=1.0072,
    noise_variance_z=1.6,
    noise_mean_z=-1.5,
    client_z=3.1,
    vector_bytes=256_003,
    rounds_seconds=20.5,
    central_relative_error=0.0250,
    central_noise_std_error=4.7,
)


def doctored_secure(**changes: Any) -> SecureSummary:
    """The good run in secure mode with some numbers changed."""
    return dataclasses.replace(GOOD_SECURE, **changes)


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


def doctored_local(good: LocalSummary, **changes: Any) -> LocalSummary:
    """The good run with some numbers changed."""
    return dataclasses.replace(good, **changes)


def is_noise(residual: Residual) -> bool:
    """Whether no check of a run finds more than noise in it."""
    return all(kept for kept, _ in residual_checks(residual, "vector"))
