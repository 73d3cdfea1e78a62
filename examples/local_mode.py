"""A thousand devices that trust nobody: each record leaves its device as one random report. Their sum is useful.

python examples/local_mode.py

`EdgeClient` and `hushsum serve` do this with a spool, a wire and a log; here it is in one process.
"""

import numpy as np

import hushsum as hs
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local import reports as encoding
from hushsum.local.report_batch import ReportBatch, count_packed
from hushsum.releases import of_reports

plan = hs.Plan(
    name="points",
    record={"dim": 2, "lower": [0, 0], "upper": [10, 10]},
    # As many buckets as ε wants (e^4 + 1), and rows that cost nothing: a report names one of them.
    sketch={"family": "hashed", "kernel": "euclidean", "bandwidth": 2, "rows": 1000, "buckets": 56, "seed": 7},
    privacy={"mode": "local", "epsilon": 4, "total_epsilon": 40},
)
WINDOW, DEVICES, EACH = 0, 1000, 100


def device(records: np.ndarray) -> bytes:
    """All that ever leaves a device: its records' reports, in ascending order, under a number drawn for this batch."""
    reports, _ = encoding.reports(plan, records, None, OsEntropy())
    stream = int.from_bytes(OsEntropy().read(8), "big")
    return ReportBatch(plan.id, WINDOW, DeltaId(stream, 0), reports).pack(plan)


rng = np.random.default_rng(5)
records = [rng.normal(5, 1.5, (EACH, 2)) for _ in range(DEVICES)]

one = records[0][:1]
print(f"a device holds {np.round(one[0], 2)}; it could send, each time it is asked to draw (it draws once):")
for _ in range(3):
    report = int(encoding.reports(plan, one, None, OsEntropy())[0][0])
    row, output = divmod(report, plan.counters_shape[2])
    print(f"  report {report:6}   row {row:4}, bucket {output:3}")

counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
batches = [device(own) for own in records]
for batch in batches:
    count_packed(batch, plan, counters, counts)
print(f"{counts[0]:,} reports of {DEVICES:,} devices, {len(batches[0]) / EACH:.2f} bytes a record")

release = of_reports(plan, counters, counts, window=WINDOW, shuffled=False)
queries = np.array([[5.0, 5.0], [6.5, 5.0], [9.0, 9.0]])
answer = release.kernel_sum(queries)
exact = plan.family.kernel(np.concatenate(records), queries).sum(axis=0)
for query, value, low, high, truth in zip(queries, answer.value, *answer.interval(0.95), exact, strict=True):
    print(f"at {query}: {value:6.0f}   95 % interval {low:6.0f} to {high:6.0f}   exact {truth:6.0f}")
print(release.statement())
