"""Signed counters survive their bytes, never need more of them than was said, and malformed bytes are refused."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.bitpacking import Encoding, Integers, pack_signed, signed_bytes_max, unpack_signed, varint
from hushsum.errors import DeltaError, Reason

LARGEST = 2**47 - 1


def sparse(size: int, entries: int, largest: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    indices = np.sort(rng.choice(size, entries, replace=False)).astype(np.int64)
    values = rng.integers(1, largest, entries, endpoint=True) * rng.choice([-1, 1], entries)
    return indices, values


def reason_of(encoding: int, data: bytes, size: int, *, entries_max: int = 100, largest: int = 100) -> Reason:
    with pytest.raises(DeltaError) as caught:
        unpack_signed(encoding, data, size, entries_max=entries_max, largest=largest)
    return caught.value.reason


@given(st.dictionaries(st.integers(0, 299), st.integers(-LARGEST, LARGEST).filter(bool)), st.integers(300, 10**6))
def test_any_counters_come_back_and_fit_the_bound(counters: dict[int, int], size: int) -> None:
    indices = np.array(sorted(counters), np.int64)
    values = np.array([counters[index] for index in sorted(counters)], np.int64)
    encoding, data = pack_signed(indices, values, size)
    largest = max(map(abs, counters.values()), default=1)
    back = unpack_signed(encoding, data, size, entries_max=len(indices), largest=largest)
    assert np.array_equal(back[0], indices)
    assert np.array_equal(back[1], values)
    assert len(data) <= signed_bytes_max(size, entries_max=len(indices), largest=largest)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000, 4097])
@pytest.mark.parametrize("largest", [1, 2, 3, 1000, LARGEST])
def test_no_counters_need_more_bytes_than_was_said(size: int, largest: int, rng: np.random.Generator) -> None:
    for most in {1, 2, size // 3 + 1, size}:
        bound = signed_bytes_max(size, entries_max=most, largest=largest)
        for entries in {0, 1, most // 2, most}:
            indices, values = sparse(size, min(entries, size), largest, rng)
            for signed in (values, np.full_like(values, largest), np.full_like(values, -largest)):
                encoding, data = pack_signed(indices, signed, size)
                assert len(data) <= bound
                back = unpack_signed(encoding, data, size, entries_max=most, largest=largest)
                assert np.array_equal(back[0], indices)
                assert np.array_equal(back[1], signed)


def test_the_bound_grows_with_what_it_is_told() -> None:
    sizes = [signed_bytes_max(10**5, entries_max=entries, largest=50) for entries in range(1, 3000, 7)]
    assert sizes == sorted(sizes)
    assert signed_bytes_max(8, entries_max=8, largest=1) <= 3
    assert signed_bytes_max(10, entries_max=0, largest=1) >= 1
    assert signed_bytes_max(2**31, entries_max=1, largest=1) < 64


def test_few_counters_are_listed_and_many_are_written_out(rng: np.random.Generator) -> None:
    assert pack_signed(*sparse(10_000, 5, 9, rng), 10_000)[0] is Encoding.SIGNED_SPARSE
    assert pack_signed(*sparse(100, 95, 9, rng), 100)[0] is Encoding.SIGNED_DENSE
    encoding, data = pack_signed(np.empty(0, np.int64), np.empty(0, np.int64), 10)
    assert (encoding, data) == (Encoding.SIGNED_SPARSE, b"\0")


def test_the_bytes_are_as_they_are_written_down() -> None:
    # 3 counters of 8: folded 1, 0, 4, 0, 0, 0, 0, 5 in 3 bits each.
    encoding, data = pack_signed(np.array([0, 2, 7]), np.array([-1, 2, -3]), 8)
    assert (encoding, data) == (Encoding.SIGNED_DENSE, b"\x03" + int("001000100000000000000101", 2).to_bytes(3, "big"))
    # 1 counter of 1000: one, 2 bits, its index in 9 low bits and the bitmap 01 (no high part), then 10.
    encoding, data = pack_signed(np.array([5]), np.array([1]), 1000)
    assert (encoding, data) == (Encoding.SIGNED_SPARSE, b"\x01\x02" + b"\x02\x80" + b"\x80" + b"\x80")


@pytest.mark.parametrize("encoding", [0, 1, 2, 3, 6, 255])
def test_another_encoding_is_refused(encoding: int) -> None:
    assert reason_of(encoding, b"\0", 10) is Reason.MALFORMED


@pytest.mark.parametrize("bits", [0, 9, 48, 255])
def test_bits_that_no_allowed_value_needs_are_refused(bits: int) -> None:
    assert reason_of(Encoding.SIGNED_DENSE, bytes([bits]) + bytes(2000), 10, largest=100) is Reason.MALFORMED
    assert reason_of(Encoding.SIGNED_SPARSE, b"\x01" + bytes([bits]) + bytes(80), 10, largest=100) is Reason.MALFORMED


@pytest.mark.parametrize("dense", [True, False])
def test_every_truncation_and_every_byte_more_is_malformed(dense: bool, rng: np.random.Generator) -> None:
    size = 45 if dense else 4000
    encoding, data = pack_signed(*sparse(size, 40, 100, rng), size)
    assert encoding is (Encoding.SIGNED_DENSE if dense else Encoding.SIGNED_SPARSE)
    for end in range(len(data)):
        assert reason_of(encoding, data[:end], size) is Reason.MALFORMED
    assert reason_of(encoding, data + b"\0", size) is Reason.MALFORMED
    assert reason_of(Encoding.SIGNED_SPARSE, b"\0\0", size) is Reason.MALFORMED


def test_more_counters_than_allowed_and_larger_ones_are_impossible(rng: np.random.Generator) -> None:
    for size in (50, 5000):
        indices, values = sparse(size, 40, 100, rng)
        values[3] = -100
        encoding, data = pack_signed(indices, values, size)
        assert reason_of(encoding, data, size, entries_max=39) is Reason.IMPOSSIBLE_COUNTS
        assert reason_of(encoding, data, size, largest=99) is Reason.IMPOSSIBLE_COUNTS
        assert len(unpack_signed(encoding, data, size, entries_max=40, largest=100)[0]) == 40


def test_bits_after_the_last_value_must_be_zero() -> None:
    encoding, data = pack_signed(np.array([0, 1, 2]), np.array([3, 3, 3]), 3)
    assert encoding is Encoding.SIGNED_DENSE
    assert reason_of(encoding, data[:-1] + bytes([data[-1] | 1]), 3) is Reason.MALFORMED


def test_a_counter_of_zero_and_a_counter_beyond_the_last_are_malformed() -> None:
    encoding, data = pack_signed(np.array([599]), np.array([1]), 600)
    assert data == b"\x01\x02" + b"\x2b\x80" + b"\x40" + b"\x80"  # 599 = 512 + 87: 9 low bits, and the bitmap 01
    assert reason_of(encoding, data[:-1] + b"\0", 600) is Reason.MALFORMED
    assert reason_of(encoding, data[:2] + b"\x2c\0" + data[4:], 600) is Reason.MALFORMED  # 600


def test_two_entries_for_one_counter_are_malformed() -> None:
    # 3 low bits of each, 5 and 5; the bitmap 110, both high parts are 0; folded values of 2 bits, 2 and 2.
    data = varint(2) + b"\x02" + bytes([0b10110100, 0b11000000, 0b10100000])
    assert unpack_signed(
        Encoding.SIGNED_SPARSE, data[:2] + bytes([0b10111000]) + data[3:], 16, entries_max=2, largest=1
    )[0].tolist() == [5, 6]
    assert reason_of(Encoding.SIGNED_SPARSE, data, 16) is Reason.MALFORMED


@pytest.mark.parametrize("entries", [101, 2**20, 2**62, 2**64 - 1])
def test_nothing_is_allocated_for_a_number_of_counters_that_is_only_claimed(entries: int) -> None:
    data = varint(entries) + b"\x08" + bytes(100)
    tracemalloc.start()
    try:
        assert reason_of(Encoding.SIGNED_SPARSE, data, 2**31, entries_max=100) is Reason.IMPOSSIBLE_COUNTS
        assert reason_of(Encoding.SIGNED_SPARSE, data, 2**31, entries_max=2**30) in {
            Reason.IMPOSSIBLE_COUNTS,
            Reason.MALFORMED,
        }
        assert reason_of(Encoding.SIGNED_DENSE, b"\x08" + bytes(100), 2**31) is Reason.MALFORMED
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_random_bytes_raise_nothing_but_a_delta_error(rng: np.random.Generator) -> None:
    good = [(size, *pack_signed(*sparse(size, 40, 100, rng), size)) for size in (60, 4000)]
    for _ in range(2000):
        size, encoding, data = good[rng.integers(2)]
        broken = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            broken[at] = rng.integers(0, 256)
        try:
            indices, values = unpack_signed(encoding, bytes(broken), size, entries_max=40, largest=100)
        except DeltaError:
            continue
        assert (np.diff(indices) > 0).all()
        assert 0 <= indices.min(initial=0) <= indices.max(initial=0) < size
        assert (values != 0).all()
        assert np.abs(values).max(initial=0) <= 100
