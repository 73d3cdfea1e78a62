"""Changes to a spool as values: what they add, what they store, what they remove.

A delta's *number* is its key in the spool. Where all deltas belong to the spool's one stream, the number is also the
sequence number of the delta's id. A batch of reports has a stream of its own: its number never leaves the device.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hushsum.delta import DeltaId
from hushsum.errors import ClippedRecordsWarning, DroppedRecordsWarning, HushsumError, HushsumWarning
from hushsum.usable_records import RecordProblems

Int64s = npt.NDArray[np.int64]
#: Runs a query with its values. Any: the columns of a row are those of the query.
Query = Callable[..., Iterable[tuple[Any, ...]]]

NO_ID: Final = DeltaId(0, 0)  # placeholder until the spool assigns the id

# Where windows begin that stand for none, in the bytes of deltas that wait for theirs; such bytes are never sent.
_UNBOUND: Final = 2**53


class Unbound(NamedTuple):
    """A delta that has no window yet (plans with ``window.time = "arrival"``), by what its bytes have in its place.

    Attributes:
        window: In which it was added, by the device's clock; of a late one the first that it may get.
        late: Whether it was sent for a window before, and came too late.
    """

    window: int
    late: bool = False

    @property
    def mark(self) -> int:
        """What its bytes have in place of a window: no plan has such a one."""
        return 2 * self.window + self.late - _UNBOUND

    @classmethod
    def read(cls, window: int) -> "Unbound | None":
        """None: it is a window."""
        if window >= -(_UNBOUND >> 1):
            return None
        return cls((window + _UNBOUND) >> 1, bool((window + _UNBOUND) & 1))


@dataclass(frozen=True)
class PackedDelta:
    """A delta that the spool has not stored yet.

    Attributes:
        records: Number of records in it.
        pack: Its bytes under the id that the spool assigns.
        stream: Of a batch of reports, whose id is in its bytes already; None where the spool's stream applies.
    """

    records: int
    pack: Callable[[DeltaId], bytes]
    stream: int | None = None


@dataclass(frozen=True)
class StoredDelta:
    """A delta's number and bytes, which never change; right after its addition also its number of records."""

    sequence: int
    data: bytes
    records: int = field(default=0, compare=False)
    stream: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Add:
    """Adds the deltas of one batch of records of one window.

    Under a secure sum or as a silo the deltas get no ids and are never sent: they wait for the window's submission, if
    this client takes part in the window; otherwise they are left out, and counted.

    Attributes:
        window: Its index; or the mark of :class:`Unbound` records, which get theirs when they are first sent.
        deltas: In the order in which they get their ids.
        problems: Of the records that were given: which are unusable and left out, which were clipped.
        records_max: The most records that this client may add to one window; None without such a bound.
        windows_max: The most windows that this client may add records to, over the plan's life; None without a bound.
        price: Bytes that the spool reserves for the deltas: the most that those of as many records could take,
            whatever they are, so that no record decides whether there is room for others. None: as many as they have.
        refused: Records that are left out because they exceed ``records_max``.
        first: Makes the same change of the first records alone, where not all fit; their number is below
            ``contributed``. None where there is no bound.
    """

    window: int
    deltas: tuple[PackedDelta, ...]
    problems: RecordProblems
    records_max: int | None
    price: int | None = None
    refused: int = 0
    first: "Callable[[int], Add] | None" = field(default=None, repr=False, compare=False)
    windows_max: int | None = None

    @property
    def dropped(self) -> int:
        """Unusable records that were left out."""
        return self.problems.dropped

    @property
    def contributed(self) -> int:
        """What counts towards ``records_max``."""
        return sum(delta.records for delta in self.deltas)

    @property
    def records(self) -> int:
        """Usable records."""
        return self.contributed

    @property
    def warnings_before(self) -> tuple[HushsumWarning, ...]:
        """What is known of the records before they are stored."""
        return tuple(self.problems.warnings())

    def warnings_after(self, taken: int, refused: int) -> tuple[HushsumWarning, ...]:  # noqa: ARG002  reports need to know
        """The same, where what is stored decides it: so many records were taken, and so many refused."""
        return ()


@dataclass(frozen=True)
class DrawnReports:
    """Reports that were drawn for records under a plan that memoises: the spool decides which of them are used.

    Attributes:
        keys: Of the records, in their order, 32 bytes each: equal for equal records (``memoization``).
        reports: (n,), freshly drawn, for those that have none yet.
        split: Into packed batches, each with an id of its own.
    """

    keys: tuple[bytes, ...] = field(repr=False)
    reports: Int64s = field(repr=False)
    split: Callable[[Int64s], tuple[PackedDelta, ...]] = field(repr=False)


@dataclass(frozen=True)
class AddReports(Add):
    """Adds one report for each record, an unusable one included, whose report is uniformly random.

    The deltas are batches with ids of their own. Their size follows from the number of records, so that no price is
    needed. The first addition of a window charges the window to this device's budget.

    Attributes:
        drawn: Under a plan that memoises, in place of deltas.
    """

    drawn: DrawnReports | None = None

    @property
    def contributed(self) -> int:
        """All records: an absent report would show that its record is unusable."""
        return super().contributed if self.drawn is None else len(self.drawn.keys)

    @property
    def records(self) -> int:
        return self.contributed - self.dropped

    @property
    def warnings_before(self) -> tuple[HushsumWarning, ...]:
        """None: a warning that is an error would keep a report back, whose absence shows."""
        return ()

    def warnings_after(self, taken: int, refused: int) -> tuple[HushsumWarning, ...]:
        clipped = (ClippedRecordsWarning(self.problems.clipped_text),) if self.problems.clipped else ()
        if not self.dropped:
            return clipped
        text = f"{taken} reports were added, with uniformly random ones for unusable records"
        if not refused:
            random = f"each of {self.dropped} unusable records sends a uniformly random report"
            text = f"{random}, {taken - self.dropped} were added: {self.problems.reasons}"
        return (DroppedRecordsWarning(text), *clipped)


@dataclass(frozen=True)
class Submit:
    """Stores a silo's submission for a window: its bytes, its charge and the window's end, all or nothing.

    It is stored whatever else the spool holds: the limit on bytes is for records.

    Attributes:
        window: Its index.
        pack: Its bytes, noised already, under the id that it gets.
        upto: The highest number in ``pending`` that it includes; the rest came too late for it.
    """

    window: int
    pack: Callable[[DeltaId], bytes] = field(repr=False)
    upto: int


@dataclass(frozen=True)
class Remove:
    """Removes a delta that has its definitive answer, which is counted under this name."""

    sequence: int
    answer: str


@dataclass(frozen=True)
class Rebind(Remove):
    """Removes a delta that is late for good, and adds it for a later window under a new id, in one transaction.

    Where the later window has no room for all of its records, it is removed alone, and counted under its answer.

    Attributes:
        addition: Makes the addition of its bytes: one delta.
    """

    addition: Callable[[bytes], Add] = field(repr=False)


@dataclass(frozen=True)
class Bind:
    """Gives an unbound delta its window, under its id, before it is first sent; one that has a window keeps it.

    Nothing is changed, and nothing returned, where this client has no room in the window for all of its records. It is
    refused (``ContributionError``) where the plan allows this client no further window for its life.

    Attributes:
        window: Its index.
        records: Counts the records in its bytes.
        records_max: As of :class:`Add`.
        windows_max: As of :class:`Add`.
    """

    sequence: int
    window: int
    records: Callable[[bytes], int] = field(repr=False)
    records_max: int | None = None
    windows_max: int | None = None


Change = Add | Bind | Submit | Remove
#: What was stored (nothing for a removal), or the error that refused the change.
Result = tuple[StoredDelta, ...] | HushsumError
