"""Small plans with cumulative releases."""

from collections.abc import Mapping

import hushsum as hs


def cumulative_plan(
    *,
    delta: str = "0",
    horizon: int = 100,
    sketch: Mapping[str, object] = {},
    window: Mapping[str, object] = {},
    **privacy: object,
) -> hs.Plan:
    """A plan of points in the unit square with a hashed sketch of 16 rows and 8 buckets."""
    return hs.Plan(
        name="sequence",
        record={"dim": 2, "lower": [0, 0], "upper": [1, 1]},
        sketch={
            "family": "hashed",
            "kernel": "euclidean",
            "bandwidth": "0.5",
            "rows": 16,
            "buckets": 8,
            "seed": 1,
            **sketch,
        },
        privacy={"epsilon": "1", "total_epsilon": "10", "delta": delta, "total_delta": delta, **privacy},
        window={"release": "cumulative", "horizon": horizon, **window},
    )
