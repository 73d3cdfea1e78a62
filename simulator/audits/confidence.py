"""What counts of an event on two neighbouring data sets prove about ε: intervals that hold with a stated confidence."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ERROR: Final = 1e-6  # of one audited bound: how likely it is above the true ε


@dataclass(frozen=True)
class Hits:
    """How often an event was seen.

    Attributes:
        hits: From 0 to ``runs``.
        runs: Independent ones.
    """

    hits: int
    runs: int


def at_least(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson lower limit of a probability; it is above the truth with probability ``error`` at most."""
    from scipy.special import betaincinv

    seen = np.asarray(hits, dtype=np.float64)
    limit = betaincinv(np.maximum(seen, 1.0), runs - np.maximum(seen, 1.0) + 1.0, error)
    return np.where(seen > 0, limit, 0.0)


def at_most(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson upper limit of a probability; it is below the truth with probability ``error`` at most."""
    seen = np.asarray(hits, dtype=np.float64)
    return 1.0 - at_least(runs - seen, runs, error)


def epsilon_at_least(likelier: Hits, rarer: Hits, *, delta: float, error: float) -> float:
    """A lower limit of ε, from how often one event was seen on either of two neighbouring data sets.

    (ε, δ) promises p <= e^ε·q + δ for every event, so that ε >= ln((p − δ)/q).

    Args:
        likelier: On the data set of p.
        rarer: On that of q.
        delta: The δ that is claimed.
        error: How likely the limit may be above the true ε; half of it goes to either probability.

    Returns:
        At least 0: an event that proves nothing gives 0.
    """
    p = float(at_least(likelier.hits, likelier.runs, error / 2))
    q = float(at_most(rarer.hits, rarer.runs, error / 2))
    return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0
