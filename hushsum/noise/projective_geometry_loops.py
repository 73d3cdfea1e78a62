"""Folding one coordinate in a compiled loop: the same as in :mod:`hushsum.noise.projective_geometry`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled

_CACHED: Final = 1 << 16  # numbers that one pass works on
_RUN_MIN: Final = 32  # of them side by side

Int64 = npt.NDArray[np.int64]


def warm_up() -> None:
    """Compiles the loop, or loads it."""
    folded(np.zeros((2, 1, 2, 1), np.int64), 2, 2)


def folded(state: Int64, field: int, most: int) -> Int64:
    """See :func:`hushsum.noise.projective_geometry.folded`."""
    result = np.empty((field, state.shape[1], most, state.shape[3]), np.int64)
    _fold(np.ascontiguousarray(state), result, max(_RUN_MIN, _CACHED // field**2))
    return result


@compiled
def _fold(state: Int64, result: Int64, run: int) -> None:
    field, before, most, after = result.shape
    for b in range(before):
        for start in range(0, after, run):
            end = min(after, start + run)
            for w in range(most):
                for z in range(field):
                    out = result[z, b, w]
                    first = state[z, b, 0]
                    for i in range(start, end):
                        out[i] = first[i]
                    at = z
                    for x in range(1, field):
                        at -= w
                        if at < 0:
                            at += field
                        added = state[at, b, x]
                        for i in range(start, end):
                            out[i] += added[i]
