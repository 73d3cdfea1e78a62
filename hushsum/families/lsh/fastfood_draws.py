"""What blocks of Walsh–Hadamard directions are made of, drawn from the seed.

**Frozen.** Blocks are in the order (block of rows, part). From streams of their own, named after the hash:

* ``…/flips``: ⌈D/64⌉ words; B_j is −1 where bit j mod 64 of word ⌊j/64⌋ is set;
* ``…/permutations``: D words a block; π is their stable order;
* ``…/diagonals``: D normals a block; θ = float32(g/‖g‖), the norm the root of the squares' sum in order, in float64;
* ``…/lengths`` and ``…/lengths/accept``: a normal and a uniform a candidate, see :func:`chi`; lengths are in the order
  (row, part).
"""

from typing import Final

import numpy as np

from hushsum.draws import NORMAL_LIMIT, PublicSeed, PublicStream
from hushsum.elementary import ln
from hushsum.families.lsh.arrays import Float32, Float64, Int32
from hushsum.families.lsh.fastfood import Fastfood, block_rows, block_size
from hushsum.families.lsh.row_sources import Independent, offsets

_WORD: Final = 64


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
