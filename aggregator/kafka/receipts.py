"""Receipts in a topic of Kafka that is kept for ever: one message for an outcome, on all replicas when it returns."""

import asyncio
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from aggregator.errors import LogUnavailableError, ReceiptsError
from aggregator.kafka.client import answering, end_client, quieten, told_as_ours
from aggregator.kafka.settings import KafkaSettings
from aggregator.kafka.topic import prepare_topic, receipts_topic
from aggregator.kafka.writer import Outgoing, TopicWriter
from aggregator.ports import Observer, Runtime, StoredOutcome
from aggregator.receipt import Receipt, contradiction
from hushsum.privacy.event import Spend

_UNTIL: Final = "nothing is released until the topic is restored"
_SLICE_MS: Final = 500


class ReceiptsTopic:
    """See :class:`aggregator.ports.Receipts`. Made by :meth:`open`.

    Other releasers, of other plans or after us, write to the same topic: it is read to its end at each question. Two
    receipts for the same outcome are one; with another digest, the store or the topic is not what it was.

    Every method may raise LogUnavailableError: no broker answers now, and what was to be written may be there.

    Attributes:
        warnings: The promises that the topic cannot keep, for the operator; a sentence each.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, writer: TopicWriter, runtime: Runtime, warnings: tuple[str, ...]
    ) -> None:
        self.warnings = warnings
        self._settings, self._where, self._writer, self._runtime = settings, TopicPartition(topic, 0), writer, runtime
        self._receipts: dict[tuple[bytes, str, int], Receipt] = {}
        self._next = 0  # messages before this offset are in
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, settings: KafkaSettings, runtime: Runtime, observer: Observer) -> Self:
        """Makes or checks the topic, and reads it; waits for brokers that are not there yet.

        Raises:
            ConfigError: The topic is not as it has to be.
            ReceiptsError: It is damaged, or of a newer format.
        """
        needs = receipts_topic(settings)
        warnings = (await prepare_topic(settings, needs, runtime, observer)).warnings
        writer = TopicWriter(settings, needs.name, needs.message_bytes, runtime)
        receipts = cls(settings, needs.name, writer, runtime, warnings)
        await receipts.read()
        return receipts

    async def write(self, outcome: StoredOutcome, spend: Spend) -> None:
        """Appends a receipt, unless it is there."""
        receipt = Receipt(outcome.plan_id, outcome.kind, outcome.window, outcome.sha256, spend)
        async with self._turn:
            await self._catch_up()
            if not self._knows(receipt):
                await self._writer.write([Outgoing(0, receipt.to_line()[0])])
                await self._catch_up()
                self._knows(receipt)  # whoever wrote at the same moment wrote the same

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """All receipts that were written up to now, by whomever, in their order."""
        async with self._turn:
            await self._catch_up()
            return [receipt.row for receipt in self._receipts.values()]

    async def close(self) -> None:
        """Ends the connection."""
        await self._writer.close()

    def _knows(self, receipt: Receipt) -> bool:
        known = self._receipts.get(receipt.key)
        if known is not None and known.sha256 != receipt.sha256:  # its spend may be in the words of an older version
            raise contradiction(f"topic {self._where.topic}", receipt.window)
        return known is not None

    async def _catch_up(self) -> None:
        quieten()
        consumer = AIOKafkaConsumer(
            **await answering(self._settings.client("receipts")),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        try:
            with told_as_ours("receipts"):
                await consumer.start()
                await self._read_to_end(consumer)
        finally:
            await end_client(consumer, self._runtime)

    async def _read_to_end(self, consumer: AIOKafkaConsumer) -> None:
        where = self._where
        first: int = (await consumer.beginning_offsets([where]))[where]
        end: int = (await consumer.end_offsets([where]))[where]
        if first > 0 or end < self._next:
            held, read = f"holds messages {first} to {end - 1}", max(self._next, 1)
            raise ReceiptsError(f"topic {where.topic}: {held}, expected all since 0, at least {read}; {_UNTIL}")
        if end == self._next:
            return
        consumer.assign([where])
        consumer.seek(where, self._next)
        began_s = self._runtime.monotonic()
        while self._next < end:
            batches = await consumer.getmany(where, timeout_ms=_SLICE_MS)
            for record in batches.get(where, ()):
                self._take(record)
            if self._runtime.monotonic() - began_s > self._settings.request_s:
                raise LogUnavailableError(f"kafka, receipts: {self._next} of {end} read, and no more came")

    def _take(self, record: ConsumerRecord) -> None:
        try:
            receipt, _ = Receipt.from_line(record.value or b"")
        except ReceiptsError as error:
            raise type(error)(f"topic {self._where.topic}, message {record.offset}: {error}; {_UNTIL}") from error
        if not self._knows(receipt):
            self._receipts[receipt.key] = receipt
        self._next = record.offset + 1
