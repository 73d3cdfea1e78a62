"""A run in secure mode: clients sum while the server sees nothing else; the release is compared with the truth."""

import asyncio
import math
import tempfile
import time
import warnings
from collections.abc import Collection
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import hushsum as hs
from edge_client import EdgeWarning
from hushsum import query
from hushsum.plan import Plan
from hushsum.sketch import Sketch
from simulator import plans
from simulator.accuracy import Accuracy, measure
from simulator.comparison import asked, draw, in_bulk
from simulator.exact import ExactSums
from simulator.material import Material, Settings, gather
from simulator.progress import Progress
from simulator.secure.journey import SecureJourney, take_part
from simulator.secure.residual import Counters, Residual, examine, excess_of
from simulator.secure.summary import SecureSummary
from simulator.secure.vanishing import victims

_SUMMED: Final = "counted"  # the server's word for a round whose sum counts


def simulate_secure(settings: Settings, progress: Progress) -> SecureSummary:
    """Runs the main job in secure mode, and writes the same files as in central mode.

    Raises:
        HushsumError: A step failed, and there is nothing to sum up.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    settings.out.mkdir(parents=True, exist_ok=True)
    _tell(material.plan, settings, progress)
    journey = _travel(material, settings, progress)
    inside = {member.share.client_id for member in journey.members if member.tallies.submissions_counted}
    residual = _left(material, journey, inside)
    counted = material.only(inside)
    truth = ExactSums(counted.plan, counted.labelled)
    bulk = in_bulk(counted)
    queries, exact = asked(counted, truth, progress)
    accuracy = measure(journey.release, bulk, queries, exact)
    twin = _twin(bulk)
    central = measure(hs.release(twin), twin, queries, exact)
    draw(settings, journey.release, truth, progress)
    summary = _summary(settings, material, journey, residual, (accuracy, central), time.monotonic() - began)
    (settings.out / "plan.json").write_bytes(material.plan.bundle)
    (settings.out / "summary.json").write_text(summary.to_json(), encoding="utf-8")
    journey.release.save(settings.out / "release.hush")
    return summary


def _tell(plan: Plan, settings: Settings, progress: Progress) -> None:
    cohort, size = plan.privacy.cohort, math.prod(plan.counters_shape)
    assert cohort is not None, "gathered for secure mode"
    progress.step(
        f"{settings.clients} clients in cohorts of {cohort.size}: {cohort.corrupt_clients} of each may be corrupt, "
        f"{cohort.size - cohort.survivors_min} may vanish, and the noise of {cohort.honest_survivors} is what counts"
    )
    progress.step(
        f"{size:,} counters as words of {plan.words.bits} bits: {plan.words.bytes:,} bytes from each client (central "
        "mode's own plan has a million counters: here every client masks and sends them all)"
    )


def _travel(material: Material, settings: Settings, progress: Progress) -> SecureJourney:
    leaving = victims([share.client_id for share in material.shares], settings.dropout_rate, settings.seed)
    with tempfile.TemporaryDirectory(prefix="hushsum-", ignore_cleanup_errors=True) as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)  # what they say is in the summary
        return asyncio.run(
            take_part(
                material.plan,
                material.shares,
                leaving,
                folder=Path(name),
                partitions=settings.partitions,
                progress=progress,
            )
        )


def _left(material: Material, journey: SecureJourney, inside: Collection[str]) -> Residual:
    """What is left of the release when those that are in the sum are taken out of it."""
    plan, release = material.plan, journey.release
    make = {share.client_id: partial(_vector, material, share.client_id) for share in material.shares}
    left = _flat(release.counters, release.counts)
    for client in inside:
        left = left - make[client]()
    variance = query.noise_variance(plan, release.submissions)
    return examine(left, list(make.values()), variance, excess=excess_of(plan) * query.noise_variance(plan) / variance)


def _vector(material: Material, client: str) -> Counters:
    """All counters that a client with these records submits, count counters last."""
    sketch = in_bulk(material.only({client}))
    return _flat(sketch.counters, sketch.counts)


def _flat(counters: Counters, counts: Counters) -> Counters:
    return np.concatenate([counters.reshape(-1), counts])


def _twin(bulk: Sketch) -> Sketch:
    """The same counters under the plan of central mode."""
    plan, scale = plans.central_twin(bulk.plan), bulk.plan.privacy.mechanism.count_scale
    return Sketch.of_counters(plan, bulk.counters, bulk.counts // scale * plan.privacy.mechanism.count_scale)


def _summary(
    settings: Settings,
    material: Material,
    journey: SecureJourney,
    residual: Residual,
    accuracies: tuple[Accuracy, Accuracy],
    seconds: float,
) -> SecureSummary:
    plan, release, (accuracy, central) = material.plan, journey.release, accuracies
    return SecureSummary(
        **_of_every_run(settings, material, journey, accuracy, seconds),
        **_of_clients(journey),
        mode=plan.privacy.mode,
        cohorts=release.cohorts or 0,
        rounds_aborted=sum(count for outcome, count in journey.rounds.items() if outcome != _SUMMED),
        dropout_rate=settings.dropout_rate,
        cohort_size=0 if plan.privacy.cohort is None else plan.privacy.cohort.size,
        submissions_released=release.submissions or 0,
        noise_variance_ratio=residual.variance_ratio,
        noise_variance_z=residual.variance_z,
        noise_mean_z=residual.mean_z,
        client_z=residual.client_z,
        vector_bytes=plan.words.bytes,
        rounds_seconds=journey.rounds_s,
        central_relative_error=central.mean_relative,
        central_noise_std_error=query.noise_std_error(plans.central_twin(plan)),
    )


def _of_every_run(
    settings: Settings, material: Material, journey: SecureJourney, accuracy: Accuracy, seconds: float
) -> dict[str, Any]:  # Any: numbers and texts of a summary, which checks nothing
    plan, tallies = material.plan, [member.tallies for member in journey.members]
    records = sum(each.records for each in tallies)
    return {
        "records": records,
        "records_dropped": sum(each.records_dropped for each in tallies),
        "deltas_sent": 0,
        "deltas_resent": 0,
        "duplicates_dropped": 0,
        "deltas_counted": 0,
        "deltas_lost": 0,
        "deltas_double_counted": 0,
        "counters_equal": None,
        "bytes_per_record": sum(each.bytes_sent for each in tallies) / max(records, 1),
        "restarts": 0,
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
        "noise_std_error": query.noise_std_error(plan, journey.release.submissions),
        "epsilon": float(plan.privacy.epsilon),
        "delta": float(plan.privacy.delta),
        "unit": plan.privacy.unit,
        "records_per_client": plan.privacy.records_per_client,
        "unacknowledged_at_kill": 0,
        "seed": settings.seed,
        "plan_id": plan.hex_id,
    }


def _of_clients(journey: SecureJourney) -> dict[str, Any]:  # Any: as above
    members, tallies = journey.members, [member.tallies for member in journey.members]
    spent = sum(each.submissions_spent for each in tallies)
    uploads = [each.bytes_sent for each in tallies if each.submissions_counted]
    return {
        "clients_dropped": sum(member.vanished for member in members),
        "submissions_spent": spent,
        "upload_bytes_per_client": sum(uploads) / max(len(uploads), 1),
        "clients_unspent": sum(not each.submissions_spent for each in tallies),
        "submissions_counted": sum(each.submissions_counted for each in tallies),
        "submissions_lost": sum(each.submissions_lost for each in tallies),
        "submissions_asked": sum(member.asked for member in members),
        "stayed_uncounted": sum(
            not (member.vanished or each.submissions_counted) for member, each in zip(members, tallies, strict=True)
        ),
    }
