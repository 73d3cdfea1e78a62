"""The log of one plan on Kafka: one topic; each message holds entries of one partition.

A position is ``offset << 16 | index``: the offset of a message in its partition, and the index of an entry in it.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.interfaces import Observer
from aggregator.log.entries import LogMessages
from aggregator.log.kafka.client import (
    KafkaSettings,
    administration,
    translated_error,
    translated_errors,
    via_reachable_broker,
)
from aggregator.log.kafka.internals import (
    LATEST,
    PartitionClient,
    abandon,
    end_client,
    topic_id,
    warm_up,
    without_transactions,
)
from aggregator.log.kafka.reader import INDEX_BITS, PartitionReader
from aggregator.log.kafka.topic import SPARE_BYTES, TopicIdentity, TopicNeeds, entries_topic, prepare_topic
from aggregator.model import EntryBatch, NewEntry
from aggregator.runtime import Backoff, Runtime, retry
from hushsum.plan import Plan
from hushsum_proto.batches import BATCH_ENTRIES_MAX
from hushsum_proto.convert_batches import is_seal

_UNKNOWN_OFFSET: Final = -1


class OutgoingMessage(NamedTuple):
    """A message to send, without key and headers.

    Attributes:
        stamp_ms: Its timestamp, if the topic keeps the sender's; None: now.
    """

    partition: int
    value: bytes
    stamp_ms: int | None = None


class TopicWriter:
    """An idempotent producer, replaced after any failure, which breaks its sequence of messages.

    ``message_bytes`` is the largest message, and the largest batch of them.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        message_bytes: int,
        runtime: Runtime,
        identity: TopicIdentity | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = settings.client("writer")
        self._patience_s = settings.request_s
        self._topic, self._message_bytes, self._runtime = topic, message_bytes, runtime
        self._identity = identity or TopicIdentity(topic, None, {}, runtime)
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def write(self, messages: Sequence[OutgoingMessage]) -> list[int]:
        """Appends messages in their order within each partition.

        Returns:
            The offset of each.

        Raises:
            LogUnavailableError: Which of them are durable is not known.
            LogError: Kafka refuses them for good, or the topic was exchanged.
        """
        self._identity.check()
        producer = await self._ready()
        floors = self._identity.floors(message.partition for message in messages)
        try:
            offsets = await self._deliver(producer, messages)
            for message, offset, floor in zip(messages, offsets, floors, strict=True):
                self._identity.appended(message.partition, offset, floor)
            await self._confirm(producer, messages[0].partition)
            return offsets
        except BaseException:
            self._retire(producer)
            raise

    async def close(self) -> None:
        """Ends the connection; whether unanswered messages are durable stays unknown."""
        if self._producer is not None:
            self._retire(self._producer)
        if self._retiring:
            await asyncio.wait(self._retiring)

    async def _ready(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await self._start()
            return self._producer

    async def _start(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **await via_reachable_broker(self._arguments),
            acks="all",
            enable_idempotence=True,
            max_request_size=self._message_bytes,
            max_batch_size=self._message_bytes,
        )
        without_transactions(producer)
        try:
            with translated_errors("appending"):
                async with asyncio.timeout(self._patience_s):  # a new cluster refuses producers for a while
                    await producer.start()
        except BaseException:
            self._end(producer)
            raise
        return producer

    async def _deliver(self, producer: AIOKafkaProducer, messages: Sequence[OutgoingMessage]) -> list[int]:
        deliveries: list[asyncio.Future[Any]] = []
        try:
            with translated_errors("appending"):
                async with asyncio.timeout(self._patience_s):
                    for partition, value, stamp_ms in messages:
                        sending = producer.send(self._topic, value, partition=partition, timestamp_ms=stamp_ms)
                        deliveries.append(await sending)
                    await asyncio.wait(deliveries)
        finally:
            for delivery in deliveries:
                if not delivery.done():
                    delivery.add_done_callback(_ignore_result)
        failed = [error for error in (delivery.exception() for delivery in deliveries) if error is not None]
        if failed:
            raise translated_error("appending", failed[0]) from failed[0]
        offsets = [delivery.result().offset for delivery in deliveries]
        if min(offsets) <= _UNKNOWN_OFFSET:  # the broker has them, but not their offsets
            raise LogUnavailableError("kafka: the offsets of the appended messages are unknown")
        return offsets

    async def _confirm(self, producer: AIOKafkaProducer, partition: int) -> None:
        async def ask() -> bytes | None:
            with translated_errors("appending"):
                leader = producer.client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
                async with asyncio.timeout(self._patience_s):
                    return await topic_id(producer.client, leader, self._topic)

        await self._identity.confirm(ask)

    def _retire(self, producer: AIOKafkaProducer) -> None:
        """Ends a producer in the background; the next append starts a new one."""
        if self._producer is producer:
            self._producer = None
            self._end(producer)

    def _end(self, producer: AIOKafkaProducer) -> None:
        ending = self._runtime.spawn(abandon(producer, self._runtime), "kafka-retire")
        self._retiring.add(ending)
        ending.add_done_callback(self._retiring.discard)


def _ignore_result(delivery: "asyncio.Future[Any]") -> None:
    if not delivery.cancelled():
        delivery.exception()


_FRAME_BYTES: Final = 6  # around an entry in its message
_SEAL_BYTES_MAX: Final = 64  # no seal is longer; a longer entry need not be decoded


@dataclass
class _Message:
    """Entries that travel together, by their numbers in the append; ``window`` is None if it does not matter."""

    partition: int
    window: int | None
    seals: bool
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class KafkaLog:
    """See :class:`aggregator.interfaces.Log`. Made by :meth:`open`.

    Attributes:
        warnings: The promises that the topic cannot keep, for the operator; a sentence each.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: TopicNeeds,
        messages: LogMessages,
        runtime: Runtime,
        observer: Observer,
        warnings: Sequence[str],
        identity: TopicIdentity,
    ) -> None:
        self.topic, self.warnings = topic.name, tuple(warnings)
        self._settings, self._partitions, self._stamps = settings, topic.partitions, topic.stamps
        self._messages, self._runtime, self._observer = messages, runtime, observer
        self._entries_bytes = topic.message_bytes - SPARE_BYTES
        self._writer = TopicWriter(settings, topic.name, topic.message_bytes, runtime, identity)
        self._identity = identity
        self._readers: dict[int, PartitionReader] = {}
        # Clients of their own for `end`, because a fetch may keep a reader's connection busy.
        self._end_clients: dict[int, PartitionClient] = {}
        # A lock each, so that a silent broker holds up only those who need it.
        self._connecting: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)

    @classmethod
    async def open(  # noqa: PLR0913  the settings, and who observes the start
        cls,
        settings: KafkaSettings,
        plan: Plan,
        partitions: int,
        messages: LogMessages,
        runtime: Runtime,
        observer: Observer,
        marks: Mapping[int, int] | None = None,
        *,
        absent: LogError | None = None,
    ) -> Self:
        """Creates or checks the plan's topic; waits for brokers that are not up yet.

        ``marks`` are the stored positions of the folds, by partition: the topic must reach them. With ``absent`` the
        topic is looked at alone: none is created, it is raised where there is none, and the topic must hold what the
        folds read next. (While others fold and erase, an older mark may lie before the topic's beginning.)

        Raises:
            ConfigError: The topic does not meet its requirements, or a setting is wrong.
            LogGapError: It ends before a mark, or begins after one.
            LogError: It is gone although entries of it were folded; or Kafka refuses this client.
        """
        topic, marks = entries_topic(settings, plan, partitions), marks or {}
        passed = {partition: -(-mark >> INDEX_BITS) for partition, mark in marks.items()}
        folded = sum(passed.values())
        gone = f"topic {topic.name} is missing, although {folded} of its messages were folded: restore it"
        prepared = await prepare_topic(settings, topic, runtime, observer, gone=LogError(gone) if folded else absent)

        async def ask() -> dict[int, tuple[int, int]]:
            return await _bounds(settings, topic, runtime)

        bounds = await retry("kafka", ask, runtime=runtime, on_retry=observer.retried)
        for partition, mark in sorted(marks.items()):
            first, end = (offset << INDEX_BITS for offset in bounds.get(partition, (0, 0)))
            if end < mark:
                raise LogGapError(partition, mark, end)
            if absent is not None and mark < first:
                raise LogGapError(partition, mark, first)
        ends = {partition: end for partition, (_, end) in bounds.items()}
        identity = TopicIdentity(topic.name, prepared.topic_id, ends, runtime)
        return cls(settings, topic, messages, runtime, observer, prepared.warnings, identity)

    @property
    def partitions(self) -> int:
        return self._partitions

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        """Appends in as few messages as their limits allow; durable on all in-sync replicas when it returns.

        Raises:
            LogUnavailableError: Which of them are durable is not known.
            LogError: Kafka refuses them, this process may not sign them, or the topic was exchanged.
        """
        if not entries:
            return []
        parts = self._divide(entries)
        offsets = await self._writer.write([self._outgoing(part, entries) for part in parts])
        positions = [0] * len(entries)
        for part, offset in zip(parts, offsets, strict=True):
            for index, number in enumerate(part.numbers):
                positions[number] = offset << INDEX_BITS | index
        return positions

    def _outgoing(self, part: _Message, entries: Sequence[NewEntry]) -> OutgoingMessage:
        value = self._messages.write(part.partition, [entries[n].data for n in part.numbers], seals=part.seals)
        if self._stamps is None or part.window is None:
            return OutgoingMessage(part.partition, value)
        return OutgoingMessage(part.partition, value, self._stamps.start_ms(part.window))

    def _divide(self, entries: Sequence[NewEntry]) -> list[_Message]:
        """Messages in the order of sending, each of one partition, and of seals alone or of none.

        If the timestamp is the window's start, each message is also of one window, and entries keep their order within
        their window only: otherwise alternating entries of two windows would each need a message.
        """
        parts: list[_Message] = []
        filling: dict[tuple[int, int | None], _Message] = {}
        for number, entry in enumerate(entries):
            size = len(entry.data) + _FRAME_BYTES
            seals = _is_seal(entry.data)
            where = (entry.partition, None if self._stamps is None else entry.window)
            part = filling.get(where)
            if (
                part is None
                or part.seals != seals
                or part.size + size > self._entries_bytes
                or len(part.numbers) == BATCH_ENTRIES_MAX
            ):
                part = filling[where] = _Message(*where, seals)
                parts.append(part)
            part.numbers.append(number)
            part.size += size
        return parts

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        """See :meth:`aggregator.interfaces.Log.read`. If a broker is away, it returns no entries.

        Each failure is reported to the observer; then it reconnects after a growing pause, while there is time.

        Raises:
            LogGapError: The topic does not hold the position.
            LogError: The entries cannot be read, or the topic was exchanged.
        """
        self._identity.check()
        backoff, began_s = Backoff(), self._runtime.monotonic()
        while True:
            left_s = wait_s - (self._runtime.monotonic() - began_s)
            try:
                reader = await self._reader(partition)
                entry_batch = await reader.read(position, limit, max(left_s, 0.0))
                await self._identity.confirm(reader.topic_id)
                return entry_batch
            except LogUnavailableError as error:
                self._observer.retried("kafka-read", str(error))
                await self._drop(self._readers, partition)
                pause_s = backoff.next_s()
                if left_s <= pause_s:
                    return EntryBatch((), position)
                await self._runtime.sleep(pause_s)

    async def end(self, partition: int) -> int:
        """The high watermark: every acknowledged entry is below it.

        Raises:
            LogUnavailableError: No broker has answered in ``request_s``.
            LogError: It is lower than it was, or the topic was exchanged.
        """
        self._identity.check()

        async def ask() -> int:
            try:
                async with self._connecting["end", partition]:
                    if partition not in self._end_clients:
                        self._end_clients[partition] = await self._connect(partition)
                    client = self._end_clients[partition]
                end = await client.offset_at(LATEST)
                self._identity.ended(partition, end)
                await self._identity.confirm(client.topic_id)
                return end << INDEX_BITS
            except LogUnavailableError:
                await self._drop(self._end_clients, partition)
                raise

        patience_s = self._settings.request_s
        return await retry(
            "kafka-end", ask, runtime=self._runtime, on_retry=self._observer.retried, patience_s=patience_s
        )

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Deletes the entries below each partition's position, of any window: the folds have stored their effect.

        Raises:
            LogUnavailableError: Not all are deleted; a repeated call deletes the rest.
        """
        del window
        records = {
            TopicPartition(self.topic, partition): RecordsToDelete(position >> INDEX_BITS)
            for partition, position in below.items()
            if position >> INDEX_BITS > 0
        }
        if records:
            async with administration(self._settings) as admin:
                await admin.delete_records(records)

    async def close(self) -> None:
        for clients in (self._readers, self._end_clients):
            for partition in list(clients):
                await self._drop(clients, partition)
        await self._writer.close()

    async def _reader(self, partition: int) -> PartitionReader:
        async with self._connecting["read", partition]:
            if partition not in self._readers:
                await self._runtime.blocking(warm_up)
                client = await self._connect(partition)
                self._readers[partition] = PartitionReader(client, self._messages, self._runtime)
            return self._readers[partition]

    async def _connect(self, partition: int) -> PartitionClient:
        arguments = self._settings.client(f"reader-{partition}")
        return await PartitionClient.connect(arguments, TopicPartition(self.topic, partition))

    async def _drop(self, clients: dict[int, PartitionReader] | dict[int, PartitionClient], partition: int) -> None:
        client = clients.pop(partition, None)
        if client is not None:
            await client.close()


_READER_BACKOFF_MS: Final = 20


@asynccontextmanager
async def offset_reader(arguments: dict[str, Any], what: str, runtime: Runtime) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer of no group, which reads from given offsets; LogUnavailableError if no broker answers."""
    arguments = await via_reachable_broker(arguments)
    # The first question about a topic always waits once: the library asks for the topic's leader only then.
    arguments["retry_backoff_ms"] = _READER_BACKOFF_MS
    consumer = AIOKafkaConsumer(**arguments, group_id=None, enable_auto_commit=False, auto_offset_reset="none")
    try:
        with translated_errors(what):
            await consumer.start()
            yield consumer
    finally:
        await end_client(consumer, runtime)


async def _bounds(settings: KafkaSettings, topic: TopicNeeds, runtime: Runtime) -> dict[int, tuple[int, int]]:
    """By partition, the offset of its first message, and the one after its last message."""
    every = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    async with offset_reader(settings.client("ends"), "ends", runtime) as consumer:
        firsts, ends = await consumer.beginning_offsets(every), await consumer.end_offsets(every)
        return {where.partition: (firsts[where], end) for where, end in ends.items()}


def _is_seal(data: bytes) -> bool:
    return len(data) <= _SEAL_BYTES_MAX and is_seal(data)
