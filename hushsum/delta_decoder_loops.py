"""Compiled loops that read packed deltas of families whose rows sum to the number of records.

:mod:`hushsum.bitpacking` defines the encodings. The loops hold every rule of :meth:`hushsum.delta.Delta.unpack`, and do
not say which one a delta breaks: such a delta is read again there, for its reason. :mod:`hushsum.delta_decoder` alone
calls them.

No index leaves its array: a read begins inside its delta or at its end, as sizes are checked first, and takes the word
that this lies in and the next, for which there is ``SLACK``; what is written was given room before.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Number = Any  # an int64, or what the compiler makes one
Shape = tuple[int, int, int]  # rows, width, bits of a bucket
Packed = tuple[Bytes, UInt32]  # the same as bytes and as big-endian words

GOOD: Final = 0
BAD_HEADER: Final = 1
BAD_BODY: Final = 2
SLACK: Final = 8  # bytes after the last delta
RUN_HEAD: Final = 3  # numbers before the entries of a run: its class, its records, how many numbers follow

_LIST, _ELIAS_FANO, _DENSE = 1, 2, 3  # numbers of hushsum.bitpacking.Encoding
_BITS_MAX: Final = 25
_ID_AT: Final = 33  # after the format version and the plan's id
_BAD, _FULL = -1, -2


@inlined
def _bits(words: UInt32, bit: Number, size: Number) -> Number:
    """The ``size`` bits, at most 32, from ``bit`` on: of two words, the second one perhaps in the slack."""
    at = np.uint64(bit) >> np.uint64(5)
    both = np.uint64(words[at]) << np.uint64(32) | np.uint64(words[at + np.uint64(1)])
    shift = np.uint64(64 - size - (bit & 31))
    return np.int64((both >> shift) & np.uint64((1 << size) - 1))


@inlined
def _is_filled(words: UInt32, bit: Number) -> Number:  # the rest of a byte with zeroes
    return bit & 7 == 0 or _bits(words, bit, 8 - (bit & 7)) == 0


@inlined
def _varint(buffer: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """(number, where it ends), or a negative end, as where it begins at one."""
    value = np.uint64(0)
    for place in range(10):
        if at < 0 or at >= end:
            break
        octet = np.uint64(buffer[at])
        at += 1
        value |= (octet & np.uint64(0x7F)) << np.uint64(7 * place)
        if octet < np.uint64(0x80):
            if (octet == np.uint64(0) and place > 0) or (place == 9 and octet > np.uint64(1)):
                break
            return value, at
    return np.uint64(0), -1


@inlined
def _small(buffer: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """A number below 2^31, as every legal one, and where it ends; or a negative end."""
    if 0 <= at < end and buffer[np.uint64(at)] < 0x80:
        return np.int64(buffer[np.uint64(at)]), at + 1
    value, after = _varint(buffer, at, end)
    return (np.int64(value), np.int64(after)) if value < np.uint64(2**31) else (0, -1)


@inlined
def _list(words: UInt32, bit: Number, shape: Shape, total: Number, found: Int32, to: Number) -> Number:
    """Sorted buckets of ``bits`` bits each, to rows·total indices from ``to`` on; whether they are good."""
    rows, width, bits = shape
    signs = 0  # negative once a difference is that must not be
    if total == 1:
        for row in range(rows):
            bucket = _bits(words, bit + row * bits, bits)
            signs |= width - 1 - bucket
            found[np.uint64(to + row)] = row * width + bucket
    else:
        for row in range(rows):
            last = 0
            for k in range(row * total, (row + 1) * total):
                bucket = _bits(words, bit + k * bits, bits)
                signs |= (width - 1 - bucket) | (bucket - last)
                last = bucket
                found[np.uint64(to + k)] = row * width + bucket
    return signs >= 0 and _is_filled(words, bit + rows * total * bits)


@inlined
def _places(words: UInt32, bit: Number, size: Number, found: Int32, to: Number) -> Number:
    """Writes the places of the ones among ``size`` bits, and whatever one place after them; how many there are."""
    count, done = np.uint64(to), 0
    while done < size:
        some = np.uint64(_bits(words, bit + done, 32))
        for k in range(min(32, size - done)):
            found[count] = done + k
            count += (some >> np.uint64(31 - k)) & np.uint64(1)
        done += 32
    return np.int64(count) - to


@inlined
def _elias_fano(
    words: UInt32, bit: Number, shape: Shape, split: tuple[Number, Number], total: Number, found: Int32, to: Number
) -> Number:
    """Low bits, then bitmaps, to rows·total indices, after which there is room for a bitmap's bits."""
    rows, width, _ = shape
    low, high_bits = split
    bitmaps = bit + ((rows * total * low + 7) >> 3 << 3)
    signs = 0
    for row in range(rows):
        first = to + row * total
        if _places(words, bitmaps + row * high_bits, high_bits, found, first) != total:
            return False
        last = 0
        for k in range(total):
            at = np.uint64(first + k)
            bucket = (np.int64(found[at]) - k) << low | _bits(words, bit + (row * total + k) * low, low)
            signs |= (width - 1 - bucket) | (bucket - last)
            last = bucket
            found[at] = row * width + bucket
    if not _is_filled(words, bit + rows * total * low) or not _is_filled(words, bitmaps + rows * high_bits):
        return False
    return signs >= 0


@inlined
def _dense(words: UInt32, bit: Number, shape: Shape, bits: Number, total: Number, found: Int32, to: Number) -> Number:
    """All counts of each row, to an index and a count for each that is not 0; how many numbers, or a negative one."""
    rows, width, _ = shape
    used = to
    for row in range(rows):
        left = total
        for k in range(row * width, (row + 1) * width):
            count = _bits(words, bit + k * bits, bits)
            if count:
                left -= count
                if left < 0:
                    return -1
                found[used], found[used + 1] = k, count
                used += 2
        if left:
            return -1
    return used - to if _is_filled(words, bit + rows * width * bits) else -1


@inlined
def _run(  # noqa: PLR0913, PLR0917 -- flat: arrays with where to begin, for the compiler
    words: UInt32, first: Number, size: Number, encoding: Number, shape: Shape, total: Number, ready: Int32, to: Number
) -> Number:
    """Writes the packed rows of a run, ``size`` bytes from ``first`` on; how many numbers, ``_BAD`` or ``_FULL``."""
    rows, width, bits = shape
    if encoding == _LIST:
        if size != (rows * total * bits + 7) >> 3:
            return _BAD
        if rows * total > len(ready) - to:
            return _FULL
        return rows * total if _list(words, 8 * first, shape, total, ready, to) else _BAD
    low = 0
    while total << (low + 1) <= width:
        low += 1
    high_bits = total + ((width - 1) >> low)
    if encoding != _ELIAS_FANO or size != ((rows * total * low + 7) >> 3) + ((rows * high_bits + 7) >> 3):
        return _BAD
    if rows * total + high_bits + 1 > len(ready) - to:
        return _FULL
    return rows * total if _elias_fano(words, 8 * first, shape, (low, high_bits), total, ready, to) else _BAD


@inlined
def _dense_run(
    words: UInt32, first: Number, size: Number, shape: Shape, total: Number, ready: Int32, to: Number
) -> Number:
    """The same of DENSE rows, to pairs."""
    rows, width, _ = shape
    bits = _bits(words, 8 * first, 8) if size else 0
    if bits < 1 or bits > _BITS_MAX or total >> (bits - 1) == 0 or size != 1 + ((rows * width * bits + 7) >> 3):
        return _BAD
    if 2 * rows * min(width, total) > len(ready) - to:
        return _FULL
    written = _dense(words, 8 * first + 8, shape, bits, total, ready, to)
    return written if written >= 0 else _BAD


@inlined
def _body(  # noqa: PLR0911 -- whatever is wrong, it ends
    packed: Packed, at: Number, end: Number, limits: Int64, shape: Shape, ready: Int32, used: Number
) -> tuple[Number, Number]:
    """The runs of a delta: (how many numbers were written, records), or (``_BAD`` or ``_FULL``, 0)."""
    buffer, words = packed
    classes, room = limits[0], limits[1]
    first, records, last = used, 0, -1
    runs, at = _small(buffer, at, end)
    if at < 0 or runs > classes or runs == 0:
        return _BAD, 0
    for _ in range(runs):
        number, at = _small(buffer, at, end)
        total, at = _small(buffer, at, end)
        rows, at = _small(buffer, at, end)
        width, at = _small(buffer, at, end)
        if at < 0 or at >= end or number >= classes or number <= last or rows != shape[0] or width != shape[1]:
            return _BAD, 0
        encoding = np.int64(buffer[at])
        size, at = _small(buffer, at + 1, end)
        if at < 0 or size > end - at or total == 0 or total > room - records:
            return _BAD, 0
        length = 0
        while total >> length:
            length += 1
        if size > limits[2 + length]:
            return _BAD, 0
        if used + RUN_HEAD > len(ready):
            return _FULL, 0
        if encoding == _DENSE:
            written = _dense_run(words, at, size, shape, total, ready, used + RUN_HEAD)
            ready[used + 2] = -written
        else:
            written = _run(words, at, size, encoding, shape, total, ready, used + RUN_HEAD)
            ready[used + 2] = written
        if written < 0:
            return written, 0
        ready[used], ready[used + 1] = number, total
        used, at, last, records = used + RUN_HEAD + written, at + size, number, records + total
    return (used - first if at == end else _BAD), records


@inlined
def _header(
    packed: Packed, at: Number, end: Number, plan_id: UInt32, headers: Int64, streams: UInt64, i: int
) -> Number:
    """Where the header ends, or a negative number; writes the stream, the sequence number and the window."""
    buffer, words = packed
    if end - at < _ID_AT + 8 or buffer[at] != 1:
        return -1
    differs = 0
    for k in range(len(plan_id)):
        differs |= _bits(words, 8 * at + 8 + 32 * k, 32) ^ np.int64(plan_id[k])
    stream = np.uint64(_bits(words, 8 * (at + _ID_AT), 32)) << np.uint64(32)
    stream |= np.uint64(_bits(words, 8 * (at + _ID_AT) + 32, 32))
    sequence, at = _varint(buffer, at + _ID_AT + 8, end)
    folded, at = _varint(buffer, at, end)
    if at < 0 or sequence >= np.uint64(2**63) or differs:
        return -1
    streams[i], headers[i, 0] = stream, np.int64(sequence)
    window = np.int64(folded >> np.uint64(1))
    headers[i, 1] = ~window if folded & np.uint64(1) else window
    return at


@compiled
def decode(  # noqa: PLR0913, PLR0917 -- flat: loops take no objects
    packed: Packed,
    offsets: Int64,
    first: int,
    plan_id: UInt32,
    limits: Int64,
    shape: Shape,
    headers: Int64,
    streams: UInt64,
    states: Bytes,
    spans: Int64,
    ready: Int32,
    enough: int,
) -> int:
    """Reads deltas from number ``first`` on, until ``ready`` holds ``enough``; returns the number of the next one.

    ``packed`` ends in ``SLACK`` bytes or more, to a multiple of 4. ``limits``: classes, records of a delta, by the bit
    length of a run's records the bytes of its rows (0: not known yet), bytes of a delta.
    """
    used = 0
    for i in range(first, len(states)):
        if used >= enough:
            return i
        at, end = offsets[i], offsets[i + 1]
        body = _header(packed, at, end, plan_id, headers, streams, i)
        if body < 0:
            states[i] = BAD_HEADER
            continue
        states[i] = BAD_BODY
        if end - at > limits[len(limits) - 1]:
            continue
        written, records = _body(packed, body, end, limits, shape, ready, used)
        if written == _FULL and used > 0:
            return i  # there is room at the start
        if written >= 0:
            states[i] = GOOD
            spans[i, 0], spans[i, 1], spans[i, 2] = used, used + written, records
            used += written
    return len(states)


@compiled
def gather(data: Bytes, spans: Int64, to: Bytes) -> None:
    """Copies the bytes of each delta, one after another, and leaves the rest as it is.

    Args:
        data: What the deltas lie in, among other bytes.
        spans: (n, 2) where each begins and ends.
        to: To be filled; there is room.
    """
    at = np.int64(0)
    for i in range(len(spans)):
        for place in range(spans[i, 0], spans[i, 1]):
            to[np.uint64(at)] = data[np.uint64(place)]
            at += 1
