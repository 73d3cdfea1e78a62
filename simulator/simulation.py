"""The main job: gathers the records, runs the journey, compares its release with the truth, writes what came of it."""

import asyncio
import tempfile
import time
import warnings
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np

from edge_client import EdgeWarning
from hushsum import plots, query
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch
from simulator import plans, records
from simulator.accuracy import Accuracy, measure
from simulator.errors import RecordsError
from simulator.exact import ExactSums, clip
from simulator.journey import Journey, travel
from simulator.progress import Progress
from simulator.records import Floats, Records
from simulator.shares import Share, deal
from simulator.summary import Summary

# Of china.jpg: the hazy sky and the roofs' white show as two peaks in the plane blue = 230.
_PHOTOGRAPH_VIEW: Final = plots.View((0, 1), (200.0, 215.0, 230.0))


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do.

    Attributes:
        data: The user's records; None for the photograph's.
        columns: Of the user's records; all where none are named.
        label_column: Of the user's records: their labels, for a plan with classes.
        plan: A plan file; None makes one that fits the records.
        clients: How many the records are spread over.
        deltas: At least so many deltas, or one a record where there are fewer.
        queries: At most so many records are held out as queries.
        epsilon: None takes the plan's, or 1.
        delta: None takes the plan's, or 0.
        unit: ``record`` or ``client``; None takes the plan's, or ``record``.
        records_per_client: Unit ``client`` alone.
        partitions: P of the server's log.
        seed: Of what is held out, of who holds how much, and of the hash where the plan is made here.
        out: The folder that results are written to.
    """

    data: Path | None = None
    columns: tuple[str, ...] = ()
    label_column: str | None = None
    plan: Path | None = None
    clients: int = 200
    deltas: int = 5000
    queries: int = 2000
    epsilon: Fraction | None = None
    delta: Fraction | None = None
    unit: str | None = None
    records_per_client: int | None = None
    partitions: int = 1
    seed: int = 7
    out: Path = Path("out")


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that is known before the run.

    Attributes:
        plan: Of the collection.
        shares: Who has which records.
        counted: (n, d): the records of all shares, in one array.
        queries: (m, d): the records that were held out.
        labels: n of them, of ``counted``; None without classes.
    """

    plan: Plan
    shares: list[Share]
    counted: Floats
    queries: Floats
    labels: tuple[str | None, ...] | None = None

    @property
    def labelled(self) -> Floats:
        """Those of ``counted`` that a client does not drop for their labels."""
        return self.counted[self.plan.collection.class_indices(self.labels, len(self.counted)) >= 0]


def simulate(settings: Settings, progress: Progress) -> Summary:
    """Runs the main job, and writes summary.json, density.png, plan.json and the release to ``settings.out``.

    Raises:
        HushsumError: A step failed, and there is nothing to sum up. A run that lost, doubled or changed something comes
            to its end: its summary's :meth:`~simulator.Summary.violations` say so.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    journey = _travel(material, settings, progress)
    truth = ExactSums(material.plan, material.labelled)
    bulk = _in_bulk(material)
    accuracy = _compare(material, journey.release, bulk, truth, progress)
    _draw(settings, journey.release, truth, progress)
    summary = _summary(settings, material, journey, bulk, accuracy, time.monotonic() - began)
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    journey.release.save(settings.out / "release.hush")
    return summary


def _travel(material: Material, settings: Settings, progress: Progress) -> Journey:
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in the summary
        folder, partitions = Path(name), settings.partitions
        return asyncio.run(
            travel(material.plan, material.shares, folder=folder, partitions=partitions, progress=progress)
        )


def gather(settings: Settings, progress: Progress) -> Material:
    """Records, plan, queries and shares.

    Raises:
        RecordsError: The records cannot be used, or do not fit the plan.
        PlanError: The plan cannot be used.
    """
    declared = _declared(settings)
    if settings.data is None:
        source = records.photograph()
    else:
        source = records.load(settings.data, settings.columns, settings.label_column)
    plan = declared or _fitting(settings, source, progress)
    if plan.classes and source.labels is None:
        raise RecordsError(f"{source.source}: the plan has classes; name the labels of --data with --label-column")
    if source.labels is not None and not plan.classes:
        raise RecordsError(f"{source.source}: the plan has no classes, so --label-column has no use here")
    if source.values.shape[1] != plan.vectors.dim:
        columns = ", ".join(source.names)
        raise RecordsError(
            f"{source.source} has {source.values.shape[1]} columns ({columns}), the plan expects {plan.vectors.dim}; "
            "name the columns to take with --columns"
        )
    rest, queries = records.hold_out(source, settings.queries, settings.seed)
    shares = deal(
        rest.values,
        clients=settings.clients,
        deltas=settings.deltas,
        seed=settings.seed,
        records_per_client=plan.privacy.records_per_client,
        labels=rest.labels,
    )
    counted = np.concatenate([batch for share in shares for batch in share.batches])
    progress.step(f"{len(counted):,} records of {source.source}, {len(queries):,} more are held out as queries")
    return Material(plan, shares, counted, queries, _labels(shares) if plan.classes else None)


def _labels(shares: list[Share]) -> tuple[str | None, ...]:
    return tuple(label for share in shares for batch in share.labels or () for label in batch)


def _declared(settings: Settings) -> Plan | None:
    """The user's plan, before anything else is looked at."""
    if settings.plan is None:
        return None
    plan = plans.load(settings.plan)
    plans.refuse_incomparable(plan)
    changes = {
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "unit": settings.unit,
        "records_per_client": settings.records_per_client,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    return plan.replace_privacy(**given) if given else plan


def _fitting(settings: Settings, source: Records, progress: Progress) -> Plan:
    """A plan that fits the records."""
    unit = settings.unit or ("record" if settings.records_per_client is None else "client")
    privacy = plans.privacy_table(
        settings.epsilon or Fraction(1), unit, settings.records_per_client, delta=settings.delta or Fraction(0)
    )
    if settings.data is None:
        return plans.of_photograph(privacy, settings.seed)
    progress.warn("the plan's bounds are the file's own extremes: NOT private, for trying out alone; see --plan")
    return plans.of_file(source, privacy, settings.seed)


def _in_bulk(material: Material) -> Sketch:
    """The sketch of the same records, without clients, network or log."""
    bulk = Sketch(material.plan)
    clients = None
    if material.plan.privacy.unit == "client":
        clients = [share.client_id for share in material.shares for _ in range(share.records)]
    bulk.add(material.counted, clients=clients, labels=material.labels)
    return bulk


def _compare(material: Material, release: Release, bulk: Sketch, truth: ExactSums, progress: Progress) -> Accuracy:
    wanted = len(material.queries)
    queries = clip(material.plan, material.queries[: truth.affordable(wanted)])
    if len(queries) < wanted:
        progress.warn(f"{len(queries)} of {wanted} queries are compared: the exact sums of more would take too long")
    return measure(release, bulk, queries, truth.at(queries, progress.bar("queries compared", len(queries))))


def _draw(settings: Settings, release: Release, truth: ExactSums, progress: Progress) -> None:
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


def _summary(
    settings: Settings, material: Material, journey: Journey, bulk: Sketch, accuracy: Accuracy, seconds: float
) -> Summary:
    plan, totals = material.plan, journey.totals
    same = (
        np.array_equal(journey.folded.counters, bulk.counters),
        np.array_equal(journey.folded.counts, bulk.counts),
    )
    return Summary(
        records=totals.records,
        records_dropped=totals.records_dropped,
        deltas_sent=totals.deltas,
        deltas_resent=totals.resent,
        duplicates_dropped=journey.reconciliation.duplicates,
        deltas_counted=journey.reconciliation.counted,
        deltas_lost=journey.reconciliation.lost,
        deltas_double_counted=journey.reconciliation.double_counted,
        counters_equal=all(same),
        bytes_per_record=totals.bytes_sent / max(totals.records, 1),
        restarts=journey.restarts,
        seconds=seconds,
        mean_relative_error=accuracy.mean_relative,
        expected_relative_error=accuracy.expected_relative,
        epsilon_spent=float(Fraction(journey.epsilon_spent)),
        epsilon_left=float(Fraction(journey.epsilon_left)),
        clients=len(material.shares),
        queries=accuracy.queries,
        queries_held_out=len(material.queries),
        error_floor=accuracy.floor,
        mean_kernel_sum=accuracy.mean_kernel_sum,
        noise_std_error=query.noise_std_error(plan),
        epsilon=float(plan.privacy.epsilon),
        delta=float(plan.privacy.delta),
        unit=plan.privacy.unit,
        records_per_client=plan.privacy.records_per_client,
        unacknowledged_at_kill=journey.untold,
        seed=settings.seed,
        plan_id=plan.hex_id,
    )
