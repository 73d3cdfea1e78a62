"""One partition's requests to its leader: fetch, and where it begins and ends.

Below aiokafka's consumer, on its client, its protocol and its decoder of batches: a consumer hides every failure in a
log line, goes on after damage where it must not, and makes each record three objects on its way.
"""

from collections.abc import Iterator
from typing import Any, Final, Self

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CorruptRecordException,
    LeaderNotAvailableError,
    NoError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from aggregator.kafka.client import told_as_ours

#: What a broker sends at once; a single batch that is larger comes whole.
FETCH_BYTES: Final = 2**20
EARLIEST: Final = -2
LATEST: Final = -1
_CONSUMER: Final = -1  # not a replica
_NO_LEADER: Final = -1
_UNCOMMITTED: Final = 0  # nobody writes in transactions here
_LOG_APPEND_TIME: Final = 1

#: Offset, the brokers' time where the topic has it, and value.
Message = tuple[int, int | None, bytes]


class OutOfRangeError(Exception):
    """The partition does not hold the offset."""


class PartitionClient:
    """One partition, and a connection of its own to its leader. Made by :meth:`connect`.

    Attributes:
        next_offset: Where the next fetch begins: set it to seek. It moves on as the messages of a fetch are passed.
    """

    def __init__(self, client: AIOKafkaClient, where: TopicPartition) -> None:
        self._client, self._where = client, where
        self.next_offset = 0

    @classmethod
    async def connect(cls, arguments: dict[str, Any], where: TopicPartition) -> Self:
        """Finds the brokers.

        Args:
            arguments: Of every client (:meth:`aggregator.kafka.settings.KafkaSettings.client`).
            where: Topic and partition.

        Raises:
            LogUnavailableError: No broker answers.
        """
        client = AIOKafkaClient(**arguments)
        try:
            with told_as_ours(f"partition {where.partition}"):
                await client.bootstrap()
                await client.add_topic(where.topic)
        except BaseException:
            await client.close()
            raise
        return cls(client, where)

    async def fetch(self, wait_s: float) -> Iterator[Message]:
        """Messages from ``next_offset`` on, as many as a broker sends at once; none where none came in time.

        Raises:
            OutOfRangeError: The partition does not hold the offset.
            LogUnavailableError: Its leader does not answer, or is not its leader any longer.
        """
        offset = self.next_offset
        partition = (self._where.partition, offset, FETCH_BYTES)
        request = FetchRequest(
            round(1000 * wait_s), 1, FETCH_BYTES, _UNCOMMITTED, [(self._where.topic, [partition])], rack_id=""
        )
        *_, batches = await self._ask(request)
        return self._unpack(batches, offset)

    async def offset_at(self, when: int) -> int:
        """The first offset (:data:`EARLIEST`), or the one that follows the last durable one (:data:`LATEST`).

        Raises:
            LogUnavailableError: Its leader does not answer.
        """
        request = OffsetRequest(_CONSUMER, _UNCOMMITTED, [(self._where.topic, [(self._where.partition, when)])])
        *_, offset = await self._ask(request)
        return int(offset)

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
        batches = MemoryRecords(data or b"")
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                with told_as_ours(f"partition {self._where.partition}"):
                    raise CorruptRecordException(f"offset {batch.base_offset}")
            if not batch.is_control_batch:  # a transaction's end takes an offset, and is no message
                stamped = batch.timestamp_type == _LOG_APPEND_TIME
                for record in batch:
                    if record.offset >= offset:  # a batch comes whole, whatever of it was asked for
                        yield record.offset, record.timestamp if stamped else None, record.value or b""
            self.next_offset = batch.next_offset
