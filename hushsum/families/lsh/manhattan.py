"""The p-stable hash of the manhattan kernel: ⌊(a·x + b)/w⌋ with standard Cauchy entries of a and b ~ U[0, w).

Datar, Immorlica, Indyk and Mirrokni 2004, section 3.

**Frozen**: directions are float32(a/w), a the quantiles of uniforms in the order (row, part, coordinate), cut off at
± :data:`~hushsum.distributions.CAUCHY_LIMIT`, the quotient in float64. Offsets as for euclidean.
"""

import math
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum import distributions, kernels
from hushsum.families.lsh.bandwidths import Wide
from hushsum.families.lsh.projection import Projection
from hushsum.families.lsh.sources import Source, offsets
from hushsum.families.vectors import Space

_CUT_OFF: Final = 2.0 / (math.pi * distributions.CAUCHY_LIMIT)  # P(|a_j| > the limit), a little less


class Manhattan(Wide):
    """Keys ``bandwidth`` w and ``power``."""

    kernel_name: ClassVar[str] = "manhattan"

    def refuse_codes(self, domain: Space, key: str, draws: str) -> None:
        """Refuses a bandwidth with which some code might leave int32, whatever the seed.

        Raises:
            PlanError: With the least that would do.
        """
        del draws
        self._refuse(math.fsum(domain.sizes.tolist()) * distributions.CAUCHY_LIMIT, key)

    def draw(self, source: Source, domain: Space) -> Projection:
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

    def rounding(self, domain: Space) -> float:
        """p·(1 − k(ρ)): the kernel is convex, so no step of ρ in the distance c moves it more than the first.

        With u = c/w its slope is −ln(1 + u⁻²)/(πw), so 1 − k is (u ln(1 + u⁻²) + 2 arctan u)/π.
        """
        u = math.fsum(domain.rounding.tolist()) / float(self.bandwidth)
        return self.power * (u * math.log1p(u**-2) + 2 * math.atan(u)) / math.pi if u else 0.0

    def kernel_error(self, domain: Space) -> float:
        """The probability that some entry of a row is cut off, and what coordinates of float32 add."""
        return min(1.0, self.power * domain.dim * _CUT_OFF + self.rounding(domain))
