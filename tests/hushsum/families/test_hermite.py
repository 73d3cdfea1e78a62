"""The hermite family: what it refuses, which integers a record adds, and what n records cannot make."""

import hashlib
import math
import pickle
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.errors import DeltaError, PlanError, Reason, RecordError
from hushsum.families.base import Increments, VectorRecords
from hushsum.families.hermite import Hermite
from hushsum.families.hermite import family as hermite
from hushsum.families.hermite.weights import WEIGHTS
from hushsum.parameters import NO_PARAMETERS, Parameters, digest
from hushsum.schema import Table

Int64 = npt.NDArray[np.int64]
KEYS: dict[str, object] = {"kernel": "gaussian", "bandwidth": 1.5, "order": 4}


def bounds(lower: float | Fraction = 0, upper: float | Fraction = 10, dim: int = 2) -> VectorRecords:
    return VectorRecords(dim, (Fraction(lower),) * dim, (Fraction(upper),) * dim)


def family(
    record: VectorRecords | None = None, parameters: Parameters = NO_PARAMETERS, /, **changes: object
) -> Hermite:
    keys = {key: value for key, value in {**KEYS, **changes}.items() if value is not ...}
    return Hermite.from_table(Table(keys, "sketch"), record or bounds(), parameters)


def counters_of(some: Hermite, records: npt.ArrayLike) -> Int64:
    counters = np.zeros(some.shape, np.int64)
    some.add(counters, some.accept(records)[0])
    return counters


def encoded(some: Hermite, records: npt.ArrayLike) -> Increments:
    return some.encode(some.accept(records)[0])


# ------------------------------------------------------------------------------------------------------------ the plan
REFUSED: tuple[tuple[str, object], ...] = (
    ("kernel", "laplacian"),
    ("kernel", ...),
    ("bandwidth", 0),
    ("bandwidth", "wide"),
    ("bandwidth", Fraction(1, 2**65)),
    ("bandwidth", 2**65),
    ("bandwidth", ...),
    ("bandwidth", Fraction(1, 10**6)),
    ("order", 0),
    ("order", 17),
    ("order", 2.0),
    ("cutoff", Fraction(99, 100)),
    ("cutoff", Fraction(801, 100)),
    ("cutoff", "far"),
    ("fraction_bits", 3),
    ("fraction_bits", 21),
    ("rows", 100),
    ("buckets", 100),
    ("draws", "independent"),
    ("seed", 1),
    ("weights", "auto"),
    ("weights", "other"),
    ("weights", 1),
)


@pytest.mark.parametrize("key, value", REFUSED)
def test_a_wrong_key_is_refused_by_its_name(key: str, value: object) -> None:
    with pytest.raises(PlanError) as caught:
        family(**{key: value})
    assert caught.value.key == f"sketch.{key}"


def test_defaults_are_written_out_and_make_the_same_family() -> None:
    some = family(order=...)
    fields = some.to_fields()
    assert fields == {"kernel": "gaussian", "bandwidth": "1.5", "order": 8, "cutoff": "3", "fraction_bits": 12}
    assert family(**fields) == some == family(order=..., weights="equal") != family()
    for weights in ("gaussian", "laplace"):
        weighted = family(order=..., weights=weights)
        assert weighted.to_fields() == {**fields, "weights": weights}
        assert pickle.loads(pickle.dumps(weighted)) == weighted != some
    assert pickle.loads(pickle.dumps(some)) == some


def test_more_than_three_coordinates_are_refused_unless_transforms_leave_three() -> None:
    with pytest.raises(PlanError, match=r"record\.dim: got 4, expected at most 3"):
        family(bounds(dim=4))
    matrix = np.eye(3, 5, dtype=np.float32)
    brought = Parameters.of([matrix, np.eye(4, 5)])
    steps = [{"kind": "linear", "matrix": digest(matrix)}]
    some = family(bounds(dim=5), brought, transforms=steps)
    assert some.shape == (7**3, 4**3)
    assert some.digests == (digest(matrix),)
    assert np.array_equal(counters_of(some, [[1, 2, 3, 4, 5]]), counters_of(family(bounds(dim=3)), [[1, 2, 3]]))
    steps = [{"kind": "linear", "matrix": digest(np.eye(4, 5, dtype=np.float32))}]
    with pytest.raises(PlanError, match=r"sketch\.transforms: got 4"):
        family(bounds(dim=5), brought, transforms=steps)


def test_the_largest_plan_has_two_to_the_31_counters() -> None:
    record = bounds(0, 2**27, dim=1)
    assert family(record, bandwidth=1, order=16).shape == (2**27, 16)
    with pytest.raises(PlanError, match=r"sketch\.bandwidth.*2\^31"):
        family(bounds(0, 2**27 + 16, dim=1), bandwidth=1, order=16)
    with pytest.raises(PlanError, match=r"sketch\.bandwidth.*2\^31"):
        family(bounds(-(2**64), 2**64, dim=3), bandwidth=Fraction(1, 2**30))


def test_a_domain_of_less_than_a_cell_has_one() -> None:
    some = family(bounds(0, 1), bandwidth=2**60)
    assert some.shape == (1, 16)
    assert counters_of(some, [[0.5, 1.0]])[0, 0] == 4096


# ------------------------------------------------------------------------------------------------------ what is stored
def multiple(weights: str, r: tuple[int, ...], scale: int) -> int:
    """s_r by its definition: the largest n with (n − ½)^k ≤ s^k·w_r^k, one n after another."""
    if weights == "equal":
        return scale
    root = {"gaussian": 4, "laplace": 3}[weights]
    power = Fraction(scale**root)
    for each in r:
        power *= Fraction(math.factorial(2 * each), math.factorial(each) ** 3) * (2**each if root == 4 else 1)
    n: int = round(float(power) ** (1 / root)) + 2
    while n and (n - Fraction(1, 2)) ** root > power:
        n -= 1
    return n


def reference(some: Hermite, records: npt.NDArray[np.float64]) -> Int64:
    """From the definition in exact fractions: right wherever float64 holds every product."""
    side, lower = some.bandwidth, some.record.lower
    grid = [max(1, -(-(high - low) // side)) for low, high in zip(lower, some.record.upper, strict=True)]
    counters = np.zeros(some.shape, np.int64)
    for record in records.tolist():
        y = [(Fraction(x) - low) / side for x, low in zip(record, lower, strict=True)]
        cells = [min(int(part), count - 1) for part, count in zip(y, grid, strict=True)]
        u = [part - cell - Fraction(1, 2) for part, cell in zip(y, cells, strict=True)]
        for number, r in enumerate(product(range(some.order), repeat=len(grid))):
            moment = Fraction(multiple(some.weights, r, 2**some.fraction_bits))
            for part, t in zip(u, r, strict=True):
                moment *= part**t
            counters[np.ravel_multi_index(cells, grid), number] += round(moment)  # ties to even
    return counters


@pytest.mark.parametrize("kernels", ("plain", "fast"))
@pytest.mark.parametrize("dim, order, bits", ((1, 8, 12), (1, 1, 4), (2, 4, 12), (2, 5, 6), (3, 4, 8)))
@pytest.mark.parametrize("weights", WEIGHTS)
def test_counters_are_the_rounded_moments(
    kernels: str,
    weights: str,
    dim: int,
    order: int,
    bits: int,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Coordinates are multiples of 1/16 of a cell, so that u has four bits and moments up to 48."""
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    some = family(bounds(-3, 7, dim), bandwidth=2, order=order, fraction_bits=bits, weights=weights)
    records = rng.integers(-24, 57, (150, dim)) / 8
    records[:2] = [[-3.0], [7.0]]
    expected = reference(some, records)
    assert np.array_equal(counters_of(some, records), expected)
    increments = encoded(some, records)
    assert np.array_equal(increments.indices, np.flatnonzero(expected))
    assert np.array_equal(increments.values, expected.reshape(-1)[increments.indices])


@pytest.mark.parametrize(
    "dim, order, bandwidth, weights",
    (
        (1, 16, 0.3, "equal"),
        (2, 8, 0.7, "equal"),
        (3, 5, 2.3, "equal"),
        (1, 16, 0.3, "laplace"),
        (3, 5, 2.3, "gaussian"),
    ),
)
def test_plain_and_compiled_give_the_same_bytes_in_batches_of_any_size(
    dim: int,
    order: int,
    bandwidth: float,
    weights: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = family(bounds(dim=dim), bandwidth=bandwidth, order=order, fraction_bits=20, weights=weights)
    records, _ = some.accept(rng.uniform(-1, 11, (20_000, dim)))
    found = set()
    for kernels, size in product(("plain", "fast"), (1, 1000, 20_000)):
        monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
        counters = np.zeros(some.shape, np.int64)
        for start in range(0, 200 if size == 1 else 20_000, size):
            some.add(counters, records[start : start + size])
        if size == 1:
            some.add(counters, records[200:])
        increments = some.encode(records)
        dense = np.zeros_like(counters)
        dense.reshape(-1)[increments.indices] = increments.values
        found |= {counters.tobytes(), dense.tobytes()}
        assert increments.values.all()
        assert np.all(np.diff(increments.indices) > 0)
    assert len(found) == 1


@pytest.mark.parametrize("numbers", (1, 40, 500))
def test_encoding_in_parts_is_encoding_at_once(
    numbers: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = family(bandwidth=1)
    records, _ = some.accept(rng.uniform(0, 10, (300, 2)))
    whole = some.encode(records)
    monkeypatch.setattr(hermite, "_ENCODED_COUNTERS", numbers)
    parts = some.encode(records)
    assert np.array_equal(parts.indices, whole.indices)
    assert np.array_equal(parts.values, whole.values)


def test_the_bytes_of_version_1_are_these() -> None:
    """Written down once: another digest means that sketches of two versions no longer add up."""
    some = family(bounds(Fraction("-0.7"), Fraction("3.3"), 3), bandwidth=Fraction("0.3"), order=6, fraction_bits=16)
    numbers = np.arange(3000, dtype=np.int64).reshape(-1, 3)
    counters = counters_of(some, (numbers * 7919 % 4003) / 1000.0 - 0.7)
    assert hashlib.sha256(counters.astype("<i8").tobytes()).hexdigest()[:16] == "5ab5ff57cd6b80a6"


def test_the_multipliers_and_bytes_of_weighted_moments_are_these() -> None:
    """Written down once, as those above."""
    expected = {
        "gaussian": ([4096, 5793, 7624, 9308, 10706, 11727, 12331, 12515], "9220c7613b09c5e9"),
        "laplace": ([4096, 5161, 5907, 6119, 5852, 5245, 4451, 3604], "f2e67a1b616a8f53"),
    }
    numbers = np.arange(3000, dtype=np.int64).reshape(-1, 3)
    for weights, (multipliers, digits) in expected.items():
        assert family(bounds(dim=1), order=8, weights=weights)._grid.scales.tolist() == multipliers
        keys = {"bandwidth": Fraction("0.3"), "order": 6, "fraction_bits": 16, "weights": weights}
        some = family(bounds(Fraction("-0.7"), Fraction("3.3"), 3), **keys)
        counters = counters_of(some, (numbers * 7919 % 4003) / 1000.0 - 0.7)
        assert hashlib.sha256(counters.astype("<i8").tobytes()).hexdigest()[:16] == digits


@pytest.mark.parametrize("weights", ("gaussian", "laplace"))
@pytest.mark.parametrize("dim, bits", ((1, 4), (1, 20), (2, 12), (3, 4), (3, 20)))
def test_multipliers_are_those_of_the_definition_and_no_moment_exceeds_the_first(
    weights: str, dim: int, bits: int
) -> None:
    """Packing, sums and checks rely on s as the largest change."""
    grid = family(bounds(dim=dim), bandwidth=6, order=16 if dim < 3 else 12, fraction_bits=bits, weights=weights)._grid
    degrees = [tuple(r) for r in grid.degrees.tolist()]
    assert grid.scales.tolist() == [multiple(weights, r, 2**bits) for r in degrees]
    assert grid.scales[0] == grid.bounds.max() == 2**bits
    assert np.array_equal(grid.ratios > 0, grid.bounds > 0)
    if weights == "laplace" and bits == 4 and dim == 3:
        assert not grid.scales.all(), "a multiplier that rounds to 0"


@given(
    lower=st.floats(-1e6, 1e6, width=32),
    side=st.floats(2**-20, 2**20),
    width=st.floats(0.01, 30),
    share=st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
def test_no_place_is_more_than_half_a_cell_from_the_centre(
    lower: float, side: float, width: float, share: list[float]
) -> None:
    """Whatever the bounds and the bandwidth, at the upper bound as well."""
    low, high = Fraction(lower), Fraction(lower) + Fraction(side)
    if not np.float32(float(low)) < np.float32(float(high)):
        return
    some = family(bounds(low, high, 1), bandwidth=Fraction(side) / Fraction(width))
    records, _ = some.accept([[lower - 1e9], [lower + 1e9], *([lower + part * side] for part in share)])
    cells, places = some._grid.locate(records)
    assert np.abs(places).max() <= 0.5
    assert 0 <= cells.min() <= cells.max() < some.shape[0]


@pytest.mark.parametrize("dim, order, bits", ((1, 16, 20), (2, 8, 12), (2, 16, 4), (3, 6, 7)))
@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_record_exceeds_the_sensitivity_and_one_reaches_it(
    weights: str, dim: int, order: int, bits: int, rng: np.random.Generator
) -> None:
    some = family(bounds(0, 4, dim), bandwidth=1, order=order, fraction_bits=bits, weights=weights)
    most = some.sensitivity
    limits = (most.l0, most.l1, most.l2_squared, most.linf)
    corners = np.array([*product((0.0, 2.0, 4.0), repeat=dim)])
    reached = False
    for record in np.concatenate([corners, rng.uniform(0, 4, (200, dim)), rng.integers(0, 9, (50, dim)) / 2]):
        moved = [abs(int(value)) for value in encoded(some, record[None]).values]
        norms = (len(moved), sum(moved), sum(value**2 for value in moved), max(moved))
        assert all(norm <= limit for norm, limit in zip(norms, limits, strict=True))
        reached |= norms == limits
    assert reached
    ceilings = sum(-(-multiple(weights, r, 2**bits) // 2 ** sum(r)) for r in product(range(order), repeat=dim))
    assert most.linf == 2**bits < most.l1 <= ceilings


# -------------------------------------------------------------------------------------------------------- what is sent
def test_increments_of_true_records_pass_the_check_and_come_back_from_their_bytes(rng: np.random.Generator) -> None:
    for dim, n, weights in product((1, 2, 3), (1, 2, 50, 700), WEIGHTS):
        some = family(bounds(dim=dim), order=5, weights=weights)
        increments = encoded(some, rng.normal(5, 2, (n, dim)))
        some.check(increments, n)
        encoding, data = some.pack(increments, n)
        assert len(data) <= some.packed_bytes_max(n)
        back = some.unpack(encoding, data, n)
        assert np.array_equal(back.indices, increments.indices)
        assert np.array_equal(back.values, increments.values)
    family().check(Increments(np.empty(0, np.int64), np.empty(0, np.int64)), 0)


GOOD = {0: 4096, 1: -2048, 2: 1024, 5: 1024, 32: 8192, 33: 4096, 34: 2048}  # cell 0: one record; cell 2: two


def increments(values: dict[int, Any]) -> Increments:
    kept = sorted(item for item in values.items() if item[1] is not None)
    return Increments(np.array([i for i, _ in kept], np.int64), np.array([v for _, v in kept], np.int64))


def test_the_moments_of_three_records_are_taken() -> None:
    family().check(increments(GOOD), 3)


CHANGES: dict[str, tuple[dict[int, Any], int]] = {
    "fewer records": ({}, 2),
    "more records": ({}, 4),
    "no records": ({}, 0),
    "a negative number of records": ({}, -3),
    "more records than can be summed": ({}, 2**40),
    "a record in no cell": ({32: 4096, 33: 2048, 34: 1024}, 3),
    "part of a record": ({0: 4097, 32: 8191}, 3),
    "a negative number in one cell": ({0: -4096, 32: 16384}, 3),
    "moments of a cell without records": ({16: 1}, 3),
    "nothing but moments": ({0: None, 32: None}, 0),
    "a moment beyond its bound": ({1: 2049}, 3),
    "a moment below its bound": ({1: -2049}, 3),
    "the moment of two records in the cell of one": ({1: 4096, 33: 2048}, 3),
    "a negative moment of even powers": ({2: -1}, 3),
    "the least integer": ({1: -(2**63)}, 3),
    "the largest integer": ({33: 2**63 - 1}, 3),
    "first moments that sum to three after an overflow": ({0: 2**62, 16: 2**62, 48: 2**62, 64: 2**62, 80: 4096}, 3),
}


@pytest.mark.parametrize("what", CHANGES)
def test_moments_that_the_records_cannot_make_are_refused(what: str) -> None:
    change, records = CHANGES[what]
    with pytest.raises(DeltaError) as caught:
        family().check(increments({**GOOD, **change}), records)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


def test_counts_that_sum_to_the_records_modulo_two_to_the_64_are_refused() -> None:
    some, n = family(bounds(0, 2**22 + 1, 1), bandwidth=1, order=1, fraction_bits=4), 2**42
    values = np.full(2**22 + 1, 16 * n)
    assert np.sum(values // 16) == n
    with pytest.raises(DeltaError, match="records in all"):
        some.check(Increments(np.arange(len(values)), values), n)


def test_what_passes_the_check_moves_no_more_than_the_sensitivity_allows(rng: np.random.Generator) -> None:
    """The most extreme moments that pass: all at their bounds, or all records in one cell."""
    for weights, counts in product(WEIGHTS, ([5], [2, 3], [1, 1, 1, 1, 1])):
        some = family(order=3, weights=weights)
        rows = np.outer(counts, some._grid.bounds)
        flat = (rng.permutation(49)[: len(counts)][:, None] * 9 + np.arange(9)).reshape(-1)
        order = np.argsort(flat)
        found = Increments(flat[order], rows.reshape(-1)[order])
        some.check(found, 5)
        assert np.abs(found.values).sum() <= 5 * some.sensitivity.l1
        assert np.square(found.values).sum() <= 25 * some.sensitivity.l2_squared
        for k in np.flatnonzero(found.values):
            worse = Increments(found.indices, found.values + (np.arange(len(order)) == k))
            with pytest.raises(DeltaError):
                some.check(worse, 5)


@pytest.mark.parametrize("mine, plan", (("gaussian", "equal"), ("gaussian", "laplace"), ("laplace", "equal")))
def test_moments_of_other_multipliers_that_exceed_the_plans_are_refused(mine: str, plan: str) -> None:
    """A device that computes larger ones moves the sum by more than the noise is for; a corner of a cell shows it."""
    sent = encoded(family(weights=mine), [[0.0, 0.0]])
    with pytest.raises(DeltaError, match="of its cell's records"):
        family(weights=plan).check(sent, 1)


def test_packed_values_that_no_record_makes_are_refused_before_anything_is_kept() -> None:
    some = family()
    encoding, data = some.pack(increments(GOOD), 3)
    for size in range(len(data)):
        with pytest.raises(DeltaError):
            some.unpack(encoding, data[:size], 3)
    with pytest.raises(DeltaError):
        some.unpack(encoding, data + b"\0", 3)
    with pytest.raises(DeltaError):
        some.unpack(encoding, data, 1)  # 8192 in one counter
    many = increments(dict.fromkeys(range(17), 1))
    assert len(some.unpack(*some.pack(many, 2), 2).indices) == 17
    with pytest.raises(DeltaError, match=r"17 counters.* expected 16"):
        some.unpack(*some.pack(many, 1), 1)


# ----------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("kernels", ("plain", "fast"))
def test_records_that_were_not_accepted_and_counters_of_another_layout_are_refused(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    some = family()
    counters, inside = np.zeros(some.shape, np.int64), np.full((3, 2), 5, np.float32)
    bad: Any
    for bad in (inside + 5.001, inside - 5.001, inside * np.nan, inside[:, :1], inside.astype(np.float64)):
        with pytest.raises(RecordError, match="accept"):
            some.add(counters, bad)
        with pytest.raises(RecordError, match="accept"):
            some.encode(bad)
    assert not counters.any()
    other: Any
    for other in (counters[:-1], counters.astype(np.int32), np.asfortranarray(counters)):
        with pytest.raises(ValueError, match=r"expected C-contiguous int64 \(49, 16\)"):
            some.add(other, inside)
