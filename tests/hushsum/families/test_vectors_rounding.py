"""How far float32 puts a kernel, which plans are refused for it, and kernels of records that the bounds clip."""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum import kernels
from hushsum.errors import PlanError
from hushsum.families import FAMILIES, Family, VectorRecords
from hushsum.families.transforms import Transforms
from hushsum.families.vectors import VectorSpace
from hushsum.parameters import NO_PARAMETERS, Parameters, digest
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
#: Family and keys.
KERNELS: dict[str, tuple[str, dict[str, object]]] = {
    "euclidean": ("hashed", {"kernel": "euclidean", "power": 2}),
    "manhattan": ("hashed", {"kernel": "manhattan", "power": 2}),
    "laplacian": ("hashed", {"kernel": "laplacian", "power": 2}),
    "groups": ("hashed", {}),
    "gaussian": ("fourier", {"kernel": "gaussian"}),
    "rff-laplacian": ("fourier", {"kernel": "laplacian"}),
    "cauchy": ("fourier", {"kernel": "cauchy"}),
    "exponential-p": ("fourier", {"kernel": "exponential-p", "exponent": "1.5"}),
    "lsh-cells": ("partition", {"cells": "lsh", "power": 2}),
}
MATRIX = np.array([[1, 1], [0.5, -3], [2, 0]], np.float32)
STEPS: tuple[dict[str, object], ...] = (
    {"kind": "scale", "factor": [3, "0.1"]},
    {"kind": "linear", "matrix": digest(MATRIX)},
)


def build(name: str, bandwidth: float, lower: float, upper: float, dim: int = 2, **more: Any) -> Family:
    family, keys = KERNELS[name]
    keys = {**keys, "rows": 8, **({} if family == "fourier" else {"buckets": 64}), **more}
    if name == "groups":
        kinds = {0: "euclidean", 1: "laplacian"}
        keys["groups"] = [{"columns": [j], "kernel": kinds[j], "bandwidth": bandwidth} for j in kinds]
    else:
        keys["bandwidth"] = bandwidth
    record = VectorRecords(dim, (Fraction(lower),) * dim, (Fraction(upper),) * dim)
    beside = Parameters.of([MATRIX]) if "transforms" in more else NO_PARAMETERS
    return FAMILIES[family].from_table(Table(keys, "sketch"), record, beside)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("transforms", ((), STEPS), ids=("plain", "transformed"))
def test_the_error_of_a_kernel_holds_what_float32_does_to_coordinates(
    name: str, transforms: tuple[dict[str, object], ...], rng: np.random.Generator
) -> None:
    """The kernel of what is hashed is computed from accepted points, which are centred, with bounds far from 0."""
    if name == "groups" and transforms:
        transforms = STEPS[:1]
    low, wide = 2.0**20, 256.0
    more: dict[str, Any] = {"transforms": [*transforms]} if transforms else {}
    bandwidth = 6000.0 if transforms else 300.0
    family = build(name, bandwidth, low, low + wide, **more)
    x, y = rng.uniform(low, low + wide, (2, 300, 2))
    space = VectorSpace.of(family.record, family.transforms)  # type: ignore[attr-defined]  # all of vectors
    hashed = [space.accept(points)[0].astype(np.float64) for points in (x, y)]
    reach = float(np.abs(hashed).max()) + 1
    centred = build(name, bandwidth, -np.ceil(reach), np.ceil(reach), dim=space.dim)
    found = np.array([centred.kernel(a[None], b[None])[0, 0] for a, b in zip(*hashed, strict=True)])
    exact = np.array([family.kernel(a[None], b[None])[0, 0] for a, b in zip(x, y, strict=True)])
    off = float(np.abs(found - exact).max())
    assert 2e-6 < off <= family.kernel_error < 0.01 + 1e-4, (off, family.kernel_error)


@pytest.mark.parametrize("name", KERNELS)
def test_unix_times_with_a_bandwidth_of_a_minute_are_refused_and_shifted_ones_are_not(name: str) -> None:
    key = r"sketch\.groups\[0\]\.bandwidth" if name == "groups" else r"sketch\.bandwidth"
    with pytest.raises(PlanError, match=rf"{key}: got '60', expected more than about \S+, or columns shifted"):
        build(name, 60, 1_700_000_000, 1_700_100_000)
    assert build(name, 60, 0, 100_000).kernel_error < 0.01


@pytest.mark.parametrize("name", KERNELS)
def test_plans_of_maps_and_colours_stay_allowed(name: str) -> None:
    power = {"power": 1} if "power" in KERNELS[name][1] else {}
    assert build(name, 0.01, -74.1, -73.1, **power).kernel_error < 0.01
    assert build(name, 5, 0, 255).kernel_error < 1e-3


def test_cells_of_a_grid_and_given_rows_have_no_rounding_of_their_own() -> None:
    record = VectorRecords(1, (Fraction(1_700_000_000),), (Fraction(1_700_100_000),))
    grid = FAMILIES["partition"].from_table(Table({"bandwidth": 60, "rows": 3, "buckets": 64}, "sketch"), record)
    assert grid.kernel_error == 0.0


# ---------------------------------------------------------------------------------------------------------- angles
@pytest.mark.parametrize("unit", (False, True), ids=("angular", "unit-norm"))
def test_angles_are_those_of_the_coordinates_in_float32(unit: bool) -> None:
    """1e-46 is 0 in float32: only the second coordinate is left, which was far the smaller or the larger one."""
    record = VectorRecords(2, (Fraction(-1),) * 2, (Fraction(1),) * 2)
    keys: dict[str, object] = {"kernel": "angular", "buckets": 2}
    if unit:
        keys = {"kernel": "euclidean", "bandwidth": 2, "buckets": 64, "transforms": [{"kind": "unit-norm"}]}
    family = FAMILIES["hashed"].from_table(Table({**keys, "rows": 20}, "sketch"), record)
    x, y = np.array([[2e-45, 1e-46]]), np.array([[1.0, 0.0]])
    exact = float(family.kernel(x, y)[0, 0])
    counters = np.zeros(family.shape, np.int64)
    family.add(counters, family.accept(x)[0])
    assert family.answer(counters, y).value[0] == exact == 1.0


def test_the_rounding_of_a_space_follows_its_steps() -> None:
    record = VectorRecords(2, (Fraction(-4),) * 2, (Fraction(8),) * 2)
    unit = 2.0**-24
    one = VectorSpace.of(record, Transforms())
    assert np.allclose(one.rounding, 2 * unit * (8 + 6))
    assert np.allclose(VectorSpace.of(record, Transforms(), centred=False).rounding, 2 * unit * 8)
    sphere = Transforms.from_table(Table({"transforms": [{"kind": "unit-norm"}]}, "sketch"), NO_PARAMETERS, 2)
    assert VectorSpace.of(record, sphere).rounded
    assert np.allclose(VectorSpace.of(record, sphere).rounding, 2 * unit)


# ----------------------------------------------------------------------------------------------------- clipped records
@pytest.mark.parametrize("name", [*KERNELS, "hermite", "angular"])
def test_the_kernel_of_a_record_beyond_the_bounds_is_that_of_the_clipped_one(name: str) -> None:
    if name in KERNELS:
        family = build(name, 2, 0, 10)
    else:
        keys: dict[str, object] = {"kernel": "angular", "rows": 8, "buckets": 2}
        keys = {"kernel": "gaussian", "bandwidth": 2} if name == "hermite" else keys
        record = VectorRecords(2, (Fraction(0),) * 2, (Fraction(10),) * 2)
        kind = "hermite" if name == "hermite" else "hashed"
        family = FAMILIES[kind].from_table(Table(keys, "sketch"), record)
    beyond, corner = np.array([[1e6, 3.0]]), np.array([[10.0, 3.0]])
    queries = np.array([[10.0, 3.0], [9.0, 4.0], [12.0, 3.0]])
    found = family.kernel(beyond, queries)
    assert found.tolist() == family.kernel(corner, queries).tolist()
    assert found[0, 0] == 1.0
    assert found[0, 2] < 1.0, "queries are not clipped"


def test_the_closed_form_itself_clips_nothing() -> None:
    assert kernels.euclidean(np.array([1e6]), 2.0, 1)[0] < 1e-5
