"""The bytes of single records: of those that are hashed, and of unusable ones."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hushsum.families import Records, vector_rows
from hushsum.families.sets import Sets


def rows_bytes(accepted: Records) -> Iterator[bytes]:
    """Of each accepted record, as it is hashed."""
    if isinstance(accepted, Sets):
        for start, stop in zip(accepted.starts[:-1], accepted.starts[1:], strict=True):
            yield accepted.ids[start:stop].tobytes()
        return
    rows = accepted + np.float32(0)  # -0 is hashed as 0 is
    for row in rows:
        yield row.tobytes()


def own_bytes(records: Any, n: int) -> Callable[[int], bytes]:
    """What tells the bytes of a record as it came, by its number below ``n``; of anything, for it may be unusable."""
    starts = getattr(records, "indptr", None)
    if starts is not None:
        return lambda number: _bytes(records.indices[starts[number] : starts[number + 1]])
    typed = vector_rows.typed(records)
    rows = vector_rows.rows_of(typed)
    items = typed if rows is None else rows
    try:
        several = len(items) == n
    except TypeError:
        several = False
    return lambda number: _bytes(items[number] if several else records)


def _bytes(item: Any) -> bytes:
    """Of whatever it is. What cannot be read as numbers is told apart by its type alone."""
    try:
        array = np.asarray(item)
    except Exception:  # noqa: BLE001 -- an unusable record may raise anything when it is looked at
        return type(item).__name__.encode()
    if array.dtype == np.object_:
        return type(item).__name__.encode()
    return array.dtype.str.encode() + repr(array.shape).encode() + array.tobytes()
