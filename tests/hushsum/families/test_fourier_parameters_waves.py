"""Tables of the fourier family: their symmetries, the sensitivities that follow, and what check() refuses."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.errors import DeltaError, Reason
from hushsum.families.base import Increments, VectorRecords
from hushsum.families.fourier import Fourier
from hushsum.families.fourier.checks import RECORDS_MAX
from hushsum.families.fourier.parameters import TURN, waves
from hushsum.schema import Table

BITS = (4, 5, 9, 12, 16)


def family(bits: int, **changes: object) -> Fourier:
    keys = {"kernel": "cauchy", "bandwidth": 1, "rows": 3, "fraction_bits": bits, **changes}
    return Fourier.from_table(Table(keys, "sketch"), VectorRecords(1, (Fraction(0),), (Fraction(9),)))


def increments(values: dict[int, int]) -> Increments:
    return Increments(np.array(sorted(values), np.int64), np.array([values[key] for key in sorted(values)], np.int64))


def assert_refused(sketched: Fourier, values: dict[int, int], records: int) -> None:
    with pytest.raises(DeltaError) as caught:
        sketched.check(increments(values), records)
    assert caught.value.reason == Reason.IMPOSSIBLE_COUNTS


@pytest.mark.parametrize("bits", BITS)
def test_entries_are_cosines_and_sines_rounded_to_the_nearest_integer(bits: int) -> None:
    for k in range(TURN):
        angle = 2 * math.pi * k / TURN
        for came, exact in zip(waves(bits).added[:, k], (math.cos(angle), math.sin(angle)), strict=True):
            assert abs(came - exact * 2**bits) <= 0.5 + 1e-9


@pytest.mark.parametrize("bits", BITS)
def test_entries_have_every_symmetry_of_cosine_and_sine(bits: int) -> None:
    cosine, sine = waves(bits).added
    k = np.arange(TURN)
    assert np.array_equal(cosine[-k], cosine)
    assert np.array_equal(sine[-k], -sine)
    assert np.array_equal(cosine[(k + TURN // 2) % TURN], -cosine)
    assert np.array_equal(cosine[(k - TURN // 4) % TURN], sine)


@pytest.mark.parametrize("bits", BITS)
def test_two_phases_multiply_to_the_cosine_of_their_difference_whatever_the_rounding(bits: int) -> None:
    """Over a uniform first phase, for every difference: the rounding of the table leaves no bias."""
    table = waves(bits)
    for difference in range(TURN):
        second = (np.arange(TURN) + difference) % TURN
        mean = (table.added * table.read[:, second]).sum() / table.scale / TURN
        assert mean == pytest.approx(math.cos(2 * math.pi * difference / TURN), abs=1e-13)


@pytest.mark.parametrize("bits", BITS)
def test_packed_entries_hold_both_parts_of_any_block_of_records(bits: int) -> None:
    table = waves(bits)
    for count in (1, 1024):
        both = table.packed * count
        lower = both.astype(np.int32).astype(np.int64)
        assert np.array_equal(lower, table.added[0] * count)
        assert np.array_equal((both - lower) >> 32, table.added[1] * count)


@pytest.mark.parametrize("bits", BITS)
def test_sensitivity_is_the_largest_of_every_phase_and_within_what_the_design_states(bits: int) -> None:
    sensitivity, pairs, scale = family(bits).sensitivity, 3, 2**bits
    entries = [(int(a), int(b)) for a, b in waves(bits).added.T]
    assert sensitivity.l0 == pairs * max((a != 0) + (b != 0) for a, b in entries) == 2 * pairs
    assert sensitivity.l1 == pairs * max(abs(a) + abs(b) for a, b in entries) <= pairs * (math.sqrt(2) * scale + 1)
    assert sensitivity.l2_squared == pairs * max(a * a + b * b for a, b in entries) <= pairs * (scale + 0.71) ** 2
    assert sensitivity.linf == max(max(abs(a), abs(b)) for a, b in entries) == scale


def test_records_reach_the_sensitivity_of_one_pair() -> None:
    """One frequency meets every phase along a line of records, so every maximum is attained by some record."""
    sketched = family(6, rows=1, bandwidth="0.05")
    seen = []
    for x in np.linspace(0, 9, 4000):
        change = np.abs(sketched.encode(sketched.accept([[x]])[0]).values).tolist()
        seen.append((len(change), sum(change), sum(c * c for c in change), max(change)))
    stated = sketched.sensitivity
    assert tuple(np.max(seen, axis=0)) == (stated.l0, stated.l1, stated.l2_squared, stated.linf)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("records", (1, 7, 2**20, 2**30, RECORDS_MAX))
def test_check_takes_the_worst_of_all_records_alike_and_not_one_more(bits: int, records: int) -> None:
    sketched, table = family(bits), waves(bits)
    by_sum, by_squares = (
        int(v.argmax()) for v in (np.abs(table.added).sum(axis=0), np.square(table.added).sum(axis=0))
    )
    for phase in (0, TURN // 4, by_sum, by_squares):
        for sign_a, sign_b in product((1, -1), repeat=2):
            a, b = (int(v) * records for v in table.added[:, phase])
            entries = {2: a * sign_a, 3: b * sign_b}
            sketched.check(increments({key: value for key, value in entries.items() if value}), records)
    a, b = (abs(int(v)) * records for v in table.added[:, by_squares])
    assert_refused(sketched, {0: 2**bits * records + 1}, records)
    assert_refused(sketched, {4: a, 5: b + records} if b else {4: a, 5: 2 * records}, records)


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-70000, 70000), min_size=6, max_size=6),
    records=st.sampled_from((0, 1, 2, 3, 2**20, 2**31, RECORDS_MAX)),
    bits=st.sampled_from(BITS),
)
def test_check_agrees_with_exact_integers_on_any_values(values: list[int], records: int, bits: int) -> None:
    sketched, table = family(bits), waves(bits)
    entries = {index: value for index, value in enumerate(values) if value}
    pairs = [(abs(entries.get(2 * p, 0)), abs(entries.get(2 * p + 1, 0))) for p in range(3)]
    possible = all(
        max(c, s) <= records * table.entry_max
        and c + s <= records * table.sum_max
        and c * c + s * s <= records**2 * table.squares_max
        for c, s in pairs
    )
    if possible:
        sketched.check(increments(entries), records)
    else:
        assert_refused(sketched, entries, records)


def test_check_refuses_zeroes_and_impossible_numbers_of_records() -> None:
    sketched = family(12)
    with pytest.raises(DeltaError):
        sketched.check(Increments(np.array([1]), np.array([0])), 5)
    for records in (-1, RECORDS_MAX + 1):
        assert_refused(sketched, {}, records)
    sketched.check(increments({}), 0)
