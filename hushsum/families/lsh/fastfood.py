"""Codes of projections in O(log d) a row: blocks of Gaussian directions made of Walsh–Hadamard transforms.

Le, Sarlós and Smola, Fastfood: approximating kernel expansions in loglinear time, 2013, section 3.

**Definition.** D is the least power of two that is at least d and 2. All directions share signs B in {−1, 1}ᴰ. They
come in blocks: a block has a permutation π of D and a diagonal θ (D,) of float32, and gives E directions, E the largest
power of two up to D/4 with at least :data:`BLOCKS_MIN` blocks, and at least 1; each direction i < E has a scale of
float32. For a record x of float32 coordinates, already centred, and 0 beyond d, everything in float32, one operation at
a time::

    u = H(B∘x),   v_j = θ_j·u_{π(j)},   p = H(v),   code_i = ⌊ scale_i·p_i + offset_i ⌋

the last in float64, where the product is exact. H has stages h = D/2, D/4, …, 1: in each the pair (a, b) at the indices
(j, j + h), where j has no bit h, becomes (a + b, a − b). Each of its numbers is one sum or difference, products with
signs are exact, and no product meets a sum in float32: nothing can be fused. Signs (the angular kernel): code = 1 where
p_i ≥ 0, else 0, and no scales.

**Distribution.** θ = g/‖g‖ with g ~ N(0, I_D), scale_i = s_i/(w√D) with s_i an independent chi of D degrees, B and π
uniform. Row i of H has entries ±1, so (h_i∘θ) is uniform on the sphere and s_i·(h_i∘θ) ~ N(0, I_D), whatever B and π.
Hence, but for rounding, w·scale_i·p_i = s_i·(h_i∘θ)·u/√D is exactly N(0, ‖u‖²/D) = N(0, ‖x‖²): for one record, and so
for the difference of two, and a hash of independent offset collides as if the direction were dense. Without the lengths
s_i (Fastfood's S) every direction of a block would be as long as ‖g‖, and all err together.

The directions of a block are dependent: given B and π, projections of two records on two of them have the correlation
Σ_j ±u_{π(j)}u'_{π(j)}/(D‖x‖‖x'‖), of the order of 1/√D, as signs and permutation leave no pattern. Collisions depend on
its square, so blocks' means vary more than those of as many independent rows, by up to E/D of the variance. Blocks are
not correlated: given B they are independent, and each is exact whatever B. Their spread is the error bar.

**Rounding.** Let u = 2⁻²⁴ and D = 2ᵐ. A stage is √2 times an orthogonal map and rounds each number once, so a transform
errs by at most γ_m of its result in the Euclidean norm (Higham 2002, section 24.2, with additions alone), and by
symmetry every direction has the same error in distribution. Over the draws the error of code i's argument has a root
mean square of at most γ_{2m+4}‖x‖/w: a collision probability is off by at most twice that, and 2⁻²³ for the grid of
offsets. See :func:`rounding`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Float64, Int32, Int64
from hushsum.families.lsh.projection import CODE_LIMIT

if TYPE_CHECKING:
    from hushsum.families.lsh.coders import FastCoder, PlainCoder

#: Blocks of rows, at least, unless there are fewer rows: error bars come from their spread.
BLOCKS_MIN: Final = 8
_SHARE: Final = 4  # of the directions that a block has, so many times fewer are taken: they disturb each other less

_UNIT: Final = 2.0**-24
_SLACK: Final = 1.001  # above 1 + γ_{2m+4}·√D, which bounds the error of one argument by the largest that it may have
_EXPLICIT_MAX: Final = 1 << 12  # D up to which directions are written out once, for the tightest ends
_SIGNS_MAX: Final = 2.0**100


def block_size(dim: int) -> int:
    """D: the directions of a block, and the coordinates with those that are 0."""
    return max(2, 1 << (dim - 1).bit_length())


def block_rows(dim: int, rows: int) -> int:
    """E: the rows of a block."""
    return min(max(1, block_size(dim) // _SHARE), 1 << (max(1, rows // BLOCKS_MIN).bit_length() - 1))


def rounding(dim: int, reach: float) -> float:
    """How far a collision probability may be from the kernel, for records of norm ``reach`` in bandwidths."""
    terms = 2 * (block_size(dim).bit_length() - 1) + 4
    return 2.0 * 1.01 * terms * _UNIT * reach + 2.0**-23


def signs_rounding(dim: int) -> float:
    """The same for signs, whatever the records.

    The argument, N(0, 1) for a unit vector, errs by e with E e² ≤ γ². Its sign is wrong only where it is within t of 0
    or |e| > t: with probability at most 0.8 t + γ²/t², which is 1.7 γ^⅔ at its least. It happens to either point.
    """
    terms = 2 * (block_size(dim).bit_length() - 1) + 4
    return float(2.0 * 1.7 * np.cbrt((1.01 * terms * _UNIT) ** 2))


@dataclass(frozen=True, eq=False)
class Fastfood:
    """The parameters of R·p codes a record, part after part of row after row.

    Part k of row r is direction r mod E of block ⌊r/E⌋·p + k: the parts of a row come from different blocks.

    Attributes:
        dim: d.
        power: p.
        height: E.
        flips: (D,) float32: B, 1 or −1.
        permutations: (blocks, D) int32: π(j).
        diagonals: (blocks, D) float32: θ.
        scales: (R·p,) float32 above 0.
        offsets: (R·p,) float64 in [0, 1), multiples of 2⁻²⁴.
        signs: Whether a code is the sign instead of the floor; scales are then 1 and offsets 0.
    """

    dim: int
    power: int
    height: int
    flips: Float32
    permutations: Int32
    diagonals: Float32
    scales: Float32
    offsets: Float64
    signs: bool = False

    def __len__(self) -> int:
        """R·p."""
        return len(self.offsets)

    @property
    def size(self) -> int:
        """D."""
        return len(self.flips)

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(R·p,) int64, twice: no record within [lower, upper] has a smaller or a larger code; few do not attain them.

        Coordinates at the ends of their bounds, as the directions want them, and twice what rounding may add: at most
        γ_{2m+4}·D‖x‖ to p. Where D is large, |p_i| ≤ √D‖x‖ instead.
        """
        if self.signs:
            zeroes = np.zeros(len(self), np.int64)
            return zeroes, zeroes + 1
        norm = math.sqrt(math.fsum(size * size for size in np.maximum(-lower, upper).astype(np.float64).tolist()))
        scales = self.scales.astype(np.float64)
        if self.size > _EXPLICIT_MAX:
            largest = scales * (math.sqrt(self.size) * norm * _SLACK)
            least = -largest
        else:
            from hushsum.families.lsh.fastfood_plain import extremes

            slack = 2.02 * (2 * self.size.bit_length() + 2) * _UNIT * self.size * norm
            least, largest = extremes(self, lower, upper)
            least, largest = scales * (least - slack), scales * (largest + slack)
        return np.floor(least + self.offsets).astype(np.int64), np.floor(largest + self.offsets).astype(np.int64)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries (m, d) with some code that may leave 32 bits; of signs, those whose sums could overflow."""
        largest = np.abs(queries).max(axis=1).astype(np.float64)
        if self.signs:
            return np.asarray(~(largest < _SIGNS_MAX), np.bool_)
        with np.errstate(invalid="ignore", over="ignore"):
            reach = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1) * self.size)
            reach *= float(self.scales.max()) * _SLACK
            return np.asarray(~((reach < CODE_LIMIT) & (largest < _SIGNS_MAX)), np.bool_)

    def plain(self) -> "PlainCoder":
        """See :class:`~hushsum.families.lsh.coders.Coder`."""
        from hushsum.families.lsh.fastfood_plain import PlainFastfood

        return PlainFastfood(self)

    def fast(self, lowest: Int32) -> "FastCoder":
        """See :class:`~hushsum.families.lsh.coders.Coder`."""
        from hushsum.families.lsh.fastfood_fast import FastFastfood

        return FastFastfood(self, lowest)
