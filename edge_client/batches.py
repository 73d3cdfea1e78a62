"""From records to deltas without ids: the part of ``add`` that computes, and the time that it is for."""

import operator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from edge_client.draft import Add, Unbound
from edge_client.errors import EventTimeError
from hushsum.delta import Delta, DeltaId, encode
from hushsum.plan import Plan

_TIME_MS_MAX: Final = 2**53 - 1
_NO_ID: Final = DeltaId(0, 0)  # stands in until the spool gives the real one


@dataclass(frozen=True)
class Batch:
    """What one ``add`` became.

    Attributes:
        addition: What the spool takes.
        dropped: Records that were left out for a NaN or an infinity.
    """

    addition: Add
    dropped: int


def split(plan: Plan, records: npt.ArrayLike, window: int) -> Batch:
    """Hashes (n, d) or (d,) records into as few deltas as the plan's limits allow.

    Raises:
        RecordError: The array cannot be used at all.
    """
    array = np.asarray(records)
    rows = array[np.newaxis] if array.ndim == 1 else array
    deltas: list[Delta] = []
    dropped = 0
    for start in range(0, max(len(rows), 1) if rows.ndim else 1, plan.delta_records_max):
        part = rows[start : start + plan.delta_records_max] if rows.ndim else rows
        delta, unusable = encode(plan, part, window=window, id=_NO_ID)
        dropped += unusable
        if delta is not None:
            deltas.append(delta)
    unbound = tuple(Unbound(delta.records, partial(_pack, delta, plan)) for delta in deltas)
    return Batch(Add(window, unbound, dropped, plan.privacy.records_per_client), dropped)


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
