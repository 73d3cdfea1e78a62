"""The numbers that reasons, statuses and faults have on the wire."""

from typing import Final

from hushsum.errors import Reason
from hushsum_proto.answers import AnyReason, Fault, ServiceReason, Status
from hushsum_proto.v1 import wire_pb2 as pb

# Written out, not derived from the names: a number on the wire must not follow a renaming.
REASONS: Final[dict[AnyReason, pb.Reason.ValueType]] = {
    Reason.MALFORMED: pb.REASON_MALFORMED,
    Reason.NEWER_FORMAT: pb.REASON_NEWER_FORMAT,
    Reason.WRONG_PLAN: pb.REASON_WRONG_PLAN,
    Reason.WRONG_SHAPE: pb.REASON_WRONG_SHAPE,
    Reason.EMPTY: pb.REASON_EMPTY,
    Reason.BUCKET_OUT_OF_RANGE: pb.REASON_BUCKET_OUT_OF_RANGE,
    Reason.IMPOSSIBLE_COUNTS: pb.REASON_IMPOSSIBLE_COUNTS,
    Reason.TOO_MANY_RECORDS: pb.REASON_TOO_MANY_RECORDS,
    Reason.TOO_LARGE: pb.REASON_TOO_LARGE,
    Reason.ID_REUSED: pb.REASON_ID_REUSED,
    Reason.ID_OF_ANOTHER_WINDOW: pb.REASON_ID_OF_ANOTHER_WINDOW,
    Reason.WINDOW_IN_PAST: pb.REASON_WINDOW_IN_PAST,
    Reason.WINDOW_IN_FUTURE: pb.REASON_WINDOW_IN_FUTURE,
    Reason.WRONG_PARTITION: pb.REASON_WRONG_PARTITION,
    Reason.UNSIGNED: pb.REASON_UNSIGNED,
    Reason.WRONG_MODE: pb.REASON_WRONG_MODE,
    Reason.SECOND_DELTA: pb.REASON_SECOND_DELTA,
    Reason.UNSHUFFLED: pb.REASON_UNSHUFFLED,
    Reason.TOO_FEW_REPORTS: pb.REASON_TOO_FEW_REPORTS,
    Reason.TOO_MANY_WINDOWS: pb.REASON_TOO_MANY_WINDOWS,
    Reason.WINDOW_BEYOND_HORIZON: pb.REASON_WINDOW_BEYOND_HORIZON,
    ServiceReason.UNAUTHENTICATED: pb.REASON_UNAUTHENTICATED,
    ServiceReason.OVERLOADED: pb.REASON_OVERLOADED,
    ServiceReason.SHUTTING_DOWN: pb.REASON_SHUTTING_DOWN,
    ServiceReason.PROTOCOL_VERSION: pb.REASON_PROTOCOL_VERSION,
    ServiceReason.WINDOW_NOT_OPEN: pb.REASON_WINDOW_NOT_OPEN,
    ServiceReason.UNAVAILABLE: pb.REASON_UNAVAILABLE,
    ServiceReason.BUDGET: pb.REASON_BUDGET,
    ServiceReason.RATE_LIMITED: pb.REASON_RATE_LIMITED,
    ServiceReason.FORBIDDEN: pb.REASON_FORBIDDEN,
    ServiceReason.TOO_MANY_STREAMS: pb.REASON_TOO_MANY_STREAMS,
}
STATUSES: Final[dict[Status, pb.Status.ValueType]] = {
    Status.ACKNOWLEDGED: pb.STATUS_ACKNOWLEDGED,
    Status.COUNTED: pb.STATUS_COUNTED,
    Status.LATE: pb.STATUS_LATE,
    Status.UNKNOWN: pb.STATUS_UNKNOWN,
    Status.REFUSED: pb.STATUS_REFUSED,
}
FAULTS: Final[dict[Fault, pb.Fault.ValueType]] = {
    Fault.SENDER: pb.FAULT_SENDER,
    Fault.SERVICE: pb.FAULT_SERVICE,
}
REASONS_READ: Final = {number: reason for reason, number in REASONS.items()}
STATUSES_READ: Final = {number: status for status, number in STATUSES.items()}
FAULTS_READ: Final = {number: fault for fault, number in FAULTS.items()}
