"""Plans of every family and mode, and what belongs to them, as samples: the frozen ones, and fresh ones."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from hushsum import Plan
from hushsum.delta import DeltaId, encode_all
from hushsum.entropy import ReplayableEntropy
from hushsum.families import VectorRecords
from hushsum.local import reports as encoding
from hushsum.local import silo
from hushsum.local.report_batch import ReportBatch
from hushsum.privacy.guarantee import CENTRAL
from tests.hushsum.local_plans import SHUFFLED, bit_plan, report_plan, silo_plan
from tests.plans import classed_plan, client_plan, model_plan, secure_plan, set_plan, small_plan

_CLIENT: Final = {"unit": "client", "records_per_client": 3}
FROZEN: Final = Path(__file__).parents[1] / "vectors" / "v1"


_thin = 1


def thin(every: int) -> None:
    """Keeps from now on every so-manieth plan alone, where a target has many: a quicker start, of fewer samples."""
    global _thin  # noqa: PLW0603  set once in a process, before anything is made
    _thin = every


def chosen(plans: dict[str, Any]) -> dict[str, Any]:
    """The plans that are kept."""
    return dict(list(plans.items())[::_thin])


@cache
def frozen(name: str) -> Any:
    """A file of frozen vectors."""
    return json.loads((FROZEN / name).read_text(encoding="utf-8"))


@cache
def first_files() -> dict[str, Any]:
    """The vectors of the first four plans."""
    names = ("codes-that-fit", "rehash-any-width", "rehash-power-of-two", "two-parts")
    return {name: frozen(f"{name}.json") for name in names}


@cache
def frozen_bundles() -> dict[str, bytes]:
    """The bundles of all frozen plans, by name."""
    found = {name: held["plan"].encode() for name, held in first_files().items()}
    found |= {name: bytes.fromhex(held["bundle"]) for name, held in frozen("families/families.json").items()}
    return found | {name: held["plan"].encode() for name, held in frozen("local/local.json").items()}


@cache
def fresh_plans() -> dict[str, Plan]:
    """Small plans of every mode and kind of record."""
    return {
        "central": small_plan(sketch={"rows": 5}),
        "classes": classed_plan(sketch={"rows": 5}),
        "sets": set_plan(),
        "models": model_plan(),
        "client": client_plan(),
        "clients": small_plan(sketch={"rows": 5}, privacy=_CLIENT, window={"min_clients": 5}),
        "gaussian": small_plan(privacy={"delta": "0.000001", "total_delta": "0.0001"}),
        "secure": secure_plan(),
        "secure gaussian": secure_plan(privacy={"delta": "0.000001", "total_delta": "0.0001"}),
        "reports": report_plan(),
        "bits": bit_plan(),
        "shuffled": report_plan(privacy=SHUFFLED),
        "silo": silo_plan(),
    }


@cache
def bundles() -> tuple[bytes, ...]:
    """Of all plans."""
    fresh = {name: plan.bundle for name, plan in fresh_plans().items()}
    return tuple(chosen({**frozen_bundles(), **fresh}).values())


def records_of(plan: Plan, number: int, seed: int) -> Any:
    """Records that the plan takes."""
    rng = np.random.default_rng(seed)
    if isinstance(plan.record, VectorRecords):
        low, high = (np.array([float(bound) for bound in side]) for side in (plan.record.lower, plan.record.upper))
        return rng.uniform(low, high, (number, len(low)))
    return [sorted(rng.choice(90, rng.integers(1, 9), replace=False).tolist()) for _ in range(number)]


@cache
def central_plans() -> dict[str, Plan]:
    """Plans whose devices send deltas."""
    read = {name: Plan.from_bytes(bundle) for name, bundle in frozen_bundles().items()} | fresh_plans()
    return chosen({name: plan for name, plan in read.items() if plan.privacy.mode == CENTRAL})


def deltas_of(plan: Plan) -> Iterator[bytes]:
    """Packed deltas of a plan: of one record and of more, of each encoding that is ever the smallest."""
    for number, window in ((1, -3), (4, 0), (150, 2**40)):
        labels = [plan.classes[i % len(plan.classes)] for i in range(number)] if plan.classes else None
        records = records_of(plan, number, number)
        for delta in encode_all(plan, records, window=window, id=DeltaId(2**63 + 9, 300), labels=labels)[0]:
            yield delta.pack(plan)


@cache
def report_plans() -> tuple[Plan, ...]:
    """Plans of reports: of one, two, three and four bytes each."""
    wide = report_plan(sketch={"rows": 600, "buckets": 1024})
    plans = [Plan.from_bytes(held["plan"].encode()) for held in frozen("local/local.json").values()]
    return (*(plan for plan in plans if plan.report_sizes), *(fresh_plans()[n] for n in ("reports", "bits")), wide)


def batches_of(plan: Plan) -> Iterator[bytes]:
    """Packed batches of a plan of reports."""
    for number in (1, 7, 300):
        labels = [plan.classes[i % len(plan.classes)] for i in range(number)] if plan.classes else None
        reports, _ = encoding.reports(plan, records_of(plan, number, number), labels, ReplayableEntropy(b"fuzz"))
        yield ReportBatch(plan.id, number - 5, DeltaId(number, 0), reports).pack(plan)


@cache
def silo_plans() -> tuple[Plan, ...]:
    """Plans whose clients noise their own sums."""
    plans = [Plan.from_bytes(held["plan"].encode()) for held in frozen("local/local.json").values()]
    return (*(plan for plan in plans if plan.privacy.is_silo), fresh_plans()["silo"])


def submissions_of(plan: Plan) -> Iterator[bytes]:
    """Noised sums of a plan."""
    for window in (-1, 7):
        counters = np.zeros(plan.counters_shape, np.int64)
        counts = np.zeros(plan.words.classes, np.int64)
        entropy = ReplayableEntropy(b"fuzz")
        yield silo.submission(plan, counters, counts, window=window, id=DeltaId(9, 3), entropy=entropy)
