"""Compiled loops over the bytes of entries and of batches, in the form that this version writes.

That form is protobuf's own without its freedoms: fields in the order of their numbers, each once, none unknown, numbers
in as few bytes as they need, client ids in ASCII. Whatever else comes is left to protobuf, good or bad.
:mod:`hushsum_proto.many_entries` alone calls them. No read is beyond ``end``, for each place is compared with it first.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Number = Any  # an int64, or what the compiler makes one

# Columns of what is found of an entry. Where the client's id ends at 0, protobuf is to be asked.
CLIENT: Final = 0
CLIENT_END: Final = 1
DELTA: Final = 2
DELTA_END: Final = 3
ARRIVED: Final = 4
COLUMNS: Final = 5

# Columns of where an entry is.
MESSAGE: Final = 0
PLACE: Final = 1
BEGIN: Final = 2
END: Final = 3
PLACES: Final = 4

_VERSION, _ARRIVED, _DELTA_BODY, _BATCH_BODY = 0x08, 0x10, 0x22, 0x32  # tags of Entry
_CLIENT_ID, _DELTA = 0x0A, 0x12  # tags of DeltaEntry
_ENTRY = 0x0A  # tag of EntryBatch
_FORMAT = 1
_ASCII_END = 0x80
_SIZE_BYTES_MAX = 4  # of a length: 2^28 bytes and more are left to protobuf


@inlined
def _is_at(data: Bytes, at: Number, end: Number, octet: Number) -> Number:
    return 0 <= at < end and data[at] == octet


@inlined
def _number(data: Bytes, at: Number, end: Number, octets_max: Number) -> tuple[Number, Number]:
    """(64 bits, where they end), or a negative end."""
    value = np.uint64(0)
    for place in range(octets_max):
        if at >= end:
            break
        octet = np.uint64(data[at])
        at += 1
        value |= (octet & np.uint64(0x7F)) << np.uint64(7 * place)
        if octet < np.uint64(0x80):
            if (octet == np.uint64(0) and place > 0) or (place == 9 and octet > np.uint64(1)):
                break
            return np.int64(value), at
    return np.int64(0), np.int64(-1)


@inlined
def _field(data: Bytes, at: Number, end: Number, tag: Number) -> tuple[Number, Number]:
    """Where the bytes of a field begin and end, which has this tag and lies before ``end``; or a negative end."""
    if not _is_at(data, at, end, tag):
        return np.int64(0), np.int64(-1)
    size, first = _number(data, at + 1, end, _SIZE_BYTES_MAX)
    if first < 0 or size > end - first:
        return np.int64(0), np.int64(-1)
    return first, first + size


@compiled
def scan_entries(data: Bytes, spans: Int64, found: Int64) -> bool:
    """What each entry holds, where it is a delta in the form that is written here.

    Args:
        data: What all entries lie in.
        spans: (n, 2) where each begins and ends.
        found: (n, COLUMNS) zeroes, to be filled.

    Returns:
        Whether each is one.
    """
    count = 0
    for i in range(len(spans)):
        at, end = spans[i, 0], spans[i, 1]
        if not (_is_at(data, at, end, _VERSION) and _is_at(data, at + 1, end, _FORMAT)):
            continue
        at, arrived = at + 2, np.int64(0)
        if _is_at(data, at, end, _ARRIVED):
            arrived, at = _number(data, at + 1, end, 10)
        at, body_end = _field(data, at, end, _DELTA_BODY)
        if body_end != end:
            continue
        client, client_end = _field(data, at, end, _CLIENT_ID)
        if client_end <= client:
            continue
        delta, delta_end = client_end, client_end
        if client_end < end:
            delta, delta_end = _field(data, client_end, end, _DELTA)
        is_ascii = True
        for place in range(client, client_end):
            is_ascii = is_ascii and data[place] < _ASCII_END
        if delta_end == end and is_ascii:
            found[i, CLIENT] = client
            found[i, CLIENT_END] = client_end
            found[i, DELTA] = delta
            found[i, DELTA_END] = delta_end
            found[i, ARRIVED] = arrived
            count += 1
    return count == len(spans)


@inlined
def _batch(data: Bytes, at: Number, end: Number) -> Number:
    """Where the entries of an unsigned batch begin, which ends where they do; or a negative number."""
    if not (_is_at(data, at, end, _VERSION) and _is_at(data, at + 1, end, _FORMAT)):
        return np.int64(-1)
    first, body_end = _field(data, at + 2, end, _BATCH_BODY)
    return first if body_end == end and first < end else np.int64(-1)


@compiled
def count_entries(data: Bytes, spans: Int64, most: int) -> int:
    """How many entries some messages hold, if each is an unsigned batch in the form that is written here.

    Args:
        data: What all messages lie in.
        spans: (n, 2) where each begins and ends.
        most: Of one message.

    Returns:
        The number; −1: protobuf is to be asked.
    """
    total = 0
    for i in range(len(spans)):
        end = spans[i, 1]
        at = _batch(data, spans[i, 0], end)
        count = 0
        if at < 0:
            return -1
        while at < end:
            _, at = _field(data, at, end, _ENTRY)
            count += 1
            if at < 0 or count > most:
                return -1
        total += count
    return total


@compiled
def find_entries(data: Bytes, spans: Int64, found: Int64) -> None:
    """Where the entries are that :func:`count_entries` has counted.

    Args:
        data: As there.
        spans: As there.
        found: (number of entries, 4) to be filled: message, place in it, where it begins and ends.
    """
    number = 0
    for i in range(len(spans)):
        end = spans[i, 1]
        at = _batch(data, spans[i, 0], end)
        place = 0
        while at < end:
            first, at = _field(data, at, end, _ENTRY)
            found[number, MESSAGE] = i
            found[number, PLACE] = place
            found[number, BEGIN] = first
            found[number, END] = at
            number += 1
            place += 1


@compiled
def write_keys(data: Bytes, found: Int64, streams: UInt64, first: int, last: int, keys: Bytes, ends: Int64) -> None:
    """Writes the key of each stream: its number, 8 bytes in little-endian order, and its client's id.

    Args:
        data: What all entries lie in.
        found: (n, COLUMNS) what :func:`scan_entries` has found in them.
        streams: (n,).
        first: The number of the first one.
        last: The number after the last one.
        keys: To be filled; there is room.
        ends: (last − first,) to be filled: where each ends.
    """
    at = np.int64(0)
    for i in range(first, last):
        stream = streams[i]
        for octet in range(8):
            keys[at + octet] = (stream >> np.uint64(8 * octet)) & np.uint64(0xFF)
        at += 8
        for place in range(found[i, CLIENT], found[i, CLIENT_END]):
            keys[at] = data[place]
            at += 1
        ends[i - first] = at
