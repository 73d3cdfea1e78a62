"""Receipts in a topic of Kafka that is kept for ever: one message for an outcome, on all replicas when it returns.

One message holds the topic's random id. Where several processes write one at once, the first in the topic counts: all
read the same order. That order also decides what the store knows of the topic, a number of messages and a digest.
"""

import asyncio
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from aggregator.errors import LogUnavailableError, ReceiptsError
from aggregator.interfaces import Observer
from aggregator.log.kafka.client import KafkaSettings, answering, end_client, quieten, told_as_ours
from aggregator.log.kafka.log import OutgoingMessage, TopicWriter
from aggregator.log.kafka.topic import prepare_topic, receipts_topic
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import ID_BYTES, Receipt, ReceiptLines, ReceiptsHeader, missing, read_line
from aggregator.runtime import Runtime
from hushsum.entropy import Entropy
from hushsum.privacy.event import Spend

_UNTIL: Final = "nothing is released until the topic is restored"
_SLICE_MS: Final = 500


class ReceiptsTopic:
    """See :class:`aggregator.interfaces.Receipts`. Made by :meth:`open`.

    Other releasers, of other plans or after us, write to the same topic: it is read to its end at each question. Two
    receipts for the same outcome are one; with another digest, the store or the topic is not what it was.

    Every method may raise LogUnavailableError: no broker answers now, and what was to be written may be there.

    Attributes:
        warnings: The promises that the topic cannot keep, for the operator; a sentence each.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        writer: TopicWriter,
        runtime: Runtime,
        entropy: Entropy,
        warnings: tuple[str, ...],
    ) -> None:
        self.warnings = warnings
        self._settings, self._writer, self._runtime, self._entropy = settings, writer, runtime, entropy
        topic = receipts_topic(settings).name
        self._where, self._lines = TopicPartition(topic, 0), ReceiptLines(f"topic {topic}")
        self._next = 0  # messages before this offset are in
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls, settings: KafkaSettings, runtime: Runtime, entropy: Entropy, observer: Observer, *, made: bool
    ) -> Self:
        """Makes or checks the topic, and reads it; waits for brokers that are not there yet.

        Args:
            settings: How Kafka is reached.
            runtime: Time.
            entropy: Of the id.
            observer: Is told of what is tried again.
            made: Whether the store has had receipts: then the topic is not made again.

        Raises:
            ConfigError: The topic is not as it has to be.
            ReceiptsError: It is damaged, or of a newer format; or it was made before and is gone.
        """
        needs = receipts_topic(settings)
        gone = missing(f"topic {needs.name}") if made else None
        warnings = (await prepare_topic(settings, needs, runtime, observer, gone=gone)).warnings
        writer = TopicWriter(settings, needs.name, needs.message_bytes, runtime)
        receipts = cls(settings, writer, runtime, entropy, warnings)
        try:
            await receipts.read()
        except BaseException:
            await receipts.close()
            raise
        return receipts

    async def begin(self) -> ReceiptsMark:
        """Appends a header where there is none."""
        async with self._turn:
            await self._catch_up()
            if not self._lines.mark.id:
                await self._append(ReceiptsHeader(self._entropy.read(ID_BYTES)))
            return self._lines.mark

    async def check(self, bound: ReceiptsMark) -> None:
        """Compares the topic, as it is now, with what the store knew of it before."""
        async with self._turn:
            await self._catch_up()
            self._lines.check(bound)

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        """Appends a receipt, unless it is there."""
        receipt = Receipt(outcome.plan_id, outcome.kind, outcome.window, outcome.sha256, spend)
        async with self._turn:
            await self._catch_up()
            if not self._lines.knows(receipt):
                await self._append(receipt)
                self._lines.knows(receipt)  # whoever wrote at the same moment wrote the same
            return self._lines.mark

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """All receipts that were written up to now, by whomever, in their order."""
        async with self._turn:
            await self._catch_up()
            return self._lines.rows

    async def close(self) -> None:
        """Ends the connection."""
        await self._writer.close()

    async def _append(self, held: ReceiptsHeader | Receipt) -> None:
        """Appends a message, and reads on to it and past it."""
        await self._writer.write([OutgoingMessage(0, held.to_line()[0])])
        await self._catch_up()

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
        line = record.value or b""
        try:
            held, _ = read_line(line)
        except ReceiptsError as error:
            raise type(error)(f"topic {self._where.topic}, message {record.offset}: {error}; {_UNTIL}") from error
        self._lines.add(line, held)
        self._next = record.offset + 1
