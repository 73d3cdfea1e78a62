"""The main job: gathers the records, runs the journey, compares its release with the truth, writes what came of it."""

import asyncio
import tempfile
import time
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np

from edge_client import EdgeWarning
from hushsum import query
from hushsum.privacy.guarantee import LOCAL, SECURE
from hushsum.sketch import Sketch
from hushsum_simulator.data import ExactSums
from hushsum_simulator.demo.central import Journey, travel
from hushsum_simulator.demo.evaluation import Accuracy, asked, draw, in_bulk, measure
from hushsum_simulator.demo.local import simulate_local
from hushsum_simulator.demo.secure import simulate_secure
from hushsum_simulator.demo.summary import Summary
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import Material, RunSettings, gather


def simulate(settings: RunSettings, progress: Progress) -> Summary:
    """Runs the main job, and writes summary.json, density.png, plan.json and the release to ``settings.out``.

    Raises:
        HushsumError: A step failed, and there is nothing to sum up. A run that lost, doubled or changed something comes
            to its end: its summary's :meth:`~simulator.Summary.violations` say so.
    """
    if settings.mode == SECURE:
        return simulate_secure(settings, progress)
    if settings.mode == LOCAL:
        return simulate_local(settings, progress)
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    journey = _travel(material, settings, progress)
    truth = ExactSums(material.plan, material.labelled)
    bulk = in_bulk(material)
    accuracy = measure(journey.release, bulk, *asked(material, truth, progress))
    draw(settings, journey.release, truth, progress)
    summary = _summary(settings, material, journey, bulk, accuracy, time.monotonic() - began)
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    journey.release.save(settings.out / "release.hush")
    return summary


def _travel(material: Material, settings: RunSettings, progress: Progress) -> Journey:
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in the summary
        folder, partitions = Path(name), settings.partitions
        return asyncio.run(
            travel(material.plan, material.shares, folder=folder, partitions=partitions, progress=progress)
        )


def _summary(
    settings: RunSettings, material: Material, journey: Journey, bulk: Sketch, accuracy: Accuracy, seconds: float
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
