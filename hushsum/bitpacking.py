"""Bit packing of the counters of a delta: rows of bucket numbers, signed counters, and varints.

**Rows of buckets.** A family whose every row sums to the number of records (hashed, paired) is a list of n sorted
buckets a row. Three encodings of it, of which the smallest is written (the first on a tie):

* ``LIST``: each bucket in ⌈log2 W⌉ bits;
* ``ELIAS_FANO``: the low l = ⌊log2(W/n)⌋ bits of each, then the high parts as one bitmap of n + ⌊(W − 1)/2^l⌋ bits a
  row (Elias 1974; Fano 1971), which comes within half a bit a bucket of the entropy of a sorted list;
* ``DENSE``: all W counts of a row, each in as many bits as the largest needs.

Buckets are sorted within a row, so that a delta of several records does not tell which of its buckets belong together.

**Signed counters** have no fixed sum (fourier, hermite, partition). Two encodings, of which the smaller is written (the
first on a tie); values are written zigzag (0, −1, 1, −2, …):

* ``SIGNED_DENSE``: one byte with the bits of a value, then every counter;
* ``SIGNED_SPARSE``: the number k of counters that are not 0 (varint), one byte with the bits of a value, the indices as
  one Elias–Fano list, then the k values.

**Varints** are LEB128 in the shortest form alone, so that a number has one encoding.
"""

import enum
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import DeltaError, Reason

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_LANES: Final = 8  # values packed together: 8 values of b bits are b whole bytes


class Encoding(enum.IntEnum):
    """How the rows of a run are written; numbers are never reused."""

    LIST = 1
    ELIAS_FANO = 2
    DENSE = 3
    SIGNED_DENSE = 4  # this and the next: hushsum.bitpacking
    SIGNED_SPARSE = 5


_ROW_ENCODINGS: Final = (Encoding.LIST, Encoding.ELIAS_FANO, Encoding.DENSE)


def pack_rows(indices: Integers, values: Integers, rows: int, width: int, total: int) -> tuple[Encoding, bytes]:
    """Packs counters of which every row sums to ``total``.

    Args:
        indices: (k,) flat indices into (rows, width), strictly increasing.
        values: (k,) counts, at least 1.
        rows: R.
        width: W, buckets a row.
        total: n, what every row sums to.

    Returns:
        The smallest encoding and its bytes.
    """
    largest = int(values.max())
    sizes = _sizes(rows, width, total, largest)
    encoding = min(sizes, key=lambda choice: (sizes[choice], choice))
    if encoding is Encoding.DENSE:
        counts = np.zeros(rows * width, np.int64)
        counts[indices] = values
        bits = largest.bit_length()
        return encoding, bytes([bits]) + pack_bits(counts, bits)
    codes = np.repeat(indices, values).reshape(rows, total) - _starts(rows, width)
    if encoding is Encoding.LIST:
        return encoding, pack_bits(codes.reshape(-1), _code_bits(width))
    return encoding, pack_elias_fano(codes, width)


def unpack_rows(encoding: int, data: bytes, rows: int, width: int, total: int) -> tuple[Integers, Integers]:
    """The (indices, values) that :func:`pack_rows` was given.

    Sizes are checked before anything is allocated. That a DENSE row sums to ``total`` is its family's to check.

    Raises:
        DeltaError: ``malformed``, ``bucket_out_of_range`` or ``impossible_counts``.
    """
    if encoding == Encoding.LIST:
        bits = _code_bits(width)
        _check_size(data, packed_size(rows * total, bits))
        return _counted(unpack_bits(data, rows * total, bits).reshape(rows, total), width)
    if encoding == Encoding.ELIAS_FANO:
        return _counted(unpack_elias_fano(data, rows, width, total), width)
    if encoding == Encoding.DENSE:
        return _unpack_dense(data, rows, width, total)
    raise DeltaError(
        Reason.MALFORMED, f"encoding {encoding}, expected one of {[int(known) for known in _ROW_ENCODINGS]}"
    )


def size_max(rows: int, width: int, total: int) -> int:
    """The most bytes that :func:`pack_rows` can give for any counters of this shape and total."""
    return min(_sizes(rows, width, total, total).values())


def packed_size(count: int, bits: int) -> int:
    """Bytes of ``count`` values of ``bits`` bits."""
    return (count * bits + 7) // 8


def pack_bits(values: Integers, bits: int) -> bytes:
    """Writes (n,) values below 2^bits one after another, most significant bit first; the last byte is zero-filled."""
    if bits == 0:
        return b""
    padded = np.zeros(-(-len(values) // _LANES) * _LANES, np.int64)
    padded[: len(values)] = values
    lanes = padded.reshape(-1, _LANES).T.copy()
    octets = np.empty((lanes.shape[1], bits), np.uint8)
    for byte in range(bits):
        merged = np.zeros(lanes.shape[1], np.int64)
        for lane in range(8 * byte // bits, (8 * byte + 7) // bits + 1):
            shift = (lane + 1) * bits - 8 * (byte + 1)
            merged |= lanes[lane] >> shift if shift >= 0 else lanes[lane] << -shift
        octets[:, byte] = merged  # its lowest eight bits
    return octets.tobytes()[: packed_size(len(values), bits)]


def unpack_bits(data: bytes, count: int, bits: int) -> Integers:
    """The (count,) values that :func:`pack_bits` wrote.

    Raises:
        DeltaError: ``malformed`` where the bits after the last value are not zero.
    """
    if bits == 0 or count == 0:
        return np.zeros(count, np.int64)
    groups = -(-count // _LANES)
    padded = np.zeros(groups * bits, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    octets = np.ascontiguousarray(padded.reshape(groups, bits).T).astype(np.int64)
    values = np.empty((groups, _LANES), np.int64)
    for lane in range(_LANES):
        merged = np.zeros(groups, np.int64)
        for byte in range(lane * bits // 8, ((lane + 1) * bits - 1) // 8 + 1):
            shift = (lane + 1) * bits - 8 * (byte + 1)
            merged |= octets[byte] << shift if shift >= 0 else octets[byte] >> -shift
        values[:, lane] = merged & ((1 << bits) - 1)
    flat = values.reshape(-1)
    spare = packed_size(count, bits) * 8 - count * bits
    if flat[count:].any() or (data and data[-1] & ((1 << spare) - 1)):
        raise DeltaError(Reason.MALFORMED, "bits after the last value are not zero")
    return flat[:count]


def elias_fano_bytes(rows: int, width: int, total: int) -> int:
    """Bytes of ``rows`` lists of ``total`` numbers below ``width``."""
    low, high_bits = _elias_fano_split(width, total)
    return packed_size(rows * total, low) + packed_size(rows * high_bits, 1)


def _sizes(rows: int, width: int, total: int, largest: int) -> dict[Encoding, int]:
    return {
        Encoding.LIST: packed_size(rows * total, _code_bits(width)),
        Encoding.ELIAS_FANO: elias_fano_bytes(rows, width, total),
        Encoding.DENSE: 1 + packed_size(rows * width, largest.bit_length()),
    }


def _code_bits(width: int) -> int:
    return (width - 1).bit_length()


def _elias_fano_split(width: int, total: int) -> tuple[int, int]:
    """l, and the bits of a row's bitmap."""
    low = max(0, (width // total).bit_length() - 1)
    return low, total + ((width - 1) >> low)


def pack_elias_fano(codes: Integers, width: int) -> bytes:
    """Writes lists (rows, total) of numbers below ``width``, each list sorted."""
    rows, total = codes.shape
    low, high_bits = _elias_fano_split(width, total)
    ones = codes >> low
    ones += np.arange(total)
    ones += _starts(rows, high_bits)
    bitmap = np.zeros(rows * high_bits, np.uint8)
    bitmap[ones.reshape(-1)] = 1
    return pack_bits(codes.reshape(-1) & ((1 << low) - 1), low) + np.packbits(bitmap).tobytes()


def unpack_elias_fano(data: bytes, rows: int, width: int, total: int) -> Integers:
    """The lists that :func:`pack_elias_fano` wrote; that they are sorted and below ``width`` is the caller's to check.

    Raises:
        DeltaError: ``malformed`` or ``impossible_counts``.
    """
    low, high_bits = _elias_fano_split(width, total)
    split = packed_size(rows * total, low)
    _check_size(data, split + packed_size(rows * high_bits, 1))
    bitmap = np.unpackbits(np.frombuffer(data, np.uint8, offset=split))
    if bitmap[rows * high_bits :].any():
        raise DeltaError(Reason.MALFORMED, "bits after the last bitmap are not zero")
    ones = np.flatnonzero(bitmap[: rows * high_bits].view(np.bool_))
    high = ones.reshape(rows, total) - _starts(rows, high_bits) if len(ones) == rows * total else None
    if high is None or int(high[:, 0].min()) < 0 or int(high[:, -1].max()) >= high_bits:
        raise DeltaError(Reason.IMPOSSIBLE_COUNTS, f"a row does not hold {total} buckets, one for each record")
    high -= np.arange(total)
    high <<= low
    high |= unpack_bits(data[:split], rows * total, low).reshape(rows, total)
    return high


def _unpack_dense(data: bytes, rows: int, width: int, total: int) -> tuple[Integers, Integers]:
    bits = data[0] if data else 0
    if not 1 <= bits <= total.bit_length():
        raise DeltaError(Reason.MALFORMED, f"counts of {bits} bits, expected 1 to {total.bit_length()}")
    _check_size(data, 1 + packed_size(rows * width, bits))
    counts = unpack_bits(data[1:], rows * width, bits)
    indices = np.flatnonzero(counts)
    return indices, counts[indices]


def _counted(codes: Integers, width: int) -> tuple[Integers, Integers]:
    """Sorted buckets of each row, as distinct flat indices and their counts."""
    if codes.size and int(codes.max()) >= width:
        raise DeltaError(Reason.BUCKET_OUT_OF_RANGE, f"bucket {int(codes.max())}, expected 0 to {width - 1}")
    flat = (codes + _starts(len(codes), width)).reshape(-1)
    if (flat[1:] < flat[:-1]).any():  # within a row: from one row to the next it always rises
        raise DeltaError(Reason.MALFORMED, "the buckets of a row are not sorted")
    is_first = np.ones(len(flat), np.bool_)
    np.not_equal(flat[1:], flat[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1] = len(flat) - starts[-1]
    return flat[starts], counts


def _starts(rows: int, width: int) -> Integers:
    """(rows, 1): the flat index at which each row begins."""
    return np.arange(0, rows * width, width, dtype=np.int64)[:, None]


def _check_size(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise DeltaError(Reason.MALFORMED, f"{len(data)} bytes of buckets, expected {expected}")


_BYTES_MAX: Final = 10


def varint(value: int) -> bytes:
    """An integer from 0 to 2⁶⁴ − 1, seven bits a byte, least significant first."""
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def zigzag(value: int) -> int:
    """A signed 64-bit integer as an unsigned one, small where its magnitude is small."""
    return value << 1 if value >= 0 else (-value << 1) - 1


class Reader:
    """Reads bytes from front to back.

    Every method raises:
        DeltaError: ``malformed`` where the bytes end too early or a number is not in its shortest form.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise DeltaError(Reason.MALFORMED, f"{len(self._data)} bytes, which end too early")
        self._at += size
        return taken

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """The next unsigned number."""
        value = 0
        for place in range(_BYTES_MAX):
            octet = self.byte()
            value |= (octet & 0x7F) << (7 * place)
            if octet < 0x80:
                if (octet == 0 and place > 0) or value >= 2**64:
                    break
                return value
        raise DeltaError(Reason.MALFORMED, "a number that is not in its shortest form")

    def signed(self) -> int:
        """The next signed number."""
        value = self.varint()
        return value >> 1 if value % 2 == 0 else -((value + 1) >> 1)

    def finish(self) -> None:
        """Refuses bytes that nobody has read."""
        if self._at != len(self._data):
            raise DeltaError(Reason.MALFORMED, f"{len(self._data) - self._at} bytes after the end")


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
