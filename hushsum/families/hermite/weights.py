"""How finely each moment is stored: an integer scale s_r for each r, so that one noise scale serves all of them best.

A query reads the moment r with weight a_r(v)/s_r (:mod:`hushsum.families.hermite.series`). Over queries that lie evenly
anywhere, a cell's a_r(v)² adds up to A_r = Π_j ∫ a_{r_j}² dv = (π/2)^{d/2}·Π_j (2r_j − 1)!!/r_j!², as the Fourier
integral of a derivative of e^{−v²} shows. One record moves the stored moment by s_r·2^{−|r|} at most. With s_r = s·w_r
the mean variance of an answer is therefore proportional to

* Gaussian noise: Σ_r (w_r·2^{−|r|})² · Σ_r A_r/w_r², least for w_r⁴ = Π_j C(2r_j, r_j)·2^{r_j}/r_j!;
* Laplace noise: (Σ_r w_r·2^{−|r|})² · Σ_r A_r/w_r², least for w_r³ = Π_j C(2r_j, r_j)/r_j!

(Cauchy and Schwarz; Hölder). w_0 = 1, and no w_r·2^{−|r|} is above 1.

**Frozen**: s_r is the largest integer with (s_r − ½)^k ≤ s^k·w_r^k, k = 4 or 3. These are integers: no float decides.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

#: All moments at one scale.
EQUAL: Final = "equal"
#: The least mean variance under Gaussian noise, and under Laplace noise.
GAUSSIAN: Final = "gaussian"
LAPLACE: Final = "laplace"
WEIGHTS: Final = (EQUAL, GAUSSIAN, LAPLACE)
#: In plan files: whichever of them has the least noise, when the plan is made.
AUTO: Final = "auto"

_ROOTS: Final = {GAUSSIAN: 4, LAPLACE: 3}
_UNIT: Final = 2**50  # of relative weights


def scales(weights: str, degrees: Sequence[Sequence[int]], scale: int) -> list[int]:
    """s_r of each r.

    Args:
        weights: One of :data:`WEIGHTS`.
        degrees: The r, d numbers each.
        scale: s.
    """
    return [scale if weights == EQUAL else _scale(weights, tuple(sorted(r)), scale) for r in degrees]


def relative(weights: str, order: int) -> list[float]:
    """w_r for r below ``order`` along one coordinate, to 2⁻⁵¹: w of several is their product."""
    return [found / _UNIT for found in scales(weights, [(r,) for r in range(order)], _UNIT)]


@lru_cache(maxsize=4096)
def _scale(weights: str, r: tuple[int, ...], scale: int) -> int:
    root, power = _ROOTS[weights], Fraction(1)
    for each in r:
        doubled = 2**each if weights == GAUSSIAN else 1
        power *= Fraction(math.comb(2 * each, each) * doubled, math.factorial(each))
    return (_floor_root((2 * scale) ** root * power, root) + 1) // 2


def _floor_root(value: Fraction, root: int) -> int:
    """⌊value^{1/root}⌋ of a value of at least 0, by Newton's method from above."""
    whole = value.numerator // value.denominator
    if not whole:
        return 0
    found = 1 << -(-whole.bit_length() // root)
    while True:
        next_ = ((root - 1) * found + whole // found ** (root - 1)) // root
        if next_ >= found:
            return found
        found = next_
