"""What waits for a window's turn, as one vector: the counters of this client's records of a window."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hushsum.delta import apply, unpack_at_home
from hushsum.plan import Plan

_Int64s = npt.NDArray[np.int64]


def counters_of(plan: Plan, deltas: Iterable[bytes]) -> tuple[_Int64s, _Int64s]:
    """(counters (D,), count counters (classes,)) of packed deltas; zeros where there are none.

    D is the number of counters of all classes together. The count counters are records × ``count_scale``. What is
    beyond int64 wraps around, as the sum of the cohort does: no record decides whether the others count.
    """
    counters = np.zeros(plan.counters_shape, dtype=np.int64)
    counts = np.zeros(plan.counters_shape[0], dtype=np.int64)
    with np.errstate(over="ignore"):
        for data in deltas:
            apply(unpack_at_home(data, plan), counters, counts, plan.privacy.mechanism.count_scale)
    return counters.reshape(-1), counts
