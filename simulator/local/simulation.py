"""A run in local mode: clients randomise, a service counts what it cannot read; the release beside the truth."""

import asyncio
import math
import tempfile
import time
import warnings
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hushsum as hs
from edge_client import EdgeWarning
from hushsum import query
from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.releases import Release
from simulator.accuracy import Accuracy, compare
from simulator.comparison import asked, draw, in_bulk
from simulator.exact import ExactSums
from simulator.local.journey import LocalJourney, travel_local
from simulator.local.summary import LocalSummary
from simulator.local_plans import central_twin
from simulator.material import Material, Settings, gather
from simulator.plans import CENTRAL_SIZES
from simulator.progress import Progress
from simulator.records import Floats
from simulator.secure.residual import Counters, Residual, examine, excess_of

_NO_RESIDUAL = Residual(1.0, 0.0, 0.0, 0.0)


def simulate_local(settings: Settings, progress: Progress) -> LocalSummary:
    """Runs the main job in local mode, and writes the same files as in central mode.

    Raises:
        HushsumError: A step failed, and there is nothing to sum up.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    _tell(material.plan, progress)
    journey = _travel(material, settings, progress)
    truth = ExactSums(material.plan, material.labelled)
    queries, exact = asked(material, truth, progress)
    accuracy = errors_of(journey.release, queries, exact, truth.records)
    twin = _twin(material, settings)
    central = errors_of(hs.release(in_bulk(twin)), queries, exact, truth.records)
    residual = _NO_RESIDUAL if material.plan.privacy.reports else residual_of(material, journey.release)
    draw(settings, journey.release, truth, progress)
    summary = LocalSummary(
        **_of_every_run(settings, material, journey, accuracy, time.monotonic() - began),
        **_of_mode(material.plan, journey),
        noise_variance_ratio=residual.variance_ratio,
        noise_variance_z=residual.variance_z,
        noise_mean_z=residual.mean_z,
        client_z=residual.client_z,
        central_relative_error=central.mean_relative,
        central_sketch=_sketch(twin.plan),
    )
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    journey.release.save(settings.out / "release.hush")
    return summary


def errors_of(release: Release, queries: Floats, exact: Floats, records: int) -> Accuracy:
    """How far answers are from the truth, and how far they say themselves that they may be.

    Args:
        release: What an analyst has.
        queries: (m, d).
        exact: (m,), their exact kernel sums.
        records: All of them.
    """
    answer = release.kernel_sum(queries)
    return compare(answer.value, answer.std_error, exact, records)


def residual_of(material: Material, release: Release) -> Residual:
    """What is left of a release of silos when the exact sums of all clients are taken out of it."""
    plan = material.plan
    make = {share.client_id: partial(_vector, material, share.client_id) for share in material.shares}
    left = _flat(release.counters, release.counts)
    for vector in make.values():
        left = left - vector()
    silos = max(1, release.submissions or 0)
    variance = query.noise_variance(plan, silos)
    return examine(left, list(make.values()), variance, excess=excess_of(plan) / silos)


def _vector(material: Material, client: str) -> Counters:
    sketch = in_bulk(material.only({client}))
    return _flat(sketch.counters, sketch.counts)


def _flat(counters: Counters, counts: Counters) -> Counters:
    return np.concatenate([counters.reshape(-1), counts])


def _tell(plan: Plan, progress: Progress) -> None:
    local, mechanism, sizes = plan.privacy.local, plan.privacy.mechanism, plan.report_sizes
    assert local is not None, "gathered for local mode"
    if sizes is None:
        size = math.prod(plan.counters_shape)
        progress.step(
            f"{size:,} counters, each with noise of its own on every client: {plan.words.bytes:,} bytes from each"
        )
        return
    progress.step(
        f"{_sketch(plan)}; a record becomes one of {sizes.rows * sizes.outputs:,} values, in {sizes.width} bytes, none "
        f"more than {float(mechanism.scale):.6g} times as likely as for another record ({mechanism.name})"
    )
    if local.shuffle_min:
        progress.step(f"a shuffler stands before the server; what leaves it has at least {local.shuffle_min:,} reports")


def _travel(material: Material, settings: Settings, progress: Progress) -> LocalJourney:
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in the summary
        folder, partitions = Path(name), settings.partitions
        return asyncio.run(
            travel_local(material.plan, material.shares, folder=folder, partitions=partitions, progress=progress)
        )


def _twin(material: Material, settings: Settings) -> Material:
    """The same records under a plan of central mode: as a run makes it for itself, or of the user's sketch."""
    own = settings.plan is None and material.plan.family.name == "hashed"
    return replace(material, plan=central_twin(material.plan, CENTRAL_SIZES if own else {}))


def _sketch(plan: Plan) -> str:
    fields = plan.family.to_fields()
    if "buckets" in fields:
        return f"{fields['rows']:,} rows of {fields['buckets']:,} buckets"
    return f"{fields.get('rows', 0):,} rows, {plan.family.name}"


def _of_every_run(
    settings: Settings, material: Material, journey: LocalJourney, accuracy: Accuracy, seconds: float
) -> dict[str, Any]:  # Any: numbers and texts of a summary, which checks nothing
    plan, totals, release = material.plan, journey.totals, journey.release
    of_noise = release.submissions if plan.privacy.reports is None else int(release.count)
    return {
        "mode": plan.privacy.mode,
        "records": totals.records,
        "records_dropped": totals.records_dropped,
        "deltas_sent": totals.deltas,
        "deltas_resent": totals.resent,
        "duplicates_dropped": journey.duplicates,
        "deltas_counted": journey.counted,
        "deltas_lost": max(0, totals.deltas - journey.counted),
        "deltas_double_counted": journey.double_counted + max(0, journey.counted - totals.deltas),
        "counters_equal": None,
        "bytes_per_record": totals.bytes_sent / max(totals.records, 1),
        "restarts": journey.restarts,
        "seconds": seconds,
        "mean_relative_error": accuracy.mean_relative,
        "expected_relative_error": accuracy.expected_relative,
        "epsilon_spent": float(Fraction(journey.epsilon_spent)),
        "epsilon_left": float(Fraction(journey.epsilon_left)),
        "clients": len(material.shares),
        "queries": accuracy.queries,
        "queries_held_out": len(material.queries),
        "error_floor": accuracy.floor,
        "mean_kernel_sum": accuracy.mean_kernel_sum,
        "noise_std_error": query.noise_std_error(plan, of_noise),
        "epsilon": float(plan.privacy.epsilon),
        "delta": float(plan.privacy.delta),
        "unit": plan.privacy.unit,
        "records_per_client": plan.privacy.records_per_client,
        "unacknowledged_at_kill": journey.untold,
        "seed": settings.seed,
        "plan_id": plan.hex_id,
    }


def _of_mode(plan: Plan, journey: LocalJourney) -> dict[str, Any]:  # Any: as above
    local, release, told = plan.privacy.local, journey.release, list(journey.told.values())
    if local is None:
        raise PlanError("privacy.mode", plan.privacy.mode, "'local'")
    reports, sizes, cost = plan.privacy.reports, plan.report_sizes, release.amplified
    silo = reports is None
    return {
        "form": local.form,
        "randomiser": local.randomiser or "",
        "sketch": _sketch(plan),
        "shuffle_min": local.shuffle_min,
        "shuffler_restarts": journey.shuffler_restarts,
        "shuffled_batches": journey.forwarded,
        "amplified_epsilon": None if cost is None else float(cost.epsilon),
        "amplified_delta": 0.0 if cost is None else float(cost.delta),
        "reports_sent": sum(each.tallies.reports for each in told),
        "reports_acknowledged": sum(each.tallies.reports for each in told if each.acknowledged),
        "reports_counted": 0 if silo else int(release.count),
        "report_bytes": 0 if sizes is None else sizes.width,
        "report_bytes_max": 0 if reports is None else reports.bytes_max,
        "submissions_acknowledged": sum(each.tallies.submissions_counted for each in told) if silo else 0,
        "submissions_released": release.submissions or 0,
        "submission_bytes": plan.words.bytes if silo else 0,
        "names_found": len(journey.searched.names),
        "bytes_searched": journey.searched.bytes,
        "names_control": journey.searched.control,
        "account_spent": max((float(each.spent.epsilon) for each in told), default=0.0),
        "account_left": min((float(each.left.epsilon) for each in told), default=0.0),
    }
