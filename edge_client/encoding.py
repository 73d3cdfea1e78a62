"""From records to packed deltas, to batches of reports and to one vector: what ``add`` computes.

Under a plan of reports nothing of a record is kept, or leaves the device, but its report. A batch has a stream of its
own, drawn at random: it carries neither the spool's stream nor any other batch's.
"""

import operator
from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np

from edge_client.config import LARGE_BYTES
from edge_client.errors import AbsentWarning, EventTimeError
from edge_client.spool.changes import (
    NO_ID,
    Add,
    AddReports,
    Bind,
    DrawnReports,
    Int64s,
    PackedDelta,
    StoredDelta,
    Unbound,
)
from edge_client.spool.memoization import keys_of
from hushsum.collection import label_list
from hushsum.delta import DeltaId, apply, encode_all, read_header, rebound, renumbered, unpack_at_home
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import DroppedRecordsWarning, HushsumWarning
from hushsum.families import SetRecords, vectors
from hushsum.plan import Plan
from hushsum.schedule import ARRIVAL
from hushsum.usable_records import RecordProblems, read

_HEADER_BYTES: Final = 128  # of a batch, generously
_STREAM_BYTES: Final = 8
_TIME_MS_MAX: Final = 2**53 - 1
_UNCHANGING: Final = frozenset(
    {float, int, bool, str, bytes, type(None), np.float64, np.float32, np.int64, np.int32, np.bool_}
)  # types of most values


def split(plan: Plan, records: Any, window: int, labels: object = None) -> Add:
    """Hashes records, or one record, into as few deltas as the plan's limits allow.

    Args:
        plan: What is collected.
        records: (n, d), or (d,) for one; a list is one record if it holds numbers and nothing that could be a row.
            Sets: n integer arrays, one of them alone, or a scipy CSR matrix.
        window: Of all of them; or the mark of :class:`Unbound` ones.
        labels: For a plan with classes: n of them, or one for one record.

    Raises:
        RecordError: An array of another type or dimension, or labels of another number.
    """
    several = _several(plan, records)
    addition = _addition(plan, several, window, labels)
    # No bound for unit record: whether there is room would depend on one record, and decide about the others.
    if addition.records_max is None or Unbound.read(window) is not None:
        return addition
    return replace(addition, first=partial(_first, addition, plan, several, labels))


def _addition(plan: Plan, records: Any, window: int, labels: object) -> Add:
    deltas, problems = encode_all(plan, records, window=window, id=NO_ID, labels=labels)
    # Packed but for their ids, so that storing them takes a transaction no time.
    packed = tuple(PackedDelta(delta.records, partial(renumbered, delta.pack(plan))) for delta in deltas)
    price = plan.delta_sizes.batch_bytes_max(problems.records)
    bounds = plan.privacy.records_per_client, plan.window.windows_per_client
    return Add(window, packed, problems, bounds[0], price, windows_max=bounds[1])


def _first(whole: Add, plan: Plan, records: Any, labels: object, most: int) -> Add:
    """The addition of the first ``most`` usable records, which are fewer than all; the others are refused.

    Unusable records are dropped as before wherever they are.
    """
    some, given = _head(records, labels, _end(plan, records, labels, most))
    addition = _addition(plan, some, whole.window, given)
    # It takes the room of all that were given: how many of them can be used before its end is not to show there.
    return replace(addition, problems=whole.problems, refused=whole.contributed - most, price=whole.price)


def _head(records: Any, labels: object, end: int) -> tuple[Any, object]:
    """The records before a place, and their labels."""
    rows = vectors.rows_of(records)
    some = (records if rows is None else rows)[:end]
    return some, None if labels is None else label_list(labels)[:end]


def _end(plan: Plan, records: Any, labels: object, most: int) -> int:
    """The place of the first usable record after so many."""
    return int(np.flatnonzero(read(plan, records, labels).kept)[most])


def moved(plan: Plan, data: bytes, window: int) -> Add:
    """The addition of a late delta to another window: this one, or the one after its own if that is later.

    Under a plan whose records belong to the window of their arrival it waits for that, as an unbound one.

    Raises:
        DeltaError: Its bytes are damaged.
    """
    records = unpack_at_home(data, plan).records
    later = max(window, read_header(data).window + 1)
    if plan.window.time == ARRIVAL:
        later = Unbound(later, late=True).mark
    delta = PackedDelta(records, lambda id: rebound(data, id, later))
    bounds = plan.privacy.records_per_client, plan.window.windows_per_client
    return Add(later, (delta,), RecordProblems(0), bounds[0], windows_max=bounds[1])


def binding(plan: Plan, sequence: int, data: bytes, service_ms: int) -> Bind | None:
    """The change that gives a delta of the spool its window, at this time of the service's clock; None: it has one.

    Raises:
        DeltaError: Its bytes are damaged.
    """
    waiting = Unbound.read(read_header(data).window)
    if waiting is None:
        return None
    window = plan.window.index_at(service_ms)
    bounds = plan.privacy.records_per_client, plan.window.windows_per_client
    earliest = waiting.window if waiting.late else window
    return Bind(sequence, max(window, earliest), lambda data: unpack_at_home(data, plan).records, *bounds)


@dataclass(frozen=True)
class ReportEncoder:
    """Turns records into randomised reports.

    Attributes:
        plan: Of reports.
        secret: The spool's, for keys of memoised reports; None where the plan does not memoise.
        entropy: Of reports and of streams; the operating system's unless a test or an audit replaces it.
    """

    plan: Plan
    secret: bytes | None = field(default=None, repr=False)
    entropy: Entropy = field(default_factory=OsEntropy, repr=False)

    def encode(self, records: Any, window: int, labels: object = None) -> AddReports:
        """One report for each record, unusable ones included; arguments and errors as of :func:`split`."""
        several = _several(self.plan, records)
        addition = self._addition(several, window, labels)
        if addition.records_max is None:
            return addition
        return replace(addition, first=partial(self._first, addition, several, labels))

    def _addition(self, records: Any, window: int, labels: object) -> AddReports:
        from hushsum.local import reports as encoding  # where a plan sends reports alone

        plan = self.plan
        reports, problems = encoding.reports(plan, records, labels, self.entropy)
        split = partial(self._batches, window)
        records_max = plan.privacy.records_per_client
        if self.secret is None:
            return AddReports(window, split(reports), problems, records_max)
        drawn = DrawnReports(keys_of(plan, records, labels, self.secret), reports, split)
        return AddReports(window, (), problems, records_max, drawn=drawn)

    def _first(self, whole: AddReports, records: Any, labels: object, most: int) -> AddReports:
        """The addition of the first ``most`` records. Unusable ones count, too, and are refused after those."""
        some, given = _head(records, labels, most)
        addition = self._addition(some, whole.window, given)
        return replace(addition, refused=whole.contributed - most)

    def _batches(self, window: int, reports: Int64s) -> tuple[PackedDelta, ...]:
        most = reports_max(self.plan)
        return tuple(self._batch(window, reports[at : at + most]) for at in range(0, len(reports), most))

    def _batch(self, window: int, reports: Int64s) -> PackedDelta:
        from hushsum.local.report_batch import ReportBatch

        id = DeltaId(int.from_bytes(self.entropy.read(_STREAM_BYTES), "big"), 0)
        data = ReportBatch(self.plan.id, window, id, reports).pack(self.plan)
        return PackedDelta(len(reports), lambda _: data, id.stream)


def reports_max(plan: Plan) -> int:
    """The most reports of one batch of a device: what the plan allows, in one message of a stream."""
    sizes = plan.report_sizes
    assert sizes is not None, "a plan of reports"
    return min(sizes.records_max, (LARGE_BYTES - _HEADER_BYTES) // sizes.width)


def left_out(addition: Add, stored: tuple[StoredDelta, ...]) -> Iterator[HushsumWarning]:
    """The warnings about records that the spool did not take, or not as they are."""
    taken = sum(delta.records for delta in stored)
    refused = addition.contributed - taken if stored else 0
    yield from addition.warnings_after(taken, refused)
    if refused:
        allowed = f"the plan allows {addition.records_max} records per client and window"
        yield DroppedRecordsWarning(f"{allowed}: {refused} of {addition.contributed} were refused (the last ones)")
    if addition.contributed and not stored:
        which = f"{addition.records} records of window {addition.window}"
        yield AbsentWarning(f"{which} were dropped: this client does not participate in it")


def copied(records: Any) -> Any:
    """A copy that the caller does not write to, of what :func:`hushsum.tables.read_table` returns: no table any more.

    Args:
        records: Whatever NumPy reads, lists of it, a CSR matrix or an Arrow array.
    """
    if hasattr(records, "indptr"):
        return records.copy()
    if not hasattr(records, "to_pylist"):
        records = vectors.typed(records)
    if isinstance(records, np.ndarray):
        mine = records.copy()
        if mine.dtype == np.object_:
            for place, item in np.ndenumerate(records):
                mine[place] = _copied_item(item)
        return mine
    rows = vectors.rows_of(records)
    if rows is not None:
        return [_copied_item(item) for item in rows]
    try:
        return _copy_of(records)
    except Exception:  # noqa: BLE001 -- refused as what cannot be read
        return None


def _copied_item(item: Any) -> Any:
    try:
        return _copy_of(item)
    except Exception:  # noqa: BLE001 -- what one record raises is no reason to refuse the others: it is dropped alone
        return []  # still a row: a batch of None and numbers would be read as one record


def _copy_of(item: Any) -> Any:
    if type(item) in _UNCHANGING or isinstance(item, range):  # which may be of any length
        return item
    rows = item if type(item) in (list, tuple) else vectors.rows_of(item)
    if rows is not None:
        return list(rows) if _UNCHANGING.issuperset(map(type, rows)) else [_copied_value(value) for value in rows]
    if isinstance(item, np.ndarray | set):  # a masked array stays one, and a set, to be refused as what they are
        return item.copy()
    if hasattr(item, "to_pylist"):  # Arrow's, whose memory may be the caller's
        return item.take(np.arange(len(item))) if hasattr(item, "take") else item
    if hasattr(item, "__array__") or isinstance(item, array | memoryview | bytearray):
        mine = np.asarray(item).copy()
        return _copy_of(mine) if mine.dtype == np.object_ and mine.ndim else mine
    return item


def _copied_value(value: Any) -> Any:
    """A value of a row, which may be an array of no dimension."""
    if isinstance(value, np.generic) or not hasattr(type(value), "__array__"):
        return value
    return value.copy() if isinstance(value, np.ndarray) else np.asarray(value).copy()


def _several(plan: Plan, records: Any) -> Any:
    """Several records, where it was one; the family says what is wrong with them."""
    if isinstance(plan.record, SetRecords):
        one = isinstance(records, np.ndarray) and records.ndim == 1 and records.dtype != np.object_
        one = one or isinstance(records, AbstractSet)
        one = one or (isinstance(records, list | tuple) and len(records) > 0 and all(type(it) is str for it in records))
        return [records] if one else records
    records = vectors.typed(records)
    rows = vectors.rows_of(records)
    if rows is not None:  # of any length and type: read one by one
        return [rows] if vectors.is_one_record(rows) else records
    return records[np.newaxis] if isinstance(records, np.ndarray) and records.ndim == 1 else records


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


def counters_of(plan: Plan, deltas: Iterable[bytes]) -> tuple[Int64s, Int64s]:
    """(counters (D,), count counters (classes,) or (0,)) of packed deltas; zeros where there are none.

    D is the number of counters of all classes together. The count counters are records × ``count_scale``. What is
    beyond int64 wraps around, as the sum of the cohort does: no record decides whether the others count.
    """
    counters = np.zeros(plan.counters_shape, dtype=np.int64)
    counts = np.zeros(plan.count_counters, dtype=np.int64)
    with np.errstate(over="ignore"):
        for data in deltas:
            apply(unpack_at_home(data, plan), counters, counts, plan.privacy.mechanism.count_scale)
    return counters.reshape(-1), counts
