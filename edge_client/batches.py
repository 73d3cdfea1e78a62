"""From records to deltas without ids: the part of ``add`` that computes, and the time that it is for."""

import operator
from array import array
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np

from edge_client.draft import Add, Unbound
from edge_client.errors import EventTimeError
from hushsum.delta import Delta, DeltaId, encode_all, shows_presence
from hushsum.families import SetRecords
from hushsum.plan import Plan

_TIME_MS_MAX: Final = 2**53 - 1
_NO_ID: Final = DeltaId(0, 0)  # stands in until the spool gives the real one


@dataclass(frozen=True)
class Batch:
    """What one ``add`` became.

    Attributes:
        addition: What the spool takes.
        dropped: Records that were left out, each alone.
    """

    addition: Add
    dropped: int


def split(plan: Plan, records: Any, window: int, labels: object = None) -> Batch:
    """Hashes records, or one record, into as few deltas as the plan's limits allow.

    Args:
        plan: What is collected.
        records: (n, d), or (d,) for one. Sets: n integer arrays, one of them alone, or a scipy CSR matrix.
        window: Of all of them.
        labels: For a plan with classes: n of them, or one for one record.

    Raises:
        RecordError: The array cannot be used at all.
    """
    deltas, dropped = encode_all(plan, _several(plan, records), window=window, id=_NO_ID, labels=labels)
    unbound = tuple(Unbound(delta.records, partial(_pack, delta, plan)) for delta in deltas)
    addition = Add(window, unbound, dropped, plan.privacy.records_per_client, attended=shows_presence(plan))
    return Batch(addition, dropped)


def copied(records: Any) -> Any:
    """Records that nobody else writes to: whatever NumPy reads, lists of it, or a CSR matrix."""
    if isinstance(records, np.ndarray) or hasattr(records, "indptr"):
        return records.copy()
    if isinstance(records, list | tuple):
        return [_copied_item(item) for item in records]
    return _copied_item(records)


def _copied_item(item: Any) -> Any:
    if isinstance(item, float | int | np.generic):
        return item
    if isinstance(item, list | tuple):
        return list(item)
    if isinstance(item, np.ndarray | set):  # a masked array stays one, and a set, to be refused as what they are
        return item.copy()
    if hasattr(item, "to_pylist"):  # pyarrow's, which never change
        return item
    if hasattr(item, "__array__") or isinstance(item, array | memoryview):
        return np.asarray(item).copy()
    return item


def _several(plan: Plan, records: Any) -> Any:
    """Several records, where it was one; the family says what is wrong with them."""
    if isinstance(plan.record, SetRecords):
        return [records] if isinstance(records, np.ndarray) and records.ndim == 1 else records
    if isinstance(records, np.ndarray):
        return records[np.newaxis] if records.ndim == 1 else records
    try:
        rows = np.asarray(records)
    except (ValueError, OverflowError):  # rows of different lengths: the odd ones drop alone
        return records
    if rows.dtype == np.object_:
        return records
    return rows[np.newaxis] if rows.ndim == 1 else rows


def _pack(delta: Delta, plan: Plan, id: DeltaId) -> bytes:
    return replace(delta, id=id).pack(plan)


def time_in_ms(time: int | datetime) -> int:
    """An event time as ms since 1970-01-01T00:00:00Z.

    Args:
        time: Whole milliseconds, or a datetime that knows its time zone.

    Raises:
        EventTimeError: Anything else.
    """
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise EventTimeError(f"time: got {time!r} without a time zone, expected one with it, such as tzinfo=UTC")
        return int(time.timestamp() * 1000 // 1)
    try:
        milliseconds = operator.index(time)
    except TypeError as error:
        raise EventTimeError(f"time: got {time!r}, expected whole milliseconds or an aware datetime") from error
    if isinstance(time, bool) or abs(milliseconds) > _TIME_MS_MAX:
        raise EventTimeError(f"time: got {time!r}, expected milliseconds since 1970 within ±(2^53 - 1)")
    return milliseconds
