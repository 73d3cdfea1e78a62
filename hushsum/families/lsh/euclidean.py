"""The p-stable hash of the euclidean kernel: ⌊(a·x + b)/w⌋ with a ~ N(0, I) and b ~ U[0, w).

Datar, Immorlica, Indyk and Mirrokni 2004, section 3; RACE, section 2.

**Frozen**: directions are a' = float32(a/w), a from the normals in the order (row, part, coordinate), the quotient in
float64. Offsets are b' = b/w, in the order (row, part): see :func:`~hushsum.families.lsh.sources.offsets`.
Walsh–Hadamard directions: :mod:`hushsum.families.lsh.fastfood`.
"""

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.draws import NORMAL_LIMIT
from hushsum.families.lsh.bandwidths import Wide
from hushsum.families.lsh.coders import Coder
from hushsum.families.lsh.fastfood_draws import Rotated
from hushsum.families.lsh.projection import Projection
from hushsum.families.lsh.sources import Source, offsets
from hushsum.families.vectors import Space


class Euclidean(Wide):
    """Keys ``bandwidth`` w and ``power``."""

    kernel_name: ClassVar[str] = "euclidean"

    def refuse_codes(self, domain: Space, key: str, draws: str) -> None:
        """Refuses a bandwidth with which some code might leave int32, whatever the seed.

        Raises:
            PlanError: With the least that would do.
        """
        sizes = domain.sizes.astype(np.float64).tolist()
        reach = math.fsum(sizes)
        if draws == "orthogonal":  # a direction is as long as a normal vector may be, and may point anywhere
            reach = math.sqrt(len(sizes) * math.fsum(size * size for size in sizes))
        self._refuse(reach * NORMAL_LIMIT, key)

    def draw(self, source: Source, domain: Space) -> Coder:
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

    def rounding(self, domain: Space) -> float:
        """p·E|a·ρ|/w: the collision probability falls by at most E|a·(Δ − Δ')|/w from one difference to another."""
        return self.power * math.sqrt(2 / math.pi) * float(np.linalg.norm(domain.rounding)) / float(self.bandwidth)

    def kernel_error(self, domain: Space) -> float:
        """That of coordinates of float32 alone."""
        return min(1.0, self.rounding(domain))
