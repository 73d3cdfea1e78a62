"""Writes messages to one topic: durable on all replicas in sync when it returns, or an error, in bounded time."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError

from aggregator.errors import LogUnavailableError
from aggregator.kafka.client import answering, end_client, our_error, quieten, told_as_ours
from aggregator.kafka.identity import TopicIdentity, topic_id
from aggregator.kafka.settings import KafkaSettings
from aggregator.ports import Runtime

_UNKNOWN_OFFSET: Final = -1


class Outgoing(NamedTuple):
    """A message on its way: no key, no headers.

    Attributes:
        partition: Where to.
        value: What it holds.
        stamp_ms: The time that it says it is of, where the topic's brokers keep that one; None: now.
    """

    partition: int
    value: bytes
    stamp_ms: int | None = None


class TopicWriter:
    """An idempotent producer that is replaced after any failure: its sequence of messages is broken then.

    Args:
        settings: How Kafka is reached.
        topic: Where to.
        message_bytes: The largest message, and the largest batch of them.
        runtime: Tasks.
        identity: Tells whether the topic is still the same; None: as if it were new.
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

    async def write(self, messages: Sequence[Outgoing]) -> list[int]:
        """Appends messages in their order within each partition.

        Args:
            messages: At least one.

        Returns:
            The offset of each.

        Raises:
            LogUnavailableError: Which of them are durable is not known.
            LogError: Kafka refuses them, and will; or the topic is not the one that it was.
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
        """Ends the connection; what was not answered stays unknown."""
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
        quieten()
        producer = AIOKafkaProducer(
            **await answering(self._arguments),
            acks="all",
            enable_idempotence=True,
            max_request_size=self._message_bytes,
            max_batch_size=self._message_bytes,
        )
        # Without transactions, the library's own trips over what it lacks; who sends is told by other means.
        producer._txn_manager.fatal_error = _told_already  # noqa: SLF001  nothing public does
        try:
            with told_as_ours("appending"):
                async with asyncio.timeout(self._patience_s):  # a new cluster refuses producers for a while
                    await producer.start()
        except BaseException:
            self._end(producer)
            raise
        return producer

    async def _deliver(self, producer: AIOKafkaProducer, messages: Sequence[Outgoing]) -> list[int]:
        deliveries: list[asyncio.Future[Any]] = []
        try:
            with told_as_ours("appending"):
                async with asyncio.timeout(self._patience_s):
                    for partition, value, stamp_ms in messages:
                        sending = producer.send(self._topic, value, partition=partition, timestamp_ms=stamp_ms)
                        deliveries.append(await sending)
                    await asyncio.wait(deliveries)
        finally:
            for delivery in deliveries:
                if not delivery.done():
                    delivery.add_done_callback(_let_go)
        failed = [error for error in (delivery.exception() for delivery in deliveries) if error is not None]
        if failed:
            raise our_error("appending", failed[0]) from failed[0]
        offsets = [delivery.result().offset for delivery in deliveries]
        if min(offsets) <= _UNKNOWN_OFFSET:  # the broker has them, and has forgotten where
            raise LogUnavailableError("kafka, appending: where the messages stand is not known")
        return offsets

    async def _confirm(self, producer: AIOKafkaProducer, partition: int) -> None:
        async def ask() -> bytes | None:
            with told_as_ours("appending"):
                leader = producer.client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
                async with asyncio.timeout(self._patience_s):
                    return await topic_id(producer.client, leader, self._topic)

        await self._identity.confirm(ask)

    def _retire(self, producer: AIOKafkaProducer) -> None:
        """Lets a producer end in the background, and the next append begin with a new one."""
        if self._producer is producer:
            self._producer = None
            self._end(producer)

    def _end(self, producer: AIOKafkaProducer) -> None:
        ending = self._runtime.spawn(self._give_up(producer), "kafka-retire")
        self._retiring.add(ending)
        ending.add_done_callback(self._retiring.discard)

    async def _give_up(self, producer: AIOKafkaProducer) -> None:
        # An idempotent producer repeats for ever what no broker takes: it is told that nobody waits for it any longer.
        producer._message_accumulator.fail_all(KafkaConnectionError("given up"))  # noqa: SLF001  nothing public does
        await end_client(producer, self._runtime)


def _told_already(error: BaseException) -> None:
    """All that was to be sent has failed with it."""


def _let_go(delivery: "asyncio.Future[Any]") -> None:
    """Nobody waits for it any longer; its error is no news."""
    if not delivery.cancelled():
        delivery.exception()
