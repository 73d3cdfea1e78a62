"""Uniforms of a public seed, and draws of other distributions made of them, the same bits on every platform.

A uniform is the midpoint of that interval of width 2⁻⁵² which a continuous one falls into. The functions of uniforms
work element by element and first bring them into [:data:`LEAST_UNIFORM`, 1 − :data:`LEAST_UNIFORM`], which changes
nothing that :func:`uniforms` gives and makes every limit hold. A limit that cuts more off than those ends do states how
far that is from the distribution: the distance in total variation of one draw, apart from the rounding of its uniforms.
"""

from typing import Final, Literal, get_args

import numpy as np

from hushsum.errors import PlanError
from hushsum.math_portable import Floats, exp, ln, normal_quantile, sin_cos_turns
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.sobol import MAX_DIMS, MAX_POINTS, sobol

#: How the rows of a sketch are drawn.
Draws = Literal["independent", "sobol"]

#: The least of :func:`uniforms`; the largest is 1 less this.
LEAST_UNIFORM: Final = 2.0**-53
#: No :func:`normal` is larger in absolute value: −Φ⁻¹(2⁻⁵³) = 8.2095.
NORMAL_LIMIT: Final = 8.21
#: No :func:`laplace` is larger in absolute value: 52 ln 2 = 36.0437.
LAPLACE_LIMIT: Final = 36.05
#: No :func:`gamma2` is larger: 106 ln 2 = 73.4736.
GAMMA2_LIMIT: Final = 73.48
#: No :func:`gamma2` is smaller: −ln of the largest product of two uniforms, 1 − 2⁻⁵², is a little more than this.
GAMMA2_LEAST: Final = 2.0**-52
#: No :func:`cauchy` is larger in absolute value: that is put at it. Distance 2/(π·2²⁰) = 6.1·10⁻⁷ a draw.
CAUCHY_LIMIT: Final = 2.0**20
#: No :func:`stable` is larger in absolute value: that is put at it. Distance at most 2⁻¹⁹ a draw for every p from 1 to
#: 2, by P(|X| > x) ≤ (x/2)·∫(1 − φ(t)) dt over |t| ≤ 2/x; 6.1·10⁻⁷ in truth at p = 1 and less above.
STABLE_LIMIT: Final = 2.0**20


def uniforms(seed: PublicSeed, purpose: str, *, rows: int, dims: int, draws: str, sets: int = 1) -> Floats:
    """The uniforms that the rows of a sketch are made of.

    Args:
        seed: The plan's public seed.
        purpose: What they are for; other purposes are independent.
        rows: At least 0. Rows drawn independently do not depend on how many there are.
        dims: Uniforms of a row.
        draws: "independent", or "sobol": ``sets`` independently scrambled sets of rows, see :mod:`hushsum.sobol`.
        sets: Sets of Sobol points, which ``rows`` is a multiple of; not looked at where draws are independent.

    Returns:
        (rows, dims) float64 in (0, 1), odd multiples of 2⁻⁵³. Of Sobol points, row r is of set ⌊r·sets/rows⌋.

    Raises:
        PlanError: ``draws`` is unknown, or Sobol points cannot be had in these numbers.
    """
    if draws == "independent":
        return PublicStream(seed, purpose).open_uniform(rows * dims).reshape(rows, dims)
    if draws != "sobol":
        raise PlanError("sketch.draws", draws, f"one of {', '.join(get_args(Draws))}")
    if sets < 1 or rows % sets:
        raise PlanError("sketch.rows", rows, f"a multiple of the {sets} sets of Sobol points")
    if rows > sets * MAX_POINTS:
        raise PlanError("sketch.rows", rows, f"at most {MAX_POINTS} rows a set of Sobol points")
    if dims > MAX_DIMS:
        raise PlanError("sketch.draws", draws, f'"independent": a row takes {dims} draws, Sobol points have {MAX_DIMS}')
    return sobol(seed, purpose, sets=sets, points=rows // sets, dims=dims)


def normal(u: Floats) -> Floats:
    """Standard normals, at most :data:`NORMAL_LIMIT` in absolute value: Φ⁻¹(u)."""
    return normal_quantile(_inside(u))


def cauchy(u: Floats) -> Floats:
    """Standard Cauchy draws, cut off at ± :data:`CAUCHY_LIMIT`: tan(π(u − ½)) = −cot πu."""
    sine, cosine = sin_cos_turns(0.5 * _inside(u))
    return _within(-cosine / sine, CAUCHY_LIMIT)


def laplace(u: Floats) -> Floats:
    """Standard Laplace draws, ±ln(2·min(u, 1 − u)), at most :data:`LAPLACE_LIMIT` in absolute value."""
    u = _inside(u)
    size = -ln(2.0 * np.minimum(u, 1.0 - u))
    return np.where(u < 0.5, -size, size)


def gamma2(u1: Floats, u2: Floats) -> Floats:
    """Gamma draws of shape 2 and scale 1, from :data:`GAMMA2_LEAST` to :data:`GAMMA2_LIMIT`: −ln(u1·u2)."""
    return -ln(_inside(u1) * _inside(u2))


def stable(u1: Floats, u2: Floats, p: float) -> Floats:
    """Symmetric p-stable draws with characteristic function e^{−|t|ᵖ}, cut off at ± :data:`STABLE_LIMIT`.

    p = 1 is Cauchy, p = 2 normal with variance 2. With V = π(u1 − ½) and W = −ln u2, a draw is
    sin(pV)/cos(V)^{1/p} · (cos((p − 1)V)/W)^{(1−p)/p}: Chambers, Mallows and Stuck, A method for simulating stable
    random variables, 1976, without skew.

    Raises:
        ValueError: p is not in [1, 2].
    """
    if not 1.0 <= p <= 2.0:
        raise ValueError(f"p from 1 to 2 expected, got {p!r}")
    u1, u2 = _inside(u1), _inside(u2)
    half_turns = u1 - 0.5
    sine = sin_cos_turns(0.5 * (p * half_turns))[0]
    cosine = sin_cos_turns(0.5 * u1)[0]  # cos V = sin πu1 keeps its accuracy at both ends
    slant = sin_cos_turns(0.5 * ((p - 1.0) * half_turns))[1]
    exponent = ((1.0 - p) / p) * (ln(slant) - ln(-ln(u2))) - ln(cosine) / p
    return _within(sine * exp(exponent), STABLE_LIMIT)


def _inside(u: Floats) -> Floats:
    return _clipped(u, LEAST_UNIFORM, 1.0 - LEAST_UNIFORM)


def _within(x: Floats, limit: float) -> Floats:
    return _clipped(x, -limit, limit)


def _clipped(x: Floats, least: float, most: float) -> Floats:
    return np.minimum(np.maximum(x, least), most)
