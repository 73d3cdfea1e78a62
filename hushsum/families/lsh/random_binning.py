"""Random binning, the hash of the laplacian kernel: ⌊(x_j − u_j)/δ_j⌋ of every coordinate, together.

Pitches δ_j are Gamma draws of shape 2 and scale σ, offsets u_j ~ U[0, δ_j): Rahimi and Recht 2007, section 4.

**Frozen**: a = float32(1/(σδ)), in the order (row, part, coordinate), δ of scale 1 from two uniforms each, no less than
:data:`PITCH_LEAST`, product and quotient in float64; b = 1 − u/δ counts as its own draw from [0, 1), see
:func:`~hushsum.families.lsh.row_sources.offsets`.
"""

import math
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from hushsum import distributions, kernels
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.hash import Wide
from hushsum.families.lsh.row_sources import Source, offsets
from hushsum.families.vectors import VectorSpace

#: The least pitch over σ; a smaller draw, of probability 1 − e^(−t)(1 + t) < t²/2, is put at it.
PITCH_LEAST: Final = 2.0**-16


class Laplacian(Wide):
    """Keys ``bandwidth`` σ and ``power``."""

    kernel_name: ClassVar[str] = "laplacian"

    def codes(self, domain: VectorSpace) -> int:
        """p·d, one a coordinate."""
        return self.power * domain.dim

    def uniforms(self, domain: VectorSpace) -> int:
        """3·p·d."""
        return 3 * self.power * domain.dim

    def refuse_codes(self, domain: VectorSpace, key: str, draws: str) -> None:
        """Refuses a bandwidth with which some code might leave int32, whatever the seed.

        Raises:
            PlanError: With the least that would do.
        """
        del draws
        self._refuse(float(domain.sizes.max()) / PITCH_LEAST, key)

    def draw(self, source: Source, domain: VectorSpace) -> Bins:
        """The parameters of every row."""
        count = self.power * domain.dim
        uniforms = source.uniforms("laplacian/pitches", 2 * count)
        pitches = np.maximum(distributions.gamma2(uniforms[:, 0::2], uniforms[:, 1::2]), PITCH_LEAST)
        inverses = 1.0 / (pitches * float(self.bandwidth))
        return Bins(
            inverses=inverses.astype(np.float32).reshape(-1, domain.dim),
            offsets=offsets(source, "laplacian/offsets", count).reshape(-1, domain.dim),
        )

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """(n, d) and (m, d) to (n, m)."""
        return kernels.laplacian(kernels.manhattan_distances(x, y), float(self.bandwidth), self.power)

    def rounding(self, domain: VectorSpace) -> float:
        """p·Σρ_j/σ: e^(−c) is nowhere steeper than 1."""
        return self.power * math.fsum(domain.rounding.tolist()) / float(self.bandwidth)

    def kernel_error(self, domain: VectorSpace) -> float:
        """The probability that some pitch of a row is put at the least, and what coordinates of float32 add."""
        return min(1.0, self.power * domain.dim * PITCH_LEAST**2 / 2 + self.rounding(domain))
