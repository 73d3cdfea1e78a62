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

**Frozen.** Blocks are in the order (block of rows, part). From streams of their own, named after the hash:

* ``…/flips``: ⌈D/64⌉ words; B_j is −1 where bit j mod 64 of word ⌊j/64⌋ is set;
* ``…/permutations``: D words a block; π is their stable order;
* ``…/diagonals``: D normals a block; θ = float32(g/‖g‖), the norm the root of the squares' sum in order, in float64;
* ``…/lengths`` and ``…/lengths/accept``: a normal and a uniform a candidate, see :func:`chi`; lengths are in the order
  (row, part).
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Float64, Int32, Int64
from hushsum.families.lsh.codes.projection import CODE_LIMIT
from hushsum.families.lsh.row_sources import Independent, offsets
from hushsum.math_portable import ln
from hushsum.public_random import NORMAL_LIMIT, PublicSeed, PublicStream

#: Blocks of rows, at least, unless there are fewer rows: error bars come from their spread.
BLOCKS_MIN: Final = 8
_SHARE: Final = 4  # of the directions that a block has, so many times fewer are taken: they disturb each other less

_UNIT: Final = 2.0**-24
_SLACK: Final = 1.001  # above 1 + γ_{2m+4}·√D, which bounds the error of one argument by the largest that it may have
_EXPLICIT_MAX: Final = 1 << 12  # D up to which directions are written out once, for the tightest ends
_SIGNS_MAX: Final = 2.0**100
_NUMBERS: Final = 1 << 20
_WORD: Final = 64


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


def spread(fastfood: Fastfood, columns: Float32) -> Float32:
    """(D, n) float32: u of the definition, for the coordinates (d, n) of records."""
    padded = np.zeros((fastfood.size, columns.shape[1]), np.float32)
    np.multiply(columns, fastfood.flips[: fastfood.dim, None], out=padded[: fastfood.dim])
    _transform(padded[None])
    return padded


def rotated(fastfood: Fastfood, blocks: slice, spread_out: Float32) -> Float32:
    """(blocks, E, n) float32: p of the definition, for u (D, n)."""
    values = spread_out[fastfood.permutations[blocks]]
    values *= fastfood.diagonals[blocks, :, None]
    while values.shape[1] > fastfood.height:  # of the first stages the half that leads to the first rows
        half = values.shape[1] // 2
        values = values[:, :half] + values[:, half:]
    _transform(values)
    return values


def extremes(fastfood: Fastfood, lower: Float32, upper: Float32) -> tuple[Float64, Float64]:
    """(R·p,) twice: the least and the largest p of records within the bounds, but for rounding."""
    blocks, size = len(fastfood.permutations), fastfood.size
    least, largest = np.zeros((blocks, fastfood.height)), np.zeros((blocks, fastfood.height))
    wide = max(1, min(fastfood.dim, _NUMBERS // size))
    some = max(1, _NUMBERS // (size * wide))
    for start in range(0, fastfood.dim, wide):
        which = range(start, min(start + wide, fastfood.dim))
        units = spread(fastfood, np.eye(fastfood.dim, dtype=np.float32)[:, which.start : which.stop])
        for first in range(0, blocks, some):
            few = slice(first, first + some)
            directions = rotated(fastfood, few, units).astype(np.float64)
            for j in which:
                low, high = directions[:, :, j - start] * float(lower[j]), directions[:, :, j - start] * float(upper[j])
                least[few] += np.minimum(low, high)
                largest[few] += np.maximum(low, high)
    rows = len(fastfood) // fastfood.power
    in_order = [
        ends.reshape(-1, fastfood.power, fastfood.height).transpose(0, 2, 1).reshape(-1, fastfood.power)[:rows]
        for ends in (least, largest)
    ]
    return in_order[0].reshape(-1), in_order[1].reshape(-1)


def _transform(numbers: Float32) -> None:
    """H of (blocks, D, n) along the middle axis, in place."""
    blocks, size, n = numbers.shape
    h = size // 2
    while h:
        pairs = numbers.reshape(blocks, -1, 2, h, n)
        differences = pairs[:, :, 0] - pairs[:, :, 1]
        pairs[:, :, 0] += pairs[:, :, 1]
        pairs[:, :, 1] = differences
        h //= 2


class Rotated(Independent):
    """Directions in blocks, made by Walsh–Hadamard transforms; offsets are those of independent rows."""

    def floors(self, name: str, power: int, dim: int, bandwidth: float) -> Fastfood:
        """The floors of projections over a bandwidth."""
        size = block_size(dim)
        lengths = chi(self.seed, f"{self.prefix}/{name}/fastfood/lengths", self.rows * power, size)
        scales = (lengths / np.sqrt(float(size)) / bandwidth).astype(np.float32)
        return Fastfood(dim, power, *self._blocks(name, power, dim), scales, offsets(self, f"{name}/offsets", power))

    def signs(self, name: str, power: int, dim: int) -> Fastfood:
        """The signs of projections."""
        scales, zeroes = np.ones(self.rows * power, np.float32), np.zeros(self.rows * power)
        return Fastfood(dim, power, *self._blocks(name, power, dim), scales, zeroes, signs=True)

    def _blocks(self, name: str, power: int, dim: int) -> tuple[int, Float32, Int32, Float32]:
        size, height = block_size(dim), block_rows(dim, self.rows)
        purpose, count = f"{self.prefix}/{name}/fastfood", -(-self.rows // height) * power
        words = PublicStream(self.seed, f"{purpose}/flips").words(-(-size // _WORD))
        bits = (words[:, None] >> np.arange(_WORD, dtype=np.uint64)) & np.uint64(1)
        flips = np.where(bits.reshape(-1)[:size], -1, 1).astype(np.float32)
        keys = PublicStream(self.seed, f"{purpose}/permutations").words(count * size).reshape(count, size)
        permutations = np.argsort(keys, axis=1, kind="stable").astype(np.int32)
        normals = PublicStream(self.seed, f"{purpose}/diagonals").normal(count * size).reshape(count, size)
        squares = np.add.accumulate(normals * normals, axis=1)[:, -1:]  # every partial sum, hence in order
        return height, flips, permutations, (normals / np.sqrt(squares)).astype(np.float32)


def chi(seed: PublicSeed, purpose: str, count: int, degrees: int) -> Float64:
    """(count,) float64: lengths of normal vectors of at least 2 dimensions, the roots of 2·Gamma(degrees/2).

    Marsaglia and Tsang, A simple method for generating gamma variables, 2000: exact by rejection. Candidates are tried
    in order, and those that pass are the draws.
    """
    normals, uniforms = PublicStream(seed, purpose), PublicStream(seed, f"{purpose}/accept")
    a, steep = _constants(degrees)
    parts, wanted = [np.empty(0)], count
    while wanted:
        tried = wanted + wanted // 16 + 8  # of the candidates 95 % pass, or more
        x, u = normals.normal(tried), uniforms.open_uniform(tried)
        base = 1.0 + steep * x
        x, u, base = x[base > 0.0], u[base > 0.0], base[base > 0.0]
        v = base * base * base
        passed = ln(u) < 0.5 * x * x + a - a * v + a * ln(v)
        parts.append(np.sqrt(2.0 * a * v[passed][:wanted]))
        wanted -= len(parts[-1])
    return np.concatenate(parts)


def chi_limit(degrees: int) -> float:
    """No draw is larger."""
    a, steep = _constants(degrees)
    return float(np.sqrt(2.0 * a * (1.0 + steep * NORMAL_LIMIT) ** 3))


def _constants(degrees: int) -> tuple[float, float]:
    a = degrees / 2 - 1 / 3
    return a, float(1.0 / np.sqrt(9.0 * a))
