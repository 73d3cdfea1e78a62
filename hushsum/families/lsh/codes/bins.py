"""Codes of random binning: one a coordinate, and their definition.

**Definition.** For a coordinate x of float32, a pitch's inverse a of float32 above 0 and an offset b on a grid of 2⁻²⁴
in [0, 1): code = ⌊a·x + b⌋ in float64, where the product is exact. One addition and one floor: nothing to filter.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import CODE_LIMIT


@dataclass(frozen=True, eq=False)
class Bins:
    """The parameters of k·d codes a record: part after part, and within one coordinate after coordinate.

    Attributes:
        inverses: (k, d) float32 above 0: 1 over the pitch.
        offsets: (k, d) float64 in [0, 1), multiples of 2⁻²⁴.
    """

    inverses: Float32
    offsets: Float64

    def __len__(self) -> int:
        """k·d."""
        return self.inverses.size

    def ends(self, lower: Float32, upper: Float32) -> tuple[Int64, Int64]:
        """(k·d,) int64, twice: the least and the largest code of any record within [lower, upper], both attained."""
        return self._codes(lower).reshape(-1), self._codes(upper).reshape(-1)

    def far(self, queries: Float32) -> npt.NDArray[np.bool_]:
        """(m,): queries (m, d) with some code that leaves 32 bits."""
        with np.errstate(invalid="ignore"):
            reach = np.abs(queries).astype(np.float64) * self._steepest
        return np.asarray(~(reach < CODE_LIMIT).all(axis=1), np.bool_)

    def _codes(self, record: Float32) -> Int64:
        return np.asarray(np.floor(self.inverses.astype(np.float64) * record + self.offsets), np.int64)

    @cached_property
    def _steepest(self) -> Float64:
        return np.asarray(self.inverses.max(axis=0), np.float64)
