"""From records to deltas without ids: the part of ``add`` that computes, and the time that it is for."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np

from edge_client.draft import Add, Unbound
from edge_client.errors import EventTimeError
from hushsum.collection import label_list
from hushsum.delta import Delta, DeltaId, encode
from hushsum.errors import RecordError
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
    several, count = _several(plan, records)
    given = None if labels is None else label_list(labels)
    if given is not None and count and len(given) != count:
        raise RecordError(f"labels: got {len(given)} labels for {count} records")
    deltas: list[Delta] = []
    dropped = 0
    for start in range(0, max(count, 1), plan.delta_records_max):
        some = slice(start, start + plan.delta_records_max)
        mine = None if given is None else given[some]
        part = several[some] if count else several
        delta, unusable = encode(plan, part, window=window, id=_NO_ID, labels=mine)
        dropped += unusable
        if delta is not None:
            deltas.append(delta)
    unbound = tuple(Unbound(delta.records, partial(_pack, delta, plan)) for delta in deltas)
    return Batch(Add(window, unbound, dropped, plan.privacy.records_per_client), dropped)


def copied(records: Any) -> Any:
    """Records whose arrays nobody else writes to: an array, a list of them, or a CSR matrix."""
    if isinstance(records, np.ndarray) or hasattr(records, "indptr"):
        return records.copy()
    if isinstance(records, list | tuple):
        return [item.copy() if isinstance(item, np.ndarray) else item for item in records]
    return records


def _several(plan: Plan, records: Any) -> tuple[Any, int]:
    """Records that can be cut, and how many they are: 0 where the family has to say what is wrong with them."""
    if isinstance(plan.record, SetRecords):
        one = isinstance(records, np.ndarray) and records.ndim == 1
        several: Any = [records] if one else records
        if hasattr(several, "indptr"):  # scipy's, which a device need not have
            return several, int(several.shape[0])
        return several, len(several) if isinstance(several, Sequence) else 0
    array = np.asarray(records)
    rows = array[np.newaxis] if array.ndim == 1 else array
    return rows, len(rows) if rows.ndim else 0


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
