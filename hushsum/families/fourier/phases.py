"""Phases of records: their definition, and all that an engine knows of the pairs of a sketch.

**Definition.** A pair has a direction a of float32 (steps of 1/T turn a unit), an offset in [0, 1) on a grid of 2⁻²⁴
and a whole base from 0 to T − 1. With the code ⌊a·x + offset⌋ as
:mod:`hushsum.families.lsh.codes.projection` defines it, in float64 and in order::

    phase = (code + base) mod T

Codes may be as large as :data:`REACH_MAX`, far beyond 32 bits, where frequencies have heavy tails: the remainder is
taken in float64, where it is exact. The filter for products in float32 is that of codes: a code that is not flagged is
below 2²⁴ in size, and exact. For products in float64, with u = 2⁻⁵³, the same proof has the product, the addition of
the offset and the definition's own sum each off by at most (1.01 d + 2) u (αξ + 1): the filter allows 8 times that.

**Why this loses nothing.** Let x and q be Δ steps apart, Δ = n + φ with φ in [0, 1), and h = 2π/T. The offset is
uniform, so their codes are n + 1 apart with probability φ, else n: on average the product is (1 − φ) cos hn +
φ cos h(n + 1), the chord of the cosine, which is within h²/8 of cos hΔ. The base is uniform, so that the rounding of
the table has no part in it (:mod:`hushsum.families.fourier.waves`).
"""

import math
from dataclasses import dataclass
from typing import Final

from hushsum.families.fourier.waves import TURN, Waves
from hushsum.families.lsh.arrays import Int64
from hushsum.families.lsh.codes.projection import Projection

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
