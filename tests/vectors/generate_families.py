"""Freezes the vectors of plans that are not frozen yet: ``python -m tests.vectors.generate_families``.

One file, beside those of :mod:`tests.vectors.generate`; what stands in it is never written again.
"""

import json
from itertools import product
from typing import Any

import numpy as np

import hushsum as hs
from hushsum.delta import DeltaId, encode
from hushsum.entropy import ReplayableEntropy
from hushsum.families import SetRecords
from hushsum.parameters import Parameters
from hushsum.releases import draw
from tests.vectors.family_plans import MATRIX, PLANS, PRIVACY, TABLE
from tests.vectors.generate import FOLDER

PATH = FOLDER / "families" / "families.json"
ID = DeltaId(2**63 + 9, 300)
LABELS = ("dark", "light")


def plan_of(name: str) -> hs.Plan:
    """One of the plans."""
    record, sketch = PLANS[name]
    privacy: dict[str, object] = {"epsilon": 0.5, "total_epsilon": 2, **PRIVACY.get(name, {})}
    return hs.Plan(name=name, record=record, sketch=sketch, privacy=privacy, parameters=Parameters.of([MATRIX, TABLE]))


def records_of(plan: hs.Plan) -> list[Any]:
    """Corners, middles and points beyond the bounds; or sets of a few sizes."""
    if isinstance(plan.record, SetRecords):
        return [[0], [999], [0, 1, 2, 3, 500], list(range(0, 1000, 7)), list(range(100, 160))]
    low, high = float(plan.vectors.lower[0]), float(plan.vectors.upper[0])
    side = high - low
    corners = [list(corner) for corner in product((low, high), repeat=3)][:4]
    inside = [[low + share * side for share in shares] for shares in ((0.5, 0.5, 0.5), (0.01, 0.77, 0.3))]
    return [*corners, *inside, [low - side, high + side, 1e30], [1e-30, low + side / 3, low + side / 7]]


def given(plan: hs.Plan, records: list[Any]) -> Any:
    """As a caller hands them in."""
    if isinstance(plan.record, SetRecords):
        return [np.array(ids, np.int64) for ids in records]
    return np.array(records, np.float64)


def labels_of(plan: hs.Plan, n: int) -> list[str] | None:
    """Of the one plan with classes."""
    return [LABELS[i % 2] for i in range(n)] if plan.classes else None


def packed(plan: hs.Plan, records: list[Any]) -> bytes:
    """A packed delta."""
    labels = labels_of(plan, len(records))
    delta, _ = encode(plan, given(plan, records), window=-3, id=ID, labels=labels)
    assert delta is not None
    return delta.pack(plan)


def vectors_of(name: str) -> dict[str, object]:
    """Everything that is frozen of one plan."""
    plan = plan_of(name)
    records = records_of(plan)
    increments = plan.family.encode(plan.family.accept(given(plan, records))[0])
    sketch = hs.Sketch(plan)
    clients = ["one"] * len(records) if plan.privacy.unit == "client" else None
    sketch.add(given(plan, records), labels=labels_of(plan, len(records)), clients=clients)
    release = draw(sketch, kind="tumbling", window=-3, entropy=ReplayableEntropy(b"vectors"), accounted=True)
    stated = plan.family.sensitivity
    return {
        "bundle": plan.bundle.hex(),
        "plan": plan.to_bytes().decode(),
        "plan_id": plan.hex_id,
        "sensitivity": [stated.l0, stated.l1, stated.l2_squared, stated.linf],
        "records": [[value if isinstance(value, int) else value.hex() for value in record] for record in records],
        "indices": increments.indices.tolist(),
        "values": increments.values.tolist(),
        "deltas": [packed(plan, records[:1]).hex(), packed(plan, records).hex()],
        "release": release.to_bytes().hex(),
        "release_sum": int(release.counters.sum()),
        "release_counts": release.counts.tolist(),
    }


def main() -> None:
    """Adds the plans that are not frozen yet; what is frozen stays, for today's code draws other noise for it."""
    frozen = json.loads(PATH.read_text(encoding="utf-8"))
    added = {name: vectors_of(name) for name in PLANS if name not in frozen}
    PATH.write_text(json.dumps(frozen | added, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
