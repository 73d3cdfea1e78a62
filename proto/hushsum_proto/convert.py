"""The one translator between the wire's messages and plain values: nothing else of the project knows both.

``*_to_wire`` makes a message, ``*_from_wire`` reads one and raises :class:`MalformedMessageError` for what no peer of
this version writes. Entries of the log go all the way to bytes and back.
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from hushsum.delta import DeltaId
from hushsum_proto.answers import Answer, AnyReason, Fault, Refusal, Status
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.convert_numbers import FAULTS, FAULTS_READ, REASONS, REASONS_READ, STATUSES, STATUSES_READ
from hushsum_proto.entries import ENTRY_FORMAT, CohortSumEntry, DeltaEntry, LogEntry, ReportsEntry, SealEntry
from hushsum_proto.errors import MalformedEntryError, MalformedMessageError, NewerEntryError
from hushsum_proto.messages import Authenticity, Hello, Welcome
from hushsum_proto.v1 import wire_pb2 as pb

ID_BYTES: Final = 32  # of a plan, of a round
SEQUENCE_END: Final = 1 << 63
ANSWERS_MAX: Final = 64  # of one message


def reason_to_wire(reason: AnyReason) -> pb.Reason.ValueType:
    """The stable number of a reason."""
    return REASONS[reason]


def reason_from_wire(number: int) -> AnyReason | None:
    """The reason of a number; None for one that only a newer service knows."""
    return REASONS_READ.get(pb.Reason.ValueType(number))


# ----------------------------------------------------------------------------------------------------- log entries


def entry_to_bytes(entry: LogEntry) -> bytes:
    """The bytes of a log entry."""
    message = pb.Entry(format_version=ENTRY_FORMAT, arrived_ms=entry.arrived_ms)
    if isinstance(entry, DeltaEntry):
        delta = message.delta  # each look at a message's field is a call
        delta.client_id = entry.client_id
        delta.delta = entry.delta
    elif isinstance(entry, CohortSumEntry):
        message.cohort_sum.plan_id = entry.plan_id
        message.cohort_sum.window = entry.window
        message.cohort_sum.round = entry.round
        message.cohort_sum.submissions = entry.submissions
        message.cohort_sum.sum = entry.sum
    elif isinstance(entry, ReportsEntry):
        message.reports.batch = entry.batch
        message.reports.shuffled = entry.shuffled
    else:
        message.seal.plan_id = entry.plan_id
        message.seal.window = entry.window
    return message.SerializeToString()


def entry_from_bytes(data: bytes) -> LogEntry:
    """Reads a log entry.

    Raises:
        NewerEntryError: Its format version is above this version's.
        MalformedEntryError: It is no entry, or an empty one.
    """
    try:
        message = pb.Entry.FromString(data)
    except DecodeError as error:
        raise MalformedEntryError("log entry: expected the message Entry, got other bytes") from error
    if message.format_version != ENTRY_FORMAT:
        if message.format_version > ENTRY_FORMAT:
            raise NewerEntryError(message.format_version, ENTRY_FORMAT)
        raise MalformedEntryError("log entry: expected a format version, got none")
    body = message.WhichOneof("body")
    if body == "delta":
        delta = message.delta  # each look at a message's field is a call
        client_id = delta.client_id
        if not client_id:
            raise MalformedEntryError("log entry: expected a client id with the delta, got none")
        return DeltaEntry(client_id, delta.delta, message.arrived_ms)
    if body == "seal":
        _check_id("plan id", message.seal.plan_id, "seal")
        return SealEntry(message.seal.plan_id, message.seal.window, message.arrived_ms)
    if body == "cohort_sum":
        return _cohort_sum(message.cohort_sum, message.arrived_ms)
    if body == "reports":
        return ReportsEntry(message.reports.batch, message.reports.shuffled, message.arrived_ms)
    raise MalformedEntryError("log entry: expected a delta, a cohort sum, reports or a seal, got none of them")


def _cohort_sum(message: pb.CohortSumEntry, arrived_ms: int) -> CohortSumEntry:
    _check_id("plan id", message.plan_id, "cohort sum")
    _check_id("round", message.round, "cohort sum")
    if not message.submissions:
        raise MalformedEntryError("log entry: expected a submission or more in the cohort sum, got none")
    return CohortSumEntry(message.plan_id, message.window, message.round, message.submissions, message.sum, arrived_ms)


def _check_id(what: str, came: bytes, where: str) -> None:
    if len(came) != ID_BYTES:
        raise MalformedEntryError(f"log entry: expected a {what} of {ID_BYTES} bytes in the {where}, got {len(came)}")


# ---------------------------------------------------------------------------------------------- deltas and answers


def id_to_wire(delta_id: DeltaId) -> pb.DeltaId:
    """A delta's id."""
    return pb.DeltaId(stream=delta_id.stream, sequence=delta_id.sequence)


def id_from_wire(message: pb.DeltaId) -> DeltaId:
    """A delta's id.

    Raises:
        MalformedMessageError: A sequence number of 2^63 or more.
    """
    if message.sequence >= SEQUENCE_END:
        raise MalformedMessageError(f"delta id: expected a sequence number below 2^63, got {message.sequence}")
    return DeltaId(message.stream, message.sequence)


def submission_to_wire(plan_id: bytes, delta: bytes, shuffled: Authenticity | None = None) -> pb.SubmitRequest:
    """A packed delta, noised whole delta or batch of reports, on its way to the service.

    Args:
        plan_id: 32 bytes.
        delta: Packed.
        shuffled: Of a batch that a shuffler has shuffled, its signature.
    """
    request = pb.SubmitRequest(plan_id=plan_id, delta=delta)
    if shuffled is not None:
        request.shuffled.suite = shuffled.suite
        request.shuffled.key_id = shuffled.key_id
        request.shuffled.tag = shuffled.tag
    return request


def shuffled_from_wire(message: pb.SubmitRequest) -> Authenticity | None:
    """Who says to have shuffled what is submitted; None where nobody does. Nothing of it is checked here."""
    claim = message.shuffled  # an empty one, where there is none
    return Authenticity(claim.key_id, claim.tag, claim.suite) if claim.suite else None


def refusal_to_wire(refusal: Refusal) -> pb.Refusal:
    """A refusal; one whose reason is not known here has none on the wire either."""
    return pb.Refusal(
        reason=pb.REASON_UNSPECIFIED if refusal.reason is None else REASONS[refusal.reason],
        detail=refusal.detail,
        fault=FAULTS[refusal.fault],
        retry=refusal.retry,
        retry_after_ms=refusal.retry_after_ms,
    )


def refusal_from_wire(message: pb.Refusal) -> Refusal:
    """A refusal. Whose fault it is, where a newer service names somebody unknown: the service's."""
    return Refusal(
        reason=reason_from_wire(message.reason),
        detail=message.detail,
        fault=FAULTS_READ.get(message.fault, Fault.SERVICE),
        retry=message.retry,
        retry_after_ms=message.retry_after_ms,
    )


def answer_to_wire(answer: Answer) -> pb.SubmitReply:
    """An answer to one delta."""
    reply = pb.SubmitReply(status=STATUSES[answer.status])
    if answer.id is not None:
        delta_id = reply.id  # set in place: a message that is made apart is copied
        delta_id.stream = answer.id.stream
        delta_id.sequence = answer.id.sequence
        delta_id.SetInParent()  # the id (0, 0) is one, too
    if answer.refusal is not None:
        reply.refusal.CopyFrom(refusal_to_wire(answer.refusal))
    return reply


def answer_from_wire(message: pb.SubmitReply) -> Answer:
    """An answer to one delta.

    Raises:
        MalformedMessageError: A status that this version does not know, or an answer that names no delta although it
            was not refused.
    """
    status = STATUSES_READ.get(message.status)
    if status is None:
        raise MalformedMessageError(f"answer: got status {message.status}, which this version does not know")
    delta_id = id_from_wire(message.id) if message.HasField("id") else None
    if status is not Status.REFUSED:
        if delta_id is None:
            raise MalformedMessageError(f"answer: expected a delta's id with {status.value}, got none")
        return Answer(delta_id, status)
    return Answer(delta_id, status, refusal_from_wire(message.refusal))


def answers_to_wire(answers: Sequence[Answer]) -> pb.SubmitReply:
    """Answers to 1 to :data:`ANSWERS_MAX` deltas of one stream, in their order."""
    reply = answer_to_wire(answers[0])
    reply.more.extend(map(answer_to_wire, answers[1:]))
    return reply


def answers_from_wire(message: pb.SubmitReply) -> list[Answer]:
    """Answers to deltas of one stream, in their order.

    Raises:
        MalformedMessageError: More than :data:`ANSWERS_MAX`, or as :func:`answer_from_wire`.
    """
    count = 1 + len(message.more)
    if count > ANSWERS_MAX:
        raise MalformedMessageError(f"got {count} answers in one message, expected at most {ANSWERS_MAX}")
    return [answer_from_wire(each) for each in (message, *message.more)]


def hello_to_wire(hello: Hello) -> pb.HelloRequest:
    """What a client opens with."""
    return pb.HelloRequest(
        protocol_versions=hello.protocol_versions,
        features=hello.features,
        plan_id=hello.plan_id,
        software=hello.software,
    )


def hello_from_wire(message: pb.HelloRequest) -> Hello:
    """What a client opens with.

    Raises:
        MalformedMessageError: A plan id that is neither absent nor 32 bytes.
    """
    if len(message.plan_id) not in (0, ID_BYTES):
        raise MalformedMessageError(f"plan id: expected {ID_BYTES} bytes or none, got {len(message.plan_id)}")
    return Hello(tuple(message.protocol_versions), message.plan_id, message.software, tuple(message.features))


def welcome_to_wire(welcome: Welcome) -> pb.HelloReply:
    """What the service replies."""
    return pb.HelloReply(
        protocol_version=welcome.protocol_version,
        features=welcome.features,
        plan_id=welcome.plan_id,
        window=welcome.window,
        now_ms=welcome.now_ms,
        oldest_window=welcome.oldest_window,
        newest_window=welcome.newest_window,
        in_flight_max=welcome.in_flight_max,
        delta_bytes_max=welcome.delta_bytes_max,
        client_id=welcome.client_id,
    )


def welcome_from_wire(message: pb.HelloReply) -> Welcome:
    """What the service replies.

    Raises:
        MalformedMessageError: A plan id that is not 32 bytes, a limit of 0, or a name that no client has.
    """
    if len(message.plan_id) != ID_BYTES:
        raise MalformedMessageError(f"plan id: expected {ID_BYTES} bytes, got {len(message.plan_id)}")
    if not message.in_flight_max or not message.delta_bytes_max:
        raise MalformedMessageError("hello: expected limits above 0, got none")
    if message.client_id and (flaw := flaw_of(message.client_id)):
        raise MalformedMessageError(f"hello: the client id: {flaw}")
    return Welcome(
        protocol_version=message.protocol_version,
        plan_id=message.plan_id,
        window=message.window,
        now_ms=message.now_ms,
        oldest_window=message.oldest_window,
        newest_window=message.newest_window,
        in_flight_max=message.in_flight_max,
        delta_bytes_max=message.delta_bytes_max,
        client_id=message.client_id,
        features=tuple(message.features),
    )
