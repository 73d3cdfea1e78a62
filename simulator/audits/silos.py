"""Audits of a silo: what one device submits for a window, against what it submits with nothing to tell of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_client.turns.pending import counters_of
from hushsum.delta import DeltaId, encode_all
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.plan import Plan
from hushsum.privacy.mechanism import Mechanism
from simulator.audits.cases import TARGET, DataSet, Integers, column, contents, plan_of, worst_content
from simulator.audits.confidence import ERROR
from simulator.audits.events import audited
from simulator.audits.exact import Change, changes, epsilon
from simulator.audits.fits import fit_check
from simulator.audits.laws import stated
from simulator.audits.pipelines import Vector
from simulator.audits.report import Check, Row

Floats = npt.NDArray[np.float64]

_ID: Final = DeltaId(1, 0)
_LABELS: Final = ("yes", "no")
_BY_RUNS: Final = (0, 1)  # which plans: one of either law
_PAIRS_MIN: Final = 400  # submissions, so that pairs that share noise show


def plans() -> Iterator[Plan]:
    """Small plans of both laws, both units, without and with classes."""
    client: dict[str, object] = {"unit": "client", "records_per_client": 2}
    for unit in ({}, client):
        for noise in ({}, {"delta": "0.05", "epsilon": 2}):
            yield silo_plan_of(**unit, **noise)
    yield silo_plan_of(record={"classes": [*_LABELS]})


def silo_plan_of(**keys: Any) -> Plan:
    """A small plan of form ``silo``."""
    return plan_of(mode="local", local={"form": "silo"}, **keys)


def counted(plan: Plan, data: Sequence[DataSet]) -> list[Vector]:
    """What the target's own device counts before its noise; all 0 where it holds nothing."""
    return [_counted(plan, _held(each)) for each in data]


def exact_row(plan: Plan) -> Row:
    """The ε of one submission over all outcomes, for everything that one unit can hold, against nothing."""
    row = _row("silo", plan)
    return replace(row, exact=epsilon(plan, _changes(plan), row.delta))


def run(plan: Plan, runs: int) -> Row:
    """The lower limit of ε that so many submissions prove, of a device that holds all it may, and of one emptied."""
    mine = worst_content(plan)
    vectors = [_counted(plan, held) for held in (mine, mine[:0])]
    change = _flat(vectors[0]) - _flat(vectors[1])
    seen = []
    for vector in vectors:
        shown = np.stack([_submitted(plan, vector) for _ in range(runs)]).astype(np.float64)
        middle = shown - (_flat(vectors[0]) + _flat(vectors[1])) / 2
        half = np.abs(change) / 2
        clipped = np.clip(middle, -half, half) @ np.sign(change)
        together = [shown[:, first] + sign * shown[:, second] for first, second, sign in _pairs(len(change))]
        seen.append(np.column_stack([shown, *together, middle @ change, clipped]))
    names = [f"counter {index}" for index in range(len(change))]
    names += [f"counter {one} {'+' if sign > 0 else '−'} counter {two}" for one, two, sign in _pairs(len(change))]
    columns = (*names, "counters along the difference", "counters along the difference, clipped")
    row = _row("silo", plan)
    bound = audited(seen[0], seen[1], columns, delta=row.delta, error=ERROR)
    return replace(row, audited=bound.epsilon, event=bound.event, runs=runs)


def noise_check(plan: Plan, submissions: int) -> Check:
    """χ² of every counter and every count counter of submissions of nothing; the worst of all, at 10⁻⁶ together."""
    shown = _of_nothing(plan, submissions)
    chances = _law(plan.privacy.mechanism)
    reach = len(chances) // 2
    what = f"each of {shown.shape[1]} numbers that a silo submits has its own {plan.privacy.mechanism.name} noise"
    found = []
    for drawn in shown.T:
        seen = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(chances))
        found.append(fit_check(what, seen, chances, tests=shown.shape[1]))
    distinct = len({drawn.tobytes() for drawn in shown.T}) == shown.shape[1]
    failed = [check for check in found if not check.holds]
    worst = failed[0] if failed else found[0]
    return replace(worst, holds=worst.holds and distinct)


def pairs_check(plan: Plan, submissions: int) -> Check:
    """χ² of the sums and differences of every two numbers, at 10⁻⁶ together: noise that two share adds up or cancels.

    Two of one submission, and two of one and the next. What three or more share between them, no two of which do, and
    what comes again later is not looked for.
    """
    shown = _of_nothing(plan, max(submissions, _PAIRS_MIN))
    one = np.array(_law(plan.privacy.mechanism))
    reach = len(one) // 2
    chances = np.maximum(np.convolve(one, one), 0.0)  # as well of a difference: the law is symmetric
    size = shown.shape[1]
    within = [(shown[:, one], sign * shown[:, two]) for one, two, sign in _pairs(size)]
    # Of submissions 0 and 1, 2 and 3, and so on: the sums are independent of each other.
    before, after = shown[0 : len(shown) // 2 * 2 : 2], shown[1::2]
    across = [(before[:, one], sign * after[:, two]) for one, two, sign in product(range(size), range(size), (1, -1))]
    what = f"no two of {size} numbers of a silo share {plan.privacy.mechanism.name} noise, nor with the next submission"
    found = []
    for first, second in (*within, *across):
        places = np.clip(first + second, -2 * reach, 2 * reach) + 2 * reach
        seen = np.bincount(places, minlength=len(chances))
        found.append(fit_check(what, seen, chances.tolist(), tests=len(within) + len(across)))
    failed = [check for check in found if not check.holds]
    return failed[0] if failed else replace(found[0], found=f"{len(found)} sums and differences as stated")


@lru_cache(maxsize=8)
def _law(mechanism: Mechanism) -> list[float]:
    """The stated chances of −reach to reach."""
    noise = mechanism.noise()
    reach = max(8, int(40 * noise.std))
    law = stated(mechanism.name, noise.scale, reach)
    return [float(law[k][0]) for k in range(-reach, reach + 1)]


def _pairs(size: int) -> list[tuple[int, int, int]]:
    """Every two of so many numbers, with either sign of the second."""
    return [(first, second, sign) for first, second in combinations(range(size), 2) for sign in (1, -1)]


def rows(runs: int) -> Iterator[Row]:
    """Every plan exactly; the first of either law, and one with classes, by runs too."""
    for index, plan in enumerate(plans()):
        row = exact_row(plan)
        yield replace(run(plan, runs), exact=row.exact) if index in _BY_RUNS or plan.classes else row


def checks(submissions: int) -> Iterator[Check]:
    """The noise of two classes, and of the other law."""
    for plan in (silo_plan_of(record={"classes": [*_LABELS]}), silo_plan_of(delta="0.05", epsilon=2)):
        yield noise_check(plan, submissions)
        yield pairs_check(plan, submissions)


def _of_nothing(plan: Plan, submissions: int) -> Integers:
    """(submissions, numbers): noise alone, in the order in which it was submitted."""
    vector = _counted(plan, column())
    return np.stack([_submitted(plan, vector) for _ in range(submissions)])


def _changes(plan: Plan) -> frozenset[Change]:
    if not plan.classes:
        return changes(plan, counted)
    nothing = _flat(_counted(plan, column()))
    held = [_flat(_counted(plan, each, label)) for each in contents(plan) for label in plan.classes]
    return frozenset(tuple(map(int, each - nothing)) for each in held)


def _counted(plan: Plan, records: Floats, label: str | None = None) -> Vector:
    labels = [label or plan.classes[0]] * len(records) if plan.classes else None
    deltas = encode_all(plan, records, window=0, id=_ID, labels=labels)[0]
    counters, counts = counters_of(plan, [delta.pack(plan) for delta in deltas])
    return Vector(counters.reshape(plan.counters_shape), counts)


def _submitted(plan: Plan, vector: Vector) -> Integers:
    data = silo.submission(plan, vector.counters, vector.counts, window=0, id=_ID, entropy=OsEntropy())
    seen = silo.unpack(data, plan)
    return np.append(seen.counters.reshape(-1), seen.counts)


def _held(data: DataSet) -> Floats:
    return next((each.records for each in data if each.client == TARGET), column())


def _flat(vector: Vector) -> Integers:
    return np.append(vector.counters.reshape(-1), vector.counts)


def _row(what: str, plan: Plan) -> Row:
    promise, privacy = plan.guarantee, plan.privacy
    epsilon_, delta = float(privacy.epsilon), float(privacy.delta)
    return Row(what, promise.unit, promise.relation, privacy.mechanism.name, epsilon_, delta, mode=privacy.mode)
