"""Whether a release without its exact sum is the noise that the plan says, and nothing else.

Three things are looked at: the mean and the variance over all counters, and for every client how much of its own vector
is left. A client that is lost leaves −1 of it, one that is counted twice +1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.plan import Plan
from hushsum.privacy.mechanism import DISCRETE_LAPLACE

Counters = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

#: Beyond so many standard errors something is wrong: a normal quantity gets there once in 500 million looks.
LIMIT: Final = 6.0


@dataclass(frozen=True)
class Residual:
    """What is left, in standard errors of what is looked at; of noise alone each is a standard normal quantity.

    Attributes:
        variance_ratio: The empirical variance over the expected one.
        variance_z: How far that is from 1.
        mean_z: How far the mean is from 0.
        client_z: The largest part of one client's vector that is left, of all clients.
    """

    variance_ratio: float
    variance_z: float
    mean_z: float
    client_z: float

    @property
    def is_noise(self) -> bool:
        """Whether all is within :data:`LIMIT`; noise alone is not less than once in a million runs of 400 clients."""
        return max(abs(self.variance_z), abs(self.mean_z), abs(self.client_z)) <= LIMIT


def examine(left: Counters, vectors: Sequence[Callable[[], Counters]], variance: float, *, excess: float) -> Residual:
    """Looks at what is left.

    Args:
        left: (D,) the released counters less the exact sum.
        vectors: Each makes the exact counters (D,) of one client, whether it is in the sum or not; one at a time.
        variance: Of the noise of one counter, as the plan and the number of submissions say.
        excess: The noise's excess kurtosis, or more: it widens what the empirical variance may be.
    """
    values, size = left.astype(np.float64), left.size
    std = math.sqrt(variance)
    ratio = float(np.mean(values**2)) / variance
    parts = [_part(values, make()) / std for make in vectors]
    return Residual(
        variance_ratio=ratio,
        variance_z=(ratio - 1) / math.sqrt((2 + excess) / size),
        mean_z=float(values.mean()) / (std / math.sqrt(size)),
        client_z=max(parts, key=abs, default=0.0),
    )


def excess_of(plan: Plan) -> float:
    """Excess kurtosis of the noise of h shares, of silos 1; that of n is h/n of it, for cumulants add up."""
    mechanism = plan.privacy.mechanism
    if mechanism.name != DISCRETE_LAPLACE:
        return 0.0
    # Of a discrete Laplace distribution with q = exp(−1/b): κ4/κ2² = (1 + 4q + q²)/(2q) = 2 + cosh(1/b).
    return 2 + math.cosh(float(1 / mechanism.scale))


def _part(values: _Floats, vector: Counters) -> float:
    """⟨left, v⟩/‖v‖: of standard deviation one counter's, where there is noise alone."""
    own = vector.astype(np.float64)
    length = math.sqrt(float(own @ own))
    return float(values @ own) / length if length else 0.0
