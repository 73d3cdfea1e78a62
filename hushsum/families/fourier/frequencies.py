"""Frequencies and phases of the pairs: drawn from the seed, or carried beside the plan.

With σ the bandwidth, σω of each coordinate is √2 N(0, 1) for the gaussian kernel, Cauchy for the laplacian one, Laplace
for the cauchy one (Rahimi and Recht 2007, figure 1) and p-stable for exponential-p (LSQ, appendix D.1). A
direction is float32 of σω·(T/2π)/σ, both operations in float64. A pair's phase in turns is a uniform u: the base is
⌊uT⌋, the offset what is left of uT, cut to its grid of 2⁻²⁴.
"""

import math
from dataclasses import dataclass, field
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
from hushsum.draws import NORMAL_LIMIT as POLAR_LIMIT
from hushsum.draws import PublicSeed, PublicStream
from hushsum.errors import PlanError
from hushsum.families.fourier.waves import TURN
from hushsum.families.lsh.arrays import Float32, Float64
from hushsum.families.lsh.codes.projection import Projection

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
