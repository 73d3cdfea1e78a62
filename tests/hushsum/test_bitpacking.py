"""Packed rows come back as they were, are as small as promised, and bad bytes are refused with their reason."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushsum.bitpacking import Encoding, pack_bits, pack_rows, packed_size, size_max, unpack_bits, unpack_rows
from hushsum.errors import DeltaError, Reason
from hushsum.families.base import RowsPacked
from hushsum.sensitivity import Sensitivity


class Packed(RowsPacked):
    """What packing asks of a family: the shape of its counters."""

    sensitivity = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)

    def __init__(self, rows: int, width: int) -> None:
        self.shape = (rows, width)


def rows_of(seed: int, rows: int, width: int, total: int, skew: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Counters of which every row sums to ``total``; a small ``skew`` crowds them into few buckets."""
    generator = np.random.default_rng(seed)
    codes = (width * generator.random((rows, total)) ** (1 / skew)).astype(np.int64)
    counts = np.zeros(rows * width, np.int64)
    np.add.at(counts, (codes + np.arange(rows)[:, None] * width).reshape(-1), 1)
    indices = np.flatnonzero(counts)
    return indices, counts[indices]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    width=st.integers(2, 1100),
    total=st.integers(1, 1500),
    skew=st.sampled_from([0.05, 1.0]),
)
def test_rows_come_back_as_they_were_packed(seed: int, rows: int, width: int, total: int, skew: float) -> None:
    indices, values = rows_of(seed, rows, width, total, skew)
    encoding, data = pack_rows(indices, values, rows, width, total)
    back = unpack_rows(encoding, data, rows, width, total)
    assert np.array_equal(back[0], indices)
    assert np.array_equal(back[1], values)
    assert len(data) <= size_max(rows, width, total)


@pytest.mark.parametrize(
    ("total", "skew", "encoding"),
    [
        (1, 1.0, Encoding.LIST),
        (54, 1.0, Encoding.ELIAS_FANO),
        (4096, 1.0, Encoding.DENSE),
        (60, 0.001, Encoding.ELIAS_FANO),
    ],
)
def test_the_smallest_encoding_is_written(total: int, skew: float, encoding: Encoding) -> None:
    indices, values = rows_of(1, 50, 1024, total, skew)
    assert pack_rows(indices, values, 50, 1024, total)[0] is encoding


def test_the_most_bytes_of_up_to_so_many_records_are_those_of_one_of_them() -> None:
    for width in (*range(1, 34), 127, 128, 129, 1000, 1025):
        family, most = Packed(3, width), 0
        for records in range(1, 150):
            most = max(most, size_max(3, width, records))
            assert family.packed_bytes_max(records) == most


def test_one_record_costs_its_bits_alone() -> None:
    indices, values = rows_of(2, 1000, 1024, 1)
    assert len(pack_rows(indices, values, 1000, 1024, 1)[1]) == 1000 * 10 // 8


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 2**40), max_size=70))
def test_bits_come_back_as_they_were_packed(bits: int, values: list[int]) -> None:
    clipped = np.array([value & ((1 << bits) - 1) for value in values], np.int64)
    data = pack_bits(clipped, bits)
    assert len(data) == packed_size(len(values), bits)
    assert np.array_equal(unpack_bits(data, len(values), bits), clipped)


def test_bits_are_in_the_order_of_numpys_packbits() -> None:
    values = np.array([5, 2, 7, 0, 1], np.int64)
    expected = np.packbits(np.array([[value >> bit & 1 for bit in (2, 1, 0)] for value in values]).reshape(-1))
    assert pack_bits(values, 3) == expected.tobytes()


def refusal(encoding: int, data: bytes, rows: int, width: int, total: int) -> Reason:
    with pytest.raises(DeltaError) as caught:
        unpack_rows(encoding, data, rows, width, total)
    return caught.value.reason


def test_an_unknown_encoding_is_malformed() -> None:
    assert refusal(9, b"", 1, 4, 1) is Reason.MALFORMED


@pytest.mark.parametrize("total", [1, 54, 4096])
def test_too_few_or_too_many_bytes_are_malformed(total: int) -> None:
    indices, values = rows_of(3, 5, 1000, total)
    encoding, data = pack_rows(indices, values, 5, 1000, total)
    assert refusal(encoding, data[:-1], 5, 1000, total) is Reason.MALFORMED
    assert refusal(encoding, data + b"\0", 5, 1000, total) is Reason.MALFORMED


def test_a_bucket_beyond_the_row_is_refused() -> None:
    assert refusal(Encoding.LIST, pack_bits(np.array([3, 1000]), 10), 2, 1000, 1) is Reason.BUCKET_OUT_OF_RANGE


def test_unsorted_buckets_are_malformed() -> None:
    assert refusal(Encoding.LIST, pack_bits(np.array([7, 3]), 10), 1, 1000, 2) is Reason.MALFORMED


def test_bits_after_the_end_are_malformed() -> None:
    assert refusal(Encoding.LIST, b"\x00\x01", 1, 1000, 1) is Reason.MALFORMED


def test_a_row_with_a_bucket_too_few_is_impossible() -> None:
    rows, width, total = 4, 1024, 54
    indices, values = rows_of(4, rows, width, total)
    encoding, data = pack_rows(indices, values, rows, width, total)
    assert encoding is Encoding.ELIAS_FANO
    bitmap_at = packed_size(rows * total, 4)
    first = next(at for at in range(bitmap_at, len(data)) if data[at])
    broken = bytearray(data)
    broken[first] &= broken[first] - 1
    assert refusal(encoding, bytes(broken), rows, width, total) is Reason.IMPOSSIBLE_COUNTS
