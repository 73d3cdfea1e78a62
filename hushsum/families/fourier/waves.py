"""Cosines and sines of every phase in fixed point: what a record adds to its pair of counters, and what a query reads.

With T phases a turn and h = 2π/T, phase k adds (A_k, B_k) = (rint(2ᵇ cos hk), rint(2ᵇ sin hk)), and a query at phase l
reads (C cos hl + S sin hl)/κ, κ = (1/T) Σ_k (A_k cos hk + B_k sin hk). Where the first of two phases is uniform and the
second is D further on, the product is cos hD on average, exactly: the table has the symmetries of cosine and sine, so
Σ_k (A_k + iB_k) e^{−ihk} is real. Rounding to b bits adds no bias, only a little variance.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.elementary import sin_cos_turns

#: T: phases of a turn. A power of two, so that codes wrap round without a division. More of them would cost time in
#: proportion (a filter's bound is absolute, and the tables leave the nearest cache) and only shrink an error of 2·10⁻⁵.
TURN: Final = 512

_HALF: Final = 32  # bits of each half of a packed pair

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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
