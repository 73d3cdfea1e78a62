"""Reads one partition of a plan's topic: from messages of many entries to entries with positions.

Below aiokafka's consumer, on its client, its protocol and its decoder of batches: a consumer hides every failure in a
log line, goes on after damage where it must not, and makes each record three objects on its way.

Nothing of a group is used, and no offset is stored in Kafka: a position is asked for, and it is there, or the gap is
named. A connection for each partition, so that one that is slow or idle holds up no other. While what was fetched is
handed out, the next fetch is under way, where the broker is likely to have more: two fetches in memory at the most.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, Self

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import LeaderNotAvailableError, NoError, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.log.entries import LogMessages
from aggregator.log.kafka.client import answering, connect_to, told_as_ours
from aggregator.log.kafka.topic import topic_id
from aggregator.model import EntryBatch, PositionedEntry
from aggregator.runtime import Runtime
from hushsum.errors import Reason
from hushsum_proto.errors import NewerEntryError

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
            arguments: Of every client (:meth:`aggregator.log.kafka.client.KafkaSettings.client`).
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


INDEX_BITS: Final = 16
_INDEXES: Final = 1 << INDEX_BITS
_logged: Final = partial(tuple.__new__, PositionedEntry)  # of all its fields
_POLL_S: Final = 0.5  # how long a broker keeps a fetch that finds nothing


class PartitionReader:
    """One partition; reads follow each other. Made by :meth:`open`."""

    def __init__(self, client: PartitionClient, partition: int, messages: LogMessages, runtime: Runtime) -> None:
        self._client, self._partition = client, partition
        self._messages, self._runtime = messages, runtime
        self._turn = asyncio.Lock()
        self._next: int | None = None  # the position that follows what was handed out; None: to be sought
        self._fetched: Iterator[Message] = iter(())  # not opened
        self._left: deque[Message] = deque()  # likewise, and before those
        self._single = True  # whether the latest message held one entry
        self._opened: Sequence[PositionedEntry] = ()  # not handed out
        self._skip = 0  # entries of the first message that were handed out by another reader
        self._ahead: asyncio.Task[None] | None = None  # the next fetch
        self._coming: Iterator[Message] = iter(())  # what it brought

    @classmethod
    async def open(
        cls, arguments: dict[str, Any], where: TopicPartition, messages: LogMessages, runtime: Runtime
    ) -> Self:
        """Connects.

        Args:
            arguments: Of every client (:meth:`aggregator.log.kafka.client.KafkaSettings.client`).
            where: Topic and partition.
            messages: How messages are read.
            runtime: Time.

        Raises:
            LogUnavailableError: No broker answers.
        """
        return cls(await PartitionClient.connect(arguments, where), where.partition, messages, runtime)

    async def read(self, position: int, limit: int, wait_s: float) -> EntryBatch:
        """See :meth:`aggregator.interfaces.Log.read`; one fetch's worth at the most.

        Raises:
            LogGapError: The topic does not hold the position.
            LogError: A message of a newer format, or a position that is in none.
            LogUnavailableError: The partition's leader does not answer.
        """
        async with self._turn:
            if position != self._next:
                await self._seek(position)
            self._next = None  # until this read has come to its end
            entry_batch = await self._collect(position, limit, wait_s)
            self._next = entry_batch.end
            return entry_batch

    async def end(self) -> int:
        """The high watermark, as a position.

        Raises:
            LogUnavailableError: The partition's leader does not answer.
        """
        return await self._client.offset_at(LATEST) << INDEX_BITS

    async def topic_id(self) -> bytes | None:
        """See :meth:`aggregator.log.kafka.reader.PartitionClient.topic_id`."""
        return await self._client.topic_id()

    async def close(self) -> None:
        """Ends the connection."""
        await self._forget_ahead()
        await self._client.close()

    async def _seek(self, position: int) -> None:
        await self._forget_ahead()
        self._client.next_offset, self._skip = divmod(position, _INDEXES)
        self._fetched, self._opened = iter(()), ()
        self._left.clear()
        if self._skip:  # of a message that is not there yet, a broker would say nothing at all
            await self._expect_held(position)

    async def _collect(self, position: int, limit: int, wait_s: float) -> EntryBatch:
        began_s, left_s = self._runtime.monotonic(), wait_s
        taken: list[PositionedEntry] = []
        end = self._take(taken, limit, position)
        while not taken:
            try:
                await self._fetch(min(left_s, _POLL_S))
            except OutOfRangeError:
                await self._expect_held(position)
                raise LogUnavailableError(f"kafka, partition {self._partition}: out of range, and now in it") from None
            end = self._take(taken, limit, position)
            left_s = wait_s - (self._runtime.monotonic() - began_s)
            if left_s <= 0:
                break
        return EntryBatch(tuple(taken), end)

    async def _fetch(self, wait_s: float) -> None:
        """The next fetch's messages: of the one that is under way, or else of a new one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self._fetched = await self._client.fetch(wait_s)
        else:
            await ahead
            self._fetched, self._coming = self._coming, iter(())
        if self._client.more_from is not None:
            fetching = self._fetch_ahead(self._client.more_from)
            self._ahead = self._runtime.spawn(fetching, f"fetch-{self._partition}")

    async def _fetch_ahead(self, offset: int) -> None:
        self._coming = await self._client.fetch(0.0, offset)  # no longer than the broker needs: a read may not wait

    async def _forget_ahead(self) -> None:
        ahead, self._ahead, self._coming = self._ahead, None, iter(())
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()  # what it failed with is found again, where it lasts

    def _take(self, taken: list[PositionedEntry], limit: int, position: int) -> int:
        """Moves some of what was fetched to ``taken``, up to the limit; the position that follows the last."""
        if self._opened:
            taken += self._opened[:limit]
            self._opened = self._opened[limit:]
            position = (taken[-1].position | (_INDEXES - 1)) + 1
        room = limit - len(taken)
        if not room:
            return self._opened[0].position if self._opened else position
        if self._single and not self._skip:
            position, room = self._take_singles(taken, room, position)
            if not room:
                return position
        while (message := self._message()) is not None:
            held = self._open(message)
            if len(held) > room:
                taken += held[:room]
                self._opened = held[room:]
                return self._opened[0].position
            taken += held
            position = (message[0] + 1) << INDEX_BITS
            room -= len(held)
            if not room:
                return position
        return max(position, self._client.next_offset << INDEX_BITS)

    def _take_singles(self, taken: list[PositionedEntry], room: int, position: int) -> tuple[int, int]:
        """Moves as many messages as there is room for, if each holds one entry; else they are left for the next.

        Returns:
            The position that follows, and the room that is left.
        """
        messages = [self._left.popleft() for _ in range(min(room, len(self._left)))]
        messages += islice(self._fetched, room - len(messages))
        offsets, times, values = zip(*messages, strict=True) if messages else ((), (), ())
        entries = self._messages.single(values)
        if entries is None:
            self._left.extendleft(reversed(messages))
            return position, room
        positions = [offset << INDEX_BITS for offset in offsets]
        taken += map(_logged, zip(positions, entries, repeat(None), times, repeat(None), strict=False))
        return positions[-1] + _INDEXES, room - len(messages)

    def _message(self) -> Message | None:
        return self._left.popleft() if self._left else next(self._fetched, None)

    def _open(self, message: Message) -> Sequence[PositionedEntry]:
        """The entries of a message with their positions; a message that holds none is one entry that is refused."""
        offset, appended_ms, value = message
        try:
            opened = self._messages.read(self._partition, value)
        except NewerEntryError as error:
            raise LogError(f"partition {self._partition}, message {offset}: {error}") from error
        base = offset << INDEX_BITS
        entries, signer = opened.entries, opened.signer
        self._single = len(entries) == 1
        held: Sequence[PositionedEntry]
        if opened.problem is not None or not entries:
            held = (PositionedEntry(base, b"", signer, appended_ms, opened.problem or Reason.MALFORMED),)
        elif len(entries) == 1:
            held = (PositionedEntry(base, entries[0], signer, appended_ms),)
        else:
            rest = (repeat(signer), repeat(appended_ms), repeat(None))
            held = [*map(_logged, zip(range(base, base + len(entries)), entries, *rest, strict=False))]
        return self._after_skip(offset, held) if self._skip else held

    def _after_skip(self, offset: int, held: Sequence[PositionedEntry]) -> Sequence[PositionedEntry]:
        """What another reader has left of a message."""
        skip, self._skip = self._skip, 0
        if skip >= len(held):
            what = f"message {offset} holds {len(held)} entries, although the fold has passed {skip} of it"
            raise LogError(f"partition {self._partition}: {what}: another log than before?")
        return held[skip:]

    async def _expect_held(self, position: int) -> None:
        """Names the gap, where the topic does not hold a position."""
        first = await self._client.offset_at(EARLIEST) << INDEX_BITS
        end = await self._client.offset_at(LATEST) << INDEX_BITS
        if not first <= position <= end:
            raise LogGapError(self._partition, position, first if position < first else end)
