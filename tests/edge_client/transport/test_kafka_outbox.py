"""The queues before a log: order, batches, bounds, retries; under a clock that jumps to whatever is next."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest

from edge_client.errors import EdgeError, SettingsError, UnreachableError
from edge_client.transport.kafka import NotStoredError, Outbox, OutboxSettings
from hushsum_proto.batches import BATCH_ENTRIES_MAX

T = TypeVar("T")


class JumpingRuntime:
    """Real tasks; sleeping takes no time, and moves the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        return asyncio.create_task(work, name=name)

    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def hashing(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def computing(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)


@dataclass
class Broker:
    """Stores messages, when it is not told to do something else first."""

    troubles: list[BaseException | None] = field(default_factory=list)  # what each send meets, in order; None: nothing
    stored: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    async def send(self, partition: int, entries: Sequence[bytes]) -> None:
        assert partition not in self.busy, "two messages of one partition under way"
        self.busy.add(partition)
        self.begun.set()
        try:
            await self.open.wait()
            trouble = self.troubles.pop(0) if self.troubles else None
            if trouble is not None:
                raise trouble
            self.stored.append((partition, tuple(entries)))
        finally:
            self.busy.discard(partition)

    def entries_of(self, partition: int) -> list[bytes]:
        return [entry for number, entries in self.stored if number == partition for entry in entries]


def outbox_of(broker: Broker, runtime: JumpingRuntime | None = None, **settings: float) -> Outbox:
    return Outbox(broker.send, runtime or JumpingRuntime(), OutboxSettings(**settings))  # type: ignore[arg-type]  # numbers by name


async def put(outbox: Outbox, partition: int, entry: bytes) -> "asyncio.Task[None]":
    """A submission that waits to be stored."""
    task = asyncio.create_task(outbox.store([(partition, entry)]))
    await asyncio.sleep(0)
    return task


async def test_entries_that_come_together_travel_together_each_partition_for_itself() -> None:
    broker = Broker()
    outbox = outbox_of(broker)
    await asyncio.gather(*[outbox.store([(number % 2, bytes([number]))]) for number in range(6)])
    assert sorted(broker.stored) == [(0, (b"\0", b"\2", b"\4")), (1, (b"\1", b"\3", b"\5"))]


async def test_what_comes_while_a_message_is_under_way_makes_the_next_one() -> None:
    broker = Broker()
    outbox = outbox_of(broker)
    broker.open.clear()
    first = await put(outbox, 0, b"a")
    await broker.begun.wait()
    rest = [await put(outbox, 0, entry) for entry in (b"b", b"c")]
    broker.open.set()
    await asyncio.gather(first, *rest)
    assert broker.stored == [(0, (b"a",)), (0, (b"b", b"c"))]


async def test_a_message_holds_as_many_bytes_as_it_may_and_a_larger_entry_goes_alone() -> None:
    broker = Broker()
    outbox = outbox_of(broker, batch_bytes=10)
    sizes = [4, 6, 1, 25, 10, 3]
    await asyncio.gather(*[await put(outbox, 0, bytes(size)) for size in sizes])
    assert [[len(entry) for entry in entries] for _, entries in broker.stored] == [[4, 6], [1], [25], [10], [3]]


async def test_a_message_holds_no_more_entries_than_it_can_number() -> None:
    broker = Broker()
    await outbox_of(broker).store([(0, b"")] * (BATCH_ENTRIES_MAX + 1))
    assert [len(entries) for _, entries in broker.stored] == [BATCH_ENTRIES_MAX, 1]


async def test_who_submits_more_than_may_wait_waits_in_turn() -> None:
    broker = Broker()
    outbox = outbox_of(broker, waiting_bytes_max=100)
    broker.open.clear()
    first = [await put(outbox, 0, bytes([number]) * 40) for number in range(2)]
    waiting = [
        asyncio.create_task(outbox.store([(0, bytes([number]) * size)])) for number, size in ((2, 40), (3, 1), (4, 90))
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting), "the small entry has gone before the large one"
    broker.open.set()
    await asyncio.gather(*first, *waiting)
    assert [entry[0] for entry in broker.entries_of(0)] == [0, 1, 2, 3, 4]


async def test_an_entry_larger_than_may_wait_goes_when_it_is_alone() -> None:
    broker = Broker()
    outbox = outbox_of(broker, waiting_bytes_max=10)
    await asyncio.gather(*[await put(outbox, 0, bytes(size)) for size in (5, 50, 5)])
    assert [len(entry) for entry in broker.entries_of(0)] == [5, 50, 5]


async def test_a_message_is_tried_again_with_longer_waits_and_nothing_overtakes_it() -> None:
    broker, runtime = Broker(troubles=[NotStoredError("cut")] * 6), JumpingRuntime()
    outbox = outbox_of(broker, runtime)
    await asyncio.gather(*[await put(outbox, 0, bytes([number])) for number in range(3)])
    assert broker.entries_of(0) == [b"\0", b"\1", b"\2"]
    assert runtime.now_s > 0.005


async def test_after_its_time_a_message_fails_and_all_behind_it_in_its_partition_with_it() -> None:
    broker = Broker(troubles=[NotStoredError("cut")] * 10_000)
    outbox = outbox_of(broker, batch_bytes=1, timeout_s=3)
    behind = [await put(outbox, 0, bytes([number])) for number in range(3)]
    for stored in behind:
        with pytest.raises(
            UnreachableError, match=r"partition 0: not known to be stored after 3 s \(cut\); send the same"
        ):
            await stored
    broker.troubles.clear()
    again = [await put(outbox, 0, bytes([number])) for number in range(3)]
    await asyncio.gather(*again)
    assert broker.entries_of(0) == [b"\0", b"\1", b"\2"]


async def test_a_final_refusal_is_told_at_once() -> None:
    broker = Broker(troubles=[SettingsError("no such topic")])
    with pytest.raises(SettingsError, match="no such topic"):
        await (await put(outbox_of(broker), 0, b"a"))


async def test_a_failure_that_nobody_foresaw_is_told_too() -> None:
    broker = Broker(troubles=[RuntimeError("a bug")])
    outbox = outbox_of(broker)
    with pytest.raises(UnreachableError, match="partition 0: RuntimeError: a bug"):
        await (await put(outbox, 0, b"a"))
    await (await put(outbox, 0, b"b"))
    assert broker.stored == [(0, (b"b",))]


async def test_one_submission_ends_when_all_of_it_is_stored_and_fails_when_one_partition_does() -> None:
    broker = Broker(troubles=[None, SettingsError("no")])
    outbox = outbox_of(broker)
    with pytest.raises(SettingsError, match="no"):
        await outbox.store([(0, b"a"), (1, b"b"), (0, b"c")])
    assert sum(len(entries) for _, entries in broker.stored) in {1, 2}
    await outbox.store([])
    broker.open.clear()
    task = asyncio.create_task(outbox.store([(0, b"d"), (2, b"e")]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    broker.open.set()
    await task
    assert broker.entries_of(0)[-1:] + broker.entries_of(2) == [b"d", b"e"]


async def test_of_a_submission_that_has_failed_nothing_more_is_taken() -> None:
    broker = Broker(troubles=[SettingsError("no")])
    outbox = outbox_of(broker, waiting_bytes_max=2)
    with pytest.raises(SettingsError, match="no"):
        await outbox.store([(0, b"ab"), (0, b"cd"), (1, b"ef")])
    await outbox.flush()
    assert broker.stored == []


async def test_a_submission_that_is_dropped_half_taken_says_so() -> None:
    broker = Broker()
    outbox = outbox_of(broker, waiting_bytes_max=2)
    broker.open.clear()
    task = asyncio.create_task(outbox.store([(0, b"ab"), (0, b"cd")]))
    await broker.begun.wait()
    await outbox.drop()
    with pytest.raises(UnreachableError, match="closed before the delta was stored"):
        await task


async def test_who_waits_no_longer_does_not_disturb_the_others() -> None:
    broker = Broker()
    outbox = outbox_of(broker)
    gone, stays = [await put(outbox, 0, entry) for entry in (b"a", b"b")]
    gone.cancel()
    await stays
    assert broker.entries_of(0) == [b"a", b"b"]


async def test_flush_waits_for_all_and_drop_for_nothing() -> None:
    broker = Broker()
    outbox = outbox_of(broker)
    stored = [await put(outbox, number, b"a") for number in range(3)]
    await outbox.flush()
    assert all(each.done() and each.exception() is None for each in stored)
    broker.open.clear()
    left = [await put(outbox, number, b"b") for number in range(3)]
    await outbox.drop()
    for each in left:
        with pytest.raises(UnreachableError, match="closed before the delta was stored"):
            await each
    with pytest.raises(UnreachableError, match="closed before the delta was stored"):
        await outbox.store([(0, b"c")])


async def test_under_random_troubles_each_partition_stays_in_order(rng: np.random.Generator) -> None:
    """An entry may be stored twice (its reply was lost); its first copies stand in the order of the calls."""
    broker = Broker()

    async def send(partition: int, entries: Sequence[bytes]) -> None:
        result = rng.random()
        if result < 0.2:
            raise NotStoredError("refused")
        await broker.send(partition, entries)
        if result < 0.4:
            raise NotStoredError("the reply is lost")

    outbox = Outbox(send, JumpingRuntime(), OutboxSettings(batch_bytes=8, waiting_bytes_max=40, timeout_s=1e9))
    stored = [await put(outbox, int(rng.integers(3)), number.to_bytes(2, "big")) for number in range(300)]
    await asyncio.gather(*stored)
    found = [list(dict.fromkeys(broker.entries_of(partition))) for partition in range(3)]
    assert sum(map(len, found)) == 300
    assert all(entries == sorted(entries) for entries in found)


@pytest.mark.parametrize(
    ("name", "value"),
    (
        ("batch_bytes", 0),
        ("batch_bytes", 2**19 + 1),
        ("linger_s", -0.001),
        ("timeout_s", float("nan")),
        ("timeout_s", float("inf")),
        ("waiting_bytes_max", 0),
    ),
)
def test_a_setting_out_of_its_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{name}: got {value}, expected"):
        OutboxSettings(**{name: value})  # type: ignore[arg-type]  # numbers by name


def test_both_errors_of_an_outbox_are_the_sdks_own() -> None:
    assert issubclass(UnreachableError, EdgeError)
    assert not issubclass(NotStoredError, EdgeError)
