"""Compiled loops over vector records; :mod:`hushsum.families.vectors` alone calls them."""

import numpy as np

from hushsum.compiled import compiled
from hushsum.families.base import Float32


@compiled
def within(records: Float32, lower: Float32, upper: Float32) -> bool:
    """Whether all records (n, d) lie within the bounds (d,); NaN does not."""
    inside = True
    for i in range(len(records)):
        for j in range(len(lower)):
            inside = inside & (records[i, j] >= lower[j]) & (records[i, j] <= upper[j])
    return inside


def warm_up() -> None:
    """Compiles the loop, or loads what was compiled before."""
    point = np.zeros((1, 1), np.float32)
    within(point, point[0], point[0])
