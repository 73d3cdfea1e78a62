"""The compiled loop over the records of a fetch: https://kafka.apache.org/documentation/#recordbatch.

It reads uncompressed batches of format 2 whose checksums were verified. :mod:`aggregator.log.kafka.internals` alone
calls it, and says the same without a compiler. No read is beyond the end of a batch, for each place is compared with it
first.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.compiled import compiled, inlined

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
Number = Any  # an int64, or what the compiler makes one

RECORDS_AT: Final = 61  # in a batch, after its header

# Columns of what is found of a record.
OFFSET: Final = 0
TIME: Final = 1
BEGIN: Final = 2
END: Final = 3
COLUMNS: Final = 4

_OCTETS_MAX: Final = 10  # of a number
_BAD: Final = np.int64(-1)


@inlined
def _number(data: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """A signed number, and where it ends; or a negative end, as where it begins at one."""
    value = np.uint64(0)
    for place in range(_OCTETS_MAX):
        if at < 0 or at >= end:
            break
        octet = np.uint64(data[at])
        at += 1
        value |= (octet & np.uint64(0x7F)) << np.uint64(7 * place)
        if octet < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
    return np.int64(0), _BAD


@inlined
def _field(data: Bytes, at: Number, end: Number) -> tuple[Number, Number]:
    """Where the bytes of a field begin and end: none, if there is no value; or a negative end."""
    size, at = _number(data, at, end)
    if at < 0 or size > end - at:
        return np.int64(0), _BAD
    return at, at + max(size, np.int64(0))


@inlined
def _record(data: Bytes, at: Number, end: Number) -> tuple[Number, Number, Number]:
    """Where the value of a record begins and ends, and where the record does; or a negative end of the record."""
    size, at = _number(data, at, end)
    if at < 0 or size < 1 or size > end - at:
        return _BAD, _BAD, _BAD
    record_end = at + size
    _, at = _number(data, at + 1, record_end)  # the time, after the attributes, which brokers do not look at
    _, at = _number(data, at, record_end)  # what the record says of its offset
    _, at = _field(data, at, record_end)
    begin, at = _field(data, at, record_end)
    value_end = at
    headers, at = _number(data, at, record_end)
    while headers > 0 and 0 <= at < record_end:
        name, at = _number(data, at, record_end)
        if at < 0 or name < 0 or name > record_end - at:
            return _BAD, _BAD, _BAD
        _, at = _field(data, at + name, record_end)
        headers -= 1
    if headers != 0 or at != record_end:
        return _BAD, _BAD, _BAD
    return begin, value_end, record_end


@compiled
def find_records(data: Bytes, batches: Int64, offset: int, found: Int64) -> int:
    """Where the values of records are; those of a batch with a record of another form are empty.

    Args:
        data: What the batches lie in.
        batches: (n, 5): where each begins and ends, its first offset, the time of all of its records, their number.
        offset: Records before it are left out.
        found: (number of records, COLUMNS) to be filled.

    Returns:
        How many were found.
    """
    count = 0
    for i in range(len(batches)):
        start, end, first, time, records = batches[i]
        at, before = start + RECORDS_AT, count
        for place in range(records):
            begin, value_end, at = _record(data, at, end)
            if at < 0:
                break
            if first + place >= offset:
                found[count, OFFSET], found[count, TIME] = first + place, time
                found[count, BEGIN], found[count, END] = begin, value_end
                count += 1
        if at != end:
            count = before
            for place in range(records):
                if first + place >= offset:
                    found[count, OFFSET], found[count, TIME] = first + place, time
                    found[count, BEGIN], found[count, END] = start, start
                    count += 1
    return count
