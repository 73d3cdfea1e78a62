from collections.abc import Sequence
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


def batch(*values: bytes, first: int, stated: Sequence[int] | None = None) -> bytes:
    """A batch of messages whose first has the offset ``first``, as a broker stores it.

    ``stated``: the offsets after the first that the records state, if others than their places.
    """
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**20,
    )
    for offset, value in zip(stated or range(len(values)), values, strict=True):
        builder.append(offset, timestamp=5, key=None, value=value, headers=[])
    data = bytearray(first.to_bytes(8, "big") + bytes(builder.build())[8:])
    data[23:27] = (len(values) - 1).to_bytes(4, "big")
    return sealed(data)


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
    count = int(rng.integers(1, 9))
    for place in range(count):
        value = None if rng.random() < 0.1 else rng.bytes(int(rng.choice([0, 1, 63, 64, 200, 9000])))
        key = rng.bytes(3) if rng.random() < 0.3 else None
        headers = [("name", b"value")] if with_headers and rng.random() < 0.5 else []
        claimed = place if rng.random() < 0.7 else int(rng.choice([0, place + 1, 10**9]))
        builder.append(claimed, timestamp=int(rng.integers(2**41)), key=key, value=value, headers=headers)
    data = bytearray(first.to_bytes(8, "big") + bytes(builder.build())[8:])
    if stamped:  # as brokers do that keep the time of arrival
        data[22] |= 8
        data[35:43] = int(rng.integers(2**41)).to_bytes(8, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")  # brokers compare it with the number of records
    return sealed(data), first + count


def sealed(data: bytearray) -> bytes:
    """A batch with the checksum that its bytes have."""
    data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


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


@pytest.mark.parametrize("kernels", ["plain", "fast"])
async def test_a_record_has_the_offset_of_its_place_whatever_it_says_of_its_own(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers compare the offsets that records state with nothing: only the batch's are theirs."""
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    data = batch(b"a", b"b", b"c", first=10, stated=[0, 0, 2**40]) + batch(b"d", first=13)
    assert await fetched(data, 10) == ([(10, None, b"a"), (11, None, b"b"), (12, None, b"c"), (13, None, b"d")], 14)
    assert await fetched(data, 12) == ([(12, None, b"c"), (13, None, b"d")], 14)


@pytest.mark.parametrize("kernels", ["plain", "fast"])
@pytest.mark.parametrize(
    ("at", "value"),
    [(61, 0x01), (61, 0x11), (61, 0x7F), (62, 0x80), (-1, 0x7E), (-1, 0x01)],
    ids=[
        "a short record",
        "a longer one",
        "one without an end",
        "attributes",
        "headers without one",
        "fewer than none",
    ],
)
async def test_messages_of_a_batch_that_only_its_writer_can_have_broken_are_empty(
    kernels: str, at: int, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused where they are folded; an error would let one writer stop all the others of a partition."""
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    broken = bytearray(batch(b"b", b"c", first=11))
    broken[at] = value
    data = batch(b"a", first=10) + sealed(broken) + batch(b"d", first=13)
    assert await fetched(data, 10) == ([(10, None, b"a"), (11, None, b""), (12, None, b""), (13, None, b"d")], 14)
    assert await fetched(data, 12) == ([(12, None, b""), (13, None, b"d")], 14)


@pytest.mark.parametrize("kernels", ["plain", "fast"])
async def test_a_batch_with_other_offsets_than_records_is_damaged(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUSHSUM_KERNELS", kernels)
    for last, count in [(0, 2), (2, 2), (2**31 - 1, 2), (1, 3), (-1, 0), (2**30 - 1, 2**30)]:
        broken = bytearray(batch(b"b", b"c", first=11))
        broken[23:27] = last.to_bytes(4, "big", signed=True)
        broken[57:61] = count.to_bytes(4, "big")
        client = PartitionClient(Answering(0, 100, sealed(broken)), WHERE)
        with pytest.raises(LogError, match=rf"the batch at offset 11 cannot be read: it has {count} records"):
            list(await client.fetch(0.0, 11))


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
    [(22, 4, "zstd"), (22, 1, ""), (22, 7, "")],
    ids=["a codec that is not there", "no gzip", "no codec at all"],
)
async def test_a_batch_that_no_decoder_can_read_names_where_it_stands_and_does_not_pass_by_itself(
    at: int, value: int, why: str
) -> None:
    broken = bytearray(batch(b"b", first=11))
    broken[at] = value
    client = PartitionClient(Answering(0, 100, batch(b"a", first=10) + sealed(broken)), WHERE)
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
