"""The p-stable hash of the euclidean kernel: ⌊(a·x + b)/w⌋ with a ~ N(0, I) and b ~ U[0, w).

Datar, Immorlica, Indyk and Mirrokni 2004, section 3; RACE, section 2.
"""

import numpy as np

from hushsum.draws import NORMAL_LIMIT, PublicSeed, PublicStream
from hushsum.families.lsh.projection import Float32, Projection

#: No entry of a direction is larger than this over the bandwidth.
DIRECTION_LIMIT = NORMAL_LIMIT


def draw(seed: PublicSeed, *, rows: int, power: int, width: float, sizes: Float32) -> Projection:
    """The parameters of every row, from the seed alone; fewer rows are a prefix of more.

    Directions are a' = float32(a/w), a from the normal draws in the order (row, part, coordinate), the quotient in
    float64. Offsets are b' = b/w, in the order (row, part): the upper 24 bits of a word, times 2⁻²⁴, which float32
    holds exactly.

    Args:
        seed: The plan's.
        rows: R.
        power: p, parts of a row.
        width: w, in the unit of the records.
        sizes: (d,) float32: see :class:`Projection`.
    """
    dim = len(sizes)
    normals = PublicStream(seed, "hashed/euclidean/directions").normal(rows * power * dim)
    words = PublicStream(seed, "hashed/euclidean/offsets").words(rows * power)
    return Projection(
        directions=(normals / width).astype(np.float32).reshape(rows * power, dim),
        offsets=(words >> np.uint64(40)).astype(np.float64) * 2.0**-24,
        sizes=sizes,
    )
