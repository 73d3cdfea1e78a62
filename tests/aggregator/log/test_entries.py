"""What a fold is given of what stands in a log that others can write to: the rules of each role."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.auth.authenticators import DeclaredNameAuthenticator
from aggregator.errors import LogError, UnauthenticatedError
from aggregator.fold.fold import Fold
from aggregator.fold.verdicts import Verdict, VerdictKind
from aggregator.log.entries import LogMessages, PlainMessages, SignedMessages, admit
from aggregator.model import Peer, PositionedEntry, Scope
from hushsum.errors import Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import PRODUCER_SKEW_MS, Batch, signed_batch
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, LogEntry, RefusedEntry, SealEntry
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.deltas import client_of, entry, tally, tally_plan

PLAN = tally_plan(counters=200)
HOUR_MS = 3_600_000
W = 472_222
NOW_MS = W * HOUR_MS + HOUR_MS // 2
ALICE = client_of(0, 1)
KEYS = {role: SigningKey(bytes([number]) * 32) for number, role in enumerate(Role)}
DIRECTORY = Directory({role.value: DirectoryKey(role.value, role, key.verify_key) for role, key in KEYS.items()})
SEAL = SealEntry(PLAN.id, W, NOW_MS)
SUM = CohortSumEntry(PLAN.id, W, bytes(32), 3, b"sum", NOW_MS)


def delta(number: int = 0, window: int = W, sequence: int | None = None) -> DeltaEntry:
    return entry(ALICE, tally(PLAN, number, window, 1, number if sequence is None else sequence))


def positioned(
    item: LogEntry, signer: Role | None = None, appended_ms: int | None = NOW_MS, position: int = 0
) -> PositionedEntry:
    return PositionedEntry(position, entry_to_bytes(item), signer, appended_ms)


def admitted(item: LogEntry, signer: Role | None = None, appended_ms: int | None = NOW_MS) -> LogEntry | RefusedEntry:
    return admit(PLAN, 0, positioned(item, signer, appended_ms))


def reason_of(item: LogEntry, signer: Role | None = None, appended_ms: int | None = NOW_MS) -> Reason | None:
    given = admitted(item, signer, appended_ms)
    return given.reason if isinstance(given, RefusedEntry) else None


@pytest.mark.parametrize("item", (delta(), SEAL, SUM))
def test_where_nothing_is_signed_every_entry_is_taken_as_it_is(item: LogEntry) -> None:
    assert admitted(item) == item


def test_each_role_may_write_its_own_and_nothing_else() -> None:
    refused = {(role, type(item)): reason_of(item, role) for role in Role for item in (delta(), SEAL, SUM)}
    taken = {
        (Role.GATEWAY, DeltaEntry),
        (Role.GATEWAY, CohortSumEntry),
        (Role.RELEASER, SealEntry),
        (Role.PRODUCER, DeltaEntry),
    }
    assert refused == {key: None if key in taken else Reason.UNSIGNED for key in refused}
    assert len(refused) == 3 * len(Role)


def test_a_refusal_says_what_came_from_whom() -> None:
    given = admitted(SEAL, Role.GATEWAY)
    assert isinstance(given, RefusedEntry)
    assert given.detail == "a seal, signed by a gateway key, expected another role's"
    given = admitted(SUM, Role.PRODUCER)
    assert isinstance(given, RefusedEntry)
    assert given.detail == "a cohort sum, signed by a producer key, expected another role's"


@pytest.mark.parametrize("problem", (Reason.UNSIGNED, Reason.MALFORMED))
def test_what_the_log_could_not_open_is_refused_for_that(problem: Reason) -> None:
    given = admit(PLAN, 0, PositionedEntry(7, b"", problem=problem))
    assert isinstance(given, RefusedEntry)
    assert given.reason is problem
    assert len(given.detail.split()) > 3


@given(st.binary(max_size=40), st.sampled_from([None, *Role]))
def test_whatever_bytes_stand_there_they_are_passed(data: bytes, signer: Role | None) -> None:
    try:
        given = admit(PLAN, 0, PositionedEntry(0, data, signer, NOW_MS))
    except LogError:
        assert pb.Entry.FromString(data).format_version > 1
    else:
        assert isinstance(given, RefusedEntry | DeltaEntry | SealEntry)


@pytest.mark.parametrize("signer", (None, *Role))
def test_a_newer_entry_stops_the_partition(signer: Role | None) -> None:
    newer = pb.Entry(format_version=2).SerializeToString()
    with pytest.raises(LogError, match="partition 3, entry 9: log entry: got format version 2, this version reads up"):
        admit(PLAN, 3, PositionedEntry(9, newer, signer))


@pytest.mark.parametrize("signer", (None, *Role))
def test_a_batch_inside_a_batch_is_refused(signer: Role | None) -> None:
    nested = batch_to_bytes(Batch((entry_to_bytes(delta()),)))
    given = admit(PLAN, 0, PositionedEntry(0, nested, signer, NOW_MS))
    assert isinstance(given, RefusedEntry)
    assert given.reason is Reason.MALFORMED


# -------------------------------------------------------------------------------------- what a producer vouches for


def test_a_producers_delta_arrived_when_the_broker_says() -> None:
    lies = DeltaEntry(ALICE, delta().delta, arrived_ms=5)
    assert admitted(lies, Role.PRODUCER, NOW_MS) == DeltaEntry(ALICE, lies.delta, NOW_MS)
    assert admitted(lies, Role.GATEWAY, NOW_MS) == lies


def test_a_producers_windows_are_those_of_the_brokers_clock() -> None:
    start_ms, lateness_ms = W * HOUR_MS, PLAN.window.lateness_ms
    first_ms = start_ms - PRODUCER_SKEW_MS
    last_ms = start_ms + HOUR_MS + lateness_ms + PRODUCER_SKEW_MS - 1
    for at_ms, reason in (
        (first_ms - 1, Reason.WINDOW_IN_FUTURE),
        (first_ms, None),
        (last_ms, None),
        (last_ms + 1, Reason.WINDOW_IN_PAST),
    ):
        assert reason_of(delta(), Role.PRODUCER, at_ms) is reason, at_ms
        assert reason_of(delta(), Role.GATEWAY, at_ms) is None


@pytest.mark.parametrize("window", (-(2**62), 0, 2**62))
def test_no_window_however_far_is_let_in_from_a_producer(window: int) -> None:
    """Each would be counters of its own in the fold's memory, for ever."""
    assert reason_of(delta(window=window), Role.PRODUCER) in {Reason.WINDOW_IN_PAST, Reason.WINDOW_IN_FUTURE}


def test_a_producers_delta_is_bounded_in_size_and_so_is_its_client_id() -> None:
    largest = PLAN.delta_bytes_max
    assert reason_of(DeltaEntry(ALICE, bytes(largest), 0), Role.PRODUCER) is None  # for the fold, which reads it
    assert reason_of(DeltaEntry(ALICE, bytes(largest + 1), 0), Role.PRODUCER) is Reason.TOO_LARGE
    assert reason_of(DeltaEntry("a" * 128, delta().delta, 0), Role.PRODUCER) is None
    assert reason_of(DeltaEntry("a" * 129, delta().delta, 0), Role.PRODUCER) is Reason.MALFORMED
    # A database that takes no NUL in a text would else stop the whole partition.
    assert reason_of(DeltaEntry("a\0b", delta().delta, 0), Role.PRODUCER) is Reason.MALFORMED


def test_a_producer_is_refused_in_a_log_without_a_clock() -> None:
    assert reason_of(delta(), Role.PRODUCER, None) is Reason.UNSIGNED


def test_a_malformed_delta_of_a_producer_keeps_its_client_for_the_verdict() -> None:
    verdict = Fold(PLAN, 0, 1).apply([(0, admitted(DeltaEntry(ALICE, b"\1x", 0), Role.PRODUCER))], 1)[0]
    assert (verdict.kind, verdict.reason, verdict.client_id) == (VerdictKind.REFUSED, Reason.MALFORMED, ALICE)


@given(st.text(max_size=140) | st.text("ae\u0301\n", max_size=4))
def test_a_producer_is_held_to_the_client_ids_that_an_authenticator_gives(client_id: str) -> None:
    peer = Peer("ipv4:127.0.0.1:5", {CLIENT_ID: client_id_to_metadata(client_id)})
    if flaw_of(client_id) is None:
        assert DeclaredNameAuthenticator().admit(peer, Scope.SUBMIT) == client_id
    else:
        with pytest.raises(UnauthenticatedError):
            DeclaredNameAuthenticator().admit(peer, Scope.SUBMIT)


# ------------------------------------------------------------------------------------- through messages into a fold


@dataclass
class Stream:
    """A partition's log as messages, folded as a worker folds it."""

    messages: LogMessages
    partition: int = 0
    fold: Fold = field(default_factory=lambda: Fold(PLAN, 0, 1))
    offset: int = 0

    def pass_on(self, value: bytes, appended_ms: int = NOW_MS) -> list[Verdict]:
        opened = self.messages.read(self.partition, value)
        start = self.offset << 16
        if opened.problem is not None:
            entry_batch = [PositionedEntry(start, b"", problem=opened.problem)]
        else:
            entry_batch = [
                PositionedEntry(start + index, data, opened.signer, appended_ms)
                for index, data in enumerate(opened.entries)
            ]
        self.offset += 1
        batch = [(each.position, admit(PLAN, self.partition, each)) for each in entry_batch]
        return list(self.fold.apply(batch, self.offset << 16))

    def said(self, value: bytes) -> list[str]:
        return [(verdict.reason or verdict.kind).value for verdict in self.pass_on(value)]

    def sums(self) -> list[int]:
        blocks = [block for block in self.fold.checkpoint().blocks if block.window == W]
        return np.concatenate([block.values for block in blocks]).tolist() if blocks else []


def message(role: Role, items: Sequence[LogEntry], *, key: SigningKey | None = None, partition: int = 0) -> bytes:
    return batch_to_bytes(
        signed_batch(
            [entry_to_bytes(item) for item in items],
            plan_id=PLAN.id,
            partition=partition,
            key_id=role.value,
            key=key or KEYS[role],
        )
    )


def signed() -> Stream:
    return Stream(SignedMessages(PLAN.id, DIRECTORY, producers=True))


def test_gateways_and_producers_deltas_count_and_the_releasers_seal_closes() -> None:
    stream = signed()
    assert stream.said(message(Role.GATEWAY, [delta(0), delta(1)])) == ["counted", "counted"]
    assert stream.said(message(Role.PRODUCER, [delta(2)])) == ["counted"]
    assert stream.said(message(Role.RELEASER, [SEAL])) == []
    assert stream.said(message(Role.PRODUCER, [delta(3)])) == ["late"]
    assert stream.sums()[:5] == [1, 1, 1, 0, 0]


def test_a_seal_that_no_releaser_signed_closes_nothing() -> None:
    stream = signed()
    for value in (
        message(Role.GATEWAY, [SEAL]),
        message(Role.PRODUCER, [SEAL]),
        message(Role.RELEASER, [SEAL], key=KEYS[Role.GATEWAY]),
        message(Role.RELEASER, [SEAL], partition=1),
        PlainMessages().write(0, [entry_to_bytes(SEAL)], seals=True),
    ):
        assert stream.said(value) == ["unsigned"]
    assert stream.said(message(Role.GATEWAY, [delta(0)])) == ["counted"]


def test_of_a_message_that_mixes_seals_and_deltas_only_what_its_signer_may_write_is_taken() -> None:
    stream = signed()
    assert stream.said(message(Role.GATEWAY, [delta(0), SEAL, delta(1)])) == ["counted", "unsigned", "counted"]
    assert stream.said(message(Role.RELEASER, [delta(2), SEAL, delta(3)])) == ["unsigned", "unsigned"]
    assert stream.said(message(Role.GATEWAY, [delta(4)])) == ["late"]


@pytest.mark.parametrize("role", (Role.GATEWAY, Role.PRODUCER))
def test_a_message_that_is_written_again_by_whomever_changes_nothing(role: Role) -> None:
    stream = signed()
    value = message(role, [delta(number) for number in range(5)])
    assert stream.said(value) == ["counted"] * 5
    before = stream.sums()
    for _ in range(3):
        assert stream.said(value) == ["duplicate"] * 5
    assert stream.sums() == []  # nothing was touched since
    assert before[:6] == [1] * 5 + [0]


def test_unsigned_entries_are_refused_and_counted_before_their_version_is_looked_at() -> None:
    stream = signed()
    newer = pb.Entry(format_version=99, batch=pb.EntryBatch(entries=[b"x"])).SerializeToString()
    plain = PlainMessages().write(0, [entry_to_bytes(delta(0))] * 3, seals=False)
    bare = entry_to_bytes(delta(0))
    verdicts = [verdict for value in (newer, plain, bare) for verdict in stream.pass_on(value)]
    assert [(verdict.kind, verdict.reason) for verdict in verdicts] == [(VerdictKind.REFUSED, Reason.UNSIGNED)] * 3
    assert [verdict.position for verdict in verdicts] == [0, 1 << 16, 2 << 16]
    assert stream.fold.position == 3 << 16
    assert stream.said(message(Role.GATEWAY, [delta(0)])) == ["counted"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(W - 1, W + 1)), min_size=1, max_size=30))
def test_a_batch_is_its_entries_one_by_one(choices: list[tuple[int, int]]) -> None:
    items = [delta(number, window, sequence=number) for number, window in choices]
    whole, apart = signed(), signed()
    said = whole.said(message(Role.PRODUCER, items))
    assert said == [each for item in items for each in apart.said(message(Role.PRODUCER, [item]))]
    assert whole.sums() == apart.sums()
