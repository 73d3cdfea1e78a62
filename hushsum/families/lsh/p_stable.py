"""The p-stable hashes of the euclidean and the manhattan kernel: ⌊(a·x + b)/w⌋ with b ~ U[0, w).

Entries of a are standard normal for the euclidean kernel (2-stable), standard Cauchy for the manhattan kernel
(1-stable). Datar, Immorlica, Indyk and Mirrokni 2004, section 3; RACE, section 2.

**Frozen**: directions are a' = float32(a/w), the quotient in float64, in the order (row, part, coordinate). Of the
euclidean hash, a is from the normals; of the manhattan hash, from quantiles of uniforms, cut off at
± :data:`~hushsum.distributions.CAUCHY_LIMIT`. Offsets are b' = b/w, in the order (row, part): see
:func:`~hushsum.families.lsh.row_sources.offsets`. For Walsh–Hadamard directions see
:mod:`hushsum.families.lsh.codes.fastfood`.
"""

import math
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum import distributions, kernels
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.fastfood import Rotated
from hushsum.families.lsh.codes.projection import Projection
from hushsum.families.lsh.hash import Wide
from hushsum.families.lsh.row_sources import Source, offsets
from hushsum.families.vectors import VectorSpace
from hushsum.public_random import NORMAL_LIMIT

_CUT_OFF: Final = 2.0 / (math.pi * distributions.CAUCHY_LIMIT)  # P(|a_j| > the limit), a little less


class Euclidean(Wide):
    """Keys ``bandwidth`` w and ``power``."""

    kernel_name: ClassVar[str] = "euclidean"

    def refuse_codes(self, domain: VectorSpace, key: str, draws: str) -> None:
        """Refuses a bandwidth with which some code might leave int32, whatever the seed.

        Raises:
            PlanError: With the least that would do.
        """
        sizes = domain.sizes.astype(np.float64).tolist()
        reach = math.fsum(sizes)
        if draws == "orthogonal":  # a direction is as long as a normal vector may be, and may point anywhere
            reach = math.sqrt(len(sizes) * math.fsum(size * size for size in sizes))
        self._refuse(reach * NORMAL_LIMIT, key)

    def draw(self, source: Source, domain: VectorSpace) -> Code:
        """The parameters of every row."""
        if isinstance(source, Rotated):
            return source.floors("euclidean", self.power, domain.dim, float(self.bandwidth))
        normals = source.normals("euclidean/directions", self.power, domain.dim)
        return Projection(
            directions=(normals / float(self.bandwidth)).astype(np.float32),
            offsets=offsets(source, "euclidean/offsets", self.power),
            sizes=domain.sizes,
        )

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """(n, d) and (m, d) to (n, m)."""
        return kernels.euclidean(kernels.euclidean_distances(x, y), float(self.bandwidth), self.power)

    def rounding(self, domain: VectorSpace) -> float:
        """p·E|a·ρ|/w: the collision probability falls by at most E|a·(Δ − Δ')|/w from one difference to another."""
        return self.power * math.sqrt(2 / math.pi) * float(np.linalg.norm(domain.rounding)) / float(self.bandwidth)

    def kernel_error(self, domain: VectorSpace) -> float:
        """That of coordinates of float32 alone."""
        return min(1.0, self.rounding(domain))


class Manhattan(Wide):
    """Keys ``bandwidth`` w and ``power``."""

    kernel_name: ClassVar[str] = "manhattan"

    def refuse_codes(self, domain: VectorSpace, key: str, draws: str) -> None:
        """Refuses a bandwidth with which some code might leave int32, whatever the seed.

        Raises:
            PlanError: With the least that would do.
        """
        del draws
        self._refuse(math.fsum(domain.sizes.tolist()) * distributions.CAUCHY_LIMIT, key)

    def draw(self, source: Source, domain: VectorSpace) -> Projection:
        """The parameters of every row."""
        uniforms = source.uniforms("manhattan/directions", self.power * domain.dim)
        directions = distributions.cauchy(uniforms) / float(self.bandwidth)
        return Projection(
            directions=directions.astype(np.float32).reshape(-1, domain.dim),
            offsets=offsets(source, "manhattan/offsets", self.power),
            sizes=domain.sizes,
        )

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """(n, d) and (m, d) to (n, m)."""
        return kernels.manhattan(kernels.manhattan_distances(x, y), float(self.bandwidth), self.power)

    def rounding(self, domain: VectorSpace) -> float:
        """p·(1 − k(ρ)): the kernel is convex, so no step of ρ in the distance c moves it more than the first.

        With u = c/w its slope is −ln(1 + u⁻²)/(πw), so 1 − k is (u ln(1 + u⁻²) + 2 arctan u)/π.
        """
        u = math.fsum(domain.rounding.tolist()) / float(self.bandwidth)
        return self.power * (u * math.log1p(u**-2) + 2 * math.atan(u)) / math.pi if u else 0.0

    def kernel_error(self, domain: VectorSpace) -> float:
        """The probability that some entry of a row is cut off, and what coordinates of float32 add."""
        return min(1.0, self.power * domain.dim * _CUT_OFF + self.rounding(domain))
