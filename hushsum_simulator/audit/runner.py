"""One audit from its beginning to its end: every mechanism, unit and relation, on every road."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.plan import Plan
from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import TUMBLING
from hushsum.privacy.relation import RECORD
from hushsum.releases import spend_of
from hushsum_simulator.audit import cases, empirical, exact, local, pipelines
from hushsum_simulator.audit.cases import COLUMNS, Case, View, stacked
from hushsum_simulator.audit.empirical import (
    audited,
    outcome_check,
    sampler_check,
    selection_check,
    shares_check,
    source_checks,
)
from hushsum_simulator.audit.exact import change, changes, epsilon
from hushsum_simulator.audit.pipelines import Pipeline, added, decided, folded, in_process, service, submitted
from hushsum_simulator.audit.report import ERROR, AuditRow, Check, Floats, Report
from hushsum_simulator.audit.secure import drawn_sum, honest_shares, sum_epsilon
from hushsum_simulator.progress import Bar, Progress

RUNS: Final = 4000  # of each road, on either data set
QUICK_RUNS: Final = 400
_SUBMISSIONS: Final = 4  # a silo submits once for so many runs
_SUBMISSIONS_MIN: Final = 100
_WINDOWS: Final = 20  # a service gets one window for so many runs: it takes that much longer
_DELTA: Final = "0.05"  # large, so that runs can show what they must show
_SECURE_DELTA: Final = "0.000001"  # a larger one asks for less noise than shares can be made of
_COHORT_EPSILON: Final = "0.09"  # asks for noise that 800 discrete Gaussian shares can be made of
_CLIENTS: Final = 4  # of a plan with a least number of clients, others


@dataclass(frozen=True)
class AuditSettings:
    """How much is run.

    Attributes:
        runs: Of each road, on each of two neighbouring data sets.
        services: Whether services on files of their own are run too; a run of theirs takes a window.
    """

    runs: int = RUNS
    services: bool = True


def audit(settings: AuditSettings, progress: Progress) -> Report:
    """Everything; two minutes at most with the default settings."""
    began = time.monotonic()
    rows = [row for what, plan in plans() for row in _promise(what, plan, settings, progress)]
    rows += [*_secure(), *_local(settings), *_others(settings, progress), _choice(settings, progress)]
    return Report(tuple(rows), tuple(_checks(settings)), time.monotonic() - began)


def plans() -> Iterator[tuple[str, Plan]]:
    """A small plan of every mechanism, unit and relation, with and without a test of the number of clients."""
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    no_keys: dict[str, object] = {}
    for promise in (no_keys, client):
        for noise in (no_keys, {"delta": _DELTA, "epsilon": 2}):
            keys: dict[str, object] = {**promise, **noise}
            yield "fold", cases.plan_of(**keys)
            yield "outcome", cases.plan_of(min_clients=_CLIENTS, min_clients_share="0.5", **keys)


def _promise(what: str, plan: Plan, settings: AuditSettings, progress: Progress) -> Iterator[AuditRow]:
    """One plan: exact ε on the sketches of both roads, and what the runs of each prove."""
    delta, tested = float(plan.privacy.delta), plan.privacy.mechanism.clients_noise() is not None
    found = epsilon(plan, changes(plan, added) | changes(plan, folded), delta)
    case = cases.lone_record(plan, what, clients=_CLIENTS - 1) if tested else cases.case(plan, what)
    yield replace(run(case, decided, settings.runs, progress), exact=found)
    if not tested:
        alone = replace(case, what="in process")
        yield replace(run(alone, in_process, settings.runs, progress), exact=found)


def secure_plans() -> Iterator[Plan]:
    """Small plans of mode secure: Pólya and discrete Gaussian shares, of both units, of 3 to 5 honest clients."""
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    for promise in ({}, {"delta": _SECURE_DELTA}):
        yield cases.secure_plan_of(5, **promise)
        yield cases.secure_plan_of(6, **promise, **client)
        yield cases.secure_plan_of(7, sketch={"rows": 2, "buckets": 4}, **promise)


def cohort_plans() -> Iterator[Plan]:
    """The same of a cohort as large as those that run, 1,000 clients of whom 800 are surely honest and there."""
    cohort: dict[str, object] = {"cohort": 1000, "corrupt": "0.1", "dropout": "0.1"}
    yield cases.plan_of(mode="secure", secure=cohort)
    yield cases.plan_of(mode="secure", secure=cohort, delta=_SECURE_DELTA, epsilon=_COHORT_EPSILON)


def _secure() -> Iterator[AuditRow]:
    """What a server sees of one cohort of mode secure: the sum of its vectors, with the noise of h honest shares."""
    for plan in secure_plans():
        row = row_of(f"sum, {honest_shares(plan)} shares", plan)
        yield replace(row, exact=sum_epsilon(plan, changes(plan, submitted)))
    for plan in cohort_plans():  # a mistake with many shares alone may be in the sampler: Pólya's is driven
        row = row_of(f"sum, {honest_shares(plan)} shares", plan)
        yield replace(row, exact=sum_epsilon(plan, changes(plan, submitted), drawn_sum))


def _local(settings: AuditSettings) -> Iterator[AuditRow]:
    """What leaves a device of mode local: randomised reports, and noised sums."""
    yield from local.report_rows(settings.runs)
    yield from local.silo_rows(_submissions(settings))


def _submissions(settings: AuditSettings) -> int:
    return max(settings.runs // _SUBMISSIONS, _SUBMISSIONS_MIN)


def _others(settings: AuditSettings, progress: Progress) -> Iterator[AuditRow]:
    """What the small plans of :func:`plans` leave out."""
    several = cases.plan_of(sketch={"rows": 3, "buckets": 4})
    yield replace(row_of("several rows", several), exact=epsilon(several, changes(several, added), 0.0))
    for promise in ({}, {"unit": "client", "records_per_client": 2}):
        usual = cases.plan_of(delta="0.000001", **promise)
        yield replace(row_of("usual δ", usual), exact=epsilon(usual, changes(usual, added), 1e-6))
        yield from (_replaced(plan) for plan in (cases.plan_of(**promise), usual))
    yield from map(one_record_less, full_clients())
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


def run(case: Case, pipeline: Pipeline, runs: int, progress: Progress, *, asks: bool = False) -> AuditRow:
    """The lower limit of ε that so many runs of one road prove.

    Args:
        case: Two neighbouring data sets.
        pipeline: The road.
        runs: On each of the two.
        progress: Shown a bar.
        asks: Whether every release is asked too.
    """
    view = View(case.plan, *added(case.plan, [case.first, case.second]), asks=asks)
    bar = progress.bar(f"{case.what}, {pipeline.__name__}", 2 * runs)
    seen: list[Floats] = []
    redrawn = 0
    for data in (case.first, case.second):
        outcomes = pipeline(case.plan, data, runs, _shifted(bar, len(seen) * runs))
        seen.append(stacked([view.row(release, withheld=withheld) for release, withheld in outcomes]))
        redrawn += sum(release is not None and withheld > 0 for release, withheld in outcomes)
    bound = audited(seen[0], seen[1], COLUMNS, delta=float(case.plan.privacy.delta), error=ERROR)
    row = row_of(case.what, case.plan)
    return replace(row, audited=bound.epsilon, event=bound.event, runs=runs, redrawn=redrawn)


def _choice(settings: AuditSettings, progress: Progress) -> AuditRow:
    """Report noisy max: exactly, and by many choices under two neighbouring lists of utilities."""
    claimed, runs = Fraction(1), max(settings.runs // 4, QUICK_RUNS)
    bar = progress.bar("private choice", 2)
    seen = []
    for utilities in ((2, 2, 0), (3, 1, 1)):
        seen.append(np.array(exact.winners(utilities, 1, claimed, runs)))
        bar(len(seen))
    bound = audited(seen[0], seen[1], ("winner",))
    row = AuditRow("private choice", "record", "add/remove", "report-noisy-max", float(claimed), 0.0)
    found = exact.selection_epsilon(1, claimed)
    return replace(row, exact=found, audited=bound.epsilon, event=bound.event, runs=runs)


def _checks(settings: AuditSettings) -> Iterator[Check]:
    draws = 10 * settings.runs
    for plan in (cases.plan_of(), cases.plan_of(delta=_DELTA)):
        yield sampler_check(plan.privacy.mechanism, draws)
    for secure in (cases.secure_plan_of(5), cases.secure_plan_of(5, delta=_SECURE_DELTA)):
        yield shares_check(secure, draws)
    for secure in cohort_plans():
        yield shares_check(secure, settings.runs // 2)
    yield from local.size_checks()
    yield from empirical.real_size_checks()
    yield from pipelines.bound_checks()
    yield from local.silo_checks(_submissions(settings))
    yield selection_check(Fraction(1), max(settings.runs // 4, QUICK_RUNS))
    tested = cases.plan_of(min_clients=_CLIENTS, min_clients_share="0.5")
    roads = [(decided, settings.runs), (service, settings.runs // _WINDOWS)]
    for road, runs in roads if settings.services else roads[:1]:
        yield outcome_check(tested, _CLIENTS, road(tested, cases.others(_CLIENTS), runs, lambda _: None))
    yield from source_checks()


def full_clients() -> Iterator[Plan]:
    """Plans of unit client whose records at the two ends of the bounds fall into other counters of nearly every row.

    The pure ones are of a usual size, where little of ε is for the count, which stays; an exact δ takes few counters.
    """
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    ends_apart = {"bandwidth": "0.01", "buckets": 1024}
    yield cases.plan_of(sketch={**ends_apart, "rows": 1000}, **client)
    yield cases.plan_of(sketch={**ends_apart, "rows": 3}, delta="0.000001", **client)


def one_record_less(plan: Plan) -> AuditRow:
    """What a ledger of records charges for a client's release, and what one record less shows of it."""
    case = cases.one_record_less(plan, "a full client, one record less")
    delta, relation = plan.privacy.delta, plan.guarantee.relation
    limits = Limits(plan.privacy.population, RECORD, relation, plan.privacy.total_epsilon, delta)
    claimed = Account(limits).recorded(spend_of(plan, kind=TUMBLING, window=0)).spent
    found = epsilon(plan, {change(case, added), change(case, folded)}, float(delta))
    return replace(row_of(case.what, plan), unit=RECORD, epsilon=float(claimed.epsilon), exact=found)


def _replaced(plan: Plan) -> AuditRow:
    """What add/remove implies for one content against another: (2ε, (1 + e^ε)·δ), see PRIVACY on the ledger."""
    row = row_of("in process", plan)
    claimed = (1 + math.exp(row.epsilon)) * row.delta
    found = epsilon(plan, changes(plan, added, replace=True), claimed)
    return replace(row, relation="replace", epsilon=2 * row.epsilon, delta=claimed, exact=found)


def row_of(what: str, plan: Plan) -> AuditRow:
    """What a plan claims; nothing is found yet."""
    promise = plan.guarantee
    return AuditRow(
        what,
        promise.unit,
        promise.relation,
        plan.privacy.mechanism.name,
        float(plan.privacy.epsilon),
        float(plan.privacy.delta),
        mode=plan.privacy.mode,
    )


def _shifted(bar: Bar, by: int) -> Bar:
    return lambda done: bar(by + done)
