"""The frozen messages of the log: signed by the same keys they have the same bytes, and they are read for ever."""

import json
from typing import Any

import pytest

from aggregator.log.entries import OpenedMessage, PlainMessages, SignedMessages
from hushsum.errors import Reason
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, VerifyKey
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from tests.vectors.generate_log_messages import DELTAS, PATH, SEALS, SEEDS

FROZEN: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
PLAN_ID, PARTITION = bytes.fromhex(FROZEN["plan_id"]), FROZEN["partition"]
DIRECTORY = Directory(
    {name: DirectoryKey(name, Role(name), VerifyKey.from_text(key)) for name, key in FROZEN["keys"].items()}
)
ENTRIES = {name: tuple(map(bytes.fromhex, entries)) for name, entries in FROZEN["entries"].items()}
SIGNED = SignedMessages(
    PLAN_ID, DIRECTORY, SigningKey(SEEDS[Role.GATEWAY]), SigningKey(SEEDS[Role.RELEASER]), producers=True
)


def test_entries_have_their_bytes_and_are_read_back() -> None:
    for name, items in (("deltas", DELTAS), ("seals", SEALS)):
        assert tuple(entry_to_bytes(item) for item in items) == ENTRIES[name]
        assert tuple(entry_from_bytes(data) for data in ENTRIES[name]) == items


def test_the_directory_has_its_digest() -> None:
    assert DIRECTORY.digest().hex() == FROZEN["directory_digest"]


@pytest.mark.parametrize(
    ("role", "name"), ((Role.GATEWAY, "deltas"), (Role.PRODUCER, "deltas"), (Role.RELEASER, "seals"))
)
def test_a_signed_message_is_read_as_its_signers(role: Role, name: str) -> None:
    assert SIGNED.read(PARTITION, bytes.fromhex(FROZEN[role])) == OpenedMessage(ENTRIES[name], role)


def test_messages_have_their_bytes() -> None:
    """Ed25519 draws nothing (RFC 8032): the same key and parts give the same tag."""
    assert SIGNED.write(PARTITION, ENTRIES["deltas"], seals=False).hex() == FROZEN["gateway"]
    assert SIGNED.write(PARTITION, ENTRIES["seals"], seals=True).hex() == FROZEN["releaser"]
    assert PlainMessages().write(PARTITION, ENTRIES["deltas"], seals=False).hex() == FROZEN["plain"]
    assert PlainMessages().read(PARTITION, bytes.fromhex(FROZEN["plain"])) == OpenedMessage(ENTRIES["deltas"])


def test_what_was_unsigned_stays_so() -> None:
    for value in FROZEN["unsigned"]:
        assert SIGNED.read(PARTITION, bytes.fromhex(value)) == OpenedMessage((), None, Reason.UNSIGNED)
    assert SIGNED.read(PARTITION, bytes.fromhex(FROZEN["plain"])).problem is Reason.UNSIGNED
