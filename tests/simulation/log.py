"""A log as Kafka is one, or as an SQLite file is one: what is landed, what is durable, what is forgotten."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aggregator.errors import LogGapError
from aggregator.model import EntryBatch, NewEntry, PositionedEntry
from tests.simulation.loop import Process, VirtualLoop, current_process
from tests.simulation.weather import TIMEOUT_S, Line

SHIFT: Final = 16  # a Kafka position is its message's offset, and its number in it
SYNC_S: Final = 0.003
_SKIPS: Final = 0.05  # the chance of an offset that no message has


@dataclass
class _Message:
    offset: int
    entries: tuple[NewEntry, ...]
    durable: bool = False


_Landed = list[tuple[int, _Message, int]]  # partition, message, index in it
LogCopy = list[tuple[list[_Message], int, int]]  # of each partition: messages, the end, the first offset


@dataclass
class _Partition:
    messages: list[_Message] = field(default_factory=list)
    end: int = 0  # offset of the next message
    durable_end: int = 0  # below it everything is durable
    first: int = 0  # offsets below it are deleted
    readers: list["asyncio.Future[None]"] = field(default_factory=list)


class SimLog:
    """See :class:`aggregator.interfaces.Log`; one for all processes.

    Args:
        loop: Time.
        line: The way to it; an embedded one makes it a file: one append is one transaction over all partitions.
        partitions: P.

    Attributes:
        sync_s: What it takes on average to make something durable.
        eager: Appends return before they are durable: a planted bug.
    """

    def __init__(self, loop: VirtualLoop, line: Line, partitions: int) -> None:
        self.sync_s = SYNC_S
        self.eager = False
        self._loop, self._line, self._restores = loop, line, 0
        self._shift = 0 if line.embedded else SHIFT
        self._partitions = [_Partition() for _ in range(partitions)]

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    # ---------------------------------------------------------------------------------------------------------- append

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        if self._line.weather.full:
            raise self._line.full("log: the disk is full")
        groups: list[list[int]] = [[*range(len(entries))]] if self._line.embedded else self._by_partition(entries)
        replies = [self._send([entries[place] for place in group]) for group in groups]
        positions = [0] * len(entries)
        for group, reply in zip(groups, await asyncio.gather(*replies), strict=True):
            for place, position in zip(group, reply, strict=True):
                positions[place] = position
        return positions

    def _by_partition(self, entries: Sequence[NewEntry]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            groups.setdefault(entry.partition, []).append(place)
        return [*groups.values()]

    def _send(self, entries: list[NewEntry]) -> "asyncio.Future[list[int]]":
        """One request; what becomes of it is drawn here."""
        line, loop, process, restores = self._line, self._loop, current_process(), self._restores
        reply: asyncio.Future[list[int]] = loop.create_future()

        def give_up() -> None:
            if not reply.done():
                reply.set_exception(line.lost("log: no reply to an append"))

        def land() -> None:
            if not line.arrives(process) or restores != self._restores:
                return
            # A file's transaction is written when it is committed: what dies before leaves no gap.
            landed = [] if line.embedded else self._land(entries)
            if self.eager:
                loop.call_world(line.delay_s(), answer, landed or self._next(entries))
            loop.call_world(line.random.expovariate(1 / self.sync_s), sync, landed)

        def sync(landed: _Landed) -> None:
            if restores != self._restores:
                return
            if line.embedded:
                if process is not None and not process.alive:
                    return
                landed = self._land(entries)
            elif not all(self._holds(partition, message) for partition, message, _ in landed):
                return
            for partition, message, _ in landed:
                self._sync(partition, message.offset)
            if not line.loses():
                loop.call_world(line.delay_s(), answer, landed)

        def answer(landed: _Landed) -> None:
            if not reply.done():
                reply.set_result([(each.offset << self._shift) + index for _, each, index in landed])

        loop.call_world(line.delay_s() + (line.slow_s() if line.is_slow() else 0.0), land)
        if not line.embedded:
            loop.call_world(TIMEOUT_S, give_up)
        return reply

    def _land(self, entries: list[NewEntry]) -> "_Landed":
        """Written, and not durable yet."""
        if self._line.embedded:
            return [(entry.partition, self._message(entry.partition, (entry,)), 0) for entry in entries]
        partition = entries[0].partition
        if self._line.random.random() < _SKIPS:
            self._partitions[partition].end += 1
        message = self._message(partition, tuple(entries))
        return [(partition, message, index) for index in range(len(entries))]

    def _message(self, partition: int, entries: tuple[NewEntry, ...]) -> _Message:
        state = self._partitions[partition]
        message = _Message(state.end, entries)
        state.messages.append(message)
        state.end += 1
        return message

    def _holds(self, partition: int, message: _Message) -> bool:
        return any(each is message for each in self._partitions[partition].messages)

    def _next(self, entries: list[NewEntry]) -> "_Landed":
        """Where a file would write these if nothing came between: what only a planted bug tells."""
        ends = [state.end for state in self._partitions]
        landed: _Landed = []
        for entry in entries:
            landed.append((entry.partition, _Message(ends[entry.partition], (entry,)), 0))
            ends[entry.partition] += 1
        return landed

    def _sync(self, partition: int, offset: int) -> None:
        state = self._partitions[partition]
        for message in state.messages:
            if message.offset <= offset:
                message.durable = True
        state.durable_end = max(state.durable_end, offset + 1)
        for reader in state.readers:
            if not reader.done():
                reader.set_result(None)
        state.readers.clear()

    def lose_power(self) -> None:
        """What was not durable is gone, and whoever waits for it gets no reply."""
        for state in self._partitions:
            state.messages = [message for message in state.messages if message.durable]
            state.end = state.durable_end = max(state.durable_end, state.first)

    def copied(self) -> LogCopy:
        """What is durable now, for a back-up."""
        return [
            ([replace(each) for each in state.messages if each.durable], state.durable_end, state.first)
            for state in self._partitions
        ]

    def restore(self, copy: LogCopy) -> None:
        """It is what it was; nothing that was on its way to it arrives."""
        self._restores += 1
        for state, (messages, end, first) in zip(self._partitions, copy, strict=True):
            state.messages, state.end, state.durable_end, state.first = [*map(replace, messages)], end, end, first
            state.readers.clear()

    # ------------------------------------------------------------------------------------------------------------ read

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        line, state = self._line, self._partitions[partition]
        await self._reach("a read")
        offset = position >> self._shift
        if offset < state.first:
            raise LogGapError(partition, position, state.first << self._shift)
        if position > state.durable_end << self._shift:
            raise LogGapError(partition, position, state.durable_end << self._shift)
        if position >= state.durable_end << self._shift and wait_s > 0:
            news: asyncio.Future[None] = self._loop.create_future()
            state.readers.append(news)
            alarm = self._loop.call_later(wait_s, _finish, news)
            try:
                await news
            finally:
                alarm.cancel()
        if line.embedded:
            return self._read_file(partition, position, limit)
        return self._read_messages(state, position, limit)

    def _read_messages(self, state: _Partition, position: int, limit: int) -> EntryBatch:
        found: list[PositionedEntry] = []
        end = position
        for message in state.messages:
            if message.offset < position >> SHIFT:
                continue
            if not message.durable or message.offset >= state.durable_end or len(found) >= limit:
                break
            base = message.offset << SHIFT
            for index, entry in enumerate(message.entries):
                if base + index >= position:
                    found.append(PositionedEntry(base + index, entry.data))
            end = (message.offset + 1) << SHIFT
        return EntryBatch(tuple(found), end)

    def _read_file(self, partition: int, position: int, limit: int) -> EntryBatch:
        found: list[PositionedEntry] = []
        for message in self._partitions[partition].messages:
            if message.offset < position + len(found) or not message.durable:
                continue
            if message.offset > position + len(found) or len(found) >= limit:
                break
            found.append(PositionedEntry(message.offset, message.entries[0].data))
        if not found and position < self._partitions[partition].durable_end:
            raise LogGapError(partition, position, self._partitions[partition].durable_end)
        return EntryBatch(tuple(found), position + len(found))

    async def end(self, partition: int) -> int:
        await self._reach("the end")
        return self._partitions[partition].durable_end << self._shift

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        await self._reach("a deletion")
        for partition, stop in below.items():
            state = self._partitions[partition]
            if self._line.embedded:
                state.messages = [
                    each
                    for each in state.messages
                    if not each.durable or each.offset >= stop or each.entries[0].window > window
                ]
                continue
            while state.messages and self._goes(state.messages[0], window, stop):
                state.first = state.messages.pop(0).offset + 1

    def _goes(self, message: _Message, window: int, stop: int) -> bool:
        below = message.durable and (message.offset + 1) << SHIFT <= stop
        return below and all(entry.window <= window for entry in message.entries)

    async def close(self) -> None:
        return

    async def _reach(self, what: str) -> None:
        async def nothing(_: Process | None) -> None:
            return

        await self._line.call(what, nothing, writes=False)


def _finish(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)
