"""Reads one partition of a plan's topic: from messages of many entries to entries with positions.

Nothing of a group is used, and no offset is stored in Kafka: a position is asked for, and it is there, or the gap is
named. A connection for each partition, so that one that is slow or idle holds up no other.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from aiokafka import TopicPartition

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.kafka.fetch import EARLIEST, LATEST, Message, OutOfRangeError, PartitionClient
from aggregator.log_messages import LogMessages
from aggregator.ports import Runtime, Stretch
from aggregator.records import Logged
from hushsum.errors import Reason
from hushsum_proto.errors import NewerEntryError

INDEX_BITS: Final = 16
_INDEXES: Final = 1 << INDEX_BITS
_POLL_S: Final = 0.5  # how long a broker keeps a fetch that finds nothing


class PartitionReader:
    """One partition; reads follow each other. Made by :meth:`open`."""

    def __init__(self, client: PartitionClient, partition: int, messages: LogMessages, runtime: Runtime) -> None:
        self._client, self._partition = client, partition
        self._messages, self._runtime = messages, runtime
        self._turn = asyncio.Lock()
        self._next: int | None = None  # the position that follows what was handed out; None: to be sought
        self._fetched: Iterator[Message] = iter(())  # not opened
        self._opened: Sequence[Logged] = ()  # not handed out
        self._skip = 0  # entries of the first message that were handed out by another reader

    @classmethod
    async def open(
        cls, arguments: dict[str, Any], where: TopicPartition, messages: LogMessages, runtime: Runtime
    ) -> Self:
        """Connects.

        Args:
            arguments: Of every client (:meth:`aggregator.kafka.settings.KafkaSettings.client`).
            where: Topic and partition.
            messages: How messages are read.
            runtime: Time.

        Raises:
            LogUnavailableError: No broker answers.
        """
        return cls(await PartitionClient.connect(arguments, where), where.partition, messages, runtime)

    async def read(self, position: int, limit: int, wait_s: float) -> Stretch:
        """See :meth:`aggregator.ports.Log.read`; one fetch's worth at the most.

        Raises:
            LogGapError: The topic does not hold the position.
            LogError: A message of a newer format, or a position that is in none.
            LogUnavailableError: The partition's leader does not answer.
        """
        async with self._turn:
            if position != self._next:
                await self._seek(position)
            self._next = None  # until this read has come to its end
            stretch = await self._collect(position, limit, wait_s)
            self._next = stretch.end
            return stretch

    async def end(self) -> int:
        """The high watermark, as a position.

        Raises:
            LogUnavailableError: The partition's leader does not answer.
        """
        return await self._client.offset_at(LATEST) << INDEX_BITS

    async def close(self) -> None:
        """Ends the connection."""
        await self._client.close()

    async def _seek(self, position: int) -> None:
        self._client.next_offset, self._skip = divmod(position, _INDEXES)
        self._fetched, self._opened = iter(()), ()
        if self._skip:  # of a message that is not there yet, a broker would say nothing at all
            await self._expect_held(position)

    async def _collect(self, position: int, limit: int, wait_s: float) -> Stretch:
        began_s, left_s = self._runtime.monotonic(), wait_s
        taken: list[Logged] = []
        end = self._take(taken, limit, position)
        while not taken:
            try:
                self._fetched = await self._client.fetch(min(left_s, _POLL_S))
            except OutOfRangeError:
                await self._expect_held(position)
                raise LogUnavailableError(f"kafka, partition {self._partition}: out of range, and now in it") from None
            end = self._take(taken, limit, position)
            left_s = wait_s - (self._runtime.monotonic() - began_s)
            if left_s <= 0:
                break
        return Stretch(tuple(taken), end)

    def _take(self, taken: list[Logged], limit: int, position: int) -> int:
        """Moves some of what was fetched to ``taken``, up to the limit; the position that follows the last."""
        if self._opened:
            taken += self._opened[:limit]
            self._opened = self._opened[limit:]
            position = (taken[-1].position | (_INDEXES - 1)) + 1
        room = limit - len(taken)
        if not room:
            return self._opened[0].position if self._opened else position
        for message in self._fetched:
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

    def _open(self, message: Message) -> Sequence[Logged]:
        """The entries of a message with their positions; a message that holds none is one entry that is refused."""
        offset, appended_ms, value = message
        try:
            opened = self._messages.read(self._partition, value)
        except NewerEntryError as error:
            raise LogError(f"partition {self._partition}, message {offset}: {error}") from error
        base = offset << INDEX_BITS
        entries, signer = opened.entries, opened.signer
        held: Sequence[Logged]
        if opened.problem is not None or not entries:
            held = (Logged(base, b"", signer, appended_ms, opened.problem or Reason.MALFORMED),)
        elif len(entries) == 1:
            held = (Logged(base, entries[0], signer, appended_ms),)
        else:
            held = [Logged(base + index, data, signer, appended_ms) for index, data in enumerate(entries)]
        return self._rest(offset, held) if self._skip else held

    def _rest(self, offset: int, held: Sequence[Logged]) -> Sequence[Logged]:
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
