"""One partition's requests to its leader: fetch, and where it begins and ends.

Below aiokafka's consumer, on its client, its protocol and its decoder of batches: a consumer hides every failure in a
log line, goes on after damage where it must not, and makes each record three objects on its way.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, Self

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    LeaderNotAvailableError,
    NoError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from aggregator.errors import LogError
from aggregator.kafka.client import answering, connect_to, told_as_ours
from aggregator.kafka.identity import topic_id

#: What a broker sends at once; a single batch that is larger comes whole.
FETCH_BYTES: Final = 2**20
EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1  # not a replica
_NO_LEADER: Final = -1
_UNCOMMITTED: Final = 0  # nobody writes in transactions here
_LOG_APPEND_TIME: Final = 1

# Of a batch of format 2, the one that brokers of this age send: its first offset and its size after these 12 bytes, and
# how far its last offset is from its first.
_FORMAT: Final = 2
_FORMAT_AT: Final = 16
_SIZE: Final = struct.Struct(">qi")
_LAST_OFFSET: Final = struct.Struct(">i")
_LAST_OFFSET_AT: Final = 23
_HEAD_BYTES: Final = 61
_MUCH: Final = FETCH_BYTES // 2  # bytes after which there is likely more at once

#: Offset, the brokers' time where the topic has it, and value.
Message = tuple[int, int | None, bytes]


class OutOfRangeError(Exception):
    """The partition does not hold the offset."""


class PartitionClient:
    """One partition, and a connection of its own to its leader. Made by :meth:`connect`.

    Attributes:
        next_offset: Where the next fetch begins: set it to seek. It moves on as the messages of a fetch are passed.
        more_from: Where the messages go on after those of the latest fetch, if more of them are likely to be there.
    """

    def __init__(self, client: AIOKafkaClient, where: TopicPartition) -> None:
        self._client, self._where = client, where
        self.next_offset = 0
        self.more_from: int | None = None

    @classmethod
    async def connect(cls, arguments: dict[str, Any], where: TopicPartition) -> Self:
        """Finds the brokers.

        Args:
            arguments: Of every client (:meth:`aggregator.kafka.settings.KafkaSettings.client`).
            where: Topic and partition.

        Raises:
            LogUnavailableError: No broker answers.
        """
        client = AIOKafkaClient(**await answering(arguments))
        try:
            with told_as_ours(f"partition {where.partition}"):
                await client.bootstrap()
                await client.add_topic(where.topic)
                leader = client.cluster.leader_for_partition(where)
                if leader is not None and leader != _NO_LEADER:
                    await connect_to(client, leader)
        except BaseException:
            await client.close()
            raise
        return cls(client, where)

    async def fetch(self, wait_s: float, offset: int | None = None) -> Iterator[Message]:
        """As many messages as a broker sends at once; none where none came in time.

        Args:
            wait_s: How long the broker may wait for the first.
            offset: Where they begin; None: at ``next_offset``.

        Raises:
            OutOfRangeError: The partition does not hold the offset.
            LogUnavailableError: Its leader does not answer, or is not its leader any longer.
        """
        offset = self.next_offset if offset is None else offset
        self.more_from = None
        partition = (self._where.partition, offset, FETCH_BYTES)
        request = FetchRequest(
            round(1000 * wait_s), 1, FETCH_BYTES, _UNCOMMITTED, [(self._where.topic, [partition])], rack_id=""
        )
        *_, batches = await self._ask(request)
        self.more_from = _end_of(batches) if batches and len(batches) >= _MUCH else None
        return self._unpack(batches or b"", offset)

    async def offset_at(self, when: int) -> int:
        """The first offset (:data:`EARLIEST`), or the one that follows the last durable one (:data:`LATEST`).

        Raises:
            LogUnavailableError: Its leader does not answer.
        """
        request = OffsetRequest(_CONSUMER, _UNCOMMITTED, [(self._where.topic, [(self._where.partition, when)])])
        *_, offset = await self._ask(request)
        return int(offset)

    async def topic_id(self) -> bytes | None:
        """The id of the topic, as the partition's leader knows it; None where brokers give none.

        Raises:
            LogUnavailableError: The leader does not answer, or the topic is not there now.
        """
        with told_as_ours(f"partition {self._where.partition}"):
            leader = self._client.cluster.leader_for_partition(self._where)
            return await topic_id(self._client, leader, self._where.topic)

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.close()

    async def _ask(self, request: Any) -> tuple[Any, ...]:
        """What the partition's leader answers for it: the fields after the error."""
        with told_as_ours(f"partition {self._where.partition}"):
            leader = self._client.cluster.leader_for_partition(self._where)
            if leader is None or leader == _NO_LEADER:
                raise LeaderNotAvailableError
            response = await self._client.send(leader, request)
            ((_, (answer,)),) = response.topics
            _, code, *fields = answer
            error = for_code(code)
            if error is not NoError and error is not OffsetOutOfRangeError:
                raise error
        if error is OffsetOutOfRangeError:
            raise OutOfRangeError
        return tuple(fields)

    def _unpack(self, data: bytes, offset: int) -> Iterator[Message]:
        at = offset
        try:
            batches = MemoryRecords(data)
            while batches.has_next():
                batch = batches.next_batch()
                at = max(offset, batch.base_offset)
                if not batch.validate_crc():
                    raise self._damaged(at, "its checksum does not fit")
                if not batch.is_control_batch:  # a transaction's end takes an offset, and is no message
                    stamped = batch.timestamp_type == _LOG_APPEND_TIME
                    for record in batch:
                        if record.offset >= offset:  # a batch comes whole, whatever of it was asked for
                            yield record.offset, record.timestamp if stamped else None, record.value or b""
                self.next_offset = at = batch.next_offset
        except LogError:
            raise
        except Exception as error:  # the decoder's own: whatever bytes that make no sense lead it to
            raise self._damaged(at, f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def _damaged(self, offset: int, why: str) -> LogError:
        what = f"the batch at offset {offset} cannot be read: {why}"
        return LogError(f"kafka, topic {self._where.topic}, partition {self._where.partition}: {what}; restore it")


def _end_of(data: bytes) -> int | None:
    """The offset after the last whole batch; None where one of another format comes before."""
    at, after = 0, None
    while at + _HEAD_BYTES <= len(data):
        first, size = _SIZE.unpack_from(data, at)
        end = at + _SIZE.size + size
        if end > len(data):
            break
        if data[at + _FORMAT_AT] != _FORMAT or size < 0:
            return None
        after = first + _LAST_OFFSET.unpack_from(data, at + _LAST_OFFSET_AT)[0] + 1
        at = end
    return after
