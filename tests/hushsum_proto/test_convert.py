"""The one translator: everything goes there and back, and what no peer writes is refused."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from hushsum_proto import convert, convert_admin, convert_chunks, convert_numbers, convert_outcomes
from hushsum_proto.answers import Answer, Fault, Refusal, ServiceReason, Status
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, ReportsEntry, SealEntry, partition_of_sum
from hushsum_proto.errors import MalformedEntryError, MalformedMessageError, NewerEntryError
from hushsum_proto.messages import (
    CHUNK_BYTES,
    Authenticity,
    DeltaChunk,
    FoldStatus,
    Hello,
    Released,
    ReleaseInfo,
    ServiceStatus,
    Welcome,
    chunks_of,
)
from hushsum_proto.metadata import client_id_from_metadata, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb

ids = st.builds(DeltaId, st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
times = st.integers(-(2**63), 2**63 - 1)
windows = st.integers(-(2**63), 2**63 - 1)
hashes = st.binary(min_size=32, max_size=32)


def cohort_sum(**changes: Any) -> bytes:
    """The bytes of a cohort sum, of another format where nothing of it is changed."""
    fields = {"plan_id": bytes(32), "round": bytes(32), "submissions": 3, "sum": b"sum", **changes}
    message = pb.Entry(format_version=1 if changes else 0, cohort_sum=pb.CohortSumEntry(**fields))
    return message.SerializeToString()


@pytest.mark.parametrize("reason", [*Reason, *ServiceReason])
def test_every_reason_maps_both_ways(reason: Reason | ServiceReason) -> None:
    number = convert.reason_to_wire(reason)

    assert pb.Reason.Name(number) == "REASON_" + reason.name
    assert convert.reason_from_wire(number) is reason


def test_every_number_of_a_reason_status_and_fault_is_translated() -> None:
    assert sorted(convert_numbers.REASONS.values()) == [number for number in pb.Reason.values() if number]
    assert sorted(convert_numbers.STATUSES.values()) == [number for number in pb.Status.values() if number]
    assert sorted(convert_numbers.FAULTS.values()) == [number for number in pb.Fault.values() if number]
    assert set(convert_numbers.STATUSES) == set(Status)
    assert set(convert_numbers.FAULTS) == set(Fault)


def test_the_names_of_reasons_are_told_apart() -> None:
    assert not {reason.value for reason in Reason} & {reason.value for reason in ServiceReason}


def test_a_reason_of_a_newer_service_is_read_as_not_known() -> None:
    message = pb.SubmitReply(status=pb.STATUS_REFUSED)
    message.refusal.MergeFromString(b"\x08\xe7\x07")  # reason = 999

    refusal = convert.answer_from_wire(message).refusal

    assert refusal is not None
    assert refusal.reason is None
    assert refusal.fault is Fault.SERVICE


@given(st.text(min_size=1, max_size=128), st.binary(max_size=300), times)
def test_a_delta_entry_comes_back_from_its_bytes(client_id: str, delta: bytes, arrived_ms: int) -> None:
    entry = DeltaEntry(client_id, delta, arrived_ms)

    assert convert.entry_from_bytes(convert.entry_to_bytes(entry)) == entry


@given(st.binary(min_size=32, max_size=32), windows, times)
def test_a_seal_comes_back_from_its_bytes(plan_id: bytes, window: int, arrived_ms: int) -> None:
    entry = SealEntry(plan_id, window, arrived_ms)

    assert convert.entry_from_bytes(convert.entry_to_bytes(entry)) == entry


@given(hashes, windows, hashes, st.integers(1, 2**32 - 1), st.binary(max_size=300), times)
def test_a_cohort_sum_comes_back_from_its_bytes(
    plan_id: bytes, window: int, round_id: bytes, submissions: int, packed: bytes, arrived_ms: int
) -> None:
    entry = CohortSumEntry(plan_id, window, round_id, submissions, packed, arrived_ms)

    assert convert.entry_from_bytes(convert.entry_to_bytes(entry)) == entry


@given(st.binary(max_size=300), st.booleans(), times)
def test_reports_come_back_from_their_bytes(batch: bytes, shuffled: bool, arrived_ms: int) -> None:
    entry = ReportsEntry(batch, shuffled, arrived_ms)

    assert convert.entry_from_bytes(convert.entry_to_bytes(entry)) == entry


def test_the_bytes_of_reports_hold_nothing_but_the_batch_its_window_and_whether_it_was_shuffled() -> None:
    message = pb.Entry.FromString(convert.entry_to_bytes(ReportsEntry(b"batch", True, 7)))

    assert {field.name for field, _ in message.ListFields()} == {"format_version", "arrived_ms", "reports"}
    assert {field.name for field in pb.ReportsEntry.DESCRIPTOR.fields} == {"batch", "shuffled"}


def test_the_id_of_a_cohort_sum_is_of_its_plan_window_and_round_alone() -> None:
    entry = CohortSumEntry(b"p" * 32, -2, b"r" * 32, 3, b"sum", 7)
    named = b"hushsum/v1/cohort-sum\0" + b"p" * 32 + b"\xff" * 7 + b"\xfe" + b"r" * 32

    assert entry.id == DeltaId(int.from_bytes(hashlib.sha256(named).digest()[:8], "big"), 0)
    assert entry._replace(submissions=4, sum=b"other", arrived_ms=8).id == entry.id
    others = {entry._replace(plan_id=b"q" * 32).id, entry._replace(window=2).id, entry._replace(round=b"s" * 32).id}
    assert len(others | {entry.id}) == 4
    assert partition_of_sum(entry.id, 7) == entry.id.stream % 7


@pytest.mark.parametrize(
    "data",
    (
        b"\xff\xff\xff",
        b"",
        pb.Entry(format_version=1).SerializeToString(),
        pb.Entry(delta=pb.DeltaEntry(client_id="a", delta=b"x")).SerializeToString(),
        pb.Entry(format_version=1, delta=pb.DeltaEntry(delta=b"x")).SerializeToString(),
        pb.Entry(format_version=1, seal=pb.SealEntry(plan_id=b"short")).SerializeToString(),
        cohort_sum(),
        cohort_sum(plan_id=bytes(31)),
        cohort_sum(round=bytes(33)),
        cohort_sum(round=b""),
        cohort_sum(submissions=0),
    ),
)
def test_bytes_that_are_no_entry_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedEntryError):
        convert.entry_from_bytes(data)


def test_an_entry_of_a_newer_format_is_told_apart_from_a_malformed_one() -> None:
    with pytest.raises(NewerEntryError) as caught:
        convert.entry_from_bytes(pb.Entry(format_version=2).SerializeToString())

    assert (caught.value.came, caught.value.known) == (2, 1)


@given(ids, st.sampled_from([status for status in Status if status is not Status.REFUSED]))
def test_an_answer_comes_back_from_the_wire(delta_id: DeltaId, status: Status) -> None:
    answer = Answer(delta_id, status)

    assert convert.answer_from_wire(convert.answer_to_wire(answer)) == answer


@given(st.none() | ids, st.sampled_from([*Reason, *ServiceReason]), st.text(max_size=50), st.integers(0, 2**32 - 1))
def test_a_refusal_comes_back_from_the_wire(
    delta_id: DeltaId | None, reason: Reason | ServiceReason, detail: str, retry_after_ms: int
) -> None:
    answer = Answer(delta_id, Status.REFUSED, Refusal.of(reason, detail, retry_after_ms))

    assert convert.answer_from_wire(convert.answer_to_wire(answer)) == answer


@pytest.mark.parametrize("count", (1, 2, convert.ANSWERS_MAX))
def test_answers_come_back_from_one_message_in_their_order(count: int) -> None:
    refusal = Refusal.of(ServiceReason.OVERLOADED, "full", 5)
    answers = [
        Answer(DeltaId(1, n), Status.REFUSED, refusal) if n % 2 else Answer(DeltaId(1, n), Status.ACKNOWLEDGED)
        for n in range(count)
    ]

    assert convert.answers_from_wire(convert.answers_to_wire(answers)) == answers


def test_too_many_answers_in_one_message_are_malformed() -> None:
    message = convert.answers_to_wire([Answer(DeltaId(1, n), Status.LATE) for n in range(convert.ANSWERS_MAX + 1)])
    with pytest.raises(MalformedMessageError, match="got 65 answers in one message, expected at most 64"):
        convert.answers_from_wire(message)


@pytest.mark.parametrize(
    "message",
    (
        pb.SubmitReply(id=pb.DeltaId(stream=1)),
        pb.SubmitReply(status=pb.STATUS_ACKNOWLEDGED),
        pb.SubmitReply(id=pb.DeltaId(sequence=2**63), status=pb.STATUS_ACKNOWLEDGED),
    ),
)
def test_an_answer_without_a_status_or_an_id_is_malformed(message: pb.SubmitReply) -> None:
    with pytest.raises(MalformedMessageError):
        convert.answer_from_wire(message)


@pytest.mark.parametrize("reason", [*Reason, *ServiceReason])
def test_only_what_is_nobodys_fault_but_the_services_is_worth_a_retry(reason: Reason | ServiceReason) -> None:
    refusal = Refusal.of(reason, "")

    assert refusal.retry == (
        reason
        in {
            ServiceReason.OVERLOADED,
            ServiceReason.SHUTTING_DOWN,
            ServiceReason.UNAVAILABLE,
            ServiceReason.RATE_LIMITED,
        }
    )
    assert not (refusal.retry and refusal.fault is Fault.SENDER)
    assert not (isinstance(reason, Reason) and refusal.fault is Fault.SERVICE)


def test_a_submission_carries_who_says_to_have_shuffled_it_or_nobody() -> None:
    claim = Authenticity("mixer", b"tag")
    plain, shuffled = convert.submission_to_wire(b"p" * 32, b"d"), convert.submission_to_wire(b"p" * 32, b"d", claim)

    assert (plain.plan_id, plain.delta) == (shuffled.plan_id, shuffled.delta) == (b"p" * 32, b"d")
    assert plain == pb.SubmitRequest(plan_id=b"p" * 32, delta=b"d")  # the bytes that it always had
    assert convert.shuffled_from_wire(plain) is None
    assert convert.shuffled_from_wire(pb.SubmitRequest.FromString(shuffled.SerializeToString())) == claim
    claim_of_nothing = pb.SubmitRequest(shuffled=pb.Authenticity(key_id="mixer", tag=b"tag"))
    assert convert.shuffled_from_wire(claim_of_nothing) is None


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_large_delta_comes_back_from_its_chunks(size: int) -> None:
    delta = bytes(index % 251 for index in range(size))
    chunks = list(chunks_of(b"p" * 32, delta))
    sent = [convert_chunks.delta_chunk_to_wire(chunk).SerializeToString() for chunk in chunks]
    came = [convert_chunks.delta_chunk_from_wire(pb.DeltaChunk.FromString(data)) for data in sent]

    assert came == chunks
    assert (came[0].plan_id, came[0].size) == (b"p" * 32, size)
    assert [chunk.offset for chunk in came] == list(range(0, size, CHUNK_BYTES))
    assert b"".join(chunk.data for chunk in came) == delta


@pytest.mark.parametrize(
    "chunk",
    (
        DeltaChunk(0, b"", b"p" * 32, 5),
        DeltaChunk(0, bytes(CHUNK_BYTES + 1), b"p" * 32, CHUNK_BYTES + 1),
        DeltaChunk(0, b"data", b"short", 5),
        DeltaChunk(0, b"data", b"", 5),
        DeltaChunk(0, b"data", b"p" * 32, 3),
        DeltaChunk(4, b"data", b"p" * 32),
        DeltaChunk(4, b"data", b"", 8),
    ),
)
def test_a_chunk_that_no_sender_makes_is_malformed(chunk: DeltaChunk) -> None:
    with pytest.raises(MalformedMessageError):
        convert_chunks.delta_chunk_from_wire(convert_chunks.delta_chunk_to_wire(chunk))


def test_sessions_come_back_from_the_wire() -> None:
    hello = Hello((1, 2), b"p" * 32, "test/1", ("x",))
    welcome = Welcome(1, b"p" * 32, -3, 1_700_000_000_000, -4, -2, 64, 4096, ("y",))

    assert convert.hello_from_wire(convert.hello_to_wire(hello)) == hello
    assert convert.welcome_from_wire(convert.welcome_to_wire(welcome)) == welcome


def test_a_plan_comes_back_from_the_wire_with_its_signature_or_without() -> None:
    key = SigningKey(bytes(32))
    signed = SignedPlan.sign(b"bundle", key, "planner")
    message = convert_outcomes.plan_to_wire(b"bundle", signed)

    assert convert_outcomes.plan_from_wire(message) == (b"bundle", signed)
    assert signed.verify([key.verify_key]) == key.verify_key
    assert convert_outcomes.plan_to_wire(b"bundle", None) == pb.SignedPlan(plan=b"bundle")
    assert convert_outcomes.plan_from_wire(pb.SignedPlan(plan=b"bundle")) == (b"bundle", None)
    message.suite = 7
    assert convert_outcomes.plan_from_wire(message) == (b"bundle", None)


def test_a_plan_id_of_another_length_is_malformed() -> None:
    with pytest.raises(MalformedMessageError, match="plan id"):
        convert.hello_from_wire(pb.HelloRequest(plan_id=b"short"))
    with pytest.raises(MalformedMessageError, match="plan id"):
        convert.welcome_from_wire(pb.HelloReply(plan_id=b"short", in_flight_max=1, delta_bytes_max=1))


def test_releases_and_status_come_back_from_the_wire() -> None:
    info = ReleaseInfo(b"p" * 32, "tumbling", -7, 12345, b"s" * 32)
    withheld = ReleaseInfo(b"p" * 32, "tumbling", -7, 0, b"", withheld=True)
    released = Released(info, "1", "29")
    budget = {"delta_total": "1e-6", "delta_spent": "1e-7", "delta_left": "9e-7", "statement": "in words"}
    folds = (FoldStatus(0, 7, 3, "a gap"), FoldStatus(1, 9))
    process = {"role": "gateway", "releaser": "vm/1/a", "releaser_address": "127.0.0.1:7463"}
    windows = ((-1, "sealed"), (0, "open"))
    status = ServiceStatus(b"p" * 32, "pixels", 4, windows, "30", "1", "29", "why", **budget, **process, folds=folds)

    for told in (info, withheld):
        assert convert_outcomes.release_info_from_wire(convert_outcomes.release_info_to_wire(told)) == told
    assert convert_admin.released_from_wire(convert_admin.released_to_wire(released)) == released
    assert convert_admin.status_from_wire(convert_admin.status_to_wire(status)) == status


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128))
def test_a_client_id_survives_metadata_which_are_ascii(client_id: str) -> None:
    value = client_id_to_metadata(client_id)

    assert value.isascii()
    assert value.isprintable()
    assert " " not in value
    assert client_id_from_metadata(value) == client_id


def test_a_common_client_id_is_readable_in_metadata() -> None:
    assert client_id_to_metadata("till-17/north@example.org") == "till-17/north@example.org"


def test_bytes_that_are_no_utf8_are_no_client_id() -> None:
    with pytest.raises(MalformedMessageError):
        client_id_from_metadata("%ff")
