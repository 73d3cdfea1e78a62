"""Which plans of the fourier family are refused, before anything is drawn."""

from typing import Final

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families.drawn_sizes import NORMAL, ORTHOGONAL, WORD, refuse_draws
from hushsum.families.fourier.frequencies import STEPS
from hushsum.families.fourier.phases import REACH_MAX
from hushsum.families.fourier.spectrum import Spectrum
from hushsum.families.lsh.arrays import Float64
from hushsum.families.lsh.codes.projection import DIM_MAX
from hushsum.families.vectors import MAGNITUDE_MAX
from hushsum.sobol import MAX_DIMS, MAX_POINTS

_ORTHOGONAL_DIM_MAX: Final = 512


def refuse_rows(spectrum: Spectrum, rows: int, dim: int) -> None:
    """Refuses more parameters than memory, and draws that cannot be had in these numbers.

    Raises:
        PlanError: With the key, and what would do.
    """
    if dim > DIM_MAX:
        raise PlanError("record.dim", dim, f"at most {DIM_MAX} for the fourier family")
    numbers = dim * spectrum.uniforms_each
    weights = {"sobol": 2 * WORD + NORMAL, "orthogonal": ORTHOGONAL}
    steps = dim * dim if spectrum.draws == "orthogonal" else 0
    refuse_draws(rows, weights.get(spectrum.draws, NORMAL) * numbers, "dim, kernel and draws", steps=steps)
    if spectrum.draws == "sobol":
        if numbers + 1 > MAX_DIMS:
            expected = f"'independent': a pair takes {numbers + 1} draws, Sobol points have {MAX_DIMS}"
            raise PlanError("sketch.draws", "sobol", expected)
        sets = spectrum.sobol_sets or 1
        if rows % sets or rows > sets * MAX_POINTS:
            expected = f"a multiple of sobol_sets = {sets}, at most {MAX_POINTS} a set"
            raise PlanError("sketch.rows", rows, expected)
    if spectrum.draws == "orthogonal":
        if spectrum.kernel_name != "gaussian" or dim > _ORTHOGONAL_DIM_MAX:
            expected = (
                f"'independent': orthogonal is for the gaussian kernel of at most {_ORTHOGONAL_DIM_MAX} coordinates"
            )
            raise PlanError("sketch.draws", "orthogonal", expected)
        if rows % dim:
            raise PlanError("sketch.rows", rows, f"a multiple of the {dim} coordinates, for orthogonal draws")


def refuse_bandwidth(spectrum: Spectrum, sizes: Float64) -> None:
    """Refuses a bandwidth with which some code might be no exact integer, whatever the seed.

    Args:
        spectrum: Of the plan.
        sizes: (d,): the largest absolute coordinates.

    Raises:
        PlanError: With what would do.
    """
    bandwidth, came = spectrum.bandwidth, real_text(spectrum.bandwidth)
    if not 1 / MAGNITUDE_MAX <= bandwidth <= MAGNITUDE_MAX:
        raise PlanError("sketch.bandwidth", came, "a number from 2^-64 to 2^64")
    reach = 1.01 * float(sizes.sum()) * spectrum.limit(len(sizes)) * STEPS
    if not reach < REACH_MAX * float(bandwidth):
        expected = f"more than {reach / REACH_MAX:.3g}: phases within record.lower and record.upper could not be told"
        raise PlanError("sketch.bandwidth", came, expected)
