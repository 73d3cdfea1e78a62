"""Shamir's shares: of one client's secret and of a whole cohort's, beside Flower's helper functions."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import Row
from benchmarks.secure.flower import Flower, flower
from benchmarks.stopwatch import Rounds
from hushsum.entropy import OsEntropy
from hushsum.secure_sum import shamir

TITLE = (
    "Shamir, microseconds a secret of 32 bytes (share: what one client does; combine: one secret at a time, and a "
    "cohort of 1,000 whose survivors differ; Flower: create_shares and combine_shares, one secret)"
)
SIZES = ((51, 100), (67, 96), (85, 122))
COHORT, COHORT_QUICK = 1000, 50


def measure(*, quick: bool) -> list[Row]:
    """One row for each threshold and number of shares."""
    with flower() as peer:
        return [_measure(threshold, shares, peer, quick=quick) for threshold, shares in SIZES[: 1 if quick else None]]


def _measure(threshold: int, shares: int, peer: Flower | None, *, quick: bool) -> Row:
    size, entropy, rng = COHORT_QUICK if quick else COHORT, OsEntropy(), np.random.default_rng(1)
    secrets = np.frombuffer(os.urandom(32 * size), np.uint8).reshape(size, 32)
    made = shamir.split(secrets, threshold, shares, entropy)
    indices = np.argsort(rng.random((size, shares)), axis=1)[:, :threshold].astype(np.uint8) + np.uint8(1)
    held = np.ascontiguousarray(made[indices.astype(np.int64) - 1, np.arange(size)[:, None]])
    alone = indices[0].tolist(), [row.tobytes() for row in held[0]]
    if shamir.combine(*alone, threshold) != secrets[0].tobytes():
        raise RuntimeError("another secret was put together")
    if not np.array_equal(shamir.combine_many(indices, held, threshold), secrets):
        raise RuntimeError("other secrets were put together")
    cases: dict[str, Callable[[], Any]] = {
        "share": lambda: shamir.split(secrets[0], threshold, shares, entropy),
        "combine": lambda: shamir.combine(*alone, threshold),
        "combine a cohort": lambda: shamir.combine_many(indices, held, threshold),
    }
    if peer is not None:
        cases |= {"Flower share": peer.case("share", threshold, shares)}
        cases |= {"Flower combine": peer.case("combine", threshold, shares)}
    rounds = Rounds(cases, repeats=1 if quick else 9)
    many = {"combine a cohort": size}
    row: Row = {"threshold": threshold, "shares": shares, "cohort": size}
    row |= {f"{name} µs": 1e6 * rounds.seconds(name) / many.get(name, 1) for name in cases}
    if peer is not None:
        row |= {"Flower/ours, share": rounds.ratio(["Flower share"], ["share"])}
        row |= {"Flower/ours, combine": rounds.ratio(["Flower combine"], ["combine"])}
        row |= {"Flower/ours, a cohort": rounds.ratio(["Flower combine"], ["combine a cohort"]) * size}
    return row
