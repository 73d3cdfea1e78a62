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
Number = Any  # an int64, or what the compiler makes one

# Columns of what is found of an entry. Where the client's id ends at 0, protobuf is to be asked.
CLIENT: Final = 0
CLIENT_END: Final = 1
DELTA: Final = 2
DELTA_END: Final = 3
ARRIVED: Final = 4
COLUMNS: Final = 5

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
def scan_entries(data: Bytes, offsets: Int64, found: Int64) -> None:
    """What each entry holds, where it is a delta in the form that is written here.

    Args:
        data: All entries, one after another.
        offsets: (n + 1,) where each begins, and where the last one ends.
        found: (n, COLUMNS) zeroes, to be filled.
    """
    for i in range(len(offsets) - 1):
        at, end = offsets[i], offsets[i + 1]
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


@compiled
def scan_singles(data: Bytes, offsets: Int64, found: Int64) -> bool:
    """Where the one entry of each message begins and ends.

    Args:
        data: All messages, one after another.
        offsets: (n + 1,) where each begins, and where the last one ends.
        found: (n, 2) to be filled.

    Returns:
        Whether each is an unsigned batch of one entry, in the form that is written here.
    """
    for i in range(len(offsets) - 1):
        at, end = offsets[i], offsets[i + 1]
        if not (_is_at(data, at, end, _VERSION) and _is_at(data, at + 1, end, _FORMAT)):
            return False
        first, body_end = _field(data, at + 2, end, _BATCH_BODY)
        if body_end != end:
            return False
        first, entry_end = _field(data, first, end, _ENTRY)
        if entry_end != end:
            return False
        found[i, 0] = first
        found[i, 1] = end
    return True


@compiled
def scan_batch(data: Bytes, found: Int64) -> int:
    """Where the entries of an unsigned batch begin and end, where it has the form that is written here.

    Args:
        data: The message.
        found: (n, 2) to be filled; of more than ``n`` entries nothing is said.

    Returns:
        How many there are; 0: protobuf is to be asked.
    """
    end = np.int64(len(data))
    if not (_is_at(data, np.int64(0), end, _VERSION) and _is_at(data, np.int64(1), end, _FORMAT)):
        return 0
    at, body_end = _field(data, np.int64(2), end, _BATCH_BODY)
    if body_end != end:
        return 0
    count = 0
    while at < end:
        first, at = _field(data, at, end, _ENTRY)
        if at < 0 or count == len(found):
            return 0
        found[count, 0] = first
        found[count, 1] = at
        count += 1
    return count
