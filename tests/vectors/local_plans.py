"""Plans of mode ``local`` whose bytes are frozen: every form, randomiser and kind of record once."""

from typing import Any, Final

import hushsum as hs

_CUBE: Final[dict[str, object]] = {"dim": 3, "lower": [0, 0, 0], "upper": [255, 255, 255]}
_LABELLED: Final[dict[str, object]] = {**_CUBE, "classes": ["dark", "light"]}
_SETS: Final[dict[str, object]] = {"kind": "set", "universe": 1000}
_ROWS: Final[dict[str, object]] = {"family": "hashed", "kernel": "euclidean", "bandwidth": 40, "rows": 12, "seed": 3}
_WAVES: Final[dict[str, object]] = {"family": "fourier", "kernel": "gaussian", "bandwidth": 90, "rows": 8, "seed": 3}
_MINHASH: Final[dict[str, object]] = {"family": "hashed", "kernel": "jaccard", "rows": 12, "buckets": 8, "seed": 3}
_CLIENT: Final[dict[str, object]] = {"unit": "client", "records_per_client": 4}

_SHUFFLED: Final[dict[str, object]] = {"form": "report", "shuffle_min": 5000}
#: Record, sketch, privacy but for what all share, window.
PLANS: Final[dict[str, tuple[dict[str, object], dict[str, object], dict[str, object], dict[str, object]]]] = {
    "silo": (_CUBE, {**_ROWS, "buckets": 16}, {"local": {"form": "silo"}}, {"min_clients": 2}),
    "silo, classes, client, Gaussian": (
        _LABELLED,
        _WAVES,
        {"local": {"form": "silo"}, "delta": "0.000001", "total_delta": "0.000001", **_CLIENT},
        {},
    ),
    "silo, no count counters": (
        _LABELLED,
        {"family": "partition", "bandwidth": 128, "rows": 1, "buckets": 8, "seed": 3},
        {"local": {"form": "silo"}},
        {},
    ),
    "k-rr": (_CUBE, {**_ROWS, "buckets": 16}, {"local": {"form": "report"}}, {"min_reports": 3}),
    "k-rr, sets, client, memoised": (_SETS, _MINHASH, {"local": {"memoise": True}, **_CLIENT}, {}),
    "projective, classes": (_LABELLED, {**_ROWS, "buckets": 64}, {"local": {"randomiser": "projective"}}, {}),
    "one-bit, shuffled": (_CUBE, _WAVES, {"local": _SHUFFLED, "delta": "0.000001"}, {}),
}


def plan_of(name: str) -> hs.Plan:
    """One of the plans."""
    record, sketch, privacy, window = PLANS[name]
    common: dict[str, Any] = {"mode": "local", "epsilon": 2, "total_epsilon": 8}
    return hs.Plan(name=name, record=record, sketch=sketch, privacy={**common, **privacy}, window=window)
