"""From records to packed deltas, to batches of reports and to one vector: what ``add`` computes, and when it does.

Under a plan of reports nothing of a record is kept but its report, or leaves here in another form. A batch has a stream
of its own, drawn at random: neither the spool's stream nor any other batch's is in it.
"""

import operator
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edge_client.config import LARGE_BYTES
from edge_client.errors import AbsentWarning, DroppedRecordsWarning, EdgeWarning, EventTimeError
from edge_client.spool.changes import NO_ID, Add, DrawnReports, Int64s, PackedDelta, StoredDelta
from edge_client.spool.memoization import keys_of
from hushsum.collection import label_list
from hushsum.delta import Delta, DeltaId, apply, encode_all, unpack_at_home
from hushsum.entropy import Entropy, OsEntropy
from hushsum.families import SetRecords, vector_rows
from hushsum.local import encoding
from hushsum.local.batches import ReportBatch
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL

_HEADER_BYTES: Final = 128  # of a batch, generously
_STREAM_BYTES: Final = 8


@dataclass(frozen=True)
class Randomising:
    """How this device's records become reports.

    Attributes:
        plan: Of reports.
        secret: The spool's, for keys of memoised reports; None where the plan does not memoise.
        entropy: Of reports and of streams: the operating system's.
    """

    plan: Plan
    secret: bytes | None = field(default=None, repr=False)
    entropy: Entropy = field(default_factory=OsEntropy, repr=False)

    def addition(self, records: Any, window: int, labels: object) -> Add:
        """What the spool takes for some records: one report for each, unusable ones too.

        Args:
            records: n of them, as a family reads them.
            window: Of all of them.
            labels: For a plan with classes: n of them.

        Raises:
            RecordError: The array, or the number of labels, is wrong; nothing that one record decides.
        """
        plan = self.plan
        reports, dropped = encoding.reports(plan, records, labels, self.entropy)
        split = partial(self._batches, window)
        drawn = None
        if self.secret is not None:
            drawn = DrawnReports(keys_of(plan, records, labels, self.secret), reports, split)
        deltas = split(reports) if drawn is None else ()
        return Add(window, deltas, dropped, plan.privacy.records_per_client, charged=True, drawn=drawn)

    def _batches(self, window: int, reports: Int64s) -> tuple[PackedDelta, ...]:
        return tuple(self._batch(window, part) for part in _cut(reports, reports_max(self.plan)))

    def _batch(self, window: int, reports: Int64s) -> PackedDelta:
        id = DeltaId(int.from_bytes(self.entropy.read(_STREAM_BYTES), "big"), 0)
        data = ReportBatch(self.plan.id, window, id, reports).pack(self.plan)
        return PackedDelta(len(reports), partial(_bound_already, data))


def reports_max(plan: Plan) -> int:
    """The most reports of one batch of a device: what the plan allows, in one message of a stream."""
    sizes = plan.report_sizes
    assert sizes is not None, "a plan of reports"
    return min(sizes.records_max, (LARGE_BYTES - _HEADER_BYTES) // sizes.width)


def _cut(reports: Int64s, most: int) -> Iterator[Int64s]:
    for at in range(0, len(reports), most):
        yield reports[at : at + most]


def _bound_already(data: bytes, _: DeltaId) -> bytes:
    return data


_TIME_MS_MAX: Final = 2**53 - 1


@dataclass(frozen=True)
class Batch:
    """What one ``add`` became.

    Attributes:
        addition: What the spool takes.
        dropped: Records that were left out, each alone.
    """

    addition: Add
    dropped: int


def split(
    plan: Plan, records: Any, window: int, labels: object = None, randomising: Randomising | None = None
) -> Batch:
    """Hashes records, or one record, into as few deltas as the plan's limits allow; or into reports.

    Args:
        plan: What is collected.
        records: (n, d), or (d,) for one; a list is one record if it holds numbers and nothing that could be a row.
            Sets: n integer arrays, one of them alone, or a scipy CSR matrix.
        window: Of all of them.
        labels: For a plan with classes: n of them, or one for one record.
        randomising: How records become reports, for a plan of reports.

    Raises:
        RecordError: An array of another type or dimension, or labels of another number.
    """
    several = _several(plan, records)
    addition = _addition(plan, several, window, labels, randomising)
    # No bound for unit record: whether there is room would depend on one record, and decide about the others.
    if addition.records_max is not None:
        first = partial(_first, addition, plan, several, labels, randomising)
        addition = replace(addition, first=first)
    return Batch(addition, addition.dropped)


def _addition(plan: Plan, records: Any, window: int, labels: object, randomising: Randomising | None) -> Add:
    if randomising is not None:
        return randomising.addition(records, window, labels)
    deltas, dropped = encode_all(plan, records, window=window, id=NO_ID, labels=labels)
    unbound = tuple(PackedDelta(delta.records, partial(_pack, delta, plan)) for delta in deltas)
    given = dropped + sum(delta.records for delta in deltas)
    return Add(
        window,
        unbound,
        dropped,
        plan.privacy.records_per_client,
        pending=plan.privacy.mode != CENTRAL,
        price=plan.delta_sizes.batch_bytes_max(given),
    )


def _first(whole: Add, plan: Plan, records: Any, labels: object, randomising: Randomising | None, most: int) -> Add:
    """The addition of the first ``most`` records that count, which are fewer than all; the others are refused.

    Unusable records are dropped as before wherever they stand. Reports count with unusable ones, so there those that
    come too late are refused, too.
    """
    end = most if randomising is not None else _end(plan, records, labels, most)
    rows = vector_rows.rows_of(records)
    some = (records if rows is None else rows)[:end]
    given = None if labels is None else label_list(labels)[:end]
    addition = _addition(plan, some, whole.window, given, randomising)
    dropped = whole.dropped if randomising is None else addition.dropped
    # It takes the room of all that were given: how many of them can be used before its end is not to show there.
    return replace(addition, dropped=dropped, refused=whole.contributed - most, price=whole.price)


def _end(plan: Plan, records: Any, labels: object, most: int) -> int:
    """The place of the first usable record after so many."""
    _, kept = plan.family.accept(records)
    usable = kept & (plan.collection.class_indices(labels, len(kept)) >= 0)
    return int(np.flatnonzero(usable)[most])


def left_out(batch: Batch, bound: tuple[StoredDelta, ...]) -> Iterator[EdgeWarning]:
    """What is said of records that were not added, or not as they are, once the others are in the spool.

    Args:
        batch: What an add became.
        bound: What the spool made of it.
    """
    addition, taken = batch.addition, sum(delta.records for delta in bound)
    refused = addition.contributed - taken if bound else 0
    if batch.dropped and addition.charged and refused:
        yield DroppedRecordsWarning(f"{taken} reports were added, uniformly random ones for unusable records")
    elif batch.dropped:
        what = "send a report each that is uniformly random" if addition.charged else "were left out"
        added = taken - (batch.dropped if addition.charged else 0)
        yield DroppedRecordsWarning(f"{batch.dropped} unusable records {what}, {added} were added")
    if refused:
        allowed = f"the plan allows {addition.records_max} records a client and window"
        yield DroppedRecordsWarning(f"{allowed}: {refused} of {addition.contributed} were refused, the last ones")
    if addition.contributed and not bound:
        where = f"window {addition.window}, in which this client does not take part"
        yield AbsentWarning(f"{addition.records} records of {where}, were left out")


def copied(records: Any) -> Any:
    """Records that nobody else writes to: whatever NumPy reads, lists of it, or a CSR matrix."""
    if isinstance(records, np.ndarray) or hasattr(records, "indptr"):
        mine = records.copy()
        if isinstance(mine, np.ndarray) and mine.dtype == np.object_:
            for place, item in np.ndenumerate(records):
                mine[place] = _copied_item(item)
        return mine
    rows = vector_rows.rows_of(records)
    if rows is not None:
        return [_copied_item(item) for item in rows]
    return _copied_item(records)


def _copied_item(item: Any) -> Any:
    try:
        return _copy_of(item)
    except Exception:  # noqa: BLE001 -- what one record raises is no reason to refuse the others: None is dropped alone
        return None


def _copy_of(item: Any) -> Any:
    if isinstance(item, range):  # which never changes, and may be of any length
        return item
    rows = vector_rows.rows_of(item)
    if rows is not None:
        return rows
    if isinstance(item, np.ndarray | set):  # a masked array stays one, and a set, to be refused as what they are
        return item.copy()
    unchanging = isinstance(item, np.generic) or hasattr(item, "to_pylist")  # numbers, and pyarrow's
    if unchanging or not (hasattr(item, "__array__") or isinstance(item, array | memoryview | bytearray)):
        return item
    return np.asarray(item).copy()


def _several(plan: Plan, records: Any) -> Any:
    """Several records, where it was one; the family says what is wrong with them."""
    if isinstance(plan.record, SetRecords):
        one = isinstance(records, np.ndarray) and records.ndim == 1 and records.dtype != np.object_
        return [records] if one else records
    records = vector_rows.typed(records)
    rows = vector_rows.rows_of(records)
    if rows is not None:  # of any length and type: read one by one
        return [rows] if vector_rows.is_one_record(rows) else records
    return records[np.newaxis] if isinstance(records, np.ndarray) and records.ndim == 1 else records


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


_Int64s = npt.NDArray[np.int64]


def counters_of(plan: Plan, deltas: Iterable[bytes]) -> tuple[_Int64s, _Int64s]:
    """(counters (D,), count counters (classes,)) of packed deltas; zeros where there are none.

    D is the number of counters of all classes together. The count counters are records × ``count_scale``. What is
    beyond int64 wraps around, as the sum of the cohort does: no record decides whether the others count.
    """
    counters = np.zeros(plan.counters_shape, dtype=np.int64)
    counts = np.zeros(plan.counters_shape[0], dtype=np.int64)
    with np.errstate(over="ignore"):
        for data in deltas:
            apply(unpack_at_home(data, plan), counters, counts, plan.privacy.mechanism.count_scale)
    return counters.reshape(-1), counts
