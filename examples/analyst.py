"""An analyst in one process: sketch records, release them once, ask as often as you like.

python examples/analyst.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import hushsum as hs

plan = hs.Plan.from_toml(Path(__file__).parent / "plan.toml")
records = np.random.default_rng(0).normal(5, 1, (100_000, 2))
queries = np.array([[5.0, 5.0], [6.5, 5.0], [1.0, 9.0]])

sketch = hs.Sketch(plan)
sketch.add(records)

with TemporaryDirectory() as folder, hs.Ledger(Path(folder) / "ledger.db") as ledger:
    release = hs.release(sketch, ledger=ledger)
    print(release.statement())
    print(ledger.statement())

answer = release.kernel_sum(queries)
exact = plan.family.kernel(records, queries).sum(axis=0)
for query, value, low, high, truth in zip(queries, answer.value, *answer.interval(0.95), exact, strict=True):
    print(f"at {query}: {value:9.0f}   95 % interval {low:9.0f} to {high:9.0f}   exact {truth:9.0f}")
