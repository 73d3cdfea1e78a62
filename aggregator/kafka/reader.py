"""Reads one partition of a plan's topic: from messages of many entries to entries with positions.

Nothing of a group is used, and no offset is stored in Kafka: a position is asked for, and it is there, or the gap is
named. A connection for each partition, so that one that is slow or idle holds up no other. While what was fetched is
handed out, the next fetch is under way, where the broker is likely to have more: two fetches in memory at the most.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat
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
_logged: Final = partial(tuple.__new__, Logged)  # of all its fields
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
        self._opened: Sequence[Logged] = ()  # not handed out
        self._skip = 0  # entries of the first message that were handed out by another reader
        self._ahead: asyncio.Task[None] | None = None  # the next fetch
        self._coming: Iterator[Message] = iter(())  # what it brought

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

    async def topic_id(self) -> bytes | None:
        """See :meth:`aggregator.kafka.fetch.PartitionClient.topic_id`."""
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

    async def _collect(self, position: int, limit: int, wait_s: float) -> Stretch:
        began_s, left_s = self._runtime.monotonic(), wait_s
        taken: list[Logged] = []
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
        return Stretch(tuple(taken), end)

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

    def _take(self, taken: list[Logged], limit: int, position: int) -> int:
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

    def _take_singles(self, taken: list[Logged], room: int, position: int) -> tuple[int, int]:
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

    def _open(self, message: Message) -> Sequence[Logged]:
        """The entries of a message with their positions; a message that holds none is one entry that is refused."""
        offset, appended_ms, value = message
        try:
            opened = self._messages.read(self._partition, value)
        except NewerEntryError as error:
            raise LogError(f"partition {self._partition}, message {offset}: {error}") from error
        base = offset << INDEX_BITS
        entries, signer = opened.entries, opened.signer
        self._single = len(entries) == 1
        held: Sequence[Logged]
        if opened.problem is not None or not entries:
            held = (Logged(base, b"", signer, appended_ms, opened.problem or Reason.MALFORMED),)
        elif len(entries) == 1:
            held = (Logged(base, entries[0], signer, appended_ms),)
        else:
            rest = (repeat(signer), repeat(appended_ms), repeat(None))
            held = [*map(_logged, zip(range(base, base + len(entries)), entries, *rest, strict=False))]
        return self._after_skip(offset, held) if self._skip else held

    def _after_skip(self, offset: int, held: Sequence[Logged]) -> Sequence[Logged]:
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
