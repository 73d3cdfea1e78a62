"""Codes of hashes that round a projection: their definition, and the filter that makes them fast.

**Definition.** For a record x of float32 coordinates (already centred), a direction a of float32 and an offset b on a
grid of 2⁻²⁴ in [0, 1)::

    code = ⌊ s + b ⌋,   s = (…((a₀x₀ + a₁x₁) + a₂x₂) + …) + a_{d−1}x_{d−1}

in float64, in this order. A product of two float32 is exact in float64, so a fused multiply-add gives the same s.
Nothing else may change: no other order, no partial sums.

**Filter.** Almost always a float32 matrix product tells the code without that sum. Let u = 2⁻²⁴, M = Σ|a_j x_j|,
T the product as any BLAS computes it, t = fl(T + (b − ½)), and g = rint(t). Then

* |T − a·x| ≤ γ_d M, γ_d = du/(1 − du), whatever the order of its additions (Higham 2002, section 3.1), and with
  d ≤ 2¹⁶, γ_d ≤ 1.004 du. Products that underflow, or are flushed, add at most d·2⁻⁶⁰: see the last item;
* |t − (T + b − ½)| ≤ u|t| ≤ 1.005 u (M + 1); b − ½ itself is exact;
* the definition's own sum is off by at most (d + 2)·2⁻⁵³ (M + 1) ≤ 0.001 u (M + 1);
* t − g and its absolute value are exact (|t| < 2²⁴; beyond that M alone is enough to flag);
* M ≤ ‖a∘s‖₂·‖x/s‖₂ for any s > 0 (Cauchy–Schwarz). s_j is the root of the coordinate's half-range, which makes the
  bound tight for typical records. Both norms are computed as α and ξ, too large by 1.005 each on purpose: float32 errs
  by at most (d + 4)u/2 ≤ 0.002 in a norm.

Together |t + ½ − (s + b)| < e = u (1.01 d + 2)(αξ + 1), which leaves 0.9 u for underflow and for the rounding of the
comparison |t − g| + slope·ξ > ½ − u(1.01 d + 2) that *flags* a code (its three roundings are at most u/4 each, near ½).
A code that is not flagged is g exactly; a flagged one is computed by the definition. The filter decides speed alone: a
wrong BLAS, batch or thread count cannot change a code.

**Signs** (:class:`Signs`) have one edge, at 0: code = 1 where s ≥ 0, else 0. By the same bounds the sign of T is that
of s unless |T| ≤ slope·ξ + 2⁻⁴³, the last for what underflows or is flushed: that flags it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Float64, Int64

#: d may not be larger: the bound above needs γ_d ≤ 1.004 du.
DIM_MAX: Final = 2**16
#: Codes stay below this in absolute value, so that they are int32 and so is every float32 estimate of them.
CODE_LIMIT: Final = 2.0**31 / 1.02 - 2.0

_UNIT: Final = 2.0**-24
_FLUSHED: Final = 2.0**-43  # d products that a BLAS may flush, of at most 2⁻⁶⁰ each
_SIGNS_MAX: Final = 2.0**100  # coordinates below this overflow no sum of products in float32
_FEW: Final = 8  # coordinates, for which column after column is faster


@dataclass(frozen=True, eq=False)
class Projection:
    """The parameters of k codes a record, part after part of row after row.

    Attributes:
        directions: (k, d) float32.
        offsets: (k,) float64 in [0, 1), multiples of 2⁻²⁴.
        sizes: (d,) float32 above 0: about how large each coordinate of a record is. For the speed of the filter alone.
    """

    directions: Float32
    offsets: Float64
    sizes: Float32

    #: Whether a code is the sign of the sum instead of its floor.
    signs: ClassVar[bool] = False

    def __len__(self) -> int:
        """k."""
        return len(self.offsets)

    @cached_property
    def widest(self) -> Float64:
        """(d,) float64: the largest absolute entry of any direction, a coordinate."""
        return np.asarray(np.abs(self.directions).max(axis=0), np.float64)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries (m, d) with some code that leaves 32 bits."""
        if np.abs(queries).max(initial=0.0) < self._near:
            return np.zeros(len(queries), np.bool_)
        with np.errstate(invalid="ignore"):
            reach = np.abs(queries).astype(np.float64) @ self.widest
        return np.asarray(~(reach < CODE_LIMIT), np.bool_)

    @cached_property
    def _near(self) -> np.float32:
        """Queries whose coordinates all are below this are not far, whatever their codes."""
        return np.float32(0.5 * CODE_LIMIT / self.widest.sum())

    @cached_property
    def shifts(self) -> Float32:
        """(k,) float32: b − ½, exactly."""
        return (self.offsets - 0.5).astype(np.float32)

    def exact_codes(self, which: Int64, records: Float32) -> Int64:
        """The definition: codes (n,) int64 of part ``which[i]`` for record ``records[i]``, (n,) and (n, d)."""
        return np.asarray(np.floor(self._sums(which, records) + self.offsets[which]), np.int64)

    def _sums(self, which: Int64, records: Float32) -> Float64:
        products = self.directions[which].astype(np.float64)
        products *= records
        np.add.accumulate(products, axis=1, out=products)  # every partial sum, hence in order
        return np.asarray(products[:, -1], np.float64)

    @cached_property
    def slopes(self) -> Float32:
        """(k,) float32 above 0: u (1.01 d + 2) α of the filter."""
        alpha = np.sqrt((np.square(self.directions.astype(np.float64)) * self.sizes).sum(axis=1))
        return np.asarray(np.maximum(alpha * (1.005 * self._unit), 1e-37), np.float32)

    @cached_property
    def limit(self) -> np.float32:
        """A code is flagged where |t − rint(t)| + slope·ξ is above this."""
        return np.float32(0.5 - self._unit)

    def norms(self, records: Float32) -> Float32:
        """(n,) float32: ξ of the filter for records (n, d)."""
        with np.errstate(over="ignore"):  # infinity flags every code of the record
            if records.shape[1] <= _FEW:
                squares = np.square(records.T * self._scales[:, None]).sum(axis=0)
            else:
                scaled = records * self._scales  # first: squares of tiny coordinates would vanish
                squares = np.einsum("ij,ij->i", scaled, scaled)
            return np.asarray(np.sqrt(squares) * np.float32(1.005), np.float32)

    @cached_property
    def _scales(self) -> Float32:
        return np.asarray(1.0 / np.sqrt(self.sizes), np.float32)

    @property
    def _unit(self) -> float:
        return _UNIT * (1.01 * len(self.sizes) + 2.0)

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(k,) int64, twice: the least and the largest code of any record within [lower, upper], both attained.

        The definition is monotone: products are exact and rounding never turns an order round, so the sum of the
        largest products, in the same order, is the largest of all sums.
        """
        least, largest = self._extremes(lower, upper)
        return np.floor(least + self.offsets).astype(np.int64), np.floor(largest + self.offsets).astype(np.int64)

    def _extremes(self, lower: Float32, upper: Float32) -> tuple[Float64, Float64]:
        least, largest = np.zeros(len(self.offsets)), np.zeros(len(self.offsets))
        for j in range(self.directions.shape[1]):
            direction = self.directions[:, j].astype(np.float64)
            low, high = direction * float(lower[j]), direction * float(upper[j])
            least += np.minimum(low, high)
            largest += np.maximum(low, high)
        return least, largest


class Signs(Projection):
    """Signs of projections: offsets are all 0."""

    signs: ClassVar[bool] = True

    @classmethod
    def of(cls, directions: Float32, sizes: Float32) -> "Signs":
        """Of directions (k, d)."""
        return cls(directions, np.zeros(len(directions)), sizes)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries (m, d) so long that their sums could overflow."""
        return np.asarray(~(np.abs(queries).max(axis=1) < _SIGNS_MAX), np.bool_)

    def exact_codes(self, which: Int64, records: Float32) -> Int64:
        """The definition, as for :class:`Projection`."""
        return np.asarray(self._sums(which, records) >= 0.0, np.int64)

    @cached_property
    def shifts(self) -> Float32:
        """(k,) float32: 0."""
        return np.zeros(len(self.offsets), np.float32)

    @cached_property
    def limit(self) -> np.float32:
        """A code is flagged where |T| is at most this + slope·ξ."""
        return np.float32(_FLUSHED)

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(k,) int64, twice: the least and the largest code of any record within [lower, upper], both attained."""
        least, largest = self._extremes(lower, upper)
        return (least >= 0.0).astype(np.int64), (largest >= 0.0).astype(np.int64)
