"""The paired family: losses of linear models, from sketches of angular hashes (RACE, section 4).

A record is [x, y]: features, and the target or label last. A query is θ, d − 1 coefficients, and the answer is the sum
of a loss of θ over all records, n times its least value at best. With p = ``power`` and u in [−1, 1]:

* ``regression``: (½ + v)^p + (½ − v)^p, v = arcsin(u)/π, u = ⟨z, q⟩ for z = [x, y], q = [θ, −1]. It is even, convex and
  least, 2^(1−p), where θ·x = y: 2^(1−p)·(1 + 2p(p − 1)v² + …). RACE reads the sketch at +q and at −q and adds both;
  here a counter holds both already, at half of the noise's variance (:mod:`hushsum.families.paired.rows`).
* ``margin``: (½ − v)^p, u = ⟨z, θ⟩ for z = label·x, the label +1 where the last coordinate is above 0 and −1 elsewhere.
  It falls, convex, from 1 at u = −1 through 2^−p at u = 0 to 0 at u = 1: low where sign(θ·x) is the label.

``power`` 1 is refused: the regression loss would be 1 whatever θ is, and the margin loss not convex.

The **orthogonal** form divides ⟨z, q⟩ by both lengths: its minimum is that of orthogonal regression (true slope 0.5,
uniform x, noise as strong: 0.72). The **inner** form divides by two public constants instead, ``radius`` (longer
records are shortened to it) and ``norm_bound`` (longer q are refused), so that its minimum is that of least squares but
for terms of fourth order (0.48). Its loss is the flatter the larger both are: a radius of 1 to 1.5 times the length of
a typical record is worth more than the largest within the bounds, though what it shortens is fitted less.

Columns should be of like scale. Nothing is centred: θ·x has no intercept. Give a column of ones, or shift by a
``linear`` transform; θ is in units of what comes out of the transforms.

To fit a model use :class:`hushsum.estimators.LinearRegressor` or :class:`hushsum.estimators.LinearClassifier`: least
squares over all counters finds a far better θ than a search for the least answer.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import RecordError
from hushsum.families.base import (
    Answer,
    Counters,
    FieldsAlone,
    Float32,
    Increments,
    Records,
    RecordSchema,
    RowsPacked,
    VectorRecords,
    check_counters,
    refuse_impossible_counts,
)
from hushsum.families.estimators import checked_groups, means_of_groups, median_of_means
from hushsum.families.paired.parameters import Lift, lift_of, read_norm_bound, read_power, read_radius, refuse_sizes
from hushsum.families.paired.rows import PairedRows
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import VectorSpace, vector_records
from hushsum.parameters import NO_PARAMETERS, Parameters
from hushsum.public_random import PublicSeed
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity

_ROWS_MAX: Final = 2**17


@dataclass(frozen=True)
class Paired(RowsPacked, FieldsAlone):
    """The paired family with its parameters; tables are drawn from the seed at first use.

    Attributes:
        record: Dimension, at least 2, and public bounds of [x, y].
        loss: ``regression`` or ``margin``.
        form: ``inner`` or ``orthogonal``.
        radius: Of the inner form: a public length of z; else None.
        norm_bound: Of the inner form: a public bound on the length of [θ, −1], or of θ with the margin loss; else None.
        power: p, signs concatenated in a row.
        rows: R.
        draws: ``independent``.
        seed: Of all hash parameters.
        transforms: Of [x, y] before it is hashed.
    """

    name: ClassVar[str] = "paired"

    record: VectorRecords
    loss: str
    form: str
    radius: Fraction | None
    norm_bound: Fraction | None
    power: int
    rows: int
    draws: str
    seed: PublicSeed
    transforms: Transforms

    def __post_init__(self) -> None:
        refuse_sizes(self._lift, rows=self.rows, power=self.power)

    @classmethod
    def from_table(cls, sketch: Table, record: RecordSchema, parameters: Parameters = NO_PARAMETERS) -> Self:
        """Reads the keys loss, form, radius, norm_bound, power, rows, draws, seed and transforms.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        schema = vector_records(record, "the paired family")
        loss = sketch.choice("loss", built=("regression", "margin"), default="regression")
        form = sketch.choice("form", built=("inner", "orthogonal"), default="inner")
        inner = form == "inner"
        family = cls(
            record=schema,
            loss=loss,
            form=form,
            radius=read_radius(sketch) if inner else None,
            norm_bound=read_norm_bound(sketch, loss) if inner else None,
            power=read_power(sketch, loss),
            rows=sketch.integer("rows", low=1, high=_ROWS_MAX),
            draws=sketch.choice("draws", built=("independent",), known=("sobol", "orthogonal"), default="independent"),
            seed=PublicSeed(sketch.integer("seed", low=0, high=INTEGER_LIMIT, default=0)),
            transforms=Transforms.from_table(sketch, parameters, schema.dim),
        )
        sketch.finish()
        return family

    def to_fields(self) -> dict[str, object]:
        """Every v1 key of ``[sketch]`` but ``family``."""
        constants = {"radius": self.radius, "norm_bound": self.norm_bound}
        return {
            "loss": self.loss,
            "form": self.form,
            **{key: real_text(value) for key, value in constants.items() if value is not None},
            "power": self.power,
            "rows": self.rows,
            "draws": self.draws,
            "seed": self.seed.value,
            **self.transforms.to_fields(),
        }

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the matrices of transforms."""
        return self.transforms.digests

    @property
    def kernel_error(self) -> float:
        """0."""
        return 0.0

    @property
    def folded(self) -> bool:
        """Whether a code shares its counter with its complement: of the regression loss."""
        return self.loss == "regression"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, W): W = 2^(p−1) for the regression loss, 2^p for the margin loss."""
        return self.rows, 1 << (self.power - self.folded)

    @property
    def query_dim(self) -> int:
        """Coordinates of a query θ: one less than what comes out of the transforms."""
        return self._lift.coefficients

    @property
    def sensitivity(self) -> Sensitivity:
        """One counter a row changes, by one."""
        return Sensitivity(l0=self.rows, l1=self.rows, l2_squared=self.rows, linf=1)

    def accept(self, records: npt.ArrayLike) -> tuple[Float32, npt.NDArray[np.bool_]]:
        """Usable records, clipped and transformed, (k, d) float32, and the mask (n,) of those that were kept.

        Args:
            records: (n, d) float64, float32, integers or booleans, the target or label in the last column. A record
                with NaN or infinity is dropped alone.

        Raises:
            RecordError: Another type or dimension.
        """
        return self._space.accept(records)

    def add(self, counters: Counters, records: Records) -> None:
        """Adds accepted records to counters (R, W), C-contiguous int64, in place.

        Raises:
            RecordError: The records do not come from :meth:`accept`.
            ValueError: The counters have another shape, type or layout.
        """
        check_counters(counters, self.shape)
        self.tables.add(counters, self._space.accepted(records))

    def encode(self, records: Records) -> Increments:
        """The increments of accepted records: at most R·min(n, W) of them."""
        return Increments(*self.tables.encode(self._space.accepted(records)))

    def check(self, increments: Increments, records: int) -> None:
        """Every row sums to exactly ``records``, and nothing is negative.

        Raises:
            DeltaError: With the reason ``impossible_counts``.
        """
        refuse_impossible_counts(increments, records, rows=self.rows, buckets=self.shape[1])

    def answer(
        self,
        counters: npt.NDArray[np.int64],
        queries: npt.ArrayLike,
        *,
        noise_variance: float = 0.0,
        groups: int | None = None,
    ) -> Answer:
        """Unbiased estimates of the summed loss at θ (m, d − 1); R = 1 has NaN as standard error.

        ``groups``: the median of the means of so many groups of rows instead of the mean of all.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or beyond ``norm_bound``.
            ValueError: ``groups`` is not from 1 to R.
        """
        del noise_variance  # the rows show it
        if counters.shape != self.shape:
            raise ValueError(f"counters: got shape {counters.shape}, expected {self.shape}")
        if groups is not None:
            groups = checked_groups(groups, self.rows)
        counters, coefficients = np.ascontiguousarray(counters, np.int64), self._lift.accepted(queries)
        if groups is not None:
            means = means_of_groups(self.rows, groups, partial(self.tables.sums, counters, coefficients))
            return Answer(*median_of_means(means, self.rows // groups), spread="groups", degrees=max(1, groups - 1))
        first, total, squares = self.tables.sums(counters, coefficients, slice(0, self.rows))
        value = first + total / self.rows
        if self.rows == 1:
            return Answer(value, np.full(len(value), math.nan))
        variance = np.maximum(squares - total * total / self.rows, 0.0) / (self.rows - 1)
        return Answer(value, np.sqrt(variance / self.rows), degrees=self.rows - 1)

    def answer_variance(self, counter_variance: float) -> float:
        """σ²/R: one counter a row is read, for both signs of the regression loss."""
        return counter_variance / self.rows

    def kernel(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The exact loss of records (n, d) at θ (m, d − 1), (n, m).

        Raises:
            RecordError: As :meth:`accept` and :meth:`answer`, and for a record that is not finite.
        """
        records, kept = self.accept(x)
        if not kept.all():
            raise RecordError("records: got NaN or infinity, expected finite numbers")
        lift = self._lift
        angle = kernels.angles(lift.records(records), lift.queries(lift.accepted(y)))
        loss = kernels.angular(angle, self.power)
        return loss + kernels.angular(math.pi - angle, self.power) if self.folded else loss

    @cached_property
    def tables(self) -> PairedRows:
        """The hash parameters of all rows."""
        return PairedRows.draw(self._lift, self.seed, rows=self.rows, power=self.power, folded=self.folded)

    @cached_property
    def _space(self) -> VectorSpace:
        return VectorSpace.of(self.record, self.transforms, centred=False)

    @cached_property
    def _lift(self) -> Lift:
        return lift_of(self._space, loss=self.loss, radius=self.radius, norm_bound=self.norm_bound)
