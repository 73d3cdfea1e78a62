"""Compares a release with the truth: errors of its answers, its noise, and every delta by its id.

A release less the exact sum must be the plan's noise and nothing else. Three quantities show it: the mean and the
variance over all counters, and the projection on each client's own vector. A client that was lost leaves −1 times its
vector, one that was counted twice +1 times.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum import HushsumWarning, panels, plots, query
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.mechanisms import DISCRETE_LAPLACE
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_simulator.data import ClientRecords, ExactSums, Floats, clip
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings

#: Where fewer than a thousandth of all records are near, a relative error divides by next to nothing.
FLOOR_SHARE: Final = 1e-3


@dataclass(frozen=True)
class Accuracy:
    """Errors over the queries whose exact kernel sum f is above a floor.

    Attributes:
        mean_relative: Mean of |f̂ − f|/f; None where no query is above the floor.
        expected_relative: Mean of √(2/π)·√(V_hash + V_noise)/f, which that mean estimates; None where one row alone
            does not show its V_hash.
        floor: In records.
        mean_kernel_sum: Mean of the exact sums of those queries; 0 where there are none.
    """

    mean_relative: float | None
    expected_relative: float | None
    queries: int
    floor: float
    mean_kernel_sum: float


def measure(release: Release, bulk: Sketch, queries: Floats, exact: Floats) -> Accuracy:
    """Compares a release with exact kernel sums (m,) at queries (m, d), and with the errors that it should have.

    V_noise is the mechanism's, from the plan alone. V_hash is the variance of the random hashes, estimated from the
    spread of the rows of ``bulk``, the exact sketch of the same records: no analyst can compute it.
    """
    hashing = bulk.plan.family.answer(bulk.counters.sum(axis=0), queries).std_error
    # The answer sums all classes, each with its own noise.
    std_errors = (hashing**2 + len(bulk.counters) * query.noise_std_error(bulk.plan) ** 2) ** 0.5
    return compare(release.kernel_sum(queries).value, std_errors, exact, bulk.records)


def compare(values: Floats, std_errors: Floats, exact: Floats, records: int) -> Accuracy:
    """Compares answers (m,) and their standard errors (m,) with the exact kernel sums (m,) of so many records.

    A normal error of standard deviation s has the mean absolute value √(2/π)·s.
    """
    floor = FLOOR_SHARE * records
    above = exact > floor
    if not above.any():
        return Accuracy(None, None, 0, floor, 0.0)
    truth = exact[above]
    expected = float(math.sqrt(2 / math.pi) * (std_errors[above] / truth).mean())
    return Accuracy(
        mean_relative=float((abs(values[above] - truth) / truth).mean()),
        expected_relative=expected if math.isfinite(expected) else None,
        queries=int(above.sum()),
        floor=floor,
        mean_kernel_sum=float(truth.mean()),
    )


# Of china.jpg: the hazy sky and the roofs' white show as two peaks in the plane blue = 230.
_PHOTOGRAPH_VIEW: Final = panels.View((0, 1), (200.0, 215.0, 230.0))


def in_bulk(material: Material) -> Sketch:
    """The exact sketch of the same records, without clients, network or log."""
    bulk = Sketch(material.plan)
    clients = None
    if material.plan.privacy.unit == "client":
        clients = [share.client_id for share in material.shares for _ in range(share.records)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HushsumWarning)  # the summary says the same
        bulk.add(material.counted, clients=clients, labels=material.labels)
    return bulk


def asked(material: Material, truth: ExactSums, progress: Progress) -> tuple[Floats, Floats]:
    """Held-out queries (m, d), fewer than all where exact sums take too long, and the exact sums (m,) there."""
    wanted = len(material.queries)
    queries = clip(material.plan, material.queries[: truth.affordable(wanted)])
    if len(queries) < wanted:
        progress.warn(
            f"{len(queries)} of {wanted} queries are compared: exact sums of more queries would take too long"
        )
    return queries, truth.at(queries, progress.bar("queries compared", len(queries)))


def draw(settings: RunSettings, release: Release, truth: ExactSums, progress: Progress) -> None:
    """Writes density.png: the release, and the exact density next to it unless that takes too long."""
    view = _PHOTOGRAPH_VIEW if settings.data is None else panels.densest_view(release)
    points = panels.points_drawn(view)
    if truth.affordable(points) < points:
        progress.warn("density.png shows only the release: the exact density of this many records would take too long")
        plots.density_figure(release, view=view).savefig(settings.out / "density.png")
        return
    bar = progress.bar("points of density.png", points)
    done = 0

    def density(at: Floats) -> Floats:
        nonlocal done
        sums = truth.at(at, lambda some: bar(done + some))
        done += len(at)
        return sums / truth.records

    plots.density_figure(release, exact=density, view=view).savefig(settings.out / "density.png")


Counters = npt.NDArray[np.int64]

#: A standard normal quantity exceeds this once in 500 million tries: less than once in a million runs of 400 clients.
LIMIT: Final = 6.0


@dataclass(frozen=True)
class Residual:
    """The released counters less the exact sum, in standard errors.

    Where only noise is left, the two z are standard normal, and ``client_z`` is the largest of as many standard normals
    as there are clients.

    Attributes:
        noise_variance_ratio: Empirical variance over expected variance.
        noise_variance_z: Distance of that from 1.
        noise_mean_z: Distance of the mean from 0.
        client_z: The largest projection on one client's vector, over all clients.
    """

    noise_variance_ratio: float = 1.0
    noise_variance_z: float = 0.0
    noise_mean_z: float = 0.0
    client_z: float = 0.0


def residual_of(material: Material, release: Release, inside: Collection[ClientRecords]) -> Residual:
    """Subtracts the exact vectors of the clients ``inside`` from a release of noised sums, and examines the rest."""
    plan = material.plan
    vectors = {share.client_id: partial(_vector, material, share.client_id) for share in material.shares}
    left = _flat(release.counters, release.counts)
    for share in inside:
        left = left - vectors[share.client_id]()
    variance = query.noise_variance(plan, draws=release.draws)
    # Cumulants add up: n times the noise has the excess kurtosis of one over n.
    excess = _excess_kurtosis(plan) * query.noise_variance(plan) / variance
    return examine(left, list(vectors.values()), variance, excess=excess)


def examine(left: Counters, vectors: Sequence[Callable[[], Counters]], variance: float, *, excess: float) -> Residual:
    """Tests whether what is left is noise alone.

    Args:
        left: (D,) the released counters less the exact sum.
        vectors: Each makes the exact counters (D,) of one client, whether it is in the sum or not; made one at a time,
            as all of them may not fit into memory.
        variance: Of the noise of one counter, by the plan and the number of submissions.
        excess: An upper bound on the noise's excess kurtosis, which widens the range of the empirical variance.
    """
    values, size = left.astype(np.float64), left.size
    std = math.sqrt(variance)
    ratio = float(np.mean(values**2)) / variance
    parts = [_projection(values, make()) / std for make in vectors]
    return Residual(
        noise_variance_ratio=ratio,
        noise_variance_z=(ratio - 1) / math.sqrt((2 + excess) / size),
        noise_mean_z=float(values.mean()) / (std / math.sqrt(size)),
        client_z=max(parts, key=abs, default=0.0),
    )


def _vector(material: Material, client: str) -> Counters:
    """All counters that a client with these records submits, count counters last."""
    sketch = in_bulk(material.only({client}))
    return _flat(sketch.counters, sketch.counts)


def _flat(counters: Counters, counts: Counters) -> Counters:
    return np.concatenate([counters.reshape(-1), counts])


def _excess_kurtosis(plan: Plan) -> float:
    """Of the noise of h clients' shares in secure mode, of one client's noise in local mode."""
    mechanism = plan.privacy.mechanism
    if mechanism.name != DISCRETE_LAPLACE:
        return 0.0
    # Of a discrete Laplace distribution with q = exp(−1/b): κ4/κ2² = (1 + 4q + q²)/(2q) = 2 + cosh(1/b).
    return 2 + math.cosh(float(1 / mechanism.scale))


def _projection(values: Floats, vector: Counters) -> float:
    """⟨left, v⟩/‖v‖: of pure noise its standard deviation is that of one counter."""
    own = vector.astype(np.float64)
    length = math.sqrt(float(own @ own))
    return float(values @ own) / length if length else 0.0


class SentDelta(NamedTuple):
    """The id of a delta that a client has sent."""

    client_id: str
    id: DeltaId


@dataclass(frozen=True)
class Reconciliation:
    """What the fold's verdicts say of the ids that were sent.

    Attributes:
        counted: Ids that were sent and counted.
        lost: Ids that were sent and not counted.
        double_counted: Ids that were counted more than once, or counted and never sent.
        duplicates: Log entries that were dropped as copies.
    """

    counted: int
    lost: int
    double_counted: int
    duplicates: int


def reconcile(sent: AbstractSet[SentDelta], verdicts: Sequence[Verdict]) -> Reconciliation:
    """Compares the deltas that were sent with the verdicts, one for each entry that was folded, by id."""
    counted = _counted(verdicts)
    return Reconciliation(
        counted=sum(delta in counted for delta in sent),
        lost=sum(delta not in counted for delta in sent),
        double_counted=sum(times > 1 or delta not in sent for delta, times in counted.items()),
        duplicates=_duplicates(verdicts),
    )


def reconcile_number(sent: int, verdicts: Sequence[Verdict], *, shuffled: int | None = None) -> Reconciliation:
    """Compares the number of messages that were sent with the verdicts: the ids of reports name no client.

    Behind a shuffler the verdicts are of its own batches, and ``shuffled`` is the number of ids that it has taken.
    """
    times_counted = _counted(verdicts)
    counted = len(times_counted) if shuffled is None else shuffled
    return Reconciliation(
        counted=counted,
        lost=max(0, sent - counted),
        double_counted=sum(times > 1 for times in times_counted.values()) + max(0, counted - sent),
        duplicates=_duplicates(verdicts),
    )


def _counted(verdicts: Sequence[Verdict]) -> Counter[tuple[str | None, DeltaId | None]]:
    """How many times each id was counted."""
    return Counter((each.client_id, each.id) for each in verdicts if each.kind is VerdictKind.COUNTED)


def _duplicates(verdicts: Sequence[Verdict]) -> int:
    return sum(each.kind is VerdictKind.DUPLICATE for each in verdicts)
