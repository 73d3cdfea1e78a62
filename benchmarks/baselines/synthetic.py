"""Distributions that synthetic records are drawn from: density sketches, a noisy grid, independent noisy columns.

All are shares of the cells of a grid, whose exact counts are given, so that no sampling error is on top.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DensitySketch:
    """A count sketch of the cells (Density Sketches, appendix A.2 and D): K rows, each with R counters and signs.

    Attributes:
        counters: (K, R) exact.
        places: (K, cells) buckets.
        signs: (K, cells) of ±1.
    """

    counters: Floats
    places: npt.NDArray[np.int64]
    signs: Floats

    @classmethod
    def of(cls, counts: Floats, *, rows: int, buckets: int, rng: np.random.Generator) -> "DensitySketch":
        """The sketch of (cells,) exact counts."""
        places = rng.integers(buckets, size=(rows, counts.size))
        signs = rng.choice([-1.0, 1.0], size=places.shape)
        counters = [
            np.bincount(row, sign * counts.ravel(), minlength=buckets) for row, sign in zip(places, signs, strict=True)
        ]
        return cls(np.array(counters), places, signs)

    def estimates(self, epsilon: float, rng: np.random.Generator) -> Floats:
        """(cells,) counts, averaged over the rows, with double geometric noise: one record changes K counters by 1."""
        stop = 1 - np.exp(-epsilon / len(self.counters))
        ahead, behind = (rng.geometric(stop, self.counters.shape) for _ in range(2))
        rows = np.take_along_axis(self.counters + ahead - behind, self.places, axis=1)
        return np.asarray((self.signs * rows).mean(axis=0), np.float64)


def heap_shares(estimates: Floats, kept: int) -> tuple[Floats, float]:
    """The shares of the fullest cells and 0 of all others, and the capture ratio: their part of positive estimates."""
    positive = np.maximum(estimates, 0.0)
    shares = np.where(positive >= np.sort(positive)[-min(kept, positive.size)], positive, 0.0)
    ratio = shares.sum() / max(float(positive.sum()), 1.0)
    return shares / max(float(shares.sum()), 1.0), float(ratio)


def grid_shares(counts: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """The shares of all cells with Laplace noise 1/ε, negative ones cut off."""
    noisy = np.maximum(counts + rng.laplace(scale=1 / epsilon, size=counts.shape), 0.0)
    return np.asarray(noisy / max(float(noisy.sum()), 1.0))


def independent_shares(counts: Floats, epsilon: float, rng: np.random.Generator) -> Floats:
    """The product of the columns' shares, each from a histogram with its part of ε."""
    columns = counts.ndim
    histograms = [
        grid_shares(counts.sum(axis=tuple(other for other in range(columns) if other != axis)), epsilon / columns, rng)
        for axis in range(columns)
    ]
    return np.asarray(reduce(np.multiply.outer, histograms))
