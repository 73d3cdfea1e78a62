"""The compiled loop of :mod:`hushsum.families.lsh.single_row`; nothing here is checked."""

import numpy as np

from hushsum.compiled import compiled
from hushsum.families.lsh.arrays import Float32, Float64, Int64


@compiled
def project(directions: Float32, offsets: Float64, signs: int, records: Float32, parts: Int64, codes: Int64) -> None:
    """The code (n,) of part ``parts[i]`` of records (n, d): products are exact in float64, sums are in order."""
    n, d = records.shape
    for i in range(n):
        part = parts[i]
        total = np.float64(directions[part, 0]) * np.float64(records[i, 0])
        for j in range(1, d):
            total += np.float64(directions[part, j]) * np.float64(records[i, j])
        if signs:
            codes[i] = 1 if total >= 0.0 else 0
        else:
            codes[i] = np.int64(np.floor(total + offsets[part]))


def warm_up() -> None:
    """Compiles the loop, or loads what was compiled before."""
    codes = np.zeros(1, np.int64)
    for signs in (0, 1):
        project(np.zeros((1, 1), np.float32), np.zeros(1), signs, np.zeros((1, 1), np.float32), codes, codes.copy())
