"""Modes of a released density: places where it is highest."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.estimators.particles import DEVIATIONS, particles
from hushsum.families import Answer, SetRecords
from hushsum.families.partition import Partition
from hushsum.families.transforms import Scale, float32
from hushsum.fitting import minimise
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.synthetic import heavy_cells

Floats = npt.NDArray[np.float64]
_HALF: Final = 0.5  # of the kernel: a mode's width
_BISECTIONS: Final = 50
_CLIMBS: Final = 32
_FIRST_RADIUS: Final = 0.5  # of a climb, in widths of the kernel
_STEPS: Final = 10
_SEGMENT: Final = 9  # places between two modes that are compared


@dataclass(frozen=True, eq=False)
class Modes:
    """Local maxima of a released density, the highest first.

    Attributes:
        points: (k, d) float64 within the bounds, in the unit of the records.
        density: The mean kernel at each, with standard errors: ``density.interval(0.95)``. A maximum is picked for
            being high, so that its value is biased upwards by about its standard error.
    """

    points: Floats
    density: Answer

    def __len__(self) -> int:
        """k."""
        return len(self.points)


def find_modes(
    release: Release,
    *,
    label: str | None = None,
    starts: int = 256,
    deviations: float = DEVIATIONS,
    seed: int = 0,
) -> Modes:
    """The local maxima of a released density that stand out of noise and chance, and are distinct from each other.

    Starts are points drawn from the density (:mod:`hushsum.estimators.particles`) and the middles of heavy cells, where
    the sketch is a grid. From those apart from each other, at most 32 and the highest first, a quadratic model climbs
    (:func:`hushsum.fitting.minimise`). A maximum is kept where the density exceeds 0 by so many standard errors, and
    where it falls by as many on the way to every higher one: without that it is part of the same hill. Errors are those
    of the answers, and that of the records being a sample: a kernel sum of v has a variance of at most v of its own.

    It costs no privacy, and gives the same for the same release and seed.

    Args:
        release: Of vectors; not of the paired family.
        label: Of one class; None: all of them together.
        starts: Points to start from, at least 1.
        deviations: Standard errors, at least 0.
        seed: Of the starts, public: 0 to 2⁵³ − 1.

    Returns:
        No modes, k = 0, where the density stands out of the noise nowhere.

    Raises:
        PlanError: The release is of sets, or of the paired family.
        RecordError: There is no such class.
        ValueError: An argument is out of its range.
    """
    refuse_no_density(release.plan)
    if starts < 1 or not deviations >= 0:
        raise ValueError(f"got starts = {starts} and deviations = {deviations}, expected at least 1 and at least 0")
    vectors = release.plan.vectors
    lower, upper = (np.array([float(end) for end in ends]) for ends in (vectors.lower, vectors.upper))
    width = _widths(release.plan, lower, upper)
    begin = particles(release, starts, label=label, seed=seed).points
    is_grid = isinstance(release.plan.family, Partition) and release.plan.family.cells == "grid"
    if is_grid:
        begin = np.concatenate([_middles(release, label), begin])

    def highest(points: Floats) -> Floats:
        values = release.kernel_sum(points, label=label).value if len(points) else np.empty(0)
        return _apart(points[np.argsort(-values, kind="stable")], width, _CLIMBS)

    def fall(places: Floats) -> Floats:
        return -release.kernel_sum(np.clip(places * width, lower, upper), label=label).value

    begin = highest(begin)
    if not is_grid:  # where the density has steps and no slopes
        tops = [minimise(fall, place / width, radius=_FIRST_RADIUS, seed=seed, steps=_STEPS) for place in begin]
        begin = highest(np.concatenate([np.clip(np.array(tops).reshape(begin.shape) * width, lower, upper), begin]))
    kept = _distinct(release, begin, label, deviations)
    return Modes(kept, release.density(kept, label=label))


def refuse_no_density(plan: Plan) -> None:
    """Refuses a plan whose answers are no density over the columns of its records.

    Raises:
        PlanError: It collects sets, or is of the paired family.
    """
    if isinstance(plan.record, SetRecords):
        raise PlanError("record.kind", "set", "'vector': sets have no coordinates")
    if plan.family.name == "paired":
        raise PlanError("sketch.family", "paired", "a family with densities: this one answers with losses")


def _widths(plan: Plan, lower: Floats, upper: Floats) -> Floats:
    """(d,): how far from the middle of the bounds along each column the kernel is a half; of a grid a cell's side."""
    family = plan.family
    if isinstance(family, Partition) and family.cells == "grid" and not family.transforms.steps:
        return np.minimum(float(family.bandwidth), upper - lower)
    middle, low, high = (lower + upper) / 2, np.zeros(len(lower)), upper - lower
    for _ in range(_BISECTIONS):
        step = (low + high) / 2
        near = family.kernel(middle[None], middle + np.diag(step))[0] >= _HALF
        low, high = np.where(near, step, low), np.where(near, high, step)
    return np.maximum(high, (upper - lower) * 1e-6)


def _middles(release: Release, label: str | None) -> Floats:
    """The middles of heavy cells, in the unit of the records, where transforms can be undone."""
    family = release.plan.family
    assert isinstance(family, Partition), "checked by the caller"
    if not all(isinstance(step, Scale) for step in family.transforms.steps):
        return np.empty((0, release.plan.vectors.dim))
    cells = heavy_cells(release, label=label)
    factors = np.ones(release.plan.vectors.dim)
    for step in family.transforms.steps:
        assert isinstance(step, Scale), "all of them are"
        factors *= float32(step.factor)
    return np.asarray((cells.lower + cells.upper) / 2 / factors, np.float64)


def _apart(points: Floats, width: Floats, most: int) -> Floats:
    """Points that are at least a width from each one before them, in their order, and at most so many."""
    kept: list[Floats] = []
    for point in points:
        if len(kept) < most and all(float(np.linalg.norm((point - other) / width)) >= 1.0 for other in kept):
            kept.append(point)
    return np.array(kept).reshape(-1, points.shape[1])


def _distinct(release: Release, points: Floats, label: str | None, deviations: float) -> Floats:
    """Of points, the highest first, those above the noise and behind a fall on the way to every one that is kept."""
    values, errors = _with_chance(release.kernel_sum(points, label=label))
    kept: list[int] = []
    for index, (value, error) in enumerate(zip(values, errors, strict=True)):
        if not value > deviations * error:
            continue
        share = np.linspace(0.0, 1.0, _SEGMENT + 2)[1:-1, None]
        ways = [points[index] + share * (points[other] - points[index]) for other in kept]
        if ways:
            along, along_errors = _with_chance(release.kernel_sum(np.concatenate(ways), label=label))
            lowest = along.reshape(len(ways), -1).argmin(axis=1) + np.arange(len(ways)) * _SEGMENT
            if not (value - along[lowest] > deviations * np.hypot(error, along_errors[lowest])).all():
                continue
        kept.append(index)
    return points[kept]


def _with_chance(answer: Answer) -> tuple[Floats, Floats]:
    """Kernel sums, and their errors with those of a sample: k ≤ 1, so that Σ k² ≤ Σ k."""
    return answer.value, np.sqrt(np.square(answer.std_error) + np.maximum(answer.value, 0.0))
