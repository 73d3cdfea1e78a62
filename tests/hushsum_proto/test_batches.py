"""Batches of entries: their bytes, their tag, the name of their topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.labels import LOG_MESSAGE
from hushsum.signing import SigningKey
from hushsum_proto.batches import BATCH_ENTRIES_MAX, Batch, is_signed, signed_batch, topic_of
from hushsum_proto.client_ids import flaw_of
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes, is_seal
from hushsum_proto.entries import CohortSumEntry, DeltaEntry, SealEntry
from hushsum_proto.errors import MalformedEntryError
from hushsum_proto.v1 import wire_pb2 as pb

KEY = SigningKey(bytes(range(32)))
PLAN_ID = bytes(32)
some_entries = st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(tuple)


def signed(*entries: bytes, partition: int = 3) -> Batch:
    return signed_batch(entries, plan_id=PLAN_ID, partition=partition, key_id="key", key=KEY)


@given(some_entries, st.text(max_size=8), st.integers(0, 2**32 - 1), st.binary(max_size=8), st.integers(1, 2**32 - 1))
def test_a_batch_goes_there_and_back(
    entries: tuple[bytes, ...], key_id: str, suite: int, tag: bytes, version: int
) -> None:
    batch = Batch(entries, key_id, suite, tag, version) if suite else Batch(entries, format_version=version)
    assert batch_from_bytes(batch_to_bytes(batch)) == batch


@given(some_entries, some_entries)
def test_a_tag_is_of_these_entries_in_this_order(entries: tuple[bytes, ...], others: tuple[bytes, ...]) -> None:
    batch = signed(*entries)
    changed = Batch(others, batch.key_id, batch.suite, batch.tag)
    assert is_signed(batch, KEY.verify_key, plan_id=PLAN_ID, partition=3)
    assert is_signed(changed, KEY.verify_key, plan_id=PLAN_ID, partition=3) == (entries == others)


def test_a_tag_is_of_this_plan_this_partition_this_version_and_this_suite() -> None:
    batch = signed(b"entry")
    assert not is_signed(batch, KEY.verify_key, plan_id=bytes(31) + b"\1", partition=3)
    assert not is_signed(batch, KEY.verify_key, plan_id=PLAN_ID, partition=2)
    for changed in (
        Batch(batch.entries, batch.key_id, batch.suite, batch.tag, 2),
        Batch(batch.entries, batch.key_id, 0, batch.tag),
        Batch(batch.entries, batch.key_id, 2, batch.tag),
        Batch(batch.entries, batch.key_id, batch.suite, b""),
    ):
        assert not is_signed(changed, KEY.verify_key, plan_id=PLAN_ID, partition=3)


def test_the_tag_is_the_signature_of_its_stated_parts() -> None:
    parts = (PLAN_ID, (3).to_bytes(4, "big"), (1).to_bytes(4, "big"), b"first", b"")
    assert signed(b"first", b"").tag == KEY.sign(LOG_MESSAGE, *parts)


def test_bytes_that_are_no_entry_are_malformed() -> None:
    with pytest.raises(MalformedEntryError, match="expected the message Entry, got other bytes"):
        batch_from_bytes(b"\xff\xff")
    with pytest.raises(MalformedEntryError):
        batch_from_bytes(batch_to_bytes(Batch((b"entry",)))[:-1])


@pytest.mark.parametrize("number", (0, BATCH_ENTRIES_MAX + 1))
def test_a_batch_of_none_or_of_too_many_is_not_written(number: int) -> None:
    with pytest.raises(AssertionError, match=f"a batch of {number} entries"):
        batch_to_bytes(Batch((b"",) * number))


def test_the_largest_batch_goes_there_and_back() -> None:
    assert len(batch_from_bytes(batch_to_bytes(Batch((b"",) * BATCH_ENTRIES_MAX))).entries) == BATCH_ENTRIES_MAX


def test_a_batch_is_no_entry_that_a_fold_could_take() -> None:
    with pytest.raises(MalformedEntryError, match="expected a delta, a cohort sum, reports or a seal"):
        entry_from_bytes(batch_to_bytes(Batch((entry_to_bytes(DeltaEntry("alice", b"delta", 0)),))))


def test_seals_are_told_from_all_else() -> None:
    assert is_seal(entry_to_bytes(SealEntry(PLAN_ID, -5, 7)))
    assert not is_seal(entry_to_bytes(DeltaEntry("alice", b"delta", 7)))
    assert not is_seal(entry_to_bytes(CohortSumEntry(PLAN_ID, -5, bytes(32), 3, b"", 7)))
    assert not is_seal(b"\xff\xff")
    assert not is_seal(pb.Entry(format_version=1).SerializeToString())


def test_a_plans_topic_is_named_by_the_first_16_digits_of_its_id() -> None:
    assert topic_of("hushsum", bytes(range(32))) == "hushsum.0001020304050607"


@pytest.mark.parametrize(
    ("client_id", "flaw"),
    (
        ("", "0 characters"),
        ("a" * 129, "129 characters"),
        ("a\nb", "one that is not printable"),
        ("e\u0301", "one that is not in NFC"),
        ("a" * 128, None),
        ("\u00e9 ü", None),
    ),
)
def test_a_client_id_is_short_printable_and_in_nfc(client_id: str, flaw: str | None) -> None:
    assert flaw_of(client_id) == flaw
