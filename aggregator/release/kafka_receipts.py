"""Receipts in a Kafka topic without retention: one message for an outcome, on all replicas when a write returns.

One message holds the topic's random id. If several processes write one at once, the first in the topic counts: all read
the same order. The store's mark, a number of messages and a digest, follows that order as well.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from aggregator.errors import LogUnavailableError, ReceiptsError
from aggregator.interfaces import Observer
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import OutgoingMessage, TopicWriter, offset_reader
from aggregator.log.kafka.topic import prepare_topic, receipts_topic
from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import (
    ID_BYTES,
    KeptLine,
    Receipt,
    ReceiptLines,
    ReceiptsHeader,
    TornLineError,
    missing,
    read_line,
)
from aggregator.release.receipts_copy import missing_copy
from aggregator.runtime import Runtime
from hushsum.entropy import Entropy
from hushsum.privacy.events import Spend

_UNTIL: Final = (
    "nothing is released until the topic is restored. If the other one, the receipts or their copy, is whole and has "
    "no fewer lines, delete this topic, and make it from that: `hushsum admin begin-receipts-copy` makes a copy, with "
    "--reverse the receipts"
)
_SLICE_MS: Final = 500


class ReceiptsTopic:
    """See :class:`aggregator.interfaces.Receipts`. Made by :meth:`open`.

    Other releasers, of other plans or later ones, write to the same topic, so every call reads it to its end. Two
    receipts for the same outcome count as one; if their digests differ, the store or the topic was exchanged.

    Every method may raise LogUnavailableError: no broker answers now; a message to be written may have been.

    Attributes:
        warnings: The promises that the topic cannot keep, for the operator; a sentence each.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        where: str,
        writer: TopicWriter,
        runtime: Runtime,
        entropy: Entropy,
        warnings: tuple[str, ...],
    ) -> None:
        self.warnings = warnings
        self._settings, self._writer, self._runtime, self._entropy = settings, writer, runtime, entropy
        self._where, self.lines = TopicPartition(topic, 0), ReceiptLines(where)
        self._next = 0  # the offset to read on from
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        settings: KafkaSettings,
        runtime: Runtime,
        entropy: Entropy,
        observer: Observer,
        *,
        made: bool,
        name: str | None = None,
    ) -> Self:
        """Creates or checks the topic, and reads it; waits for brokers that are not up yet.

        ``made`` says whether the store has had receipts: then the topic is not created again. ``name`` is that of
        another topic than the settings' own.

        Raises:
            ConfigError: The topic's settings break a promise.
            ReceiptsError: It is damaged, of a newer format, or it is gone although it was made before.
        """
        needs = receipts_topic(settings, name)
        # A copy may be in another cluster: the store records where.
        where = f"topic {needs.name}" if name is None else f"topic {name} at {settings.bootstrap}"
        gone = missing(where) if name is None else missing_copy(where, "receipts_copy names it")
        warnings = (await prepare_topic(settings, needs, runtime, observer, gone=gone if made else None)).warnings
        writer = TopicWriter(settings, needs.name, needs.message_bytes, runtime)
        receipts = cls(settings, needs.name, where, writer, runtime, entropy, warnings)
        try:
            await receipts.read()
        except BaseException:
            await receipts.close()
            raise
        return receipts

    async def begin(self) -> ReceiptsMark:
        async with self._turn:
            await self._catch_up()
            if not self.lines.mark.id:
                await self._append(ReceiptsHeader(self._entropy.read(ID_BYTES)))
            return self.lines.mark

    async def check(self, bound: ReceiptsMark) -> str:
        async with self._turn:
            await self._catch_up()
            self.lines.check(bound)
            return ""

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        receipt = Receipt.from_outcome(outcome, spend)
        async with self._turn:
            await self._catch_up()
            if not self.lines.knows(receipt):
                await self._append(receipt)
                self.lines.knows(receipt)  # raises if a concurrent writer wrote another outcome
            return self.lines.mark

    async def read(self) -> Sequence[Receipt]:
        """All receipts that any process has written up to now, in their order."""
        async with self._turn:
            await self._catch_up()
            return self.lines.receipts

    async def close(self) -> None:
        await self._writer.close()

    async def catch_up(self) -> ReceiptLines:
        """All lines that any process has written up to now."""
        async with self._turn:
            await self._catch_up()
            return self.lines

    async def append(self, kept: KeptLine) -> None:
        """Appends a line of other receipts, which follow the same lines; durable when it returns."""
        async with self._turn:
            await self._append_line(kept.line)

    async def _append(self, held: ReceiptsHeader | Receipt) -> None:
        await self._append_line(held.to_line()[0])

    async def _append_line(self, line: bytes) -> None:
        """Appends a message, and reads up to and past it."""
        await self._writer.write([OutgoingMessage(0, line)])
        await self._catch_up()

    async def _catch_up(self) -> None:
        async with offset_reader(self._settings.client("receipts"), "receipts", self._runtime) as consumer:
            await self._read_to_end(consumer)

    async def _read_to_end(self, consumer: AIOKafkaConsumer) -> None:
        where = self._where
        first: int = (await consumer.beginning_offsets([where]))[where]
        end: int = (await consumer.end_offsets([where]))[where]
        if first > 0 or end < self._next:
            held, read = f"holds messages {first} to {end - 1}", max(self._next, 1)
            raise ReceiptsError(f"{self.lines.where}: {held}, expected all since 0, at least {read}; {_UNTIL}")
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
                raise LogUnavailableError(f"kafka, receipts: {self._next} of {end} read, no more available")

    def _take(self, record: ConsumerRecord) -> None:
        line = record.value or b""
        try:
            held, _ = read_line(line)
        except TornLineError as error:
            raise TornLineError(f"{self.lines.where}, message {record.offset}: {error}; {_UNTIL}") from error
        except ReceiptsError as error:  # a newer format
            raise ReceiptsError(f"{self.lines.where}, message {record.offset}: {error}") from error
        self.lines.add(line, held)
        self._next = record.offset + 1
