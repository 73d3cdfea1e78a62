"""Made-up records that stand in for real ones: where guesses of accuracy come from, and nothing that anybody holds.

How much hashing errs at a query depends on how the records lie. What is known of that is a public guess, the mean
kernel at a query; so these lie as plainly as can be while that is true of them:

* Vectors: normal about one place within the bounds, with a standard deviation that is the same share of each column's
  range, mirrored at the bounds; at the largest share they fill the bounds evenly. Queries are more of the same, or,
  where even that leaves too many records near, lie in the corner that is opposite to the records'.
* Models (family ``paired``): records as above; queries are coefficients of any direction, half as long as allowed.
* Sets: 32 ids each, some of them twice, from a pool whose size decides how alike two sets are. Queries are such sets.

All is drawn from a fixed public seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.draws import PublicSeed, PublicStream
from hushsum.families import Family, SetRecords
from hushsum.plan import Plan

Floats = npt.NDArray[np.float64]
#: From a spread to records and queries; the mean kernel moves from one end to the other as the spread grows.
Population = Callable[[float], tuple[Any, Any]]

QUERIES: Final = 64
SEED: Final = 20210426
_CLOSE: Final = 0.005  # a density is met so closely, where one is met at all
_SHARES: Final = (2.0**-30, 2.0**3)  # of a column's range: records in one place, and evenly over the bounds
_HALVINGS: Final = 48
_SET_IDS: Final = 32
_CORNER: Final = 0.02  # of a column's range: how widely queries lie about a corner


@dataclass(frozen=True, eq=False)
class StandIn:
    """A made-up population and queries to it.

    Attributes:
        records: What :meth:`hushsum.Sketch.add` takes: (n, d) float64, or n sets.
        queries: :data:`QUERIES` of them, as answers take them.
        kernels: (n, :data:`QUERIES`): the exact kernel of each record and query.
    """

    records: Any
    queries: Any
    kernels: Floats

    @property
    def density(self) -> float:
        """The mean kernel, over all records and queries."""
        return float(self.kernels.mean())

    @property
    def root_density(self) -> float:
        """The mean of √k: RACE's f̃ is so many times the number of records."""
        return float(np.sqrt(np.maximum(self.kernels, 0.0)).mean())


def stand_in(plan: Plan, density: float, records: int, *, seed: int = SEED) -> StandIn:
    """So many made-up records whose mean kernel at made-up queries is about this.

    Raises:
        ValueError: No such records lie within the plan's bounds; it names what can be had.
    """
    ends: list[StandIn] = []
    for population, spreads in _populations(plan, records, PublicSeed(seed)):
        ends += [_at(plan.family, population, spread) for spread in spreads]
        if _between(ends[-2:], density):
            return _fitted(plan.family, population, spreads, density)
    if _between(ends, density):  # where one way to lie ends and the next begins, but for the luck of the draw
        return min(ends, key=lambda end: abs(end.density - density))
    reached = sorted(end.density for end in ends)
    kernel = "mean loss" if plan.family.name == "paired" else "mean kernel"
    raise ValueError(
        f"density: got {density:g}, expected from {reached[0]:.3g} to {reached[-1]:.3g}: "
        f"the {kernel} that made-up records within the plan's bounds have at a query"
    )


def _between(ends: list[StandIn], density: float) -> bool:
    return min(end.density for end in ends) <= density <= max(end.density for end in ends)


def _fitted(family: Family, population: Population, spreads: tuple[float, float], density: float) -> StandIn:
    low, high = (math.log2(spread) for spread in spreads)
    falls = _at(family, population, spreads[0]).density > density
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _at(family, population, 2.0**middle)
        if abs(found.density / density - 1.0) < _CLOSE:
            return found
        low, high = (middle, high) if (found.density > density) == falls else (low, middle)
    return _at(family, population, 2.0**low)


def _at(family: Family, population: Population, spread: float) -> StandIn:
    some, queries = population(spread)
    return StandIn(some, queries, family.kernel(some, queries))


def _populations(plan: Plan, records: int, seed: PublicSeed) -> list[tuple[Population, tuple[float, float]]]:
    """Ways for records to lie, in the order in which they are tried, each with the ends of its spread."""
    of_records, of_queries = (PublicStream(seed, f"advice/{part}") for part in ("records", "queries"))
    if isinstance(plan.record, SetRecords):
        return [(_sets(records, of_records, of_queries), (1.0, float(plan.record.universe)))]
    dim = plan.vectors.dim
    lower, upper = (np.array([float(end) for end in ends]) for ends in (plan.vectors.lower, plan.vectors.upper))
    normals = of_records.normal(records * dim).reshape(records, dim)

    def cloud(middle: Floats | float, around: Floats, share: float) -> Floats:
        places = np.abs(np.mod(middle + share * around + 1.0, 2.0) - 1.0)  # mirrored at 0 and at 1
        return np.asarray(lower + places * (upper - lower), np.float64)

    centre = 0.25 + 0.5 * PublicStream(seed, "advice/centre").uniform(dim)
    if plan.family.name == "paired":
        models = _models(plan.family, of_queries)
        return [(lambda share: (cloud(centre, normals, share), models), _SHARES)]
    about = of_queries.normal(QUERIES * dim).reshape(QUERIES, dim)
    return [
        (lambda share: (cloud(centre, normals, share), cloud(centre, about, share)), _SHARES),
        (lambda share: (cloud(0.0, normals, share), cloud(1.0, about, max(share, _CORNER))), _SHARES),
    ]


def _sets(records: int, of_records: PublicStream, of_queries: PublicStream) -> Population:
    mine, asked = (
        stream.uniform(count * _SET_IDS).reshape(count, _SET_IDS)
        for stream, count in ((of_records, records), (of_queries, QUERIES))
    )

    def drawn(uniforms: Floats, pool: float) -> list[npt.NDArray[np.int64]]:
        return [np.unique(ids) for ids in np.floor(uniforms * pool).astype(np.int64)]

    return lambda pool: (drawn(mine, pool), drawn(asked, pool))


def _models(family: Family, stream: PublicStream) -> Floats:
    coefficients = stream.normal(QUERIES * family.query_dim).reshape(QUERIES, family.query_dim)
    fields = family.to_fields()
    if "norm_bound" not in fields:
        return coefficients
    # The bound is on [θ, −1], or with the margin loss on θ.
    room = float(str(fields["norm_bound"])) ** 2 - (fields["loss"] == "regression")
    lengths = np.sqrt(np.square(coefficients).sum(axis=1, keepdims=True))
    return np.asarray(coefficients / lengths * math.sqrt(max(room, 0.0)) / 2, np.float64)
