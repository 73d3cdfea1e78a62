"""Many entries at once say what protobuf says of each, or nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from hushsum_proto.batches import BATCH_ENTRIES_MAX, UNSIGNED, Batch
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.convert_batches import batch_from_bytes, batch_to_bytes
from hushsum_proto.entries import ENTRY_FORMAT, CohortSumEntry, DeltaEntry, ReportsEntry, SealEntry
from hushsum_proto.errors import MalformedEntryError
from hushsum_proto.many_entries import (
    DeltaColumns,
    client_and_stream,
    delta_columns,
    joined,
    message_entries,
    stream_key,
)
from hushsum_proto.v1 import wire_pb2 as pb

PLAN_ID = bytes(32)
DELTA = DeltaEntry("alice", b"delta", 1_763_800_000_000)
PLAIN = entry_to_bytes(DELTA)
BODY = PLAIN[10:]  # the delta's size and what it holds, after the version, the time and the tag


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("HUSHSUM_KERNELS", "fast")


def delta_entries(entries: Sequence[bytes]) -> list[DeltaEntry | None]:
    """The delta of each entry; None of those that protobuf is to be asked about."""
    positions = 7 * np.arange(len(entries))
    found = delta_columns(positions, *joined(entries))
    if found is None:
        return [None] * len(entries)
    deltas, odd = found
    assert [position for position, _ in deltas] == positions.tolist()
    return [None if place in odd else entry for place, (_, entry) in enumerate(deltas)]


def entries_of(*messages: bytes) -> list[tuple[bytes, ...]] | None:
    """The entries of each message; None where protobuf is to be asked."""
    data, spans = joined(messages)
    found = message_entries(data, spans)
    if found is None:
        return None
    held: list[tuple[bytes, ...]] = [()] * len(messages)
    for message, place, first, last in found.tolist():
        assert place == len(held[message])
        held[message] += (data[first:last],)
    return held


def batch_entries(message: bytes) -> tuple[bytes, ...] | None:
    found = entries_of(message)
    return None if found is None else found[0]


def test_the_parts_that_the_tests_put_together_are_what_they_are_called() -> None:
    assert PLAIN[:3] == b"\x08\x01\x10"
    assert PLAIN[9:10] == b"\x22"
    assert BODY == b"\x0e\x0a\x05alice\x12\x05delta"


# What protobuf makes something of, or refuses, and what this version never writes.
UNUSUAL = {
    "a seal": entry_to_bytes(SealEntry(PLAN_ID, 5, 7)),
    "a cohort sum": entry_to_bytes(CohortSumEntry(PLAN_ID, 5, bytes(32), 3, b"sum", 7)),
    "reports": entry_to_bytes(ReportsEntry(b"reports", True, 7)),
    "reports after the delta": PLAIN + b"\x42\x02\x10\x01",
    "a cohort sum after the delta": PLAIN + b"\x3a\x02\x20\x03",
    "a batch": batch_to_bytes(Batch((PLAIN,))),
    "no client": pb.Entry(format_version=1, delta=pb.DeltaEntry(delta=b"x")).SerializeToString(),
    "an empty client": b"\x08\x01\x22\x05\x0a\x00\x12\x01x",
    "a client beyond ASCII": entry_to_bytes(DeltaEntry("\u00e9", b"x", 5)),
    "a client that is not UTF-8": b"\x08\x01\x22\x03\x0a\x01\xff",
    "a newer version": b"\x08\x02\x22" + BODY,
    "no version": b"\x22" + BODY,
    "a version in two bytes": b"\x08\x81\x00\x22" + BODY,
    "a version twice": b"\x08\x01\x08\x01\x22" + BODY,
    "a newer version after all": b"\x08\x01\x22" + BODY + b"\x08\x02",
    "a time in one byte more": b"\x08\x01\x10\x85\x00\x22" + BODY,
    "a time beyond 64 bits": b"\x08\x01\x10" + b"\xff" * 9 + b"\x02" + b"\x22" + BODY,
    "a time of eleven bytes": b"\x08\x01\x10" + b"\xff" * 10 + b"\x01" + b"\x22" + BODY,
    "a time after the delta": b"\x08\x01\x22" + BODY + b"\x10\x05",
    "an authenticity": b"\x08\x01\x1a\x02\x08\x01\x22" + BODY,
    "two deltas": b"\x08\x01\x22" + BODY + b"\x22" + BODY,
    "a seal after the delta": b"\x08\x01\x22" + BODY + b"\x2a\x02\x10\x02",
    "an unknown field": b"\x08\x01\x22" + BODY + b"\x78\x01",
    "an unknown field in the delta": b"\x08\x01\x22\x10" + BODY[1:] + b"\x78\x01",
    "a client twice": b"\x08\x01\x22\x11\x0a\x01a" + BODY[1:],
    "the delta before the client": b"\x08\x01\x22\x06\x12\x01x\x0a\x01a",
    "a size in two bytes": b"\x08\x01\x22\x8e\x00" + BODY[1:],
    "a size beyond the end": b"\x08\x01\x22\x0f" + BODY[1:],
    "a size short of the end": b"\x08\x01\x22\x0d" + BODY[1:],
    "a client's size beyond its delta": b"\x08\x01\x22\x03\x0a\x02a",
    "a size of 2^63 and more": b"\x08\x01\x22" + b"\xff" * 9 + b"\x01",
    "a group": b"\x08\x01\x22" + BODY + b"\x7b\x7c",
    "nothing": b"",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_written_like_this_is_left_to_protobuf(name: str) -> None:
    assert list(delta_entries([PLAIN, UNUSUAL[name], PLAIN, PLAIN])) == [DELTA, None, DELTA, DELTA]


@pytest.mark.parametrize(
    "entry",
    (
        DELTA,
        DeltaEntry("a", b"", 0),
        DeltaEntry("a", bytes(200_000), -(2**63)),
        DeltaEntry("a" * 128, b"x" * 127, 2**63 - 1),
        DeltaEntry("a" * 127, b"x" * 128, -1),
        DeltaEntry("\x00\x7f", b"\xff", 128),
    ),
)
def test_what_this_version_writes_is_read(entry: DeltaEntry) -> None:
    read = delta_entries([entry_to_bytes(each) for each in (entry, DELTA, entry, DELTA)])
    assert list(read) == [entry, DELTA, entry, DELTA]
    assert all(type(each) is DeltaEntry for each in read)


def test_no_end_of_an_entry_is_read_from_what_comes_after_it() -> None:
    for end in range(len(PLAIN)):
        assert list(delta_entries([PLAIN[:end], PLAIN, PLAIN[:end], PLAIN])) == [None, DELTA, None, DELTA]


def test_where_loops_do_not_run_protobuf_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    many = batch_to_bytes(Batch((PLAIN, PLAIN)))
    assert batch_entries(many) == (PLAIN, PLAIN)
    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    assert list(delta_entries([PLAIN] * 9)) == [None] * 9
    assert batch_entries(many) is None


def test_whatever_bytes_come_protobuf_says_the_same(seed: int, rng: np.random.Generator) -> None:
    made = [_changed(rng, _any_entry) for _ in range(6_000)]
    read = delta_entries(made)
    for data, entry in zip(made, read, strict=True):
        assert entry is None or entry == entry_from_bytes(data), f"seed {seed}: {data.hex()}"
    assert sum(entry is not None for entry in read) > 800  # or nothing was compared


def test_whatever_messages_come_protobuf_says_the_same(seed: int, rng: np.random.Generator) -> None:
    made = [_changed(rng, _any_batch) for _ in range(6_000)]
    found = [batch_entries(value) for value in made]
    for value, entries in zip(made, found, strict=True):
        if entries is not None:
            assert batch_from_bytes(value) == Batch(entries), f"seed {seed}: {value.hex()}"
            assert entries_of(value, value) == [entries, entries], f"seed {seed}"
        elif _is_usual(value):
            pytest.fail(f"seed {seed}: {value.hex()}")
    assert sum(entries is not None for entries in found) > 800


def test_messages_are_read_together_only_if_all_are_unsigned_and_of_this_version() -> None:
    one, two = batch_to_bytes(Batch((b"a",))), batch_to_bytes(Batch((b"a", b"b")))
    signed = batch_to_bytes(Batch((b"a",), "key", 1, b"tag"))
    newer = batch_to_bytes(Batch((b"a",), format_version=2))
    assert entries_of(one, two, one) == [(b"a",), (b"a", b"b"), (b"a",)]
    for other in (signed, newer, one[:-1], one + b"\0", b"", PLAIN):
        for place in range(5):
            values = [one] * 5
            values[place] = other
            assert entries_of(*values) is None


def test_columns_of_values_are_read_as_these_values() -> None:
    entries = [(3, DELTA), (9, DeltaEntry("\u00e9\udc80", b"", -1)), (10, DeltaEntry("", b"x", 0))]
    columns = DeltaColumns.of(entries)
    assert list(columns) == entries
    assert list(columns[1:]) == entries[1:]
    assert columns.client_ids(1, 3) == ["\u00e9\udc80", ""]
    assert columns.client_id(0) == "alice"


def test_a_stream_has_one_key_however_it_is_found() -> None:
    clients, streams = ["alice", "\u00e9", "", "alice"], [2**64 - 1, 5, 0, 256]
    columns = DeltaColumns.of([(n, DeltaEntry(client, b"delta", 0)) for n, client in enumerate(clients)])
    keys = [stream_key(client, stream) for client, stream in zip(clients, streams, strict=True)]
    assert list(columns.stream_keys(np.array(streams, np.uint64), 0, 4)) == keys
    assert list(columns.stream_keys(np.array(streams, np.uint64), 1, 3)) == keys[1:3]
    assert [client_and_stream(key) for key in keys] == list(zip(clients, streams, strict=True))
    assert len(set(keys)) == 4


def test_a_batch_of_more_entries_than_one_may_hold_is_left_to_protobuf() -> None:
    most = pb.Entry(format_version=1, batch=pb.EntryBatch(entries=[b""] * BATCH_ENTRIES_MAX)).SerializeToString()
    assert batch_entries(most) == (b"",) * BATCH_ENTRIES_MAX
    more = pb.Entry(format_version=1, batch=pb.EntryBatch(entries=[b""] * (BATCH_ENTRIES_MAX + 1)))
    assert batch_entries(more.SerializeToString()) is None


def _is_usual(value: bytes) -> bool:
    """Whether the bytes are a plain batch, and those that this version would write."""
    try:
        batch = batch_from_bytes(value)
    except MalformedEntryError:
        return False
    return (
        bool(batch.entries)
        and (batch.suite, batch.format_version) == (UNSIGNED, ENTRY_FORMAT)
        and (batch_to_bytes(batch) == value)
    )


def _any_entry(rng: np.random.Generator) -> bytes:
    client = "".join(rng.choice(list("abc\u00e9"), rng.integers(0, 4)))
    size = int(rng.choice([0, 1, 5, 100, 126, 127, 128, 300]))
    arrived = int(rng.choice([0, 1, -1, 127, 128, 2**40, -(2**63), 2**63 - 1]))
    message = pb.Entry(format_version=int(rng.choice([0, 1, 1, 1, 1, 2])), arrived_ms=arrived)
    if rng.random() < 0.9:
        message.delta.client_id, message.delta.delta = client, rng.bytes(size)
    elif rng.random() < 0.5:
        message.seal.window = int(rng.integers(-5, 5))
    else:
        message.reports.batch = rng.bytes(size)
    return message.SerializeToString()


def _any_batch(rng: np.random.Generator) -> bytes:
    entries = [rng.bytes(int(rng.choice([0, 1, 126, 127, 128]))) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
    message = pb.Entry(format_version=int(rng.choice([0, 1, 1, 1, 2])), batch=pb.EntryBatch(entries=entries))
    if rng.random() < 0.1:
        message.authenticity.suite = 1
    return message.SerializeToString()


def _changed(rng: np.random.Generator, some: Callable[[np.random.Generator], bytes]) -> bytes:
    """Some bytes: as they were made, with a few that are others, cut, put together or with fields of another."""
    data = bytearray(some(rng))
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = int(rng.integers(0, len(data) + 1))
        head: Sequence[int] = rng.choice([8, 1, 2, 16, 34, 50, 10, 18, 26, 120, 128, 255], rng.integers(0, 3)).tolist()
        if rng.random() < 0.5:
            data[at : at + len(head)] = bytes(head)
        else:
            data[at : at + int(rng.integers(0, 2))] = bytes(head)
    if rng.random() < 0.1:
        data += some(rng)
    if rng.random() < 0.1:
        del data[int(rng.integers(0, len(data) + 1)) :]
    return bytes(data)


def test_the_changed_bytes_are_read_by_protobuf_often_enough(rng: np.random.Generator) -> None:
    def is_message(data: bytes) -> bool:
        try:
            pb.Entry.FromString(data)
        except DecodeError:
            return False
        return True

    made = [_changed(rng, _any_entry) for _ in range(1000)]
    assert 300 < sum(map(is_message, made)) < 950
