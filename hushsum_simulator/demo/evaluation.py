"""A release beside the truth: its errors, what is left without the exact sum, and every delta by its id.

Whether a release without its exact sum is the noise that the plan says, and nothing else, shows in three things: the
mean and the variance over all counters, and for every client how much of its own vector is left. A client that is lost
leaves −1 of it, one that is counted twice +1.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from aggregator.fold.state import Verdict, VerdictKind
from hushsum import plots, query
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.privacy.mechanism import DISCRETE_LAPLACE
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_simulator.data import ExactSums, Floats, clip
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings

#: Where fewer than a thousandth of all records are near, a relative error divides by next to nothing.
FLOOR_SHARE: Final = 1e-3


@dataclass(frozen=True)
class Accuracy:
    """Errors over the queries whose exact kernel sum is above a floor.

    Attributes:
        mean_relative: Mean of |f̂ − f|/f; None where no query is above the floor.
        expected_relative: Mean of √(2/π)·√(V_hash + V_noise)/f: what that mean should be; None where one row alone
            does not show its V_hash.
        queries: How many are above the floor.
        floor: In records.
        mean_kernel_sum: Of the exact sums of those queries; 0 where there are none.
    """

    mean_relative: float | None
    expected_relative: float | None
    queries: int
    floor: float
    mean_kernel_sum: float


def measure(release: Release, bulk: Sketch, queries: Floats, exact: Floats) -> Accuracy:
    """Compares a release with the truth.

    V_noise is the mechanism's, from the plan alone. V_hash is the variance that the random hashes bring, estimated from
    the spread of the rows of the exact sketch: only who holds the records can do that. A normal error of standard
    deviation s has the mean absolute value √(2/π)·s.

    Args:
        release: What an analyst has.
        bulk: The exact sketch of the same records.
        queries: (m, d).
        exact: (m,), their exact kernel sums.
    """
    floor = FLOOR_SHARE * bulk.records
    above = exact > floor
    if not above.any():
        return Accuracy(None, None, 0, floor, 0.0)
    some, truth = queries[above], exact[above]
    error = abs(release.kernel_sum(some).value - truth)
    hashing = bulk.plan.family.answer(bulk.counters.sum(axis=0), some).std_error
    # The answer is that of all classes together, each with its own noise.
    deviation = (hashing**2 + len(bulk.counters) * query.noise_std_error(bulk.plan) ** 2) ** 0.5
    return Accuracy(
        mean_relative=float((error / truth).mean()),
        expected_relative=_finite(math.sqrt(2 / math.pi) * (deviation / truth).mean()),
        queries=int(above.sum()),
        floor=floor,
        mean_kernel_sum=float(truth.mean()),
    )


def compare(values: Floats, std_errors: Floats, exact: Floats, records: int) -> Accuracy:
    """How far answers are from the truth, and how far they say themselves that they may be.

    Args:
        values: (m,) answers,
        std_errors: their standard errors,
        exact: and the exact kernel sums.
        records: All of them.
    """
    floor = FLOOR_SHARE * records
    above = exact > floor
    if not above.any():
        return Accuracy(None, None, 0, floor, 0.0)
    truth = exact[above]
    return Accuracy(
        mean_relative=float((abs(values[above] - truth) / truth).mean()),
        expected_relative=_finite(math.sqrt(2 / math.pi) * (std_errors[above] / truth).mean()),
        queries=int(above.sum()),
        floor=floor,
        mean_kernel_sum=float(truth.mean()),
    )


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


# Of china.jpg: the hazy sky and the roofs' white show as two peaks in the plane blue = 230.
_PHOTOGRAPH_VIEW: Final = plots.View((0, 1), (200.0, 215.0, 230.0))


def in_bulk(material: Material) -> Sketch:
    """The sketch of the same records, without clients, network or log."""
    bulk = Sketch(material.plan)
    clients = None
    if material.plan.privacy.unit == "client":
        clients = [share.client_id for share in material.shares for _ in range(share.records)]
    bulk.add(material.counted, clients=clients, labels=material.labels)
    return bulk


def asked(material: Material, truth: ExactSums, progress: Progress) -> tuple[Floats, Floats]:
    """Held-out records (m, d) to compare at, and the exact sums there: (m,)."""
    wanted = len(material.queries)
    queries = clip(material.plan, material.queries[: truth.affordable(wanted)])
    if len(queries) < wanted:
        progress.warn(f"{len(queries)} of {wanted} queries are compared: the exact sums of more would take too long")
    return queries, truth.at(queries, progress.bar("queries compared", len(queries)))


def draw(settings: RunSettings, release: Release, truth: ExactSums, progress: Progress) -> None:
    """Writes density.png: the release beside the exact density, where that does not take too long."""
    view = _PHOTOGRAPH_VIEW if settings.data is None else plots.densest_view(release)
    points = plots.points_drawn(view)
    if truth.affordable(points) < points:
        progress.warn("density.png shows the release alone: the exact density of so many records would take too long")
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
_Floats = npt.NDArray[np.float64]

#: Beyond so many standard errors something is wrong: a normal quantity gets there once in 500 million looks.
LIMIT: Final = 6.0


@dataclass(frozen=True)
class Residual:
    """What is left, in standard errors of what is looked at; of noise alone each is a standard normal quantity.

    Attributes:
        variance_ratio: The empirical variance over the expected one.
        variance_z: How far that is from 1.
        mean_z: How far the mean is from 0.
        client_z: The largest part of one client's vector that is left, of all clients.
    """

    variance_ratio: float
    variance_z: float
    mean_z: float
    client_z: float

    @property
    def is_noise(self) -> bool:
        """Whether all is within :data:`LIMIT`; noise alone is not less than once in a million runs of 400 clients."""
        return max(abs(self.variance_z), abs(self.mean_z), abs(self.client_z)) <= LIMIT


def examine(left: Counters, vectors: Sequence[Callable[[], Counters]], variance: float, *, excess: float) -> Residual:
    """Looks at what is left.

    Args:
        left: (D,) the released counters less the exact sum.
        vectors: Each makes the exact counters (D,) of one client, whether it is in the sum or not; one at a time.
        variance: Of the noise of one counter, as the plan and the number of submissions say.
        excess: The noise's excess kurtosis, or more: it widens what the empirical variance may be.
    """
    values, size = left.astype(np.float64), left.size
    std = math.sqrt(variance)
    ratio = float(np.mean(values**2)) / variance
    parts = [_part(values, make()) / std for make in vectors]
    return Residual(
        variance_ratio=ratio,
        variance_z=(ratio - 1) / math.sqrt((2 + excess) / size),
        mean_z=float(values.mean()) / (std / math.sqrt(size)),
        client_z=max(parts, key=abs, default=0.0),
    )


def excess_of(plan: Plan) -> float:
    """Excess kurtosis of the noise of h shares, of silos 1; that of n is h/n of it, for cumulants add up."""
    mechanism = plan.privacy.mechanism
    if mechanism.name != DISCRETE_LAPLACE:
        return 0.0
    # Of a discrete Laplace distribution with q = exp(−1/b): κ4/κ2² = (1 + 4q + q²)/(2q) = 2 + cosh(1/b).
    return 2 + math.cosh(float(1 / mechanism.scale))


def _part(values: _Floats, vector: Counters) -> float:
    """⟨left, v⟩/‖v‖: of standard deviation one counter's, where there is noise alone."""
    own = vector.astype(np.float64)
    length = math.sqrt(float(own @ own))
    return float(values @ own) / length if length else 0.0


class SentDelta(NamedTuple):
    """A delta that a client has bound and sent."""

    client_id: str
    id: DeltaId


@dataclass(frozen=True)
class Reconciliation:
    """Numbers of ids, but for duplicates, which are entries.

    Attributes:
        counted: Sent, and counted.
        lost: Sent, and not counted.
        double_counted: Counted more than once, or counted and sent by nobody.
        duplicates: Entries that were dropped as copies.
    """

    counted: int
    lost: int
    double_counted: int
    duplicates: int


def reconcile(sent: AbstractSet[SentDelta], verdicts: Iterable[Verdict]) -> Reconciliation:
    """Compares by id.

    Args:
        sent: All deltas that were sent.
        verdicts: One for each entry that was folded.
    """
    counted: Counter[tuple[str | None, DeltaId | None]] = Counter()
    duplicates = 0
    for verdict in verdicts:
        if verdict.kind is VerdictKind.COUNTED:
            counted[verdict.client_id, verdict.id] += 1
        duplicates += verdict.kind is VerdictKind.DUPLICATE
    return Reconciliation(
        counted=sum(delta in counted for delta in sent),
        lost=sum(delta not in counted for delta in sent),
        double_counted=sum(times > 1 or delta not in sent for delta, times in counted.items()),
        duplicates=duplicates,
    )
