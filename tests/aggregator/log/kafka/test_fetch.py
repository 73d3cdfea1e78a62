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


def new_builder() -> DefaultRecordBatchBuilder:
    """Makes an uncompressed batch of format 2."""
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**20,
    )


def batch(*values: bytes, first: int, stated: Sequence[int] | None = None) -> bytes:
    """A batch of messages whose first has the offset ``first``, as a broker stores it.

    ``stated``: the offsets after the first that the records state, if others than their places.
    """
    builder = new_builder()
    for offset, value in zip(stated or range(len(values)), values, strict=True):
        builder.append(offset, timestamp=5, key=None, value=value, headers=[])
    data = bytearray(first.to_bytes(8, "big") + bytes(builder.build())[8:])
    data[23:27] = (len(values) - 1).to_bytes(4, "big")
    return sealed(data)


def varied(rng: np.random.Generator, first: int) -> tuple[bytes, list[tuple[int, int | None, bytes]]]:
    """A batch of records of many forms, and its messages."""
    stamped, with_headers = rng.random() < 0.5, rng.random() < 0.2
    builder = new_builder()
    count, stamp = int(rng.integers(1, 9)), int(rng.integers(2**41)) if stamped else None
    expected = []
    for place in range(count):
        value = None if rng.random() < 0.1 else rng.bytes(int(rng.choice([0, 1, 63, 64, 200, 9000])))
        key = rng.bytes(3) if rng.random() < 0.3 else None
        headers = [("name", b"value"), ("", None)][: rng.integers(3)] if with_headers else []
        stated = place if rng.random() < 0.7 else int(rng.choice([0, place + 1, 10**9]))
        builder.append(stated, timestamp=int(rng.integers(2**62)), key=key, value=value, headers=headers)
        expected.append((first + place, stamp, value or b""))
    data = bytearray(first.to_bytes(8, "big") + bytes(builder.build())[8:])
    if stamp is not None:  # as brokers do that keep the time of arrival
        data[22] |= 8
        data[35:43] = stamp.to_bytes(8, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")  # brokers compare it with the number of records
    return sealed(data), expected


def sealed(data: bytearray) -> bytes:
    """A batch with the checksum that its bytes have."""
    data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


KERNELS = pytest.mark.parametrize("kernels", ["plain", "fast"], indirect=True)


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which loops run."""
    if request.param == "fast":
        pytest.importorskip("numba")
    monkeypatch.setenv("HUSHSUM_KERNELS", request.param)
    return str(request.param)


@KERNELS
async def test_a_fetch_holds_the_messages_that_were_sent(kernels: str, seed: int, rng: np.random.Generator) -> None:
    for _ in range(150):
        data, first = b"", int(rng.integers(0, 2**40))
        expected: list[tuple[int, int | None, bytes]] = []
        for _ in range(rng.integers(1, 5)):
            some, messages = varied(rng, first + len(expected))
            data, expected = data + some, expected + messages
        offset = int(rng.integers(len(expected)))
        found, end = await fetched(data, first + offset)
        assert found == expected[offset:], f"{kernels}, seed {seed}"
        assert end == first + len(expected), f"{kernels}, seed {seed}"


async def test_whatever_a_writer_does_to_records_both_loops_read_the_same(
    seed: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    empty = 0
    for _ in range(3000):
        data = bytearray(varied(rng, 7)[0])
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(61, len(data))] = int(rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
        monkeypatch.setenv("HUSHSUM_KERNELS", "plain")
        expected = await fetched(sealed(data), 7)
        monkeypatch.setenv("HUSHSUM_KERNELS", "fast")
        assert await fetched(sealed(data), 7) == expected, f"seed {seed}"
        empty += not any(value for *_, value in expected[0])
    assert 300 < empty < 2700, f"seed {seed}"


@KERNELS
async def test_a_record_has_the_offset_of_its_place_whatever_it_says_of_its_own(
    kernels: str,
) -> None:
    """Brokers compare the offsets that records state with nothing: only the batch's are theirs."""
    data = batch(b"a", b"b", b"c", first=10, stated=[0, 0, 2**40]) + batch(b"d", first=13)
    assert await fetched(data, 10) == ([(10, None, b"a"), (11, None, b"b"), (12, None, b"c"), (13, None, b"d")], 14)
    assert await fetched(data, 12) == ([(12, None, b"c"), (13, None, b"d")], 14)


@KERNELS
@pytest.mark.parametrize(
    ("at", "value"),
    [(61, 0x01), (61, 0x11), (61, 0x7F), (-1, 0x7E), (-1, 0x01)],
    ids=["a short record", "a longer one", "one without an end", "headers without one", "fewer than none"],
)
async def test_messages_of_a_batch_that_only_its_writer_can_have_broken_are_empty(
    kernels: str, at: int, value: int
) -> None:
    """They are refused where they are folded; an error would let one writer stop all the others of a partition."""
    broken = bytearray(batch(b"b", b"c", first=11))
    broken[at] = value
    data = batch(b"a", first=10) + sealed(broken) + batch(b"d", first=13)
    assert await fetched(data, 10) == ([(10, None, b"a"), (11, None, b""), (12, None, b""), (13, None, b"d")], 14)
    assert await fetched(data, 12) == ([(12, None, b""), (13, None, b"d")], 14)


@KERNELS
async def test_a_batch_with_other_offsets_than_records_is_damaged(kernels: str) -> None:
    for last, count in [(0, 2), (2, 2), (2**31 - 1, 2), (1, 3), (-1, 0), (2**30 - 1, 2**30)]:
        broken = bytearray(batch(b"b", b"c", first=11))
        broken[23:27] = last.to_bytes(4, "big", signed=True)
        broken[57:61] = count.to_bytes(4, "big")
        client = PartitionClient(Answering(0, 100, sealed(broken)), WHERE)
        with pytest.raises(LogError, match=rf"the batch at offset 11 cannot be read: it has {count} records"):
            list(await client.fetch(0.0, 11))


@KERNELS
async def test_attributes_of_a_record_are_not_looked_at(kernels: str) -> None:
    """Brokers do not either; aiokafka takes a number of many octets for them."""
    odd = bytearray(batch(b"some value", first=11))
    assert odd[62] == 0, "the attributes, after the size of the record"
    odd[62] = 0x80
    assert await fetched(sealed(odd), 11) == ([(11, None, b"some value")], 12)


@KERNELS
async def test_a_batch_is_the_one_that_comes_next(kernels: str) -> None:
    one, two, three = batch(b"a", b"b", first=10), batch(b"c", first=12), batch(b"d", first=13)
    for data, offset, given in [(two, 11, 0), (one + three, 10, 2), (one + one, 10, 2), (one, 9, 0)]:
        client = PartitionClient(Answering(0, 100, data), WHERE)
        client.next_offset = offset
        messages = await client.fetch(0.0)
        if given:
            assert len(list(next(messages).each())) == given
        with pytest.raises(LogError, match=r"cannot be read: offsets \d+ to \d+ come in its place"):
            next(messages)


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
    [(22, 1, "it is compressed"), (22, 7, "it is compressed"), (16, 1, "its format is 1, expected 2")],
    ids=["gzip", "no codec", "an older format"],
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
