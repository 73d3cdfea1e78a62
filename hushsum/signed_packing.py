"""Bits of a delta whose counters have signs and no fixed sum (fourier, hermite, partition).

Two encodings, of which the smaller is written (the first on a tie); values are written zigzag (0, −1, 1, −2, …):

* ``SIGNED_DENSE``: one byte with the bits of a value, then every counter;
* ``SIGNED_SPARSE``: the number k of counters that are not 0 (varint), one byte with the bits of a value, the indices as
  one Elias–Fano list (see :mod:`hushsum.packing`), then the k values.
"""

import math
from typing import Final

import numpy as np

from hushsum.errors import DeltaError, Reason
from hushsum.packing import (
    Encoding,
    Integers,
    elias_fano_bytes,
    pack_bits,
    pack_elias_fano,
    packed_size,
    unpack_bits,
    unpack_elias_fano,
)
from hushsum.varint import Reader, varint

_BITS_MAX: Final = 48


def pack_signed(indices: Integers, values: Integers, size: int) -> tuple[Encoding, bytes]:
    """Packs the counters that are not 0.

    Args:
        indices: (k,) of ``size`` counters, strictly increasing.
        values: (k,), none 0, below 2⁴⁷ in size.
        size: Number of counters.
    """
    if not len(indices):
        return Encoding.SIGNED_SPARSE, varint(0)
    folded = np.where(values < 0, -2 * values - 1, 2 * values)
    bits = int(folded.max()).bit_length()
    head = varint(len(indices))
    sparse = len(head) + elias_fano_bytes(1, size, len(indices)) + packed_size(len(indices), bits)
    if packed_size(size, bits) <= sparse:
        every = np.zeros(size, np.int64)
        every[indices] = folded
        return Encoding.SIGNED_DENSE, bytes([bits]) + pack_bits(every, bits)
    places = pack_elias_fano(indices.reshape(1, -1), size)
    return Encoding.SIGNED_SPARSE, head + bytes([bits]) + places + pack_bits(folded, bits)


def unpack_signed(
    encoding: int, data: bytes, size: int, *, entries_max: int, largest: int
) -> tuple[Integers, Integers]:
    """The (indices, values) that :func:`pack_signed` was given.

    Args:
        encoding: One of the two.
        data: Untrusted; its size is checked before anything is allocated.
        size: Number of counters.
        entries_max: How many of them may change.
        largest: No value may be larger in size.

    Raises:
        DeltaError: ``malformed`` or ``impossible_counts``.
    """
    reader = Reader(data)
    if encoding == Encoding.SIGNED_DENSE:
        bits = _read_bits(reader, largest)
        folded = unpack_bits(_exactly(reader, packed_size(size, bits)), size, bits)
        indices = np.flatnonzero(folded)
        folded = folded[indices]
        if len(indices) > entries_max:
            raise _too_many(len(indices), entries_max)
    elif encoding == Encoding.SIGNED_SPARSE:
        entries = reader.varint()
        if entries == 0:
            reader.finish()
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if entries > min(entries_max, size):
            raise _too_many(entries, min(entries_max, size))
        bits = _read_bits(reader, largest)
        split = elias_fano_bytes(1, size, entries)
        rest = _exactly(reader, split + packed_size(entries, bits))
        indices = unpack_elias_fano(rest[:split], 1, size, entries).reshape(-1)
        folded = unpack_bits(rest[split:], entries, bits)
        if indices[-1] >= size or (indices[1:] <= indices[:-1]).any() or not folded.all():
            raise DeltaError(Reason.MALFORMED, "counters are not in rising order, or one of them is 0")
    else:
        known = [int(Encoding.SIGNED_DENSE), int(Encoding.SIGNED_SPARSE)]
        raise DeltaError(Reason.MALFORMED, f"encoding {encoding}, expected one of {known}")
    values = np.where(folded & 1, -((folded + 1) >> 1), folded >> 1)
    if len(values) and int(np.abs(values).max()) > largest:
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"a counter of {np.abs(values).max()}, expected at most {largest}")
    return indices, values


def signed_bytes_max(size: int, *, entries_max: int, largest: int) -> int:
    """The most bytes that :func:`pack_signed` can give for at most so many counters of at most this size."""
    bits, entries = (2 * largest).bit_length(), max(1, min(entries_max, size))
    # k counters take at most k (log2(size/k) + 3) bits of indices, which rises with k.
    places = math.ceil(entries * (math.log2(size / entries) + 3.0)) // 8 + 16
    return min(1 + packed_size(size, bits), 16 + places + packed_size(entries, bits))


def _too_many(entries: int, most: int) -> DeltaError:
    return DeltaError(Reason.IMPOSSIBLE_COUNTS, f"{entries} counters that are not 0, expected {most} or fewer")


def _read_bits(reader: Reader, largest: int) -> int:
    bits, most = reader.byte(), min(_BITS_MAX, (2 * largest).bit_length())
    if not 1 <= bits <= most:
        raise DeltaError(Reason.MALFORMED, f"values of {bits} bits, expected 1 to {most}")
    return bits


def _exactly(reader: Reader, size: int) -> bytes:
    data = reader.take(size)
    reader.finish()
    return data
