"""One short question to each family: densities, similar sets, synthetic records, a regression.

python examples/families.py
"""

import numpy as np

import hushsum as hs
from hushsum.estimators import LinearRegressor
from hushsum.synthetic import heavy_cells, synthetic_records

PRIVACY: dict[str, object] = {"epsilon": 1, "total_epsilon": 10}
SQUARE: dict[str, object] = {"dim": 2, "lower": [0, 0], "upper": [10, 10]}
rng = np.random.default_rng(0)
points = rng.normal(5, 1, (100_000, 2))
queries = np.array([[5.0, 5.0], [6.5, 5.0], [9.0, 9.0]])


def densities() -> None:
    """The same density with three families: hashing, random Fourier features, the fast Gauss transform."""
    for sketch in (
        {"family": "hashed", "kernel": "laplacian", "bandwidth": 2, "rows": 512, "buckets": 1024, "draws": "sobol"},
        {"family": "fourier", "kernel": "gaussian", "bandwidth": 2, "rows": 512, "draws": "sobol"},
        {"family": "hermite", "kernel": "gaussian", "bandwidth": 2, "order": 4},
    ):
        plan = hs.Plan(name="points", record=SQUARE, sketch=sketch, privacy=PRIVACY)
        counted = hs.Sketch(plan)
        counted.add(points)
        answer = hs.release(counted).density(queries)
        exact = plan.family.kernel(points, queries).mean(axis=0)
        for value, low, high, truth in zip(answer.value, *answer.interval(), exact, strict=True):
            print(f"{plan.family.name:8} {value:7.4f}   95 % interval {low:7.4f} to {high:7.4f}   exact {truth:.4f}")


def similar_sets() -> None:
    """How many shopping baskets of each kind of customer are like this one (Jaccard, one sketch a class)."""
    plan = hs.Plan(
        name="baskets",
        record={"kind": "set", "universe": 1000, "classes": ["weekday", "weekend"]},
        sketch={"family": "hashed", "kernel": "jaccard", "rows": 200, "buckets": 1024},
        privacy=PRIVACY,
    )
    baskets = [np.unique(rng.integers(0, 30, 12)) + 20 * (i % 2) for i in range(20_000)]
    labels = [("weekday", "weekend")[i % 2] for i in range(20_000)]
    asked = [np.arange(5, 20)]
    counted = hs.Sketch(plan)
    counted.add(baskets, labels=labels)
    release = hs.release(counted)
    for number, label in enumerate(plan.classes):
        near, exact = release.kernel_sum(asked, label=label), plan.family.kernel(baskets[number::2], asked).sum()
        count = release.count_of(label)
        print(f"{label}: {near.value[0]:.0f} ± {near.std_error[0]:.0f}, of {count:.0f}, exact {exact:.0f}")


def synthetic() -> None:
    """Records that look like the private ones, from a density sketch."""
    sketch = {"family": "partition", "bandwidth": "0.25", "rows": 1, "buckets": 1600}
    plan = hs.Plan(name="points", record=SQUARE, sketch=sketch, privacy=PRIVACY)
    counted = hs.Sketch(plan)
    counted.add(points)
    release = hs.release(counted)
    cells = heavy_cells(release, deviations=5)
    made = synthetic_records(release, cells, 5000, rng)
    means = made.mean(axis=0).round(2), points.mean(axis=0).round(2)
    print(f"{len(cells)} heavy cells; synthetic mean {means[0]}, real {means[1]}")


def regression() -> None:
    """A linear model, fitted to a released sketch of [x, y]."""
    x = rng.uniform(-1, 1, (20_000, 2))
    y = x @ [0.5, -0.3] + rng.normal(0, 0.2, 20_000)
    plan = hs.Plan(
        name="model",
        record={"dim": 3, "lower": [-1, -1, -2], "upper": [1, 1, 2]},
        sketch={"family": "paired", "rows": 64, "radius": "1.5"},
        privacy=PRIVACY,
    )
    counted = hs.Sketch(plan)
    counted.add(np.column_stack([x, y]))
    model = LinearRegressor.from_release(hs.release(counted))
    print(f"slopes {model.coef_.round(2)}, true [0.5, -0.3]")


if __name__ == "__main__":
    densities()
    similar_sets()
    synthetic()
    regression()
