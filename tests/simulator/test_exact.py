"""Exact kernel sums, by table and by formula."""

from fractions import Fraction

import numpy as np
import pytest

from hushsum import Plan, kernels
from simulator.exact import ExactSums, clip
from simulator.plans import of_photograph, privacy_table

PLAN = of_photograph(privacy_table(Fraction(1), "record", None), seed=1)


def told(_: int) -> None:
    """A bar that nobody looks at."""


@pytest.mark.parametrize("whole", (True, False), ids=("integers", "reals"))
@pytest.mark.parametrize("on_grid", (True, False), ids=("on the grid", "between"))
def test_sums_are_those_of_the_closed_form(rng: np.random.Generator, *, whole: bool, on_grid: bool) -> None:
    records = rng.uniform(0, 255, (700, 3))
    records = np.rint(records) if whole else records
    records[350:] = records[:350]  # equal records count each
    queries = rng.uniform(0, 255, (30, 3))
    queries = np.rint(queries) if on_grid else queries
    queries[0] = records[0]
    expected = kernels.kernel_sums(PLAN.family.kernel, records, queries)
    np.testing.assert_allclose(ExactSums(PLAN, records).at(queries, told), expected, rtol=1e-12)


def test_a_query_beyond_the_records_is_right_too() -> None:
    records, queries = np.array([[10.0, 10, 10], [12, 10, 10]]), np.array([[250.0, 0, 3], [-40, 0, 0]])
    expected = kernels.kernel_sums(PLAN.family.kernel, records, queries)
    np.testing.assert_allclose(ExactSums(PLAN, records).at(queries, told), expected, rtol=1e-12)


def test_records_are_clipped_to_the_bounds_and_those_without_a_value_are_left_out() -> None:
    sums = ExactSums(PLAN, np.array([[300.0, -5, 10], [np.nan, 0, 0]]))
    assert sums.records == 1
    assert sums.at(np.array([[255.0, 0, 10]]), told).tolist() == [1.0]
    assert clip(PLAN, np.array([[300.0, -5, 10]])).tolist() == [[255, 0, 10]]


def test_the_bar_is_told_of_every_query(rng: np.random.Generator) -> None:
    seen: list[int] = []
    ExactSums(PLAN, rng.uniform(0, 255, (10, 3))).at(rng.uniform(0, 255, (120, 3)), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 120


def test_many_real_records_are_compared_at_fewer_queries(rng: np.random.Generator) -> None:
    reals = ExactSums(PLAN, rng.uniform(0, 255, (600_000, 3)))
    whole = ExactSums(PLAN, rng.integers(0, 256, (1000, 3)).astype(float))
    assert 100 <= reals.affordable(2000) < 2000
    assert whole.affordable(2000) == 2000


def test_transforms_are_part_of_the_exact_kernel(rng: np.random.Generator) -> None:
    steps = [{"kind": "scale", "factor": [2, 1, 1]}, {"kind": "clip", "lower": [0, 0, 0], "upper": [300, 200, 200]}]
    fields = PLAN.to_fields()
    del fields["format"]
    plan = Plan.from_fields(
        {**fields, "sketch": {"family": PLAN.family.name, **PLAN.family.to_fields(), "transforms": steps}}
    )
    records, queries = np.rint(rng.uniform(0, 255, (200, 3))), np.rint(rng.uniform(0, 255, (20, 3)))
    mapped = [np.clip(points * [2, 1, 1], 0, [300, 200, 200]) for points in (records, queries)]
    wide = Plan.from_fields({**fields, "record": {"dim": 3, "lower": [0, 0, 0], "upper": [300, 300, 300]}})
    expected = kernels.kernel_sums(wide.family.kernel, *mapped)
    np.testing.assert_allclose(ExactSums(plan, records).at(queries, told), expected, rtol=1e-6)
