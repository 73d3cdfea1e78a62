"""Words of a secure sum: wide enough but for 2^−41, packed and unpacked exactly, refused where they are not words."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.delta_sizes import RECORDS_MAX
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import PlanError, SecureSumError
from hushsum.noise import SHARES
from hushsum.privacy import modular_words as module
from hushsum.privacy.modular_words import BITS_MAX, Words, bits_needed, gaussian_tail, laplace_tail, words_of
from hushsum.sensitivity import Sensitivity
from tests.plans import secure_plan

SHAPES = st.builds(Words, st.integers(2, 63), st.integers(2, 63), st.integers(1, 300), st.integers(1, 70))


def some(words: Words, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Counters and counts over their whole ranges, both ends among them."""
    rng = np.random.default_rng(seed)
    made = []
    for bits, size in ((words.bits, words.size), (words.count_bits, words.classes)):
        values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size)
        values[0], values[-1] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        made.append(values)
    return made[0], made[1]


@given(SHAPES, st.integers(0, 2**32))
def test_what_is_packed_is_unpacked_and_centred_again(words: Words, seed: int) -> None:
    counters, counts = some(words, seed)
    data = words.pack(words.of(counters, counts))
    assert len(data) == words.bytes
    back = words.unpack(data)
    assert back.dtype == words.dtype
    again = words.centred(back)
    assert np.array_equal(again[0], counters)
    assert np.array_equal(again[1], counts)


@given(SHAPES, st.integers(0, 2**32))
def test_sums_wrap_around_in_the_type_and_are_reduced_when_they_are_packed(words: Words, seed: int) -> None:
    (one, many), (other, more) = some(words, seed), some(words, seed + 1)
    total = words.of(one, many) + words.of(other, more) + words.of(other, more)
    counters, counts = words.centred(words.unpack(words.pack(total)))
    for got, a, b, bits in ((counters, one, other, words.bits), (counts, many, more, words.count_bits)):
        half = 2 ** (bits - 1)
        assert got.tolist() == [
            (x + 2 * y + half) % (2 * half) - half for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
    straight = words.centred(total)
    assert np.array_equal(straight[0], counters)
    assert np.array_equal(straight[1], counts)


def test_the_packed_bytes_are_those_of_the_stated_form() -> None:
    words = Words(3, 5, 33, 2)
    counters = np.arange(33) % 8
    columns = sum(int(value) << 3 * j for j, value in enumerate(counters[:32]))  # one column of 32 runs of one word
    expected = columns.to_bytes(12, "little") + bytes([counters[32] << 5]) + bytes([0b00001_111, 0b10_000000])
    assert words.pack(words.of(counters, np.array([1, -2]))) == expected


@pytest.mark.parametrize(("bits", "count_bits", "dtype"), [(32, 32, "uint32"), (33, 2, "uint64"), (2, 63, "uint64")])
def test_words_are_as_narrow_as_their_widths_allow(bits: int, count_bits: int, dtype: str) -> None:
    assert Words(bits, count_bits, 1, 1).dtype == dtype


def test_the_packed_size_is_that_of_its_bits() -> None:
    assert Words(17, 20, 10**6, 3).bytes == 17 * 10**6 // 8 + 8
    assert Words(17, 20, 1001, 1).bytes == math.ceil(17 * 1001 / 8) + 3


@pytest.mark.parametrize("cut", (-1, 1))
def test_a_vector_of_another_length_is_refused(cut: int) -> None:
    words = Words(17, 20, 100, 3)
    data = bytes(words.bytes + 1)[: words.bytes + cut]
    with pytest.raises(SecureSumError, match="expected 221"):
        words.unpack(data)


@pytest.mark.parametrize("place", (212, 220))
def test_bits_behind_the_last_word_are_refused(place: int) -> None:
    words = Words(17, 20, 100, 3)  # 4 bits are spare behind the counters, 4 behind the counts
    data = bytearray(words.bytes)
    data[place] = 1
    with pytest.raises(SecureSumError, match="not zero"):
        words.unpack(bytes(data))


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    words = Words(17, 20, 100, 3)
    for array in (np.zeros(102, np.uint32), np.zeros(103, np.uint64), np.zeros((1, 103), np.uint32)):
        with pytest.raises(ValueError, match="expected uint32"):
            words.pack(array)
        with pytest.raises(ValueError, match="expected uint32"):
            words.centred(array)
    with pytest.raises(ValueError, match="expected \\(100,\\)"):
        words.of(np.zeros(99, np.int64), np.zeros(3, np.int64))


@pytest.mark.parametrize(
    "fields", [(1, 9, 1, 1), (64, 9, 1, 1), (9, 1, 1, 1), (9, 64, 1, 1), (9, 9, 0, 1), (9, 9, 1, -1)]
)
def test_widths_and_sizes_out_of_range_are_refused(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="words"):
        Words(*fields)


# ------------------------------------------------------------------------------------------------------ widths


@pytest.mark.parametrize(("submissions", "shares"), [(1, 1), (5, 5), (9, 5), (12, 3)])
def test_the_laplace_tail_is_an_upper_bound_and_not_far_above_the_truth(submissions: int, shares: int) -> None:
    """The truth: a sum of Pólya shares is the difference of two negative binomials, added up term by term."""
    scale, r = 6.0, submissions / shares
    q, terms = math.exp(-1 / scale), 4000
    one = np.ones(terms)
    one[1:] = np.cumprod((np.arange(1, terms) - 1 + r) / np.arange(1, terms) * q)
    one *= (1 - q) ** r
    law = np.convolve(one, one[::-1])[terms - 1 :]  # of the difference, from 0 on
    tail = laplace_tail(Fraction(6), submissions, shares, 10)
    for x in (1, 40, 120, 200):
        truth = 10 * 2 * law[x:].sum()
        bound = float(tail(x))
        assert bound >= truth
        assert math.log(bound) < math.log(max(truth, 1e-300)) + 12 * math.ceil(r)  # which is not a bit of a width


def test_the_gaussian_tail_is_an_upper_bound() -> None:
    law = np.exp(SHARES["discrete-gaussian"](Fraction(50), 5).log_probability(np.arange(-200, 201)))
    total = np.ones(1)
    for _ in range(7):
        total = np.convolve(total, law)
    middle = len(total) // 2
    tail = gaussian_tail(Fraction(50), 7, 5, 3)
    for x in (1, 10, 30, 60):
        assert float(tail(x)) >= 3 * 2 * total[middle + x :].sum()


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("largest", (0, 1, 1000, 10**6))
def test_the_least_width_that_holds_the_sum_is_taken(name: str, largest: int) -> None:
    tail = (laplace_tail if name == "discrete-laplace" else gaussian_tail)(Fraction(1053), 100, 70, 10**5)
    bits = bits_needed(largest, tail)
    assert tail(2 ** (bits - 1) - largest) <= Fraction(1, 2**41)
    assert 2 ** (bits - 2) <= largest or tail(2 ** (bits - 2) - largest) > Fraction(1, 2**41)


def test_drawn_sums_never_overflow(seed: int) -> None:
    """A width that ignores the noise would overflow at once, one that is 8 bits short often."""
    shares = SHARES["discrete-laplace"](Fraction(50), 5)
    bits = bits_needed(7, laplace_tail(Fraction(50), 7, 5, 20_000))
    words = Words(bits, 10, 20_000, 1)
    total, exact = np.zeros(20_001, words.dtype), np.zeros(20_000, np.int64)
    for client in range(7):
        noise = shares.sample(20_000, ReplayableEntropy(seed.to_bytes(8, "big") + bytes([client])))
        exact += 1 + noise
        total += words.of(1 + noise, np.zeros(1, np.int64))
    assert np.array_equal(words.centred(words.unpack(words.pack(total)))[0], exact)
    short = Words(bits - 8, 10, 20_000, 1)
    assert not np.array_equal(short.centred(short.unpack(short.pack(total)))[0], exact)


def test_what_63_bits_cannot_hold_is_told() -> None:
    assert bits_needed(2**62, gaussian_tail(Fraction(1), 1, 1, 1)) == BITS_MAX + 1
    assert bits_needed(2**61, gaussian_tail(Fraction(1), 1, 1, 1)) == BITS_MAX


@pytest.mark.parametrize("delta", ("0", "0.000001"))
def test_the_words_of_a_plan_hold_all_that_its_cohort_can_submit_with_its_noise(delta: str) -> None:
    privacy = {"unit": "client", "records_per_client": 7, "delta": delta, "epsilon": 1, "total_delta": "0.001"}
    plan = secure_plan({"cohort": 20}, privacy=privacy)
    mechanism, cohort = plan.privacy.mechanism, plan.privacy.cohort
    assert cohort is not None
    words = words_of(plan.family.sensitivity, plan.family.shape, 3, plan.privacy)
    assert (words.size, words.classes) == (3 * 20 * 64, 3)
    tail = laplace_tail if delta == "0" else gaussian_tail
    for bits, each, counters in ((words.bits, 1, 3 * 20 * 64), (words.count_bits, mechanism.count_scale, 3)):
        noise = tail(mechanism.scale, 20, cohort.honest_survivors, counters)
        assert bits == bits_needed(20 * 7 * each, noise)


def test_of_unit_record_words_hold_as_much_of_each_client_as_a_delta_may() -> None:
    plan = secure_plan({"cohort": 20}, privacy={"epsilon": 1000, "total_epsilon": 1000})  # hardly any noise
    assert plan.words.bits == (20 * RECORDS_MAX).bit_length() + 1


def test_a_plan_whose_sum_needs_more_than_63_bits_is_refused() -> None:
    plan = secure_plan({"cohort": 20})
    with pytest.raises(PlanError, match=r"privacy\.secure\.cohort.*63 bits"):
        words_of(Sensitivity(1, 1, 1, 2**50), (64,), 1, plan.privacy)


def test_a_plan_whose_vector_is_larger_than_16_mib_is_refused() -> None:
    plan = secure_plan({"cohort": 20})
    with pytest.raises(PlanError, match=r"sketch.*16777216 bytes"):
        words_of(plan.family.sensitivity, (10**7,), 1, plan.privacy)


def test_the_records_assumed_of_a_client_are_the_most_of_a_delta() -> None:
    assert module._RECORDS_ASSUMED == RECORDS_MAX
