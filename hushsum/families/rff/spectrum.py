"""The kernel of a fourier family and how its frequencies are drawn: keys, draws, the exact kernel, error bars."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum import kernels
from hushsum.canonical import real_text
from hushsum.distributions import uniforms
from hushsum.draws import PublicSeed, PublicStream
from hushsum.errors import PlanError
from hushsum.families.lsh.projection import Float32, Float64
from hushsum.families.rff import frequencies
from hushsum.families.rff.estimates import Division
from hushsum.families.rff.frequencies import Given
from hushsum.families.rff.phases import CHORD_ERROR, STEP, Pairs
from hushsum.families.rff.waves import waves
from hushsum.parameters import Parameters
from hushsum.schema import Table

_KERNELS: Final = ("gaussian", "laplacian", "cauchy", "exponential-p")
_DRAWS: Final = ("independent", "sobol", "orthogonal", "given")
_SOBOL_SETS: Final = 8
_SETS_MAX: Final = 2**20
_ORTHOGONAL_SETS: Final = 64  # at most, of blocks of orthogonal pairs, for the error bars


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
    given: Given | None = None

    @classmethod
    def from_table(cls, sketch: Table, parameters: Parameters, *, rows: int, dim: int) -> "Spectrum":
        """Reads kernel, bandwidth and draws, and exponent, sobol_sets and parameters where they have a meaning.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        kernel, draws = sketch.choice("kernel", built=_KERNELS), sketch.choice("draws", built=_DRAWS, default=_DRAWS[0])
        exponent, sets, given, within = None, None, None, "a number from 1 to 2"
        if kernel == "exponential-p":
            exponent = sketch.real("exponent", expected=within)
            if not 1 <= exponent <= 2:
                raise PlanError(sketch.name("exponent"), real_text(exponent), within)
        if draws == "sobol":
            sets = sketch.integer("sobol_sets", low=2, high=_SETS_MAX, default=_SOBOL_SETS)
        if draws == "given":
            digest = sketch.text("parameters")
            given = Given.of(digest, parameters.take(sketch.name("parameters"), digest, columns=dim + 1), rows)
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
        dim, each = len(sizes), self.uniforms_each
        if self.given is not None:
            spread, turns = self.given.columns
        elif self.draws == "orthogonal":
            spread = frequencies.orthogonal(seed, rows, dim)
            turns = PublicStream(seed, "fourier/phases").open_uniform(rows)
        else:
            dims, sets = dim * each + 1, self.sobol_sets or 1
            points = uniforms(seed, "fourier/frequencies", rows=rows, dims=dims, draws=self.draws, sets=sets)
            of_coordinates, turns = points[:, :-1].reshape(rows, dim, each), points[:, -1]
            spread = frequencies.spread(self.kernel_name, of_coordinates, float(self.exponent or 0))
        projection, bases = frequencies.assemble(spread, turns, bandwidth=float(self.bandwidth), sizes=sizes)
        return Pairs(projection, bases, waves(bits))

    def kernel(self, x: Float64, y: Float64) -> Float64:
        """The exact kernel, (n, d) and (m, d) to (n, m); of given frequencies the mean of their cosines."""
        scale = float(self.bandwidth)
        if self.given is not None:
            return frequencies.mean_cosine(x, y, self.given.columns[0] / scale)
        if self.kernel_name == "gaussian":
            return kernels.gaussian(kernels.euclidean_distances(x, y), scale)
        if self.kernel_name == "laplacian":
            return kernels.laplacian(kernels.manhattan_distances(x, y), scale)
        if self.kernel_name == "cauchy":
            return kernels.cauchy(x, y, scale)
        return kernels.exponential_p(x, y, scale, float(self.exponent or 0))

    def error(self, extents: Float64, bits: int) -> float:
        """How far E[f·g] is from the kernel at most, for points within a box of these extents (d,).

        Drawn: the chord of the cosine (:data:`~hushsum.families.rff.phases.CHORD_ERROR`), and what a coordinate's
        frequency z/σ adds. Its cut at a limit: twice the distance in total variation. Its rounding to float32, to the
        middle of a cell of width w ≤ 2⁻²³z: of a density that is flat over it, the mean of e^{izr}, r = Δ_j/σ, is off
        by at most min(2, (wr)²/24); /8 leaves room for its slope. With E z² = 2 (gaussian, cauchy) that makes 2⁻⁴⁸r²,
        and with P(|z| > t) ≤ 2/t (stable; see :data:`hushsum.distributions.STABLE_LIMIT`) 2⁻²²r. Coordinates are
        independent, and a product of factors in the unit disc is off by at most the sum of their errors.

        Given: no phase is random, so a whole step of a phase, and the rounding of what it adds, count; so does that of
        each frequency, 2⁻²³z.
        """
        reaches = extents / float(self.bandwidth)
        if self.given is not None:
            rounding = 2.0**-23 * float((np.abs(self.given.columns[0]) @ reaches).max())
            return STEP + waves(bits).rounding + min(rounding, 2.0)
        light = self.kernel_name in {"gaussian", "cauchy"}
        rounded = np.minimum(2.0**-48 * np.square(reaches) if light else 2.0**-22 * reaches, 2.0)
        return CHORD_ERROR + math.fsum((2.0 * frequencies.CUT[self.kernel_name] + rounded).tolist())

    def division(self, rows: int, dim: int, groups: int | None) -> Division:
        """How the pairs are divided for an answer's error bar.

        Raises:
            ValueError: Groups are not from 1 to P, or pairs are not independent.
        """
        if groups is not None:
            if self.draws != "independent":
                raise ValueError(f"groups: got {groups} with draws = {self.draws!r}, whose pairs are not independent")
            if isinstance(groups, bool) or not 1 <= groups <= rows:
                raise ValueError(f"groups: got {groups!r}, expected 1 to the {rows} pairs")
            return Division.of("groups", rows, groups)
        if self.sobol_sets is not None:
            return Division.of("sets", rows, self.sobol_sets)
        if self.draws == "orthogonal" and dim > 1:
            return Division.of("sets", rows, min(rows // dim, _ORTHOGONAL_SETS), unit=dim)
        return Division.of("noise" if self.given is not None else "rows", rows, 1)
