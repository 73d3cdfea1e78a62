"""A delta: a sparse increment to a sketch, from one client, for one window; its packed bytes.

Packed: format version (1 byte), plan id (32), stream (8, big-endian), sequence and window (varints, the window zigzag),
number of runs (varint), and for each run, in the order of its class: class, records, rows, buckets (varints), encoding
(1 byte), length of the packed rows (varint), the packed rows.

A delta has at least one run.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.bitpacking import Reader, varint, zigzag
from hushsum.collection import by_class
from hushsum.errors import DeltaError, Reason
from hushsum.families import Increments, Records
from hushsum.labels import DELTA_DIGEST
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL
from hushsum.usable_records import RecordProblems, read

DELTA_FORMAT: Final = 1
SEQUENCE_MAX: Final = 2**63 - 1
_ID_AT: Final = 33  # after the format version and the plan's id


@dataclass(frozen=True, order=True)
class DeltaId:
    """(stream, sequence number): unique for ever, and bound to one delta's bytes before the first send.

    Attributes:
        stream: 0 to 2⁶⁴ − 1, drawn at random once a spool.
        sequence: 0 to 2⁶³ − 1, consecutive in a stream.
    """

    stream: int
    sequence: int

    def __post_init__(self) -> None:
        if not 0 <= self.stream < 2**64 or not 0 <= self.sequence <= SEQUENCE_MAX:
            raise ValueError(
                f"invalid delta id ({self.stream}, {self.sequence}): expected stream below 2^64 and sequence below 2^63"
            )


@dataclass(frozen=True)
class DeltaHeader:
    """What can be read of a packed delta without its plan."""

    plan_id: bytes
    window: int
    id: DeltaId


@dataclass(frozen=True, eq=False)
class Run:
    """The part of a delta that belongs to one class: its declared number of records, and their increments."""

    class_index: int = field(repr=False)  # a client's own labels
    records: int
    increments: Increments = field(repr=False)  # and buckets


@dataclass(frozen=True, eq=False)
class Delta:
    """A sparse increment to a sketch of the plan with this id. Two are compared by their packed bytes."""

    plan_id: bytes
    window: int
    id: DeltaId
    runs: tuple[Run, ...]

    @property
    def records(self) -> int:
        """The declared number of records, over all classes."""
        return sum(run.records for run in self.runs)

    def pack(self, plan: Plan) -> bytes:
        """The bytes that travel."""
        rows, width = plan.family.shape
        parts = [pack_header(self.plan_id, self.id, self.window), varint(len(self.runs))]
        for run in self.runs:
            encoding, packed = plan.family.pack(run.increments, run.records)
            parts += [varint(run.class_index), varint(run.records), varint(rows), varint(width)]
            parts += [bytes([encoding]), varint(len(packed)), packed]
        return b"".join(parts)

    @staticmethod
    def unpack(data: bytes, plan: Plan) -> "Delta":
        """The delta of packed bytes, with every check that needs only the plan.

        Raises:
            DeltaError: With its reason; nothing is allocated before its size was checked. ``wrong_mode``: the plan's
                deltas never leave a device (see :func:`unpack_at_home`).
        """
        if plan.privacy.mode != CENTRAL:
            raise DeltaError(Reason.WRONG_MODE, f"mode {plan.privacy.mode!r}, in which devices send no deltas")
        return unpack_at_home(data, plan)


def unpack_at_home(data: bytes, plan: Plan) -> Delta:
    """The delta that a device packed itself and kept; whatever the plan's mode, for there it leaves nobody's hands.

    Raises:
        DeltaError: As :meth:`Delta.unpack`, but for the mode: ``wrong_mode`` where devices keep no deltas at all, for
            each record becomes a report of its own.
    """
    _refuse_reports(plan)
    if len(data) > plan.delta_bytes_max:
        raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {plan.delta_bytes_max}")
    reader, header = opened(data, plan)
    runs = reader.varint()
    if runs == 0:
        raise DeltaError(Reason.EMPTY, "a delta without records")
    if runs > plan.counters_shape[0]:
        raise DeltaError(Reason.MALFORMED, f"{runs} runs for {plan.counters_shape[0]} classes")
    delta = Delta(header.plan_id, header.window, header.id, tuple(_unpack_runs(reader, plan, runs)))
    reader.finish()
    return delta


def encode(
    plan: Plan, records: Any, *, window: int, id: DeltaId, labels: object = None
) -> tuple[Delta | None, RecordProblems]:
    """The delta of records (and their labels, where the plan has classes), on the device.

    Returns:
        The delta (None where no usable record is left), and what was wrong with some of the records: each that
        cannot be used is dropped alone.

    Raises:
        RecordError: The array cannot be used at all.
        DeltaError: More records than one delta may hold: split the batch; or ``wrong_mode``, of a plan of reports.
    """
    _refuse_reports(plan)
    usable = read(plan, records, labels)
    accepted = usable.accepted
    if len(accepted) > plan.delta_records_max:
        raise _too_many(len(accepted), plan)
    delta = _encoded(plan, accepted, usable.numbers, window, id) if len(accepted) else None
    return delta, usable.problems


def encode_all(
    plan: Plan, records: Any, *, window: int, id: DeltaId, labels: object = None
) -> tuple[list[Delta], RecordProblems]:
    """As :func:`encode`, in as few deltas as the plan's limits allow; all have the one id, for others to replace."""
    _refuse_reports(plan)
    usable = read(plan, records, labels)
    accepted, numbers = usable.accepted, usable.numbers
    cuts = [slice(at, at + plan.delta_records_max) for at in range(0, len(accepted), plan.delta_records_max)]
    return [_encoded(plan, accepted[cut], numbers[cut], window, id) for cut in cuts], usable.problems


def _encoded(plan: Plan, accepted: Records, numbers: npt.NDArray[np.int64], window: int, id: DeltaId) -> Delta:
    runs = (Run(index, len(mine), plan.family.encode(mine)) for index, mine in by_class(accepted, numbers))
    return Delta(plan.id, window, id, tuple(runs))


def read_header(data: bytes) -> DeltaHeader:
    """Plan, window and id of a packed delta, cheaply.

    Raises:
        DeltaError: ``malformed`` or ``newer_format``.
    """
    return _read_header(data)[1]


def opened(data: bytes, plan: Plan) -> tuple[Reader, DeltaHeader]:
    """The header of what begins as a delta of this plan does, and a reader of all that stands after it.

    Raises:
        DeltaError: ``malformed``, ``newer_format`` or ``wrong_plan``.
    """
    reader, header = _read_header(data)
    if header.plan_id != plan.id:
        came, expected = header.plan_id.hex()[:12], plan.hex_id[:12]
        raise DeltaError(Reason.WRONG_PLAN, f"plan {came}, expected {expected}")
    return reader, header


def renumbered(data: bytes, id: DeltaId) -> bytes:
    """A packed delta under another id; its bytes are those that it would have been packed to.

    Raises:
        DeltaError: ``malformed`` or ``newer_format``.
    """
    end = _ID_AT + len(_packed_id(read_header(data).id))
    return data[:_ID_AT] + _packed_id(id) + data[end:]


def rebound(data: bytes, id: DeltaId, window: int) -> bytes:
    """A packed delta under another id, for another window; its bytes are those that it would have been packed to.

    Raises:
        DeltaError: ``malformed`` or ``newer_format``.
    """
    header = read_header(data)
    end = len(pack_header(header.plan_id, header.id, header.window))
    return pack_header(header.plan_id, id, window) + data[end:]


def digest(data: bytes) -> bytes:
    """8 bytes that tell one packed delta from another with the same id."""
    return hashlib.sha256(DELTA_DIGEST + data).digest()[:8]


def apply(delta: Delta, counters: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], count_scale: int) -> None:
    """Adds an unpacked delta to counters (classes, shape...) and count counters, in place.

    Count counters are (classes,); with a ``count_scale`` of 0 there are none.

    The count counter is set here from the declared records, and never taken from the delta.
    """
    assert counters.flags.c_contiguous, "a copy would be counted instead"
    for run in delta.runs:
        flat = counters[run.class_index].reshape(-1)
        flat[run.increments.indices] += run.increments.values
        if count_scale:
            counts[run.class_index] += run.records * count_scale


def pack_header(plan_id: bytes, id: DeltaId, window: int) -> bytes:
    """What every delta begins with, and whatever else takes the place of one: a noised sum, a batch of reports."""
    return bytes([DELTA_FORMAT]) + plan_id + _packed_id(id) + varint(zigzag(window))


def _packed_id(id: DeltaId) -> bytes:
    return id.stream.to_bytes(8, "big") + varint(id.sequence)


def _read_header(data: bytes) -> tuple[Reader, DeltaHeader]:
    reader = Reader(data)
    version = reader.byte()
    if version > DELTA_FORMAT:
        raise DeltaError(Reason.NEWER_FORMAT, f"delta format {version}, expected at most {DELTA_FORMAT}")
    if version != DELTA_FORMAT:
        raise DeltaError(Reason.MALFORMED, f"delta format {version}, expected {DELTA_FORMAT}")
    plan_id = reader.take(32)
    stream, sequence = int.from_bytes(reader.take(8), "big"), reader.varint()
    if sequence > SEQUENCE_MAX:
        raise DeltaError(Reason.MALFORMED, f"sequence number {sequence}, expected at most 2^63 - 1")
    return reader, DeltaHeader(plan_id, reader.signed(), DeltaId(stream, sequence))


def _unpack_runs(reader: Reader, plan: Plan, runs: int) -> Iterator[Run]:
    """Each is unpacked once it is sure that those before it leave room for it."""
    last, room = -1, plan.delta_records_max
    for _ in range(runs):
        run = _unpack_run(reader, plan, after=last, room=room)
        last, room = run.class_index, room - run.records
        yield run


def _unpack_run(reader: Reader, plan: Plan, *, after: int, room: int) -> Run:
    """The next run, of a class after ``after`` and at most ``room`` records."""
    class_index, records = reader.varint(), reader.varint()
    shape = (reader.varint(), reader.varint())
    encoding = reader.byte()
    packed = reader.take(reader.varint())
    if class_index >= plan.counters_shape[0]:
        raise DeltaError(Reason.MALFORMED, f"class {class_index}, expected 0 to {plan.counters_shape[0] - 1}")
    if class_index <= after:
        came = f"a run of class {class_index} after one of class {after}"
        raise DeltaError(Reason.MALFORMED, f"{came}, expected each once, in rising order")
    if shape != plan.family.shape:
        raise DeltaError(Reason.WRONG_SHAPE, f"counters of shape {shape}, expected {plan.family.shape}")
    if records == 0:
        raise DeltaError(Reason.EMPTY, "a run without records")
    if records > room:
        raise _too_many(plan.delta_records_max - room + records, plan)
    if len(packed) > (most := plan.delta_sizes.run_bytes_max(records)):
        raise DeltaError(Reason.MALFORMED, f"a run of {len(packed)} bytes for {records} records, expected up to {most}")
    increments = plan.family.unpack(encoding, packed, records)
    plan.family.check(increments, records)
    return Run(class_index, records, increments)


def _refuse_reports(plan: Plan) -> None:
    if plan.report_sizes is not None:
        detail = "form 'report', in which each record is randomised by itself, and no exact delta is ever made"
        raise DeltaError(Reason.WRONG_MODE, detail)


def _too_many(records: int, plan: Plan) -> DeltaError:
    expected = f"at most {plan.delta_records_max} in one delta"
    return DeltaError(Reason.TOO_MANY_RECORDS, f"{records} records, expected {expected}")
