"""Freezes the vectors of mode ``local`` that are not frozen yet: ``python -m tests.vectors.generate_local``.

Plans, what their devices send, releases, and the signature of a plan. What stands in the file is never written again.
"""

import json
from typing import Any

import numpy as np

import hushsum as hs
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum.families import SetRecords
from hushsum.local import silo
from hushsum.local.report_batch import ReportBatch, unpack
from hushsum.local.reports import reports
from hushsum.releases import of_reports, of_silos
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from tests.vectors.generate import FOLDER
from tests.vectors.local_plans import PLANS, plan_of

PATH = FOLDER / "local" / "local.json"
ID = DeltaId(2**63 + 9, 0)
WINDOW = -3
KEY = SigningKey(bytes(range(32)))
_RECORDS = [[0.0, 0.0, 0.0], [255.0, 255.0, 255.0], [12.5, 99.0, 200.0], [13.0, 98.0, 201.0], [float("nan"), 1.0, 2.0]]
_SETS = [[0], [999], [0, 1, 2, 3, 500], list(range(0, 1000, 7)), []]
_LABELS = ("dark", "light", "dark", "light", "dark")


def records_of(plan: hs.Plan) -> Any:
    """Five records, of which the last cannot be used."""
    if isinstance(plan.record, SetRecords):
        return [np.array(ids, np.int64) for ids in _SETS]
    return np.array(_RECORDS)


def labels_of(plan: hs.Plan) -> list[str] | None:
    """One a record, where the plan has classes."""
    return list(_LABELS) if plan.classes else None


def entropy() -> ReplayableEntropy:
    """Of everything that is drawn."""
    return ReplayableEntropy(b"local vectors")


def submitted(plan: hs.Plan) -> bytes:
    """What one device sends: a noised sum, or a batch of reports."""
    if plan.report_sizes is not None:
        drawn, _ = reports(plan, records_of(plan), labels_of(plan), entropy())
        return ReportBatch(plan.id, WINDOW, ID, drawn).pack(plan)
    clients = ["one"] * len(records_of(plan)) if plan.privacy.unit == "client" else None
    sketch = hs.Sketch(plan)
    kept = slice(0, 4)
    labels = labels_of(plan)
    sketch.add(records_of(plan)[kept], clients=clients and clients[kept], labels=labels and labels[kept])
    return silo.submission(plan, sketch.counters, sketch.counts, window=WINDOW, id=ID, entropy=entropy())


def released(plan: hs.Plan, data: bytes) -> hs.Release:
    """The release of a window that holds this alone."""
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    if plan.report_sizes is not None:
        unpack(data, plan).count_into(counters, counts)
        return of_reports(plan, counters, counts, window=WINDOW, shuffled=False)
    silo.unpack(data, plan).add_to(counters, counts)
    return of_silos(plan, counters, counts, window=WINDOW, submissions=1)


def vectors_of(name: str) -> dict[str, object]:
    """Everything that is frozen of one plan."""
    plan = plan_of(name)
    data = submitted(plan)
    return {
        "plan": plan.to_bytes().decode(),
        "plan_id": plan.hex_id,
        "submitted": data.hex(),
        "release": released(plan, data).to_bytes().hex(),
        "signature": SignedPlan.sign(plan.bundle, KEY, "planner-1").to_bytes().decode(),
    }


def main() -> None:
    """Adds the plans that are not frozen yet."""
    frozen = json.loads(PATH.read_text(encoding="utf-8"))
    added = {name: vectors_of(name) for name in PLANS if name not in frozen}
    PATH.write_text(json.dumps(frozen | added, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
