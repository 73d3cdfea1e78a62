"""The hermite family: the fast Gauss transform in up to three dimensions (LSQ, section 3.2 and appendix B.1).

The domain is cut into cells of side σ. f of a record is its moments about the centre of its cell, as fixed-point
integers; g of a query is Hermite functions of its place relative to each cell within the cutoff. Nothing is drawn:
answers carry no hashing error, but a small bias, which each of them states (:mod:`hushsum.families.hermite.bias`).

**What is frozen**: float32 coordinates (:mod:`hushsum.families.vectors`, not centred), then cells and moments as in
:mod:`hushsum.families.hermite.grid`. Errors and norms are derived in :mod:`hushsum.families.hermite.series`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import ModuleType
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import compiled, kernels
from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.families import threads
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
from hushsum.families.hermite import bias as hermite_bias
from hushsum.families.hermite import checks as hermite_checks
from hushsum.families.hermite import grid as hermite_grid
from hushsum.families.hermite import series as hermite_series
from hushsum.families.hermite.grid import BLOCK_RECORDS, Float64, MomentGrid
from hushsum.families.hermite.weights import AUTO, EQUAL, WEIGHTS
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import MAGNITUDE_MAX, VectorSpace, vector_records
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

_DIM_MAX: Final = 3
_ORDER_MAX: Final = 16
_CUTOFF_MAX: Final = 8
_COUNTERS_MAX: Final = 2**31
_ENCODED_COUNTERS: Final = 1 << 20  # worked on at once


@dataclass(frozen=True)
class Hermite(Queried, SignedPacked, FieldsAlone):
    """The hermite family with its parameters; the kernel is exp(−‖x − y‖²/σ²).

    Attributes:
        record: Dimension and public bounds of the records; at most three coordinates come out of the transforms.
        kernel_name: ``gaussian``.
        bandwidth: σ, in the unit of what comes out of the transforms.
        order: p; every r_j runs from 0 to p − 1.
        cutoff: How far a query reads, from 1 to 8, in units of σ, to the centres of cells.
        fraction_bits: b; s = 2^b is the scale of the moment r = 0.
        weights: How many times, s_r, a moment its counter holds: ``equal`` (s of all of them), ``gaussian`` or
            ``laplace``, with which answers have the least noise of that kind (:mod:`hushsum.families.hermite.weights`).
        transforms: Of the records, before anything else.
    """

    name: ClassVar[str] = "hermite"

    record: VectorRecords
    kernel_name: str
    bandwidth: Fraction
    order: int
    cutoff: Fraction
    fraction_bits: int
    transforms: Transforms
    weights: str = EQUAL

    def __post_init__(self) -> None:
        _refuse(self)

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads the keys kernel, bandwidth, order, cutoff, fraction_bits, weights and transforms.

        A plan has weights of its own: ``auto``, of a plan file, was replaced by one of the others before.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        schema = vector_records(record, "the hermite family")
        family = cls(
            record=schema,
            kernel_name=sketch.choice("kernel", built=("gaussian",)),
            bandwidth=sketch.real("bandwidth", expected="a number above 0", above=0),
            order=sketch.integer("order", low=1, high=_ORDER_MAX, default=8),
            cutoff=sketch.real("cutoff", expected=f"a number from 1 to {_CUTOFF_MAX}", default="3"),
            fraction_bits=sketch.integer("fraction_bits", low=4, high=20, default=12),
            transforms=Transforms.from_table(sketch, parameters, schema.dim),
            weights=sketch.choice("weights", built=(*WEIGHTS, AUTO), default=EQUAL),
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of ``[sketch]`` but ``family``; weights only where they are not ``equal``."""
        return {
            "kernel": self.kernel_name,
            "bandwidth": real_text(self.bandwidth),
            "order": self.order,
            "cutoff": real_text(self.cutoff),
            "fraction_bits": self.fraction_bits,
            **({} if self.weights == EQUAL else {"weights": self.weights}),
            **self.transforms.to_fields(),
        }

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices of transforms."""
        return self.transforms.digests

    @property
    def shape(self) -> tuple[int, int]:
        """(cells, order^d), both in C order."""
        return math.prod(self._grid.cells), self._grid.moments

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the rounded moments: |counter r| ≤ round(s_r·2^{−|r|}), reached together at a corner of a cell.

        The plain bound ⌈s_r·2^{−|r|}⌉ is never less. Moments whose bound is 0 never change and do not count.
        """
        bounds: list[int] = self._grid.bounds.tolist()
        return Sensitivity(
            l0=sum(bound > 0 for bound in bounds),
            l1=sum(bounds),
            l2_squared=sum(bound**2 for bound in bounds),
            linf=max(bounds),
        )

    @cached_property
    def kernel_error(self) -> float:
        """α, rigorous for any record within the bounds and any query: series, cutoff, fixed point and float32.

        Float32 is counted for coordinates within the bounds, as they leave the transforms; what transforms lose before
        is not.
        """
        slack = 2.0**-23 * self._magnitude / self._grid.width + 2.0**-50 * np.array(self._grid.cells)
        return hermite_series.kernel_error(self._grid, float(self.cutoff), slack)

    def accept(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records, clipped and transformed, (k, d') float32, and the mask (n,) of those that were kept.

        Args:
            records: (n, d) float64, float32, integers or booleans, in the unit of the plan's bounds. A record with NaN
                or infinity is dropped alone.

        Raises:
            RecordError: Another type or dimension.
        """
        return self._space.accept(records)

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (cells, order^d), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        check_counters(counters, self.shape)
        usable, add = self._space.accepted(records), _engine().add
        for start in range(0, len(usable), BLOCK_RECORDS):
            add(self._grid, counters, *self._grid.locate(usable[start : start + BLOCK_RECORDS]))

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: at most L0·min(n, cells) of them.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
        """
        usable, add, moments = self._space.accepted(records), _engine().add, self._grid.moments
        cells = self._grid.cells_of(usable)
        order = np.argsort(cells, kind="stable")
        touched, starts = np.unique(cells[order], return_index=True)
        ends, size = np.append(starts, len(usable)), max(1, _ENCODED_COUNTERS // moments)
        indices, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for first in range(0, len(touched), size):
            some = touched[first : first + size]
            sums = np.zeros((len(some), moments), np.int64)
            stop = int(ends[first + len(some)])
            for start in range(int(ends[first]), stop, BLOCK_RECORDS):
                cell, places = self._grid.locate(usable[order[start : min(start + BLOCK_RECORDS, stop)]])
                add(self._grid, sums, np.searchsorted(some, cell), places)
            at, number = np.nonzero(sums)
            indices.append(some[at] * moments + number)
            values.append(sums[at, number])
        return Increments(np.concatenate(indices), np.concatenate(values))

    def check(self, increments: Increments, records: int) -> None:
        """Every cell's first moment counts its records, ``records`` in all, and bounds the cell's other moments.

        So Σ|counter| ≤ records·L1 and Σ counter² ≤ records²·L2² hold too.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        hermite_checks.check(self._grid, increments.indices, increments.values, records)

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: npt.ArrayLike,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Estimates of Σ k(x, q) at queries (m, d), which are not clipped: 0 where no cell is within the cutoff.

        Their standard error is that of the noise alone, √variance·‖g(q)‖. Their bias is bounded from the counters
        themselves (:mod:`hushsum.families.hermite.bias`), mostly far below :attr:`kernel_error` for each record.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite.
            ValueError: ``groups``: nothing is repeated here. Or the counters have another shape.
        """
        if groups is not None:
            raise ValueError(f"groups: got {groups}, expected None: the hermite family has no independent repetitions")
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        points = self._space.queries(queries)
        stored = np.ascontiguousarray(counters, np.int64)
        grid, cutoff, magnitude, read = self._grid, float(self.cutoff), self._magnitude, _engine().read

        def work(some: slice) -> tuple[Float64, Float64, Float64]:
            value, squares = hermite_series.sums(grid, stored, points[some], cutoff, read)
            return value, squares, hermite_bias.bias(grid, stored, points[some], cutoff, magnitude, value, read)

        parts = threads.spread(work, threads.shares(len(points), len(points)), 0)
        value, squares, bias = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Answer(value, np.sqrt(noise_variance * squares), spread="noise", bias=bias).over(grid.scale)

    def answer_variance(self, counter_variance: float) -> float:
        """σ²·max‖g‖², the largest over all queries, rounded up by a few per cent."""
        return counter_variance * self._norm_squared_max / self._grid.scale**2

    @property
    def answer_weight_max(self) -> float:
        """No counter has more weight than this in any answer: max_r |a_r|/s_r over all places."""
        largest = np.array([hermite_series.largest(r) for r in range(self.order)])
        weights = largest[self._grid.degrees].prod(axis=1) * self._grid.ratios
        return float(weights.max()) * (1.0 + 2.0**-40) / self._grid.scale

    @property
    def kernel_min(self) -> float:
        """0."""
        return 0.0

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact kernel, (n, d) records and (m, d) queries to (n, m): records are clipped to the bounds."""
        distances = kernels.euclidean_distances(self._space.exact(x, clip=True), self._space.exact(y))
        return kernels.gaussian(distances, float(self.bandwidth))

    @cached_property
    def _grid(self) -> MomentGrid:
        return MomentGrid.over(
            *self._space.ends,
            float(self.bandwidth),
            order=self.order,
            scale=2**self.fraction_bits,
            weights=self.weights,
        )

    @cached_property
    def _magnitude(self) -> npt.NDArray[np.float64]:
        lower, upper = self._space.ends
        return np.maximum(np.abs(lower), np.abs(upper)).astype(np.float64)

    @cached_property
    def _norm_squared_max(self) -> float:
        return hermite_series.norm_squared_max(self._grid, float(self.cutoff))

    @cached_property
    def _space(self) -> VectorSpace:
        return VectorSpace.of(self.record, self.transforms, centred=False)


def _engine() -> ModuleType:
    if compiled.enabled():
        from hushsum.families.hermite import loops as hermite_loops

        return hermite_loops
    return hermite_grid


def _refuse(family: Hermite) -> None:
    if family.weights not in WEIGHTS:
        expected = f"one of {', '.join(map(repr, WEIGHTS))}; {AUTO!r} is for plan files, and is replaced in the plan"
        raise PlanError("sketch.weights", family.weights, expected)
    if not 1 <= family.cutoff <= _CUTOFF_MAX:
        raise PlanError("sketch.cutoff", real_text(family.cutoff), f"a number from 1 to {_CUTOFF_MAX}")
    came = real_text(family.bandwidth)
    if not 1 / MAGNITUDE_MAX <= family.bandwidth <= MAGNITUDE_MAX:
        raise PlanError("sketch.bandwidth", came, "a number from 2^-64 to 2^64")
    dim = family.transforms.dim(family.record.dim)
    if dim > _DIM_MAX:
        key = "sketch.transforms" if family.transforms.steps else "record.dim"
        raise PlanError(key, dim, f"at most {_DIM_MAX} coordinates for the hermite family, which has order^dim moments")
    counters = math.prod(family.shape)
    if counters > _COUNTERS_MAX:
        raise PlanError(
            "sketch.bandwidth",
            came,
            f"a larger one, or a smaller order: {family.shape[0]} cells of {family.shape[1]} moments are {counters} "
            "counters, and at most 2^31 are allowed",
        )
