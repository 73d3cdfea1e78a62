"""Points that are distributed as a released density: public post-processing, the same for the same release.

Annealed sequential Monte Carlo (Del Moral, Doucet and Jasra 2006, Sequential Monte Carlo samplers, section 3): points
spread evenly over the public bounds are weighted by ever higher powers of the density, resampled, and moved by
Metropolis steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.estimators.base import noise_error
from hushsum.plan import Plan
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.releases import Release

Floats = npt.NDArray[np.float64]
#: Standard errors of the noise by which a density must exceed 0 to be told from it.
DEVIATIONS: Final = 4.0
_STARTS: Final = 8  # for each point that is kept
_LEVELS: Final = 12
_MOVES: Final = 2  # at each level
_ITERATIONS: Final = 30
_STEEPNESS: Final = 4.0  # of the density below what is told from 0, for each standard error


@dataclass(frozen=True, eq=False)
class Particles:
    """Points with their mean kernels.

    Attributes:
        points: (k, d) within the bounds, in the unit of the records; k = 0 where no place stands out of the noise.
        values: (k,), the kernel sums there, each above :data:`DEVIATIONS` standard errors of the noise.
    """

    points: Floats
    values: Floats


def particles(release: Release, count: int, *, label: str | None = None, seed: int = 0) -> Particles:
    """About ``count`` points, distributed as the kernel sum is within the bounds, where it stands out of the noise."""
    vectors = release.plan.vectors
    lower, upper = (np.array([float(end) for end in ends]) for ends in (vectors.lower, vectors.upper))
    stream, dim = PublicStream(PublicSeed(seed), "estimators/particles"), vectors.dim
    error = noise_error(release, label=label)

    def ask(places: Floats) -> Floats:
        return release.kernel_sum(lower + places * (upper - lower), label=label).value

    least = DEVIATIONS * error

    def logs(values: Floats) -> Floats:
        """Of the density where it is told from 0; below a slope that leads there, and on which few points stay."""
        return np.log(np.maximum(values, least)) + _STEEPNESS * np.minimum(values / error - DEVIATIONS, 0.0)

    places = stream.uniform(_STARTS * count * dim).reshape(-1, dim)
    values = ask(places)
    log = logs(values)
    for level in range(1, _LEVELS + 1):
        power, before = (level / _LEVELS) ** 2, ((level - 1) / _LEVELS) ** 2
        picked = _resampled((power - before) * log, count, stream)
        places, values, log = places[picked], values[picked], log[picked]
        for _ in range(_MOVES):
            spread = np.maximum(places.std(axis=0), 1e-6)
            step = stream.normal(count * dim).reshape(count, dim) * spread * (1.2 / dim**0.5)
            places, values, log = _moved(places, values, log, places + step, power, ask, logs, stream)
    kept = values > least
    return Particles(lower + places[kept] * (upper - lower), values[kept])


def unsmoothed(plan: Plan, points: Floats) -> Floats:
    """Weights (k,) with which points that are distributed as a released density are distributed as the records are.

    The released density is the mean of kernels over the records. Of all weights of the points, expectation maximisation
    looks for those whose mixture of kernels has the points themselves as a likely sample (Laird 1978, Nonparametric
    maximum likelihood estimation of a mixing distribution); it is stopped early, because its limit is a few points.

    Args:
        plan: Of the release.
        points: (k, d) of :func:`particles`.
    """
    kernel = np.maximum(plan.family.kernel(points, points), 0.0)
    weights = np.full(len(points), 1.0 / len(points))
    for _ in range(_ITERATIONS):
        weights *= (kernel / (weights @ kernel)).mean(axis=1)
        weights /= weights.sum()
    return np.asarray(weights, np.float64)


def _resampled(log: Floats, count: int, stream: PublicStream) -> npt.NDArray[np.intp]:
    """Indices, each as often as its weight asks for: systematic resampling."""
    weights = np.add.accumulate(np.exp(log - log.max()))
    marks = (np.arange(count) + stream.uniform(1)[0]) / count * weights[-1]
    return np.asarray(np.minimum(np.searchsorted(weights, marks, side="right"), len(log) - 1), np.intp)


def _moved(  # noqa: PLR0913, PLR0917 -- the state of a walk, where it would go, and what decides
    places: Floats,
    values: Floats,
    log: Floats,
    proposed: Floats,
    power: float,
    ask: Callable[[Floats], Floats],
    logs: Callable[[Floats], Floats],
    stream: PublicStream,
) -> tuple[Floats, Floats, Floats]:
    """A Metropolis step towards the density to this power within the bounds."""
    inside = ((proposed >= 0.0) & (proposed <= 1.0)).all(axis=1)
    new: Any = ask(np.clip(proposed, 0.0, 1.0))
    new_log = logs(new)
    accepted = inside & (np.log(stream.open_uniform(len(places))) < power * (new_log - log))
    return (
        np.where(accepted[:, None], proposed, places),
        np.where(accepted, new, values),
        np.where(accepted, new_log, log),
    )
