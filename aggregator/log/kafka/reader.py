"""Reads one partition of a plan's topic: from messages of many entries to entries with positions.

No consumer group is used, and no offset is stored in Kafka: a read names a position, and gets it or an error with the
gap. Each partition has a connection of its own, so that a slow or idle one holds up no other. While fetched entries are
handed out, the next fetch is in progress if the broker is likely to have more. Entries stay in the bytes of their
fetch: a reader keeps at most two fetches in memory, and others live for as long as somebody keeps their entries.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Final

import numpy as np

from aggregator.errors import LogError, LogGapError, LogUnavailableError
from aggregator.fold.state import Int64
from aggregator.log.entries import LogMessages
from aggregator.log.kafka.internals import EARLIEST, LATEST, FetchedMessages, Message, OutOfRangeError, PartitionClient
from aggregator.model import EntryBatch, EntryColumns, PositionedEntry
from aggregator.runtime import Runtime
from hushsum.errors import Reason
from hushsum_proto.errors import NewerEntryError

INDEX_BITS: Final = 16
_INDEXES: Final = 1 << INDEX_BITS
_positioned: Final = partial(tuple.__new__, PositionedEntry)  # from an iterable of all its fields
_POLL_S: Final = 0.5  # how long a broker waits if a fetch finds nothing


class PartitionReader:
    """Reads one partition; one read at a time."""

    def __init__(self, client: PartitionClient, messages: LogMessages, runtime: Runtime) -> None:
        self._client, self._partition = client, client.partition
        self._messages, self._runtime = messages, runtime
        self._one_at_a_time = asyncio.Lock()
        self._next: int | None = None  # the position after the entries that were handed out; None: seek first
        self._fetched: Iterator[FetchedMessages] = iter(())  # fetched, not decoded
        self._left: Iterator[Message] = iter(())  # likewise, before those, and to be decoded one by one
        self._opened: Sequence[PositionedEntry] = ()  # decoded, not handed out
        self._after = 0  # the position after the messages of those
        self._sought = 0  # the message that was sought
        self._skip = 0  # its entries that another reader has handed out
        self._ahead: asyncio.Task[None] | None = None  # the next fetch
        self._coming: Iterator[FetchedMessages] = iter(())  # its result

    async def read(self, position: int, limit: int, wait_s: float) -> EntryBatch:
        """See :meth:`aggregator.interfaces.Log.read`; at most the entries of one fetch.

        Raises:
            LogGapError: The topic does not hold the position.
            LogError: A message of a newer format, or a position that is in no message.
            LogUnavailableError: The partition's leader does not answer.
        """
        async with self._one_at_a_time:
            if position != self._next:
                await self._seek(position)
            self._next = None  # until this read has succeeded
            entry_batch = await self._collect(position, limit, wait_s)
            self._next = entry_batch.end
            return entry_batch

    async def topic_id(self) -> bytes | None:
        return await self._client.topic_id()

    async def close(self) -> None:
        await self._forget_ahead()
        await self._client.close()

    async def _seek(self, position: int) -> None:
        await self._forget_ahead()
        self._sought, self._skip = divmod(position, _INDEXES)
        self._client.next_offset = self._sought
        self._fetched, self._left, self._opened = iter(()), iter(()), ()
        if self._skip:  # a fetch at the end of the partition would wait for this message, even if it never comes
            await self._expect_held(position)

    async def _collect(self, position: int, limit: int, wait_s: float) -> EntryBatch:
        began_s, left_s = self._runtime.monotonic(), wait_s
        taken, end = self._take(limit, position)
        while not taken:
            try:
                await self._fetch(min(left_s, _POLL_S))
            except OutOfRangeError:
                await self._expect_held(position)
                raise LogUnavailableError(
                    f"kafka, partition {self._partition}: offset out of range, but now in range"
                ) from None
            taken, end = self._take(limit, position)
            left_s = wait_s - (self._runtime.monotonic() - began_s)
            if left_s <= 0:
                break
        return EntryBatch(taken, end)

    async def _fetch(self, wait_s: float) -> None:
        """Takes the messages of the fetch in progress, or else of a new one."""
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
        self._coming = await self._client.fetch(0.0, offset)  # without waiting, as the next read may not wait

    async def _forget_ahead(self) -> None:
        ahead, self._ahead, self._coming = self._ahead, None, iter(())
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead])
            if not ahead.cancelled():
                ahead.exception()  # a lasting failure is met again

    def _take(self, limit: int, position: int) -> EntryBatch:
        """Fetched entries, up to the limit; none if there are none from ``position`` on."""
        if not self._opened:
            self._opened, self._after = self._open_some(limit, position)
        taken, self._opened = self._opened[:limit], self._opened[limit:]
        return EntryBatch(taken, self._opened[0].position if self._opened else self._after)

    def _open_some(self, limit: int, position: int) -> EntryBatch:
        """The entries of whole messages: of all that were fetched together, or else of as many as hold ``limit``."""
        held: list[PositionedEntry] = []
        while len(held) < limit:
            message = next(self._left, None)
            if message is None:
                messages = None if held else next(self._fetched, None)
                if messages is None:
                    after = position if held or self._skip else self._client.next_offset << INDEX_BITS
                    return EntryBatch(tuple(held), max(position, after))
                found = self._messages.find(messages.data, messages.spans)
                if found is not None:
                    return self._columns(messages, found)
                self._left = messages.each()
                continue
            held += self._open(message)
            position = (message[0] + 1) << INDEX_BITS
        return EntryBatch(tuple(held), position)

    def _columns(self, messages: FetchedMessages, found: Int64) -> EntryBatch:
        """The entries that were found in messages, in columns."""
        numbers = found[:, 0]
        positions = (messages.offsets[numbers] << INDEX_BITS) + found[:, 1]
        entries = EntryColumns(positions, messages.data, found[:, 2:], messages.times_ms[numbers])
        after = messages.end << INDEX_BITS
        if self._skip:
            first = int(np.searchsorted(numbers, 1))
            return EntryBatch(entries[self._skipped(int(messages.offsets[0]), first) :], after)
        return EntryBatch(entries, after)

    def _open(self, message: Message) -> Sequence[PositionedEntry]:
        """The entries of a message with their positions; a message without entries is one refused entry."""
        offset, appended_ms, value = message
        try:
            opened = self._messages.read(self._partition, value)
        except NewerEntryError as error:
            raise LogError(f"partition {self._partition}, message {offset}: {error}") from error
        base = offset << INDEX_BITS
        entries, signer = opened.entries, opened.signer
        held: Sequence[PositionedEntry]
        if opened.problem is not None or not entries:
            held = (PositionedEntry(base, b"", signer, appended_ms, opened.problem or Reason.MALFORMED),)
        elif len(entries) == 1:
            held = (PositionedEntry(base, entries[0], signer, appended_ms),)
        else:
            rest = (repeat(signer), repeat(appended_ms), repeat(None))
            held = [*map(_positioned, zip(range(base, base + len(entries)), entries, *rest, strict=False))]
        return held[self._skipped(offset, len(held)) :] if self._skip else held

    def _skipped(self, offset: int, entries: int) -> int:
        """How many entries of the first message, which must be the one that was sought, another reader has handed out.

        Raises:
            LogGapError: The message that was sought is missing.
            LogError: It has fewer entries than another reader has handed out.
        """
        skip, self._skip = self._skip, 0
        if offset != self._sought:
            raise LogGapError(self._partition, (self._sought << INDEX_BITS) + skip, offset << INDEX_BITS)
        if skip >= entries:
            what = f"message {offset} holds {entries} entries, although the fold has processed {skip} of them"
            raise LogError(f"partition {self._partition}: {what}: the log may have been replaced")
        return skip

    async def _expect_held(self, position: int) -> None:
        """Raises LogGapError if the topic does not hold a position."""
        first = await self._client.offset_at(EARLIEST) << INDEX_BITS
        end = await self._client.offset_at(LATEST) << INDEX_BITS
        if not first <= position <= end:
            raise LogGapError(self._partition, position, first if position < first else end)
