"""Deltas of one record for a plan of R rows and W = 1024 buckets, as many as are wanted, each with its own id."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hushsum.delta import DeltaId, encode, renumbered
from hushsum.plan import Plan

WIDTH = 1024
_TEMPLATES = 256


def plan_of(
    rows: int, *, length: str = "3650d", privacy: Mapping[str, object] = {}, window: Mapping[str, object] = {}
) -> Plan:
    """A plan whose window does not end meanwhile."""
    fields: dict[str, Any] = {
        "name": f"service-{rows}",
        "record": {"kind": "vector", "dim": 2, "lower": [0, 0], "upper": [10, 10]},
        "sketch": {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "rows": rows, "buckets": WIDTH},
        "privacy": {"epsilon": 1, "total_epsilon": 10, **privacy},
        "window": {"length": length, "lateness": "5m", **window},
    }
    return Plan.from_fields(fields)


class Deltas:
    """Packed deltas of one window: the records of some hundred, in turn, under ever new ids."""

    def __init__(self, plan: Plan, window: int) -> None:
        values = np.random.default_rng(1).uniform(0, 10, (_TEMPLATES, 2))
        made = (encode(plan, value[None], window=window, id=DeltaId(0, 0))[0] for value in values)
        self._templates = [delta.pack(plan) for delta in made if delta is not None]

    def packed(self, stream: int, first: int, count: int) -> list[bytes]:
        """Consecutive ones of a stream."""
        return [
            renumbered(self._templates[(stream + n) % _TEMPLATES], DeltaId(stream, n))
            for n in range(first, first + count)
        ]
