"""What a record adds to the hermite family's counters: its cell, and the moments within it as integers.

**Frozen** (the same record gives the same counters on every platform and in every version). Every step is one float64
operation, and no product is ever added to anything, so that no compiler may fuse two steps:

1. y = (x − lower)/σ of each float32 coordinate; the cell is ⌊y⌋, at most the last one; u = (y − ⌊y⌋) − ½.
2. u⁰ = 1, uᵗ = uᵗ⁻¹·u; the moment r is s_r·((u₁^r₁·u₂^r₂)·u₃^r₃), rounded to the nearest integer, ties to even. With
   equal weights s_r is s, else the integer next to s·w_r (:mod:`hushsum.families.hermite.weights`).
3. Cells and the r of a cell both lie in C order: the last coordinate changes first.

So |u| ≤ ½, and because rounding is monotone no counter of a record is beyond round(s_r·2^{−|r|}).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.hermite import weights as hermite_weights
from hushsum.families.hermite.weights import EQUAL

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

#: Records whose moments are worked out at once.
BLOCK_RECORDS: Final = 1 << 13


@dataclass(frozen=True, eq=False)
class MomentGrid:
    """Cells of side σ over the domain, and the moments of each.

    Attributes:
        lower: (d,) float64, the corner where the first cell begins.
        width: σ.
        cells: Number of cells along each coordinate.
        order: r_j run from 0 to ``order`` − 1.
        scale: s, a power of two; that of the moment r = 0.
        weights: Of the other moments' scales, one of :data:`hushsum.families.hermite.weights.WEIGHTS`.
    """

    lower: Float64
    width: float
    cells: tuple[int, ...]
    order: int
    scale: int
    weights: str = EQUAL

    @classmethod
    def over(
        cls, lower: Float32, upper: Float32, width: float, *, order: int, scale: int, weights: str = EQUAL
    ) -> "MomentGrid":
        """The grid that covers [lower, upper], both (d,): ⌈(upper − lower)/σ⌉ cells along each coordinate."""
        low = lower.astype(np.float64)
        sides = np.ceil((upper.astype(np.float64) - low) / width)
        return cls(low, width, tuple(max(1, int(side)) for side in sides), order, scale, weights)

    @property
    def moments(self) -> int:
        """order^d, the number of counters of a cell."""
        return math.prod([self.order] * len(self.cells))

    @cached_property
    def degrees(self) -> Int64:
        """(order^d, d): the r of each of a cell's counters."""
        return np.array([*product(range(self.order), repeat=len(self.cells))], np.int64)

    @cached_property
    def scales(self) -> Int64:
        """(order^d,): s_r, what each of a cell's counters is a moment times."""
        return np.array(hermite_weights.scales(self.weights, self.degrees.tolist(), self.scale), np.int64)

    @cached_property
    def bounds(self) -> Int64:
        """(order^d,): round(s_r·2^{−|r|}), the most by which one record moves each counter of its cell."""
        exact: Float64 = np.ldexp(self.scales.astype(np.float64), -self.degrees.sum(axis=1))
        return np.rint(exact).astype(np.int64)

    @cached_property
    def ratios(self) -> Float64:
        """(order^d,): s/s_r, by which a query multiplies each counter; 0 for one that no record moves, but for noise.

        With equal weights all are 1, as they always were: moments that never change are read there, too.
        """
        if self.weights == EQUAL:
            return np.ones(self.moments)
        return np.where(self.bounds > 0, self.scale / np.maximum(self.scales, 1), 0.0)

    @cached_property
    def relative(self) -> Float64:
        """(order,): w_r of one coordinate; s_r is near s·Π_j w_{r_j}."""
        return np.array(hermite_weights.relative(self.weights, self.order))

    @cached_property
    def ratio_excess(self) -> float:
        """The most by which a ratio exceeds Π_j 1/w_{r_j}, as a factor: scales are rounded."""
        return float((self.ratios * self._products).max()) * (1.0 if self.weights == EQUAL else 1.0 + 2.0**-40)

    @cached_property
    def rounding_excess(self) -> float:
        """The least K with which no moment divided by s_r is farther than K·½/s·Π_j 1/w_{r_j} from what it stands for.

        It is within ½/s_r, and within 2^{−|r|} where it is not read.
        """
        half = np.minimum(0.5 / np.maximum(self.scales, 0.5), np.ldexp(1.0, -self.degrees.sum(axis=1)))
        most = float((half * self._products).max()) * (2.0 * self.scale)
        return most * (1.0 if self.weights == EQUAL else 1.0 + 2.0**-40)

    @cached_property
    def _products(self) -> Float64:
        """(order^d,): Π_j w_{r_j}."""
        return np.asarray(self.relative[self.degrees].prod(axis=1), np.float64)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By how much the number of a cell grows along each coordinate."""
        return tuple(math.prod(self.cells[j + 1 :]) for j in range(len(self.cells)))

    def locate(self, records: Float32) -> tuple[Int64, Float64]:
        """The cells (n,) of records (n, d) within the bounds, and their places u (d, n), in [−½, ½]."""
        cell, places = np.zeros(len(records), np.int64), np.empty((len(self.cells), len(records)))
        for j, count in enumerate(self.cells):
            y = (records[:, j].astype(np.float64) - self.lower[j]) / self.width
            whole = np.minimum(np.floor(y), count - 1.0)
            places[j] = (y - whole) - 0.5
            cell += whole.astype(np.int64) * self.strides[j]
        return cell, places

    def cells_of(self, records: Float32) -> Int64:
        """The cells (n,) alone."""
        blocks = [records[start : start + BLOCK_RECORDS] for start in range(0, len(records), BLOCK_RECORDS)]
        return np.concatenate([np.empty(0, np.int64), *(self.locate(block)[0] for block in blocks)])


def add(grid: MomentGrid, counters: Int64, cells: Int64, places: Float64) -> None:
    """Adds the moments of located records to the rows ``cells`` of counters (any number of rows, order^d), in place."""
    touched, inverse = np.unique(cells, return_inverse=True)
    sums = np.zeros((grid.moments, len(touched)))
    powers = [_powers(u, grid.order) for u in places]
    for number in np.flatnonzero(grid.bounds):
        r = grid.degrees[number]
        moment = powers[0][r[0]]
        for j in range(1, len(r)):
            moment = moment * powers[j][r[j]]
        # Sums of integers below 2⁵³: exact in float64.
        stored = np.rint(float(grid.scales[number]) * moment)
        sums[number] = np.bincount(inverse, weights=stored, minlength=len(touched))
    counters[touched] += sums.T.astype(np.int64)


def read(counters: Int64, cells: Int64, factors: list[Float64], ratios: Float64) -> Float64:
    """Σ_r counters[cell, r]·ratio[r]·Π_j factor_j[r_j] of p cells: d factors (order, p) to (p,), float64.

    The ratios first, then the first coordinate's sum, each from r_j = 0 upwards, one product and one addition a step.
    """
    moments = counters[cells].astype(np.float64) * ratios
    for factor in factors:
        parts = moments.reshape(len(moments), len(factor), -1)
        moments = parts[:, 0] * factor[0][:, None]
        for r in range(1, len(factor)):
            moments += parts[:, r] * factor[r][:, None]
    return moments[:, 0]


def warm_up() -> None:
    """Nothing is compiled here."""


def _powers(u: Float64, order: int) -> list[Float64]:
    powers = [np.ones_like(u)]
    for _ in range(1, order):
        powers.append(powers[-1] * u)
    return powers
