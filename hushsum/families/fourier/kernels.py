"""The kernel of a fourier family and how its frequencies are drawn: keys, draws, the exact kernel, error bars.

Plans whose draws would be too large, or whose error bound says nothing, are refused before anything is drawn.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum import kernels
from hushsum.canonical import real_text
from hushsum.distributions import uniforms
from hushsum.errors import PlanError
from hushsum.families.estimators import Division, checked_groups
from hushsum.families.fourier import parameters as frequencies
from hushsum.families.fourier.parameters import CHORD_ERROR, REACH_MAX, STEPS, GivenFrequencies, Pairs, waves
from hushsum.families.limits import NORMAL, ORTHOGONAL, WORD, read_kernel, refuse_draws
from hushsum.families.lsh.arrays import Float32, Float64
from hushsum.families.lsh.codes.projection import DIM_MAX
from hushsum.families.vectors import MAGNITUDE_MAX
from hushsum.parameters import Parameters
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.schema import Table
from hushsum.sobol import MAX_DIMS, MAX_POINTS

_KERNELS: Final = ("gaussian", "laplacian", "cauchy", "exponential-p")
_DRAWS: Final = ("independent", "sobol", "orthogonal", "given")
_SOBOL_SETS: Final = 8
_SETS_MAX: Final = 2**20
_FREQUENCIES: Final = "fourier/frequencies"
_BLOCK_UNIFORMS: Final = 1 << 20


@dataclass(frozen=True)
class Spectrum:
    """The distribution of frequencies.

    Attributes:
        kernel_name: ``gaussian`` exp(−‖x−y‖₂²/σ²), ``laplacian`` exp(−‖x−y‖₁/σ), ``cauchy`` Π 1/(1 + (x_j−y_j)²/σ²) or
            ``exponential-p`` exp(−Σ |x_j−y_j|ᵖ/σᵖ).
        bandwidth: σ, in the unit of what comes out of the transforms.
        exponent: p from 1 to 2, of ``exponential-p`` alone.
        draws: ``independent``, ``sobol``, ``orthogonal`` (gaussian alone) or ``given``.
        sobol_sets: Independently scrambled sets, of ``sobol`` alone.
        given: Frequencies beside the plan, of ``given`` alone. The kernel is then the mean of their cosines itself.
    """

    kernel_name: str
    bandwidth: Fraction
    exponent: Fraction | None = None
    draws: str = "independent"
    sobol_sets: int | None = None
    given: GivenFrequencies | None = None

    @classmethod
    def from_table(cls, sketch: Table, parameters: Parameters, *, rows: int, dim: int) -> "Spectrum":
        """Reads kernel, bandwidth and draws, and exponent, sobol_sets and parameters where they have a meaning.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        kernel, draws = read_kernel(sketch, _KERNELS), sketch.choice("draws", built=_DRAWS, default=_DRAWS[0])
        exponent, sets, given, within = None, None, None, "a number from 1 to 2"
        if kernel == "exponential-p":
            exponent = sketch.real("exponent", expected=within)
            if not 1 <= exponent <= 2:
                raise PlanError(sketch.name("exponent"), real_text(exponent), within)
        if draws == "sobol":
            sets = sketch.integer("sobol_sets", low=2, high=_SETS_MAX, default=_SOBOL_SETS)
        if draws == "given":
            digest = sketch.text("parameters")
            given = GivenFrequencies.of(
                digest, parameters.take(sketch.name("parameters"), digest, columns=dim + 1), rows
            )
        bandwidth = sketch.real("bandwidth", expected="a number above 0", above=0)
        return cls(kernel, bandwidth, exponent, draws, sets, given)

    def to_fields(self) -> dict[str, object]:
        """Those keys."""
        written: dict[str, object] = {
            "kernel": self.kernel_name,
            "bandwidth": real_text(self.bandwidth),
            "draws": self.draws,
        }
        if self.exponent is not None:
            written["exponent"] = real_text(self.exponent)
        if self.sobol_sets is not None:
            written["sobol_sets"] = self.sobol_sets
        if self.given is not None:
            written["parameters"] = self.given.digest
        return written

    @property
    def uniforms_each(self) -> int:
        """Uniforms that one coordinate of one frequency takes."""
        return 2 if self.exponent is not None else 1

    def limit(self, dim: int) -> float:
        """No coordinate of σω is larger than this in absolute value."""
        if self.given is not None:
            return frequencies.GIVEN_LIMIT
        return frequencies.limit("orthogonal" if self.draws == "orthogonal" else self.kernel_name, dim)

    def pairs(self, seed: PublicSeed, *, rows: int, bits: int, sizes: Float32) -> Pairs:
        """The pairs of a seed; fewer independent pairs are a prefix of more.

        Independent and Sobol: row p of :func:`hushsum.distributions.uniforms` has the uniforms of the frequency, one
        coordinate after another, and that of the phase last. Orthogonal: see :func:`frequencies.orthogonal`.
        """
        if self.given is not None:
            spread, turns = self.given.columns
            directions = frequencies.directions(spread, float(self.bandwidth))
        elif self.draws == "orthogonal":
            directions = frequencies.directions(frequencies.orthogonal(seed, rows, len(sizes)), float(self.bandwidth))
            turns = PublicStream(seed, "fourier/phases").open_uniform(rows)
        else:
            directions, turns = self._drawn(seed, rows, len(sizes))
        projection, bases = frequencies.assemble(directions, turns, sizes=sizes)
        return Pairs(projection, bases, waves(bits))

    def _drawn(self, seed: PublicSeed, rows: int, dim: int) -> tuple[Float32, Float64]:
        """Directions (P, d) and phases (P,) of uniforms, some rows at a time: steps of functions take memory."""
        dims, stream = dim * self.uniforms_each + 1, PublicStream(seed, _FREQUENCIES)
        points = None
        if self.sobol_sets is not None:
            points = uniforms(seed, _FREQUENCIES, rows=rows, dims=dims, draws=self.draws, sets=self.sobol_sets)
        directions, turns = np.empty((rows, dim), np.float32), np.empty(rows)
        size = max(1, _BLOCK_UNIFORMS // dims)
        for start in range(0, rows, size):
            some = slice(start, min(start + size, rows))
            count = some.stop - some.start
            # A stream goes on where it stopped: the rows are those of one call for all of them.
            block = stream.open_uniform(count * dims).reshape(count, dims) if points is None else points[some]
            of_coordinates = block[:, :-1].reshape(count, dim, self.uniforms_each)
            spread = frequencies.spread(self.kernel_name, of_coordinates, float(self.exponent or 0))
            directions[some], turns[some] = frequencies.directions(spread, float(self.bandwidth)), block[:, -1]
        return directions, turns

    def kernel(self, x: Float64, y: Float64) -> Float64:
        """The kernel in closed form, (n, d) and (m, d) to (n, m); given frequencies have another one."""
        scale = float(self.bandwidth)
        if self.kernel_name == "gaussian":
            return kernels.gaussian(kernels.euclidean_distances(x, y), scale)
        if self.kernel_name == "laplacian":
            return kernels.laplacian(kernels.manhattan_distances(x, y), scale)
        if self.kernel_name == "cauchy":
            return kernels.cauchy(x, y, scale)
        return kernels.exponential_p(x, y, scale, float(self.exponent or 0))

    def error(self, extents: Float64, bits: int) -> float:
        """How far E[f·g] is from the kernel at most, for points within a box of these extents (d,).

        Drawn: the chord of the cosine (:data:`~hushsum.families.fourier.parameters.CHORD_ERROR`), and what a
        coordinate's frequency z/σ adds. Its cut at a limit: twice the distance in total variation. Its rounding to
        float32, to the middle of a cell of width w ≤ 2⁻²³z: of a density that is flat over it, the mean of e^{izr}, r =
        Δ_j/σ, is off by at most min(2, (wr)²/24); /8 leaves room for its slope. With E z² = 2 (gaussian, cauchy) that
        makes 2⁻⁴⁸r², and with P(|z| > t) ≤ 2/t (stable; see :data:`hushsum.distributions.STABLE_LIMIT`) 2⁻²²r.
        Coordinates are independent, and a product of factors in the unit disc is off by at most the sum of their
        errors.

        Given: the kernel is that of the phases themselves, and the rounding of what one adds is all that counts.
        """
        if self.given is not None:
            return waves(bits).rounding
        reaches = extents / float(self.bandwidth)
        light = self.kernel_name in {"gaussian", "cauchy"}
        rounded = np.minimum(2.0**-48 * np.square(reaches) if light else 2.0**-22 * reaches, 2.0)
        return CHORD_ERROR + math.fsum((2.0 * frequencies.CUT[self.kernel_name] + rounded).tolist())

    def rounding(self, moved: Float64) -> float:
        """How far the kernel moves at most with differences of coordinates that move by (d,).

        Steepest slopes over σ: √(2/e) of e^(−r²), 3√3/8 of 1/(1 + t²), and at most 1 of e^(−|t|ᵖ). Nothing for given
        frequencies: their kernel is that of the rounded points.
        """
        if self.given is not None:
            return 0.0
        if self.kernel_name == "gaussian":
            return math.sqrt(2 / math.e) * float(np.linalg.norm(moved)) / float(self.bandwidth)
        slope = 3 * math.sqrt(3) / 8 if self.kernel_name == "cauchy" else 1.0
        return slope * math.fsum(moved.tolist()) / float(self.bandwidth)

    def division(self, rows: int, dim: int, groups: int | None) -> Division:
        """How the pairs are divided for an answer's error bar.

        Raises:
            ValueError: Groups are not from 1 to P, or pairs are not independent.
        """
        if groups is not None:
            if self.draws != "independent":
                raise ValueError(
                    f"groups: got {groups}, expected None: pairs are not independent with draws = {self.draws!r}"
                )
            return Division.of("groups", rows, checked_groups(groups, rows))
        if self.sobol_sets is not None:
            return Division.of("sets", rows, self.sobol_sets)
        if self.draws == "orthogonal" and dim > 1:
            return Division.of_blocks(rows, dim)
        return Division.of("noise" if self.given is not None else "rows", rows, 1)


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
        expected = (
            f"more than {reach / REACH_MAX:.3g}, so that phases within record.lower and record.upper can be computed"
        )
        raise PlanError("sketch.bandwidth", came, expected)
