"""The fourier family: sums of cosines and sines of random frequencies, in fixed point (LSQ-RFF, LSQ section 3.1).

f adds the cosine and the sine of a record's phase to one pair of counters a frequency; g reads the pair with those of
the query's phase; the kernel is the mean of cos ω·(x − q) over the frequencies' distribution (Rahimi and Recht 2007).

**What is frozen** (the same record adds the same integers on every platform and in every version):

1. A record's float32 coordinates: :mod:`hushsum.families.vectors`.
2. Phases, their parameters, and what a phase adds: :mod:`hushsum.families.fourier.parameters`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from types import ModuleType
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum.canonical import INTEGER_LIMIT
from hushsum.errors import RecordError
from hushsum.families import threads, vectors
from hushsum.families.base import (
    Answer,
    Counters,
    FieldsAlone,
    Float32,
    Increments,
    Queried,
    Records,
    RecordSchema,
    SignedPacked,
    VectorRecords,
    check_counters,
)
from hushsum.families.fourier import checks, engine_numpy, kernels
from hushsum.families.fourier.kernels import Spectrum
from hushsum.families.fourier.parameters import REACH_MAX, TURN, Pairs, Waves, waves
from hushsum.families.lsh.single_row import checked_rows, projected
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import VectorSpace, vector_records
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

_ROWS_MAX: Final = 2**20
_ANSWERED: Final = 1 << 13  # queries at once


@dataclass(frozen=True)
class Fourier(Queried, SignedPacked, FieldsAlone):
    """The fourier family with its parameters; frequencies are drawn from the seed at first use.

    Attributes:
        record: Dimension and public bounds of the records.
        spectrum: The kernel and how its frequencies are drawn.
        rows: P, pairs of counters.
        fraction_bits: b; counters hold cosines and sines times 2ᵇ.
        seed: Of all that is drawn.
        transforms: Of the records before anything else.
    """

    name: ClassVar[str] = "fourier"

    record: VectorRecords
    spectrum: Spectrum
    rows: int
    fraction_bits: int
    seed: PublicSeed
    transforms: Transforms

    def __post_init__(self) -> None:
        kernels.refuse_rows(self.spectrum, self.rows, self._space.dim)
        kernels.refuse_bandwidth(self.spectrum, self._space.sizes.astype(np.float64))
        vectors.refuse(self.spectrum.rounding(self._space.rounding), self.bandwidth, "sketch")

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads kernel, bandwidth, rows, fraction_bits, draws, seed, transforms; exponent, sobol_sets, parameters.

        The last three are keys of the kernel ``exponential-p``, of Sobol draws and of given ones alone.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        schema = vector_records(record, "the fourier family")
        rows = sketch.integer("rows", low=1, high=_ROWS_MAX)
        transforms = Transforms.from_table(sketch, parameters, schema.dim)
        dim = transforms.dim(schema.dim)
        family = cls(
            record=schema,
            spectrum=Spectrum.from_table(sketch, parameters, rows=rows, dim=dim),
            rows=rows,
            fraction_bits=sketch.integer("fraction_bits", low=4, high=16, default=12),
            seed=PublicSeed(sketch.integer("seed", low=0, high=INTEGER_LIMIT, default=0)),
            transforms=transforms,
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of ``[sketch]`` that this kernel and these draws have, but ``family``."""
        return {
            **self.spectrum.to_fields(),
            "rows": self.rows,
            "fraction_bits": self.fraction_bits,
            "seed": self.seed.value,
            **self.transforms.to_fields(),
        }

    @property
    def kernel_name(self) -> str:
        """The key ``kernel``."""
        return self.spectrum.kernel_name

    @property
    def bandwidth(self) -> Fraction:
        """σ, in the unit of what comes out of the transforms."""
        return self.spectrum.bandwidth

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices of transforms, and of given frequencies."""
        given = self.spectrum.given
        return self.transforms.digests if given is None else (*self.transforms.digests, given.digest)

    @property
    def shape(self) -> tuple[int, int]:
        """(P, 2): cosine and sine of each pair."""
        return self.rows, 2

    @property
    def sensitivity(self) -> Sensitivity:
        """Maxima over the table of what one phase adds; one record may have the worst phase in every pair."""
        return Sensitivity(
            l0=self.rows * self._waves.counters_max,
            l1=self.rows * self._waves.sum_max,
            l2_squared=self.rows * self._waves.squares_max,
            linf=self._waves.entry_max,
        )

    @property
    def kernel_error(self) -> float:
        """Of :meth:`Spectrum.error` and of float32; rounding drawn counters adds none (:mod:`.parameters`)."""
        lower, upper = (end.astype(np.float64) for end in self._space.ends)
        return self.spectrum.error(upper - lower, self.fraction_bits) + self.spectrum.rounding(self._space.rounding)

    def accept(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records, clipped, transformed and centred, (k, d') float32, and the mask (n,) of those that were kept.

        Args:
            records: (n, d) float64, float32, integers or booleans, in the unit of the plan's bounds. A record with NaN
                or infinity is dropped alone.

        Raises:
            RecordError: Another type or dimension.
        """
        return self._space.accept(records)

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (P, 2), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        check_counters(counters, self.shape)
        usable, pairs, engine = self._space.accepted(records), self._pairs, _engine()
        work = threads.shares(self.rows, len(usable))
        threads.spread(lambda rows: engine.add(pairs, counters[rows], usable, rows), work, len(usable))

    @property
    def peak(self) -> int:
        """The largest absolute value of a table's entry."""
        return self._waves.entry_max

    @property
    def scale(self) -> float:
        """κ: what counters are divided by, about 2ᵇ."""
        return self._waves.scale

    def entries_of(self, records: Records, features: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) int64: what :meth:`add` adds for each accepted record to the cosine or the sine of one pair.

        Args:
            records: n of them.
            features: (n,) int64: 2 · pair, and 1 more for the sine.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: ``features`` is not (n,) int64 from 0 to 2P − 1.
        """
        usable, pairs = self._space.accepted(records), self._pairs
        which = checked_rows(features, len(usable), 2 * self.rows)
        phases = projected(pairs.projection, usable, which >> 1) + pairs.bases[which >> 1]
        return np.asarray(self._waves.added[which & 1, phases & (TURN - 1)], np.int64)

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: nearly all counters change.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
        """
        counters = np.zeros(self.shape, np.int64)
        self.add(counters, records)
        indices = np.flatnonzero(counters)
        return Increments(indices, counters.reshape(-1)[indices])

    def check(self, increments: Increments, records: int) -> None:
        """Every pair is one that so many entries of the table may add up to.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        checks.refuse_impossible(increments, records, self._waves)

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: npt.ArrayLike,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Estimates of Σ k(x, q) at queries (m, d), which are not clipped: (1/Pκ) Σ_p (C_p cos + S_p sin).

        The standard error is that of independent pairs (``rows``), of independent sets of them (``sets``: Sobol and
        orthogonal draws) or of the noise alone (given frequencies); NaN where there is but one.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far from the bounds.
            ValueError: The counters have another shape; groups are not from 1 to P, or pairs are not independent.
        """
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        counters = np.ascontiguousarray(counters, np.int64)
        division = self.spectrum.division(self.rows, self._space.dim, groups)
        points = self._read_queries(queries)
        value, error, engine, pairs = np.empty(len(points)), np.empty(len(points)), _engine(), self._pairs

        def work(piece: slice) -> None:
            for start in range(piece.start, piece.stop, _ANSWERED):
                some = slice(start, min(start + _ANSWERED, piece.stop))
                value[some], error[some] = division.reduce(partial(engine.sums, pairs, counters, points[some]))

        threads.spread(work, threads.shares(len(points), len(points)), len(points))
        value /= self._waves.scale
        error /= self._waves.scale
        if division.spread == "noise":
            error[:] = np.sqrt(self.answer_variance(noise_variance))
        return Answer(value, error, division.spread, division.degrees)

    def answer_variance(self, counter_variance: float) -> float:
        """σ²/(Pκ²), κ about 2ᵇ: a query reads each pair with a point of the unit circle."""
        return counter_variance / self.rows / self._waves.scale**2

    @property
    def answer_weight_max(self) -> float:
        """Not known."""
        return math.inf

    @property
    def kernel_min(self) -> float:
        """0; of given frequencies, whose kernel is a mean of cosines, −1."""
        return 0.0 if self.spectrum.given is None else -1.0

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact kernel, (n, d) records and (m, d) queries to (n, m): records are clipped to the bounds.

        Of given frequencies the mean over pairs of the cosine between the phases of both, in whole steps as they are
        added and read: these depend on nothing that is drawn.

        Raises:
            RecordError: A point that given frequencies cannot tell.
        """
        if self.spectrum.given is not None:
            return engine_numpy.shared(self._pairs, self._space.records(x), self._read_queries(y))
        return self.spectrum.kernel(self._space.exact(x, clip=True), self._space.exact(y))

    @cached_property
    def _pairs(self) -> Pairs:
        return self.spectrum.pairs(self.seed, rows=self.rows, bits=self.fraction_bits, sizes=self._space.sizes)

    @property
    def _waves(self) -> Waves:
        return waves(self.fraction_bits)

    @cached_property
    def _space(self) -> VectorSpace:
        return VectorSpace.of(self.record, self.transforms)

    def _read_queries(self, queries: npt.ArrayLike) -> Float32:
        points = self._space.queries(queries)
        with np.errstate(invalid="ignore"):
            reach = np.abs(points).astype(np.float64) @ self._pairs.projection.widest
        if not np.all(reach < REACH_MAX):
            worst = int(np.argmax(~(reach < REACH_MAX)))
            raise RecordError(f"queries: number {worst} is too far outside the bounds for its phases to be computed")
        return points


def _engine() -> ModuleType:
    if compiled.enabled():
        from hushsum.families.fourier import engine_compiled

        return engine_compiled
    return engine_numpy
