"""A run in secure mode: clients sum while the server sees nothing else; the release is compared with the truth.

Some clients vanish: their connection is cut at a step of the round, and they stay away.
"""

import asyncio
import math
import re
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import hushsum as hs
from edge_client import EdgeWarning
from edge_client.participation.scheduler import windows_at
from hushsum import query
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch
from hushsum_simulator import plans
from hushsum_simulator.data import ClientRecords, ExactSums
from hushsum_simulator.demo.evaluation import (
    Accuracy,
    Counters,
    Residual,
    asked,
    draw,
    examine,
    excess_of,
    in_bulk,
    measure,
)
from hushsum_simulator.demo.fleet import CohortFleet, FleetClient
from hushsum_simulator.demo.services import Console, Server, close_window
from hushsum_simulator.demo.summary import SecureSummary
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Progress, Stage
from hushsum_simulator.scenario import Material, RunSettings, gather
from hushsum_simulator.testbed.tcp_proxy import TcpProxy

# A client that vanishes before its vector costs those that are left another attempt, of few: as all that vanish at one
# step do so in one round, three such steps are three more attempts.
_BEFORE: Final = (Stage.WAITING, Stage.KEYS, Stage.GRAPH, Stage.SHARES)
_AFTER: Final = (Stage.UPLOAD, Stage.CONSENT, Stage.REVEAL)


def victims(clients: Sequence[str], rate: float, seed: int) -> dict[str, Stage]:
    """Who vanishes, and on reaching which step: every other one before its vector is sent, the rest from then on.

    Args:
        clients: Their ids.
        rate: The share of them that vanish, 0 to below 1; the number is rounded.
        seed: Of the choice, which is uniform.
    """
    rng = np.random.default_rng([seed, 0x5A11])
    chosen = rng.permutation(len(clients))[: round(rate * len(clients))]
    return {
        clients[index]: Stage(int(rng.choice(_BEFORE if turn % 2 else _AFTER))) for turn, index in enumerate(chosen)
    }


_SHOW_S: Final = 0.2
_PATIENCE_S: Final = 60.0
_ASK_S: Final = 10.0
_RUN_MS: Final = 300_000
_ROUNDS: Final = re.compile(r'^hushsum_rounds_total\{outcome="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE)


@dataclass(frozen=True)
class SecureJourney:
    """What a run leaves behind.

    Attributes:
        members: Every client, with its tallies.
        rounds: How many rounds the server has ended, by their outcome.
        release: As an analyst has loaded it.
        epsilon_spent: By the population's ledger; exact text, as is what follows.
        epsilon_left: Of its limit.
        rounds_s: From the first client that entered to the last that was told, in seconds.
    """

    members: tuple[FleetClient, ...]
    rounds: Mapping[str, int]
    release: Release
    epsilon_spent: str
    epsilon_left: str
    rounds_s: float


async def take_part(
    plan: Plan,
    shares: Sequence[ClientRecords],
    leaving: Mapping[str, Stage],
    *,
    folder: Path,
    partitions: int,
    progress: Progress,
) -> SecureJourney:
    """Runs the whole journey on loopback.

    Args:
        plan: Of the collection; of mode ``secure``.
        shares: Who has which records.
        leaving: Who vanishes, and at which step.
        folder: An empty one, for everything that is written on the way.
        partitions: P of the server's log.
        progress: Is told how it goes.

    Raises:
        HushsumError: A step failed; the run says nothing then.
    """
    require_one_window(plan, time.time_ns() // 1_000_000)
    plan_file, spools = folder / "plan.json", folder / "spools"
    plan_file.write_bytes(plan.bundle)
    spools.mkdir()
    async with TcpProxy() as relay, Server(folder, plan_file, partitions) as server:
        relay.aim(server.address)
        async with Console(server.address) as console:
            window = (await console.welcome()).window
        time_ms = plan.window.start_ms(window)
        fleet = CohortFleet(plan, shares, leaving, relay=relay, target=server.address, folder=spools, time_ms=time_ms)
        try:
            await _add(fleet, progress)
            began = time.monotonic()
            await _rounds(fleet, server, progress)
            rounds_s = time.monotonic() - began
            await _ask(fleet, progress)
        finally:
            await fleet.close()
        rounds = await asyncio.to_thread(_ended_rounds, server.metrics)
        released, release = await close_window(window, server.address, progress, withheld="as no secure window is")
        if not release.submissions:
            raise JourneyError(f"window {window} is released with no submission in it: no round came to its end")
        return SecureJourney(
            members=fleet.members,
            rounds=rounds,
            release=release,
            epsilon_spent=released.epsilon_spent,
            epsilon_left=released.epsilon_left,
            rounds_s=rounds_s,
        )


def require_one_window(plan: Plan, now_ms: int) -> None:
    """Refuses a moment at which clients take part in two windows, or soon would: a run is about one.

    Args:
        plan: Of the collection.
        now_ms: The time, in ms since 1970 UTC.

    Raises:
        JourneyError: It is one.
    """
    windows = {*windows_at(plan.window, now_ms), *windows_at(plan.window, now_ms + _RUN_MS)}
    if len(windows) > 1:
        raise JourneyError(
            f"windows {min(windows)} and {max(windows)} are open in the next {_RUN_MS // 60_000} minutes, and "
            "clients take part in all that are: try again later, or with a plan of longer windows"
        )


async def _add(fleet: CohortFleet, progress: Progress) -> None:
    bar = progress.bar("clients whose records are hashed, and in their spools", len(fleet.members))
    work = asyncio.create_task(fleet.add())
    while not work.done():
        await asyncio.wait([work], timeout=_SHOW_S)
        bar(fleet.added)
    await _result(work)
    progress.step(f"{fleet.added} clients hold their records; now all of them take part, and some vanish")


async def _rounds(fleet: CohortFleet, server: Server, progress: Progress) -> None:
    """Everybody takes part; shown as it goes, and ended where nothing moves any more."""
    board = progress.board()
    work = asyncio.create_task(fleet.take_part())
    rows, moved = fleet.look(), time.monotonic()
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_SHOW_S)
            server.check_running()
            if (now := fleet.look()) != rows:
                rows, moved = now, time.monotonic()
                board(rows)
            elif time.monotonic() - moved > _PATIENCE_S:
                if fleet.only_waiting:
                    return  # too few are left for another cohort: they would try until their window is over
                where = "; ".join(map(str, rows))
                raise JourneyError(f"nothing has moved for {_PATIENCE_S:.0f} s: {where}")
        await _result(work)
        board(fleet.look())
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _ask(fleet: CohortFleet, progress: Progress) -> None:
    """What the release will hold is known exactly before it is drawn."""
    await _result(asyncio.create_task(fleet.ask()))
    if asked := [member.tallies for member in fleet.members if member.asked]:
        counted = sum(tallies.submissions_counted for tallies in asked)
        progress.step(f"{len(asked)} clients that vanished untold have asked afterwards: {counted} of them are counted")


async def _result(work: "asyncio.Task[None]") -> None:
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the others were cancelled for it


def _ended_rounds(metrics: str) -> dict[str, int]:
    """What the server counts of its rounds."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_ASK_S) as page:
        text = page.read().decode("utf-8")
    return {outcome: int(float(count)) for outcome, count in _ROUNDS.findall(text)}


_SUMMED: Final = "counted"  # the server's word for a round whose sum counts


def simulate_secure(settings: RunSettings, progress: Progress) -> SecureSummary:
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


def _tell(plan: Plan, settings: RunSettings, progress: Progress) -> None:
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


def _travel(material: Material, settings: RunSettings, progress: Progress) -> SecureJourney:
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
    settings: RunSettings,
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
    settings: RunSettings, material: Material, journey: SecureJourney, accuracy: Accuracy, seconds: float
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
