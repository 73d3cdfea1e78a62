"""Frequencies and phases of the pairs: drawn from the seed, or carried with the plan.

**Frequencies.** With σ the bandwidth, σω of each coordinate is √2 N(0, 1) for the gaussian kernel, Cauchy for the
laplacian one, Laplace for the cauchy one (Rahimi and Recht 2007, figure 1) and p-stable for exponential-p (LSQ,
appendix D.1). A direction is float32 of σω·(T/2π)/σ, both operations in float64. A pair's phase in turns is a uniform
u: the base is ⌊uT⌋, the offset what is left of uT, cut to its grid of 2⁻²⁴.

**Phases of records.** A pair has a direction a of float32 (steps of 1/T turn a unit), an offset in [0, 1) on a grid of
2⁻²⁴ and a whole base from 0 to T − 1. With the code ⌊a·x + offset⌋ as :mod:`hushsum.families.lsh.codes.projection`
defines it, in float64 and in order::

    phase = (code + base) mod T

Codes may be as large as :data:`REACH_MAX`, far beyond 32 bits, where frequencies have heavy tails: the remainder is
taken in float64, where it is exact. The filter for products in float32 is that of codes: a code that is not flagged is
below 2²⁴ in size, and exact. For products in float64, with u = 2⁻⁵³, the same proof has the product, the addition of
the offset and the definition's own sum each off by at most (1.01 d + 2) u (αξ + 1): the filter allows 8 times that.

**Why this loses nothing.** Let x and q be Δ steps apart, Δ = n + φ with φ in [0, 1), and h = 2π/T. The offset is
uniform, so their codes are n + 1 apart with probability φ, else n: on average the product is (1 − φ) cos hn +
φ cos h(n + 1), the chord of the cosine, which is within h²/8 of cos hΔ. The base is uniform, so that the rounding of
the table has no part in it.

**Fixed-point table** of cosines and sines: what a record adds to its pair of counters, and what a query reads. With T
phases a turn and h = 2π/T, phase k adds (A_k, B_k) = (rint(2ᵇ cos hk), rint(2ᵇ sin hk)), and a query at phase l reads
(C cos hl + S sin hl)/κ, κ = (1/T) Σ_k (A_k cos hk + B_k sin hk). Where the first of two phases is uniform and the
second is D further on, the product is cos hD on average, exactly: the table has the symmetries of cosine and sine, so
Σ_k (A_k + iB_k) e^{−ihk} is real. Rounding to b bits adds no bias, only a little variance.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.distributions import (
    CAUCHY_LIMIT,
    LAPLACE_LIMIT,
    NORMAL_LIMIT,
    STABLE_LIMIT,
    cauchy,
    laplace,
    normal,
    stable,
)
from hushsum.errors import PlanError
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import Projection
from hushsum.math_portable import sin_cos_turns
from hushsum.public_random import NORMAL_LIMIT as POLAR_LIMIT
from hushsum.public_random import PublicSeed, PublicStream

#: T: phases of a turn. A power of two, so that codes wrap round without a division. More of them would cost time in
#: proportion (a filter's bound is absolute, and the tables leave the nearest cache) and only shrink an error of 2·10⁻⁵.
TURN: Final = 512

_HALF: Final = 32  # bits of each half of a packed pair


@dataclass(frozen=True, eq=False)
class Waves:
    """The tables of one fixed point; read-only.

    Attributes:
        bits: b.
        added: (2, T) int64: what each phase adds to the counters of cosines and of sines.
        read: (2, T) float64: cosine and sine of each phase.
        scale: κ, about 2ᵇ.
        packed: (T,) int64: the cosines of ``added`` plus its sines times 2³², so that both are added at once.
    """

    bits: int
    added: Int64
    read: Float64
    scale: float
    packed: Int64

    @property
    def counters_max(self) -> int:
        """The most counters of a pair that one record changes."""
        return int((self.added != 0).sum(axis=0).max())

    @property
    def sum_max(self) -> int:
        """The largest |A| + |B|."""
        return int(np.abs(self.added).sum(axis=0).max())

    @property
    def squares_max(self) -> int:
        """The largest A² + B²."""
        return int(np.square(self.added).sum(axis=0).max())

    @property
    def entry_max(self) -> int:
        """The largest |A| or |B|."""
        return int(np.abs(self.added).max())

    @property
    def rounding(self) -> float:
        """The largest distance between an entry over κ and the point of the unit circle that it stands for."""
        return float(np.sqrt(np.square(self.added / self.scale - self.read).sum(axis=0)).max())


@cache
def waves(bits: int) -> Waves:
    """The tables of b = ``bits`` fraction bits, 4 to 16."""
    sine, cosine = sin_cos_turns(np.arange(TURN) / TURN)
    read = np.stack([cosine, sine])
    added = np.rint(read * 2.0**bits).astype(np.int64)
    products = added * read
    scale = float(np.add.accumulate(products[0] + products[1])[-1]) / TURN  # every partial sum, hence in order
    result = Waves(bits, added, read, scale, added[0] + (added[1] << _HALF))
    for table in (result.added, result.read, result.packed):
        table.setflags(write=False)
    return result


#: Steps of a phase in one radian.
STEPS: Final = TURN * float.fromhex("0x1.45f306dc9c883p-3")  # T/(2π), correctly rounded
#: No σω that comes beside a plan is larger in absolute value.
GIVEN_LIMIT: Final = 2.0**20

_ROOT_2: Final = math.sqrt(2.0)
_GRID: Final = 24
_FREQUENCIES: Final = "fourier/frequencies"
_LIMITS: Final = {
    "gaussian": _ROOT_2 * NORMAL_LIMIT,
    "laplacian": CAUCHY_LIMIT,
    "cauchy": LAPLACE_LIMIT,
    "exponential-p": STABLE_LIMIT,
}
#: Total variation between a coordinate's draw and its distribution, where a limit cuts it off.
CUT: Final = {"gaussian": 0.0, "laplacian": 2.0**-20, "cauchy": 0.0, "exponential-p": 2.0**-19}


@dataclass(frozen=True)
class GivenFrequencies:
    """Frequencies and phases that came beside the plan: a set of low discrepancy, or one that was learned.

    Attributes:
        digest: Of the array.
        table: (P, d + 1) float32, row after row: σω of each coordinate, then the phase in turns.
    """

    digest: str
    table: Float32 = field(compare=False, repr=False)

    @classmethod
    def of(cls, digest: str, table: Float32, rows: int) -> "GivenFrequencies":
        """Checked.

        Raises:
            PlanError: It has other rows than the plan, or numbers out of range.
        """
        if len(table) != rows:
            raise PlanError("sketch.parameters", f"an array of {len(table)} rows", f"rows = {rows} of them")
        if not (np.all(np.abs(table[:, :-1]) <= GIVEN_LIMIT) and np.all((table[:, -1] >= 0.0) & (table[:, -1] < 1.0))):
            expected = "frequencies times the bandwidth within ±2^20, then a phase from 0 to below 1 turn"
            raise PlanError("sketch.parameters", "numbers out of range", expected)
        return cls(digest, table)

    @property
    def columns(self) -> tuple[Float64, Float64]:
        """σω (P, d), and phases (P,) in turns."""
        numbers = self.table.astype(np.float64)
        return numbers[:, :-1], numbers[:, -1]


def limit(draws: str, dim: int) -> float:
    """No coordinate of σω is larger in absolute value, of a kernel's name or of ``orthogonal``."""
    if draws == "orthogonal":  # as long as a vector of polar normals
        return _ROOT_2 * POLAR_LIMIT * math.sqrt(dim)
    return _LIMITS[draws]


def spread(kernel: str, points: Float64, exponent: float) -> Float64:
    """σω (P, d) of uniforms (P, d, one or, for ``exponential-p``, two)."""
    if kernel == "exponential-p":
        return stable(points[:, :, 0], points[:, :, 1], exponent)
    one = points[:, :, 0]
    if kernel == "gaussian":
        return _ROOT_2 * normal(one)
    return cauchy(one) if kernel == "laplacian" else laplace(one)


def directions(scaled: Float64, bandwidth: float) -> Float32:
    """Directions of codes, of σω (P, d)."""
    return (scaled * STEPS / bandwidth).astype(np.float32)


def assemble(directions: Float32, turns: Float64, *, sizes: Float32) -> tuple[Projection, npt.NDArray[np.int64]]:
    """Codes and bases of directions (P, d) and of phases (P,) in turns, in [0, 1)."""
    grid = np.floor(np.ldexp(turns * TURN, _GRID)).astype(np.int64)
    offsets = np.ldexp((grid & (2**_GRID - 1)).astype(np.float64), -_GRID)
    return Projection(directions, offsets, sizes), grid >> _GRID


def orthogonal(seed: PublicSeed, rows: int, dim: int) -> Float64:
    """σω (P, d) in blocks of d rows at right angles to each other, each of them √2 N(0, I): P a multiple of d.

    Yu, Suresh, Choromanski, Holtmann-Rice and Kumar, Orthogonal random features, 2016, section 3: a random orthogonal
    matrix, by Gram–Schmidt twice over rows of normals, times the norms of other normals. Sums go from left to right.
    """
    blocks = PublicStream(seed, _FREQUENCIES).normal(rows * dim).reshape(-1, dim, dim)
    for i in range(dim):
        for _ in range(2):
            row = blocks[:, i, :]
            along = _in_order(blocks[:, :i, :] * row[:, None, :], axis=2)
            row -= _in_order(blocks[:, :i, :] * along[:, :, None], axis=1)
        blocks[:, i, :] /= np.sqrt(_in_order(np.square(blocks[:, i, :]), axis=1))[:, None]
    others = PublicStream(seed, "fourier/norms").normal(rows * dim).reshape(rows, dim)
    norms = np.sqrt(_in_order(np.square(others), axis=1))
    return _ROOT_2 * (blocks.reshape(rows, dim) * norms[:, None])


def _in_order(terms: Float64, *, axis: int) -> npt.NDArray[np.float64]:
    """Sums along an axis from left to right, which NumPy's sum does not promise; 0 where there are no terms."""
    if not terms.shape[axis]:
        return np.asarray(terms.sum(axis=axis), np.float64)
    return np.asarray(np.add.accumulate(terms, axis=axis).take(-1, axis=axis), np.float64)


#: |a·x| stays below this: the sum, its floor and its remainder are then exact integers of float64 and int64.
REACH_MAX: Final = 2.0**51
#: h: a step of a phase in radians.
STEP: Final = 2 * math.pi / TURN
#: h²/8: how far the offset's average is from the cosine of the true difference of two phases.
CHORD_ERROR: Final = STEP**2 / 8


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of counters.

    Attributes:
        projection: Directions and offsets of P codes.
        bases: (P,) int64, 0 to T − 1.
        waves: What a phase adds and reads.
    """

    projection: Projection
    bases: Int64
    waves: Waves

    def __len__(self) -> int:
        """P."""
        return len(self.bases)
