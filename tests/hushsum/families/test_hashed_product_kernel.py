"""Products of kernels over groups of columns."""

import numpy as np
import pytest

from hushsum import canonical
from hushsum.errors import PlanError
from hushsum.families import Hashed
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.projection import Projection
from hushsum.parameters import Parameters, digest
from hushsum.schema import Table
from tests.hushsum.families.lsh import hash_checks

GROUPS: list[dict[str, object]] = [
    {"columns": [0, 2], "kernel": "euclidean", "bandwidth": 3, "power": 1},
    {"columns": [1], "kernel": "laplacian", "bandwidth": 8, "power": 2},
    {"columns": [3, 4], "kernel": "angular", "power": 2},
    {"columns": [4], "kernel": "manhattan", "bandwidth": 6, "power": 1},
]


def columns_of(group: dict[str, object]) -> list[int]:
    columns = group["columns"]
    assert isinstance(columns, list)
    return columns


@pytest.mark.statistical
def test_the_kernel_is_the_product_and_rows_share_codes_as_often(seed: int) -> None:
    """60,000 rows, 5 pairs: false alarm 1e-6; a group left out fails."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (5, 5))
    y = x + rng.uniform(-0.5, 0.5, (5, 5))
    x, y = (points.astype(np.float32).astype(np.float64) for points in (x, y))  # the kernel of angles is theirs
    family = hash_checks.build(5, -3, 3, groups=GROUPS, rows=60_000, buckets=4, seed=seed % 2**53)
    expected = np.ones(5)
    for group in GROUPS:
        some = columns_of(group)
        keys = {key: value for key, value in group.items() if key != "columns"}
        alone = hash_checks.build(len(some), -3, 3, **keys)
        expected *= hash_checks.pairwise_kernel(alone, x[:, some], y[:, some])
    assert np.allclose(hash_checks.pairwise_kernel(family, x, y), expected, rtol=1e-12)
    hash_checks.assert_collisions(family, expected, x, y, family.kernel_error)
    fewer = hash_checks.build(5, -3, 3, groups=GROUPS[:3], rows=60_000, buckets=4, seed=seed % 2**53)
    with pytest.raises(AssertionError):
        hash_checks.assert_collisions(fewer, expected, x, y, family.kernel_error)


@pytest.mark.parametrize("groups", (GROUPS, GROUPS[:1], GROUPS[:2], GROUPS[2:3]), ids=("four", "one", "two", "angular"))
@pytest.mark.parametrize("buckets", (4, 5000))
def test_both_engines_follow_the_definition(
    groups: list[dict[str, object]], buckets: int, rng: np.random.Generator
) -> None:
    family = hash_checks.build(5, -1, 1, groups=groups, rows=20, buckets=buckets)
    assert isinstance(family._tables.code, Joined)
    hash_checks.assert_engines_agree_with_the_definition(family, rng.uniform(-1, 1, (100, 5)))


def test_those_are_of_both_placements() -> None:
    kinds = {
        hash_checks.build(5, -1, 1, groups=groups, rows=20, buckets=buckets).rehashed
        for groups in (GROUPS, GROUPS[:1])
        for buckets in (4, 5000)
    }
    assert kinds == {True, False}


def test_groups_that_are_alike_are_drawn_apart() -> None:
    twice = [
        {"columns": [0], "kernel": "euclidean", "bandwidth": 1},
        {"columns": [1], "kernel": "euclidean", "bandwidth": 1},
    ]
    code = hash_checks.build(2, -3, 3, groups=twice)._tables.code
    assert isinstance(code, Joined)
    alone = hash_checks.build(1, -3, 3, kernel="euclidean", bandwidth=1)._tables.code
    parts = [part for part in (*code.codes, alone) if isinstance(part, Projection)]
    assert len(parts) == 3
    assert len({part.directions.tobytes() for part in parts}) == 3
    assert len({part.offsets.tobytes() for part in parts}) == 3


def test_the_fields_name_the_groups_alone_and_make_the_same_family() -> None:
    family = hash_checks.build(5, -3, 3, groups=GROUPS)
    written = family.to_fields()
    canonical.encode(written)
    assert set(written) == {"groups", "rows", "buckets", "draws", "seed"}
    groups = written["groups"]
    assert isinstance(groups, list)
    assert groups[1] == {"columns": [1], "kernel": "laplacian", "bandwidth": "8", "power": 2}
    assert Hashed.from_table(Table(written, "sketch"), family.record) == family
    assert hash_checks.build(5, -3, 3, groups=GROUPS[:3]) != family


@pytest.mark.parametrize(
    "keys, match",
    (
        ({"groups": GROUPS, "kernel": "euclidean"}, r"sketch\.kernel: .*groups"),
        ({"groups": GROUPS, "bandwidth": 2}, r"sketch\.bandwidth: .*groups"),
        ({"groups": GROUPS, "power": 1}, r"sketch\.power: .*groups"),
        ({"groups": []}, r"sketch\.groups: .*at least one"),
        ({"groups": [{**GROUPS[0], "columns": [0, 5]}]}, r"sketch\.groups\[0\]\.columns"),
        ({"groups": [{**GROUPS[0], "columns": []}]}, r"sketch\.groups\[0\]\.columns"),
        ({"groups": [{**GROUPS[0], "columns": [2, 0]}]}, r"sketch\.groups\[0\]\.columns"),
        ({"groups": [{**GROUPS[0], "rows": 3}]}, r"sketch\.groups\[0\]\.rows: .*expected a known key"),
        ({"groups": [GROUPS[0], {**GROUPS[1], "bandwidth": 1e-9}]}, r"sketch\.groups\[1\]\.bandwidth.*32 bits"),
        ({"groups": [{**GROUPS[0], "kernel": "jaccard"}]}, r"sketch\.groups\[0\]\.kernel"),
    ),
)
def test_a_wrong_group_is_refused_by_its_name(keys: dict[str, object], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        hash_checks.build(5, -3, 3, **keys)


def test_columns_count_after_the_transforms() -> None:
    matrix = np.array([[1, 0, 0], [0, 1, 1]], np.float32)
    keys = {
        "groups": [{"columns": [1], "kernel": "euclidean", "bandwidth": 2}],
        "transforms": [{"kind": "linear", "matrix": digest(matrix)}],
    }
    family = hash_checks.build(3, 0, 1, Parameters.of([matrix]), **keys)
    assert family.kernel([[0, 0.25, 0.5]], [[1, 0.5, 0.25]]).tolist() == [[1]]
    wrong = {**keys, "groups": [{"columns": [2], "kernel": "euclidean", "bandwidth": 2}]}
    with pytest.raises(PlanError, match="columns"):
        hash_checks.build(3, 0, 1, Parameters.of([matrix]), **wrong)
