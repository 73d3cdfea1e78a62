"""A whole audit: every mechanism, unit and relation, through every pipeline."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import TUMBLING
from hushsum.privacy.relations import FAILURE_SHARE, RECORD
from hushsum.releases import spend_of
from hushsum_simulator.audit import cases, empirical, exact, local, pipelines
from hushsum_simulator.audit.cases import CLIENT, COLUMNS, Case, flat, seen_of
from hushsum_simulator.audit.empirical import (
    outcome_check,
    sampler_check,
    selection_check,
    shares_check,
    source_checks,
    with_runs,
)
from hushsum_simulator.audit.exact import change, changes, epsilon, laplace_losses
from hushsum_simulator.audit.pipelines import Pipeline, added, decided, folded, in_process, service, submitted
from hushsum_simulator.audit.report import AuditRow, Check, Floats, Report, claimed
from hushsum_simulator.audit.secure import drawn_sum, honest_shares, sum_epsilon
from hushsum_simulator.progress import Bar, Progress

RUNS: Final = 4000  # of each pipeline, on each of two data sets
QUICK_RUNS: Final = 400
_SUBMISSIONS: Final = 4  # runs for each submission of a silo
_SUBMISSIONS_MIN: Final = 100
_WINDOWS: Final = 20  # runs for each window of a service, which takes that much longer
_DELTA: Final = "0.05"  # so large that runs can reach it
_USUAL_DELTA: Final = "0.000001"
_SECURE_DELTA: Final = "0.000001"  # a larger δ needs less noise than shares can sum to
_COHORT_EPSILON: Final = "0.09"  # needs noise that 800 discrete Gaussian shares can sum to
_PROMISES: Final[Sequence[Mapping[str, Any]]] = ({}, CLIENT)  # of unit record, and of unit client
_CLIENTS: Final = 4  # other clients, of a plan with a least number of clients


@dataclass(frozen=True)
class AuditSettings:
    """The size of an audit.

    Attributes:
        runs: Of each pipeline, on each of two neighbouring data sets.
        services: Whether whole services run too, with one window for each run.
    """

    runs: int = RUNS
    services: bool = True


def audit(settings: AuditSettings, progress: Progress) -> Report:
    """Runs everything; two minutes at most with the default settings."""
    began = time.monotonic()
    rows = [row for what, plan in plans() for row in _promise(what, plan, settings, progress)]
    rows += [*_secure(), *local.report_rows(settings.runs), *local.silo_rows(_submissions(settings))]
    rows += [*_others(settings, progress), _choice(settings, progress)]
    return Report(tuple(rows), tuple(_checks(settings)), time.monotonic() - began)


def plans() -> Iterator[tuple[str, Plan]]:
    """A small plan of every mechanism, unit and relation, and with or without a test of clients, or a count."""
    for promise in _PROMISES:
        for noise in ({}, {"delta": _DELTA, "epsilon": 2}):
            keys = {**promise, **noise}
            yield "fold", cases.plan_of(**keys)
            yield "fold, no count counter", cases.plan_of(counted=False, **keys)
            yield "outcome", cases.plan_of(min_clients=_CLIENTS, min_clients_share="0.5", **keys)


def weighted_plans() -> Iterator[Plan]:
    """Plans of moments that are stored at different scales, of both weights."""
    none = {"rows": None, "buckets": None, "seed": None}
    moments = {**none, "family": "hermite", "kernel": "gaussian", "order": 4, "fraction_bits": 4}
    for weights in ("laplace", "gaussian"):
        yield cases.plan_of(sketch={**moments, "weights": weights})


def _promise(what: str, plan: Plan, settings: AuditSettings, progress: Progress) -> Iterator[AuditRow]:
    """One plan: exact ε on the sketches of both pipelines, and the lower limits by runs of each."""
    delta, tested = float(plan.privacy.delta), plan.privacy.mechanism.clients_noise() is not None
    found = epsilon(plan, changes(plan, added) | changes(plan, folded), delta)
    case = cases.lone_record(plan, what, clients=_CLIENTS - 1) if tested else cases.case(plan, what)
    yield replace(run(case, decided, settings.runs, progress), exact=found)
    if not tested:
        alone = replace(case, what="in process")
        yield replace(run(alone, in_process, settings.runs, progress), exact=found)


def secure_plans() -> Iterator[Plan]:
    """Small plans of mode secure: Pólya and discrete Gaussian shares, of both units, of 3 to 5 honest clients."""
    for promise in ({}, {"delta": _SECURE_DELTA}):
        yield cases.secure_plan_of(5, **promise)
        yield cases.secure_plan_of(6, **promise, **CLIENT)
        yield cases.secure_plan_of(7, sketch={"rows": 2, "buckets": 4}, **promise)
        yield cases.secure_plan_of(5, counted=False, **promise)


def cohort_plans() -> Iterator[Plan]:
    """Plans of mode secure with cohorts of a real size: of 1,000 clients 800 are surely honest and present."""
    cohort: dict[str, object] = {"cohort": 1000, "corrupt": "0.1", "dropout": "0.1"}
    yield cases.plan_of(mode="secure", secure=cohort)
    yield cases.plan_of(mode="secure", secure=cohort, delta=_SECURE_DELTA, epsilon=_COHORT_EPSILON)


def _secure() -> Iterator[AuditRow]:
    """The server's view of one cohort of mode secure: the sum of its vectors, with the noise of h honest shares."""
    # A mistake that only occurs with many shares may be in the sampler: Pólya's law is measured there.
    every = [*((plan, None) for plan in secure_plans()), *((plan, drawn_sum) for plan in cohort_plans())]
    for plan, law in every:
        row = claimed(f"sum, {honest_shares(plan)} shares", plan)
        yield replace(row, exact=sum_epsilon(plan, changes(plan, submitted), law))


def _submissions(settings: AuditSettings) -> int:
    return max(settings.runs // _SUBMISSIONS, _SUBMISSIONS_MIN)


def _others(settings: AuditSettings, progress: Progress) -> Iterator[AuditRow]:
    """Cases that the small plans of :func:`plans` do not cover."""
    for several in several_rows():
        yield replace(claimed("several rows", several), exact=epsilon(several, changes(several, added), 0.0))
    for plan in weighted_plans():
        found = epsilon(plan, changes(plan, added) | changes(plan, folded), float(plan.privacy.delta))
        yield replace(claimed("weighted moments", plan), exact=found)
    for promise in _PROMISES:
        usual = cases.plan_of(delta="0.000001", **promise)
        yield replace(claimed("usual δ", usual), exact=epsilon(usual, changes(usual, added), 1e-6))
        yield from (_replaced(plan) for plan in (cases.plan_of(**promise), usual))
    yield from map(one_record_less, full_clients())
    yield from (many_releases(plan, times) for plan, times in repeated())
    plan, runs = cases.plan_of(), settings.runs
    yield run(cases.case(plan, "answers"), in_process, max(runs // 4, QUICK_RUNS), progress, asks=True)
    yield run(cases.bad_record(plan, "unusable record"), decided, runs, progress)
    if not settings.services:
        return
    tested = cases.plan_of(min_clients=_CLIENTS, min_clients_share="0.5")
    for case in (
        cases.case(plan, "service"),
        cases.lone_record(tested, "service outcome", clients=_CLIENTS - 1),
    ):
        yield run(case, service, runs // _WINDOWS, progress)


def several_rows() -> Iterator[Plan]:
    """Of a count counter; and without one, hashes of space and a histogram with levels."""
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4})
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4}, counted=False)
    cells = {"family": "partition", "kernel": None, "bandwidth": "2.5", "rows": 1, "buckets": 4, "levels": 2}
    yield cases.plan_of(sketch=cells, counted=False)


def run(case: Case, pipeline: Pipeline, runs: int, progress: Progress, *, asks: bool = False) -> AuditRow:
    """The lower limit of ε that runs of one pipeline prove, on each of two data sets.

    With ``asks`` every release is queried, too.
    """
    first, second = (flat(sketch) for sketch in added(case.plan, [case.first, case.second]))
    bar = progress.bar(f"{case.what}, {pipeline.__name__}", 2 * runs)
    seen: list[Floats] = []
    redrawn = 0
    for data in (case.first, case.second):
        outcomes = pipeline(case.plan, data, runs, _shifted(bar, len(seen) * runs))
        numbers = [seen_of(release, withheld, (first, second), asks=asks) for release, withheld in outcomes]
        seen.append(np.array(numbers).reshape(-1, len(COLUMNS)))
        redrawn += sum(release is not None and withheld > 0 for release, withheld in outcomes)
    return with_runs(replace(claimed(case.what, case.plan), redrawn=redrawn), seen, COLUMNS)


def _choice(settings: AuditSettings, progress: Progress) -> AuditRow:
    """Report noisy max: exactly, and by many choices under two neighbouring lists of utilities."""
    promised, runs = Fraction(1), max(settings.runs // 4, QUICK_RUNS)
    bar = progress.bar("private choice", 2)
    seen = []
    for utilities in ((2, 2, 0), (3, 1, 1)):
        seen.append(np.array(exact.winners(utilities, 1, promised, runs)))
        bar(len(seen))
    found = exact.selection_epsilon(1, promised)
    row = AuditRow("private choice", "record", "add/remove", "report-noisy-max", float(promised), 0.0, found)
    return with_runs(row, seen, ("winner",))


def _checks(settings: AuditSettings) -> Iterator[Check]:
    draws = 10 * settings.runs
    for plan in (cases.plan_of(), cases.plan_of(delta=_DELTA)):
        yield sampler_check(plan.privacy.mechanism, draws)
    for secure in (cases.secure_plan_of(5), cases.secure_plan_of(5, delta=_SECURE_DELTA)):
        yield shares_check(secure, draws)
    for secure in cohort_plans():
        yield shares_check(secure, settings.runs // 2)
    yield from local.size_checks()
    yield from map(empirical.drawn_check, empirical.real_size_plans())
    yield from pipelines.bound_checks()
    yield from local.silo_checks(_submissions(settings))
    yield selection_check(Fraction(1), max(settings.runs // 4, QUICK_RUNS))
    tested = cases.plan_of(min_clients=_CLIENTS, min_clients_share="0.5")
    through = [(decided, settings.runs), (service, settings.runs // _WINDOWS)]
    for pipeline, runs in through if settings.services else through[:1]:
        yield outcome_check(tested, _CLIENTS, pipeline(tested, cases.others(_CLIENTS), runs, lambda _: None))
    yield from source_checks()


def full_clients() -> Iterator[Plan]:
    """Plans of unit client for which records at the two ends of the bounds change other counters in nearly every row.

    The pure one has a usual size, so that little of ε is for the count, which does not change; an exact δ needs few
    counters.
    """
    ends_apart = {"bandwidth": "0.01", "buckets": 1024}
    yield cases.plan_of(sketch={**ends_apart, "rows": 1000}, **CLIENT)
    yield cases.plan_of(sketch={**ends_apart, "rows": 3}, delta="0.000001", **CLIENT)


def one_record_less(plan: Plan) -> AuditRow:
    """The charge of a ledger of records for a client's release, and the exact ε of one record less."""
    case = cases.one_record_less(plan, "a full client, one record less")
    delta, relation = plan.privacy.delta, plan.guarantee.relation
    limits = Limits(plan.privacy.population, RECORD, relation, plan.privacy.total_epsilon, delta)
    charge = Account(limits).recorded(spend_of(plan, kind=TUMBLING, window=0)).spent
    found = epsilon(plan, {change(case, added), change(case, folded)}, float(delta))
    return replace(claimed(case.what, plan), unit=RECORD, epsilon=float(charge.epsilon), exact=found)


def repeated() -> Iterator[tuple[Plan, int]]:
    """Plans of Laplace noise, with how many windows of them a ledger converts by their zCDP: see :func:`many_releases`.

    A usual size, of which the count counter has most of ρ or little; and both units and relations of few rows.
    """
    limits = {"total_epsilon": 1, "total_delta": _USUAL_DELTA}
    yield cases.plan_of(sketch={"rows": 1000}, **limits), 1
    yield cases.plan_of(sketch={"rows": 1000}, **limits, **CLIENT), 10
    few = {"epsilon": "0.1", "total_epsilon": 1, "total_delta": _USUAL_DELTA}
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4}, **few), 100
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4}, **few, **CLIENT), 100
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4}, mode="local", local={"form": "silo"}, **few, **CLIENT), 100
    secure: dict[str, object] = {"cohort": 5, "corrupt": "0.2", "dropout": "0.2", "failures": "reserved"}
    yield cases.plan_of(sketch={"rows": 3, "buckets": 4}, mode="secure", secure=secure, **few, **CLIENT), 100


def many_releases(plan: Plan, times: int) -> AuditRow:
    """The charge of a ledger for windows of one plan that add up, and their exact ε at the δ of its limits.

    The neighbours differ by all records of a unit in the same counters, the largest change in either norm. The windows
    are charged as those of as many plans, so that they add for unit ``record`` too. What is kept of δ for failures of
    a protocol is not the noise's.
    """
    row = claimed(f"ledger, {times} windows" if times > 1 else "ledger, 1 window", plan)
    spend, delta = spend_of(plan, kind=TUMBLING, window=0), plan.privacy.total_delta
    account = Account(plan.limits).recorded(*(replace(spend, plan_id=f"{index:064x}") for index in range(times)))
    charge, loss = account.cost, account.loss
    assert charge is not None, "a total δ above 0 has an ε"
    assert loss is not None, "the limits are the plan's own"
    losses = laplace_losses(change(cases.case(plan), _summed(plan)), plan.privacy.mechanism.scale, times)
    found = losses.epsilon(float(delta * (1 - FAILURE_SHARE) if loss.keeps else delta))
    return replace(row, epsilon=float(charge.epsilon), delta=float(charge.delta), exact=found)


def _summed(plan: Plan) -> exact.Summed:
    return submitted if plan.privacy.cohort is not None else added


def _replaced(plan: Plan) -> AuditRow:
    """What add/remove implies between two contents: (2ε, (1 + e^ε)·δ) (docs/explanation/proofs/composition.md)."""
    row = claimed("in process", plan)
    delta = (1 + math.exp(row.epsilon)) * row.delta
    found = epsilon(plan, changes(plan, added, replace=True), delta)
    return replace(row, relation="replace", epsilon=2 * row.epsilon, delta=delta, exact=found)


def _shifted(bar: Bar, by: int) -> Bar:
    return lambda done: bar(by + done)
