"""A batch of reports: its packed bytes, and how they are counted.

Packed: format version (1 byte), plan id (32), stream (8, big-endian), sequence 0 and window (varints, the window
zigzag), number of reports n (varint), and n reports of ``width`` bytes each, little-endian, **in ascending order**: a
batch is a multiset, and tells nothing of the order of its records. It starts as a delta does, and a stream has one.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hushsum import compiled
from hushsum.bitpacking import varint
from hushsum.delta import DeltaHeader, DeltaId, opened, pack_header
from hushsum.delta_sizes import ReportSizes
from hushsum.errors import DeltaError, Reason
from hushsum.local.reports import Int64, sizes_of
from hushsum.plan import Plan

_THREE: Final = 3  # bytes: no integer of NumPy has as many


@dataclass(frozen=True, eq=False)
class ReportBatch:
    """Reports of one window. Two are compared by their packed bytes.

    Attributes:
        plan_id: 32 bytes.
        window: Its index.
        id: Of a random stream that has this one batch, and the sequence number 0.
        reports: (n,) int64, in any order until they are packed.
    """

    plan_id: bytes
    window: int
    id: DeltaId
    reports: Int64 = field(repr=False)

    def pack(self, plan: Plan) -> bytes:
        """The bytes that travel, reports in ascending order.

        Raises:
            ValueError: The sequence number is not 0, or a report is out of range: the device's own mistake.
            DeltaError: ``empty`` or ``too_many_records``: split what is larger.
        """
        sizes = sizes_of(plan)
        if self.id.sequence != 0:
            raise ValueError(f"a batch of reports is the only one of its stream, got sequence {self.id.sequence}")
        _check_number(len(self.reports), plan)
        if int(self.reports.min()) < 0 or int(self.reports.max()) >= _limit(sizes):
            raise ValueError(f"report out of range, expected 0 to {_limit(sizes) - 1}")
        octets = _ordered(self.reports, sizes.width)
        return b"".join([pack_header(self.plan_id, self.id, self.window), varint(len(self.reports)), octets])

    def count_into(self, counters: Int64, counts: Int64) -> None:
        """Adds reports that :func:`unpack` has checked to counters (1, R, outputs) and counts (1,), in place."""
        _add(self.reports, counters, counts)


def unpack(data: bytes, plan: Plan) -> ReportBatch:
    """The batch of packed bytes, with every check that needs only the plan.

    Raises:
        DeltaError: ``too_large``, ``malformed``, ``newer_format``, ``wrong_plan``, ``empty``, ``too_many_records`` or
            ``bucket_out_of_range``; nothing is allocated before its size was checked.
        GuaranteeError: The plan's devices send no reports.
    """
    sizes, (header, n, octets) = sizes_of(plan), _opened(data, plan)
    if compiled.enabled():
        from hushsum.local import report_batch_loops

        reports, ascends = report_batch_loops.read(octets, n, sizes.width)
    else:
        reports, ascends = _read(octets, n, sizes.width)
    _check(ascends, int(reports[-1]), sizes)
    return ReportBatch(header.plan_id, header.window, header.id, reports)


def count_packed(data: bytes, plan: Plan, counters: Int64, counts: Int64) -> int:
    """Counts a packed batch at once, in place, and nothing of one that is refused; gives its number of reports.

    Args:
        data: Untrusted bytes.
        plan: Of reports.
        counters: (1, R, outputs), C-contiguous.
        counts: (1,): the number of reports.

    Raises:
        DeltaError: As :func:`unpack`.
        GuaranteeError: The plan's devices send no reports.
    """
    if not compiled.enabled():
        batch = unpack(data, plan)
        batch.count_into(counters, counts)
        return len(batch.reports)
    from hushsum.local import report_batch_loops

    sizes, (_, n, octets) = sizes_of(plan), _opened(data, plan)
    _check(*report_batch_loops.look(octets, sizes.width), sizes)
    assert counters.flags.c_contiguous, "a copy would be counted instead"
    report_batch_loops.count(octets, sizes.width, counters.reshape(-1))
    counts[0] += n
    return n


def _opened(data: bytes, plan: Plan) -> tuple[DeltaHeader, int, bytes]:
    """The header, the number of reports, and their bytes, of which nothing is known but how many they are."""
    if len(data) > plan.upload_bytes_max:
        raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {plan.upload_bytes_max}")
    reader, header = opened(data, plan)
    if header.id.sequence != 0:
        raise DeltaError(Reason.MALFORMED, f"sequence number {header.id.sequence}, expected 0: one batch a stream")
    n = reader.varint()
    _check_number(n, plan)
    octets = reader.take(n * sizes_of(plan).width)
    reader.finish()
    return header, n, octets


def _limit(sizes: ReportSizes) -> int:
    return sizes.rows * sizes.outputs


def _check_number(n: int, plan: Plan) -> None:
    if n == 0:
        raise DeltaError(Reason.EMPTY, "a batch without reports")
    if n > plan.delta_records_max:
        raise DeltaError(
            Reason.TOO_MANY_RECORDS, f"{n} reports, expected at most {plan.delta_records_max} in one batch"
        )


def _ordered(reports: Int64, width: int) -> bytes:
    """In ascending order; words of their own size are sorted faster."""
    if width != _THREE:
        return np.sort(reports.astype(f"<u{width}")).tobytes()
    words = np.sort(reports.astype("<u4")).view(np.uint8).reshape(-1, 4)
    octets = np.empty((len(words), width), np.uint8)
    for i in range(width):  # one after another: a copy of three bytes a report at a time takes four times as long
        octets[:, i] = words[:, i]
    return octets.tobytes()


def _read(octets: bytes, n: int, width: int) -> tuple[Int64, bool]:
    """(n,) int64, and whether they ascend."""
    if width != _THREE:
        reports = np.frombuffer(octets, f"<u{width}").astype(np.int64)
    else:
        words, given = np.zeros((n, 4), np.uint8), np.frombuffer(octets, np.uint8).reshape(n, width)
        for i in range(width):
            words[:, i] = given[:, i]
        reports = words.view("<u4").reshape(n).astype(np.int64)
    return reports, bool(np.all(reports[:-1] <= reports[1:]))


def _check(ascends: bool, last: int, sizes: ReportSizes) -> None:  # noqa: FBT001 -- what a loop found, in its order
    if not ascends:
        raise DeltaError(Reason.MALFORMED, "reports out of their ascending order")
    if last >= _limit(sizes):
        raise DeltaError(Reason.BUCKET_OUT_OF_RANGE, f"report {last}, expected 0 to {_limit(sizes) - 1}")


def _add(reports: Int64, counters: Int64, counts: Int64) -> None:
    assert counters.flags.c_contiguous, "a copy would be counted instead"
    if compiled.enabled():
        from hushsum.local import report_batch_loops

        report_batch_loops.add(reports, counters.reshape(-1))
    else:
        np.add.at(counters.reshape(-1), reports, 1)
    counts[0] += len(reports)
