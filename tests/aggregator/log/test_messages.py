"""Messages of the log: who is believed, and that nothing is looked at of who is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.errors import LogError
from aggregator.log.entries import LogMessages, OpenedMessage, PlainMessages, SignedMessages
from hushsum.errors import DirectoryError, Reason
from hushsum.labels import LOG_MESSAGE
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey
from hushsum_proto.batches import BATCH_ENTRIES_MAX, Batch, signed_batch
from hushsum_proto.convert_batches import batch_to_bytes
from hushsum_proto.errors import NewerEntryError
from hushsum_proto.v1 import wire_pb2 as pb

KEYS = {role: SigningKey(bytes([number]) * 32) for number, role in enumerate(Role)}
NEW_GATEWAY = SigningKey(b"\x09" * 32)
STRANGER = SigningKey(b"\x0a" * 32)
DIRECTORY = Directory(
    {
        "new": DirectoryKey("new", Role.GATEWAY, NEW_GATEWAY.verify_key),
        **{role.value: DirectoryKey(role.value, role, key.verify_key) for role, key in KEYS.items()},
    }
)
PLAN_ID = bytes(range(32))
UNSIGNED, MALFORMED = OpenedMessage((), None, Reason.UNSIGNED), OpenedMessage((), None, Reason.MALFORMED)
SIGNED = SignedMessages(PLAN_ID, DIRECTORY, KEYS[Role.GATEWAY], KEYS[Role.RELEASER], producers=True)
ENTRIES = (b"first", b"second")
KINDS = pytest.mark.parametrize("messages", (PlainMessages(), SIGNED))


def message(
    *entries: bytes, role: Role = Role.GATEWAY, key: SigningKey | None = None, partition: int = 0, **changes: object
) -> bytes:
    """A message as whoever holds a key could write it."""
    batch = signed_batch(entries, plan_id=PLAN_ID, partition=partition, key_id=role.value, key=key or KEYS[role])
    return batch_to_bytes(Batch(**{**vars(batch), **changes}))


def signed_by_hand(version: int = 1, count: int = len(ENTRIES), entry: bytes = b"") -> bytes:
    """A message with any version and any number of entries, and a valid tag."""
    framed = [PLAN_ID, bytes(4), version.to_bytes(4, "big"), *[entry] * count]
    outer = pb.Entry(format_version=version, batch=pb.EntryBatch(entries=[entry] * count))
    outer.authenticity.suite, outer.authenticity.key_id = 1, "gateway"
    outer.authenticity.tag = KEYS[Role.GATEWAY].sign(LOG_MESSAGE, *framed)
    return outer.SerializeToString()


@KINDS
@pytest.mark.parametrize("seals", (False, True))
def test_what_is_written_is_read(messages: LogMessages, seals: bool) -> None:
    opened = messages.read(5, messages.write(5, ENTRIES, seals=seals))
    assert opened.entries == ENTRIES
    assert opened.problem is None
    if isinstance(messages, SignedMessages):
        assert opened.signer is (Role.RELEASER if seals else Role.GATEWAY)
    else:
        assert opened.signer is None


@pytest.mark.parametrize("role", Role)
def test_the_signer_is_the_role_of_the_key(role: Role) -> None:
    assert SIGNED.read(0, message(*ENTRIES, role=role)) == OpenedMessage(ENTRIES, role)


def test_producers_are_not_believed_where_they_may_not_write() -> None:
    alone = SignedMessages(PLAN_ID, DIRECTORY, KEYS[Role.GATEWAY])
    assert alone.read(0, message(*ENTRIES, role=Role.PRODUCER)) == UNSIGNED
    newer = message(*ENTRIES, role=Role.PRODUCER, format_version=2)
    assert alone.read(0, newer) == UNSIGNED, "nothing of it is looked at"
    for role in (Role.GATEWAY, Role.RELEASER):
        assert alone.read(0, message(*ENTRIES, role=role)) == OpenedMessage(ENTRIES, role)


def test_a_second_key_of_a_role_is_believed_as_well() -> None:
    rotated = SignedMessages(PLAN_ID, DIRECTORY, gateway=NEW_GATEWAY)
    assert SIGNED.read(0, rotated.write(0, ENTRIES, seals=False)) == OpenedMessage(ENTRIES, Role.GATEWAY)


def test_a_message_in_another_partition_or_another_plans_log_is_unsigned() -> None:
    copied = SIGNED.write(5, ENTRIES, seals=False)
    assert SIGNED.read(4, copied) == UNSIGNED
    assert SignedMessages(bytes(32), DIRECTORY).read(5, copied) == UNSIGNED


def test_what_nobody_in_the_directory_signed_is_unsigned() -> None:
    signed = SIGNED.read(0, message(*ENTRIES))
    assert signed.problem is None
    refused = {
        "plain": PlainMessages().write(0, ENTRIES, seals=False),
        "a stranger": message(*ENTRIES, key=STRANGER),
        "an unknown key id": message(*ENTRIES, key_id="nobody"),
        "no key id": message(*ENTRIES, key_id=""),
        "another key's id": message(*ENTRIES, key_id="releaser"),
        "an unknown suite": message(*ENTRIES, suite=2),
        "no tag": message(*ENTRIES, tag=b""),
        "a short tag": message(*ENTRIES, tag=bytes(63)),
        "an entry less": message(*ENTRIES, entries=ENTRIES[:1]),
        "an entry more": message(*ENTRIES, entries=(*ENTRIES, b"third")),
        "another order": message(*ENTRIES, entries=ENTRIES[::-1]),
        "an entry in the place of a batch": pb.Entry(format_version=1, delta=pb.DeltaEntry()).SerializeToString(),
        "nothing": b"",
    }
    for why, value in refused.items():
        assert SIGNED.read(0, value) == UNSIGNED, why


@given(st.data())
def test_no_changed_bit_of_a_signed_message_is_believed(data: st.DataObject) -> None:
    """What is not covered by the tag is not read: a change there, if the message still opens, changes nothing."""
    value = bytearray(message(*ENTRIES))
    at = data.draw(st.integers(0, len(value) * 8 - 1))
    value[at // 8] ^= 1 << at % 8
    assert SIGNED.read(0, bytes(value)) in (UNSIGNED, MALFORMED, OpenedMessage(ENTRIES, Role.GATEWAY))


@KINDS
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_and_stop_nothing(messages: LogMessages, value: bytes) -> None:
    try:
        opened = messages.read(0, value)
    except (LogError, NewerEntryError):
        assert isinstance(messages, PlainMessages)  # which has nobody to doubt
    else:
        assert opened.problem in {Reason.MALFORMED, Reason.UNSIGNED}


@KINDS
def test_a_truncated_message_is_refused(messages: LogMessages) -> None:
    value = messages.write(0, ENTRIES, seals=False)
    for end in range(len(value)):
        assert messages.read(0, value[:end]) in (UNSIGNED, MALFORMED, OpenedMessage(ENTRIES[:1]))


def test_a_newer_message_stops_only_where_its_signer_is_believed() -> None:
    newer = signed_by_hand(version=2)
    with pytest.raises(NewerEntryError, match="format version 2, this version reads up to 1"):
        SIGNED.read(0, newer)
    assert SIGNED.read(1, newer) == UNSIGNED
    assert SIGNED.read(0, message(*ENTRIES, key=STRANGER, format_version=2)) == UNSIGNED
    assert SIGNED.read(0, message(*ENTRIES, format_version=2)) == UNSIGNED
    with pytest.raises(NewerEntryError):
        PlainMessages().read(0, batch_to_bytes(Batch(ENTRIES, format_version=2)))


@pytest.mark.parametrize(("version", "count"), ((0, 2), (1, 0), (1, BATCH_ENTRIES_MAX + 1)))
def test_a_signed_message_without_a_version_or_with_none_or_too_many_entries_is_malformed(
    version: int, count: int
) -> None:
    assert SIGNED.read(0, signed_by_hand(version, count)) == MALFORMED
    assert len(SIGNED.read(0, signed_by_hand(1, BATCH_ENTRIES_MAX)).entries) == BATCH_ENTRIES_MAX


def test_a_plain_message_without_a_version_or_with_none_or_too_many_entries_is_malformed() -> None:
    for version, count in ((0, 2), (1, 0), (1, BATCH_ENTRIES_MAX + 1)):
        outer = pb.Entry(format_version=version, batch=pb.EntryBatch(entries=[b""] * count))
        assert PlainMessages().read(0, outer.SerializeToString()) == MALFORMED


def test_a_signed_message_where_there_is_no_directory_stops_the_partition() -> None:
    with pytest.raises(LogError, match="signed message, but no key registry is configured: set `directory`"):
        PlainMessages().read(0, message(*ENTRIES))


def test_a_process_without_a_key_signs_nothing() -> None:
    reader = SignedMessages(PLAN_ID, DIRECTORY)
    for seals, name in ((False, "gateway"), (True, "releaser")):
        with pytest.raises(LogError, match=f"no {name} key is configured for signing"):
            reader.write(0, ENTRIES, seals=seals)


def test_a_key_that_the_directory_has_for_something_else_is_refused_at_the_start() -> None:
    with pytest.raises(DirectoryError, match=r"keys\.releaser: is a releaser key, expected a gateway key"):
        SignedMessages(PLAN_ID, DIRECTORY, gateway=KEYS[Role.RELEASER])
    with pytest.raises(DirectoryError, match=r"keys\.producer: is a producer key, expected a releaser key"):
        SignedMessages(PLAN_ID, DIRECTORY, releaser=KEYS[Role.PRODUCER])
    with pytest.raises(DirectoryError, match="is not in the key registry"):
        SignedMessages(PLAN_ID, DIRECTORY, gateway=STRANGER)
