from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import NotLeaderForPartitionError, OffsetOutOfRangeError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from aggregator.errors import LogError, LogUnavailableError
from aggregator.log.kafka.internals import OutOfRangeError, PartitionClient

WHERE = TopicPartition("topic", 3)


class Answering:
    """A client whose brokers give one answer to whatever they are asked.

    Attributes:
        asked: Requests, in order.
    """

    def __init__(self, code: int, *fields: object, leader: int | None = 1) -> None:
        self.asked: list[Any] = []
        self.cluster = SimpleNamespace(leader_for_partition=lambda where: leader if where == WHERE else None)
        self._answer = SimpleNamespace(topics=[("topic", [(WHERE.partition, code, *fields)])])

    async def send(self, node: int, request: object) -> object:
        assert node == 1
        self.asked.append(request)
        return self._answer


def batch(*values: bytes, first: int) -> bytes:
    """A batch of messages whose first has the offset ``first``, as a broker stores it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**20,
    )
    for number, value in enumerate(values):
        builder.append(number, timestamp=5, key=None, value=value, headers=[])
    return first.to_bytes(8, "big") + bytes(builder.build())[8:]


def varied(rng: np.random.Generator, first: int) -> tuple[bytes, int]:
    """A batch of messages of many forms, and the offset after it."""
    stamped, with_headers = rng.random() < 0.5, rng.random() < 0.2
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(rng.random() < 0.2),  # gzip
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**20,
    )
    offset = 0
    for _ in range(rng.integers(1, 9)):
        value = None if rng.random() < 0.1 else rng.bytes(int(rng.choice([0, 1, 63, 64, 200, 9000])))
        key = rng.bytes(3) if rng.random() < 0.3 else None
        headers = [("name", b"value")] if with_headers and rng.random() < 0.5 else []
        builder.append(offset, timestamp=int(rng.integers(2**41)), key=key, value=value, headers=headers)
        offset += int(rng.choice([1, 1, 2, 200]))
    data = bytearray(first.to_bytes(8, "big") + bytes(builder.build())[8:])
    if stamped:  # as brokers do that keep the time of arrival
        data[22] |= 8
        data[35:43] = int(rng.integers(2**41)).to_bytes(8, "big")
        data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    last = int.from_bytes(data[23:27], "big")
    return bytes(data), first + last + 1


async def test_a_fetch_holds_what_the_library_reads_of_it(
    seed: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    compared = 0
    for _ in range(150):
        data, first = b"", int(rng.integers(0, 2**40))
        at = first
        for _ in range(rng.integers(1, 5)):
            some, at = varied(rng, at)
            data += some
        offset = int(rng.integers(first, at))
        monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
        expected = await fetched(data, offset)
        monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
        assert await fetched(data, offset) == expected, f"seed {seed}"
        client = PartitionClient(Answering(0, 100, data), WHERE)
        compared += len(list(await client.fetch(0.0, offset))) == 1  # by the compiled loop, or of one batch
    assert compared > 20, f"seed {seed}"


@pytest.mark.parametrize("change", [-1, 1, 40])
async def test_a_record_with_a_wrong_size_is_left_to_the_library(change: int) -> None:
    broken = bytearray(batch(b"value", b"other", first=11))
    broken[61] += 2 * change  # the size of the first record
    broken[17:21] = calc_crc32c(bytes(broken[21:])).to_bytes(4, "big")
    client = PartitionClient(Answering(0, 100, bytes(broken)), WHERE)
    with pytest.raises(LogError, match="the batch at offset 11 cannot be read"):
        list(await client.fetch(0.0, 11))


async def test_a_record_with_attributes_is_read_as_the_library_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a number to the library, and one byte to the format."""
    pytest.importorskip("numba")
    odd = bytearray(batch(b"some value", first=11))
    assert odd[62] == 0, "the attributes, after the size of the record"
    odd[62] = 0x80
    odd[17:21] = calc_crc32c(bytes(odd[21:])).to_bytes(4, "big")
    monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
    expected = await outcome(bytes(odd))
    monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
    assert await outcome(bytes(odd)) == expected


async def outcome(data: bytes) -> object:
    try:
        return await fetched(data, 11)
    except LogError as error:
        return str(error)


async def fetched(data: bytes, offset: int) -> tuple[list[tuple[int, int | None, bytes]], int]:
    client = PartitionClient(Answering(0, 100, data), WHERE)
    client.next_offset = offset
    messages = [message for some in await client.fetch(0.0) for message in some.each()]
    return messages, client.next_offset


async def test_messages_from_the_offset_on_are_given_although_their_batch_comes_whole() -> None:
    data = batch(b"a", b"b", b"c", first=10) + batch(b"d", first=13)
    assert await fetched(data, 11) == ([(11, None, b"b"), (12, None, b"c"), (13, None, b"d")], 14)


async def test_a_batch_that_came_in_part_is_left_for_the_next_fetch() -> None:
    data = batch(b"a", first=10) + batch(b"b", first=11)[:-1]
    assert await fetched(data, 10) == ([(10, None, b"a")], 11)


async def test_where_nothing_has_come_the_next_fetch_begins_at_the_same_place() -> None:
    assert await fetched(b"", 10) == ([], 10)


@pytest.mark.parametrize("at", [-1, -5, 40])
async def test_a_damaged_batch_is_refused_before_any_message_of_it_is_given(at: int) -> None:
    good, damaged = batch(b"a", first=10), bytearray(batch(b"b", b"c", first=11))
    damaged[at] ^= 1
    client = PartitionClient(Answering(0, 100, good + bytes(damaged)), WHERE)
    client.next_offset = 10
    messages = await client.fetch(0.0)
    assert list(next(messages).each()) == [(10, None, b"a")]
    with pytest.raises(
        LogError, match=r"partition 3: the batch at offset 11 cannot be read: its checksum .*"
    ) as caught:
        next(messages)
    assert not isinstance(caught.value, LogUnavailableError)
    assert client.next_offset == 11


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [(22, 4, "zstd"), (22, 1, ""), (22, 7, ""), (61, 0x7F, ""), (-1, 0x7E, "")],
    ids=["a codec that is not there", "no gzip", "no codec at all", "a record without an end", "headers without one"],
)
async def test_a_batch_that_no_decoder_can_read_names_where_it_stands_and_does_not_pass_by_itself(
    at: int, value: int, why: str
) -> None:
    broken = bytearray(batch(b"b", first=11))
    broken[at] = value
    broken[17:21] = calc_crc32c(bytes(broken[21:])).to_bytes(4, "big")
    client = PartitionClient(Answering(0, 100, batch(b"a", first=10) + bytes(broken)), WHERE)
    messages = await client.fetch(0.0, 10)
    assert list(next(messages).each()) == [(10, None, b"a")]
    with pytest.raises(
        LogError, match=rf"topic, partition 3: the batch at offset 11 cannot be read: .*{why}"
    ) as caught:
        next(messages)
    assert not isinstance(caught.value, LogUnavailableError)


async def test_what_a_leader_refuses_passes_by_itself_or_names_what_is_wrong() -> None:
    with pytest.raises(LogUnavailableError, match="partition 3: NotLeaderForPartition"):
        await PartitionClient(Answering(NotLeaderForPartitionError.errno, -1, b""), WHERE).fetch(0.0)
    with pytest.raises(OutOfRangeError):
        await PartitionClient(Answering(OffsetOutOfRangeError.errno, -1, b""), WHERE).fetch(0.0)
    with pytest.raises(LogError, match="TopicAuthorizationFailed") as caught:
        await PartitionClient(Answering(29, -1, b""), WHERE).fetch(0.0)
    assert not isinstance(caught.value, LogUnavailableError)
    for leader in (None, -1):
        with pytest.raises(LogUnavailableError, match="partition 3: LeaderNotAvailable"):
            await PartitionClient(Answering(0, 100, b"", leader=leader), WHERE).fetch(0.0)
