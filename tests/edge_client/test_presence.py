"""Whether a client submits never depends on its records: one presence a window in which it runs, whatever it has."""

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client import (
    AbsentWarning,
    Config,
    EdgeClient,
    FlushTimeoutError,
    RefusalWarning,
    RefusedError,
    SpoolError,
    Tallies,
)
from edge_client import batches as batches_module
from edge_client import client as client_module
from edge_client.presence import Presence
from edge_client.turns.participation import windows_at
from edge_client.uplink import Uplink
from hushsum import Plan
from hushsum.delta import Delta, DeltaId
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, Refusal, Status
from tests.edge_client.clocks import HOUR, MINUTE, START, Clock, until
from tests.edge_client.model_service import ModelService
from tests.plans import small_plan

CONFIG = Config(backoff_first_s=0.01, backoff_longest_s=0.05, close_flush_s=0.0)
PLAN = small_plan(privacy={"participation": "public"}, window={"length": "1h", "lateness": "5m"})
RECORD = [1.0, 2.0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture
async def service(clock: Clock) -> AsyncIterator[ModelService]:
    model = await started(clock)
    yield model
    await model.stop()


async def started(clock: Clock, plan: Plan = PLAN) -> ModelService:
    service = ModelService(plan)
    service.clock_ms = clock.now_ms
    await service.start()
    return service


def client_of(service: ModelService, path: Path, clock: Clock) -> EdgeClient:
    return EdgeClient(service.target, spool=path, config=CONFIG, runtime=clock)


def deltas(service: ModelService) -> list[Delta]:
    """What has reached the service, each once."""
    return [Delta.unpack(data, service.plan) for data in service.fold.bytes_of.values()]


def presences(service: ModelService) -> list[int]:
    return [delta.window for delta in deltas(service) if not delta.runs]


async def arrived(service: ModelService, count: int) -> None:
    await until(lambda: len(presences(service)) == count, f"{len(presences(service))} presences, expected {count}")


def test_a_client_takes_part_in_the_windows_of_its_clock_and_of_what_is_late_within_reason() -> None:
    hour = START // HOUR
    assert windows_at(PLAN.window, hour * HOUR) == range(hour - 1, hour + 1)
    assert windows_at(PLAN.window, hour * HOUR + 5 * MINUTE - 1) == range(hour - 1, hour + 1)
    assert windows_at(PLAN.window, hour * HOUR + 5 * MINUTE) == range(hour, hour + 1)
    assert windows_at(PLAN.window, -1) == range(-1, 0)
    slow = small_plan(window={"length": "1m", "lateness": "64m"}, privacy={"participation": "public"}).window
    assert windows_at(slow, 10**6 * MINUTE) == range(10**6 - 63, 10**6 + 1)


# ------------------------------------------------------------------- worlds that differ in one client's records alone


@dataclass
class World:
    """One client's life: the clock, the network and restarts by a script, records by another.

    ``expected`` is the model: where the client ran, by the clock alone.
    """

    service: ModelService
    path: Path
    clock: Clock
    patience_s: float
    client: EdgeClient | None = None
    expected: set[int] = field(default_factory=set)
    online: bool = True

    async def step(self, what: str, amount: int) -> None:
        if what == "pass":
            self.clock.pass_time(amount * 60.0)
        elif what == "set back":
            self.clock.at_ms -= amount * MINUTE
            self.clock.pass_time(5.0)
        elif what == "network":
            self.online = not self.online
            await (self.service.start(self.service.port) if self.online else self.service.stop())
        else:
            await self.restart()
        await self.shown()

    async def restart(self) -> None:
        if self.client is not None:
            await self.client.__aexit__(None, None, None)
        self.client = await client_of(self.service, self.path, self.clock).__aenter__()

    async def shown(self) -> None:
        """The client has shown itself where the model says, at this very time of its clock, and nowhere else."""
        assert self.client is not None
        client, now = self.client, self.clock.at_ms
        self.expected |= set(range((now - 5 * MINUTE) // HOUR, now // HOUR + 1))
        count = len(self.expected)
        where = f"{client.tallies.presences} presences at {now}, expected {count}"
        await until(lambda: client.tallies.presences == count, where, self.patience_s)

    async def end(self) -> None:
        if not self.online:
            await self.service.start(self.service.port)
        assert self.client is not None
        while self.client.unanswered:
            self.clock.pass_time(0.1)
            self.clock.at_ms -= 100  # however long it takes, no window turns
            await asyncio.sleep(0)
        await self.client.__aexit__(None, None, None)
        assert sorted(presences(self.service)) == sorted(self.expected)
        assert {delta.window for delta in deltas(self.service)} == self.expected


async def no_records(client: EdgeClient, rng: np.random.Generator, now_ms: int) -> None:
    """A client that has nothing to say."""


async def unusable_records(client: EdgeClient, rng: np.random.Generator, now_ms: int) -> None:
    await client.add([[np.nan, 1.0], [np.inf, 2.0]])


async def many_records(client: EdgeClient, rng: np.random.Generator, now_ms: int) -> None:
    batches = rng.uniform(0, 10, (80 if rng.random() < 0.3 else 2, 3, 2))  # the service knows 64 numbers a stream
    await asyncio.gather(*map(client.add, batches))


async def records_of_any_time(client: EdgeClient, rng: np.random.Generator, now_ms: int) -> None:
    for _ in range(3):
        await client.add(RECORD, time=now_ms + int(rng.integers(-4 * HOUR, 4 * HOUR)))


async def too_many_records(client: EdgeClient, rng: np.random.Generator, now_ms: int) -> None:
    await client.add(rng.uniform(0, 10, (client.plan.delta_records_max + 1, 2)))


RECORDS = [no_records, unusable_records, many_records, records_of_any_time, too_many_records]
STEPS = ("pass", "pass", "pass", "restart", "network", "set back")


async def live(seed: int, add: Callable[..., object], path: Path, steps: int = 12, patience_s: float = 20.0) -> Tallies:
    """The same script for every way to add: what the client goes through never depends on its records."""
    script, chance, clock = np.random.default_rng(seed), np.random.default_rng([seed, 1]), Clock()
    world = World(await started(clock), path, clock, patience_s)
    try:
        await world.step("restart", 0)
        for _ in range(steps):
            await world.step(str(script.choice(STEPS)), int(script.integers(1, 130)))
            assert world.client is not None
            done = add(world.client, chance, clock.at_ms)
            assert asyncio.iscoroutine(done)
            await done
            await world.shown()
        await world.end()
        assert world.client is not None
        return world.client.tallies
    finally:
        if world.client is not None and world.client._running:
            await world.client.__aexit__(AssertionError, None, None)
        await world.service.stop()
        clock.close()


@pytest.mark.filterwarnings("ignore::edge_client.EdgeWarning")
@pytest.mark.parametrize("add", RECORDS)
async def test_where_a_client_shows_itself_is_its_clocks_to_say_and_not_its_records(
    seed: int, add: Callable[..., object], path: Path
) -> None:
    tallies = await live(seed, add, path)
    assert tallies.deltas == tallies.acknowledged
    assert (tallies.presences == tallies.deltas) is (add in (no_records, unusable_records))


@pytest.mark.filterwarnings("ignore::edge_client.EdgeWarning")
@pytest.mark.parametrize("add", [no_records, unusable_records])
async def test_a_client_that_shows_itself_with_records_alone_is_found_out(
    seed: int, add: Callable[..., object], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Presence._look

    async def planted(self: Presence) -> None:
        if self._writer._spool.tallies.get("records"):
            await look(self)

    monkeypatch.setattr(Presence, "_look", planted)
    with pytest.raises(AssertionError, match="presences at"):
        await live(seed, add, path, patience_s=0.3)


@pytest.mark.filterwarnings("ignore::edge_client.EdgeWarning")
async def test_a_client_whose_records_show_it_in_other_windows_is_found_out(
    seed: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "shows_presence", lambda _: False)
    with pytest.raises(AssertionError):
        await live(seed, records_of_any_time, path)


# ------------------------------------------------------------------------------------------------------ one at a time


async def test_a_client_without_a_single_record_takes_part_in_every_window(
    service: ModelService, path: Path, clock: Clock
) -> None:
    async with client_of(service, path, clock) as client:
        for hour in range(1, 6):
            await client.flush()
            assert presences(service) == [START // HOUR + passed for passed in range(hour)]
            clock.pass_time(3600.0)
            await arrived(service, hour + 1)
        await client.flush()
    assert {delta.id.stream for delta in deltas(service)} == {client.stream ^ 1}
    assert [delta.id.sequence for delta in deltas(service)] == list(range(6))
    assert (client.tallies.deltas, client.tallies.presences, client.tallies.acknowledged) == (6, 6, 6)


async def test_records_of_a_window_in_which_the_client_did_not_run_are_left_out_with_a_warning(
    service: ModelService, path: Path, clock: Clock
) -> None:
    async with client_of(service, path, clock) as client:
        await client.add(RECORD)
        for time in (START - HOUR, START + HOUR):
            with pytest.warns(
                AbsentWarning, match=r"2 records of window 4\d+, in which this client does not take part"
            ):
                await client.add([RECORD, RECORD], time=time)
        await client.flush()
    assert (client.tallies.records, client.tallies.records_absent) == (1, 4)
    assert service.fold.windows == {START // HOUR: 1}


async def test_records_that_are_late_within_reason_have_their_window_at_once_after_a_start(path: Path) -> None:
    clock = Clock(START // HOUR * HOUR + MINUTE)
    service = await started(clock)
    async with client_of(service, path, clock) as client:
        await client.add(RECORD, time=clock.at_ms - 4 * MINUTE)
        await client.add(RECORD)
        await client.flush()
    assert service.fold.windows == {START // HOUR - 1: 1, START // HOUR: 1}
    assert sorted(presences(service)) == [START // HOUR - 1, START // HOUR]
    await service.stop()
    clock.close()


async def test_flush_waits_for_presence_too(service: ModelService, path: Path, clock: Clock) -> None:
    service.answers.clear()
    async with client_of(service, path, clock) as client:
        flushing = asyncio.ensure_future(client.flush(3.0))
        await service.taken.wait()
        assert not flushing.done()
        clock.pass_time(3.0)
        with pytest.raises(FlushTimeoutError, match="1 deltas have no answer"):
            await flushing
        service.answers.set()
        await client.flush()
    assert client.tallies.acknowledged == 1


async def test_an_add_just_after_a_turn_or_a_set_clock_waits_for_the_look_and_hurries_it_not(
    service: ModelService, path: Path, clock: Clock
) -> None:
    async with client_of(service, path, clock) as client:
        await client.flush()
        clock.at_ms += 7 * HOUR  # somebody sets it: no timer knows
        adding = asyncio.ensure_future(client.add(RECORD))
        await client.flush()
        assert not adding.done()
        assert client.tallies.presences == 1
        clock.pass_time(5.0)
        await adding
        await client.flush()
    assert presences(service) == [START // HOUR, START // HOUR + 7]
    assert service.fold.windows[START // HOUR + 7] == 1


async def test_an_add_that_waits_for_a_look_ends_with_its_client(
    service: ModelService, path: Path, clock: Clock
) -> None:
    client = await client_of(service, path, clock).__aenter__()
    await client.flush()
    clock.at_ms += 7 * HOUR
    adding = asyncio.ensure_future(client.add(RECORD))
    await asyncio.wait([adding], timeout=0)
    await client.__aexit__(None, None, None)
    with pytest.raises(Exception, match="not running"):
        await adding
    assert client.tallies.presences == 1


async def test_a_presence_too_early_for_the_service_is_shown_again_and_its_records_are_never_sent(
    service: ModelService, path: Path, clock: Clock
) -> None:
    early = Refusal.of(Reason.WINDOW_IN_FUTURE, "not yet")
    service.decide = lambda id: Answer(id, Status.REFUSED, early)
    async with client_of(service, path, clock) as client:
        service.answers.clear()
        await client.add(RECORD)
        service.answers.set()
        with pytest.raises(RefusedError, match=r"1 for window_in_future \(not yet\)") as caught:
            await client.flush()
        assert caught.value.refused == {"window_in_future": 1}  # the records, not the presence
        await client.flush()
        assert (client.tallies.withdrawn, client.unanswered) == (1, 0)
        with pytest.warns(AbsentWarning):
            await client.add(RECORD)
        service.decide = lambda _: None
        clock.pass_time(5.0)
        await until(lambda: client.tallies.presences == 2, "it is bound anew")
        await client.add(RECORD)
        await client.flush()
    assert [(delta.id, delta.records) for delta in deltas(service)] == [
        (DeltaId(client.stream ^ 1, 1), 0),
        (DeltaId(client.stream, 1), 1),
    ]


@pytest.mark.parametrize("records", [0, 3])
async def test_a_refused_presence_is_told_for_the_records_that_it_takes_along_alone(
    service: ModelService, path: Path, clock: Clock, records: int
) -> None:
    service.decide = lambda id: Answer(id, Status.REFUSED, Refusal.of(Reason.WINDOW_IN_PAST, "too old"))
    service.answers.clear()
    client = await client_of(service, path, clock).__aenter__()
    for _ in range(records):
        await client.add(RECORD)
    service.answers.set()
    await until(lambda: not client.unanswered, "the presence has its answer")
    assert client.tallies.withdrawn == records
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RefusalWarning)
        await client.__aexit__(None, None, None)
    said = [str(warning.message) for warning in caught if warning.category is RefusalWarning]
    assert said == ["the service refused 3 deltas: 3 for window_in_past (too old)"] * bool(records)


async def test_no_number_of_batches_that_are_hashed_holds_a_presence_up(
    service: ModelService, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hashing = threading.Event(), []

    def slow(*given: Any) -> Any:
        hashing.append(given)
        assert gate.wait(60)
        return batches_module.split(*given)

    monkeypatch.setattr(client_module, "split", slow)
    async with client_of(service, path, clock) as client:
        adding = [asyncio.ensure_future(client.add(RECORD, time=START)) for _ in range(8)]
        try:
            await until(lambda: len(hashing) == 2, "as many batches are hashed as there are threads")
            for hours in range(2, 5):
                await until(lambda: not client.unanswered, "no connection waits for an answer while the hour passes")
                clock.pass_time(3600.0)
                await arrived(service, hours)
            assert not any(add.done() for add in adding)
        finally:
            gate.set()
        await asyncio.gather(*adding)
        await client.flush()
    assert service.fold.windows[START // HOUR] == 8


async def test_no_records_are_packed_while_a_transaction_keeps_presences_waiting(
    service: ModelService, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, threads = Delta.pack, []

    def noted(self: Delta, plan: Plan) -> bytes:
        if self.runs:
            threads.append(threading.current_thread().name)
        return pack(self, plan)

    monkeypatch.setattr(Delta, "pack", noted)
    async with client_of(service, path, clock) as client:
        for _ in range(5):
            await client.add([RECORD] * 3)
        await client.flush()
    assert service.fold.windows[START // HOUR] == 15
    assert len(threads) == 5
    assert all(name.startswith("hushsum-edge-hash") for name in threads)


async def test_a_look_that_comes_late_binds_every_window_that_still_takes_deltas(path: Path, clock: Clock) -> None:
    plan = small_plan(privacy={"participation": "public"}, window={"length": "1h", "lateness": "3h"})
    service, start = await started(clock, plan), START // HOUR
    async with client_of(service, path, clock) as client:
        await client.flush()
        assert client._spool is not None
        with client._spool._lock:  # a disk that stands still for four hours
            clock.pass_time(3600.0)
            await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)) for _ in range(10)])
            clock.pass_time(4 * 3600.0)
        await arrived(service, 9)
    assert sorted(presences(service)) == list(range(start - 3, start + 6))
    await service.stop()


async def test_after_hours_away_the_newest_window_is_shown_first(path: Path, clock: Clock) -> None:
    plan = small_plan(privacy={"participation": "public"}, window={"length": "1h", "lateness": "9h"})
    service, start = await started(clock, plan), START // HOUR
    async with client_of(service, path, clock) as client:
        await client.flush()
    shown = presences(service)
    assert shown == sorted(range(start - 9, start + 1), reverse=True)
    await service.stop()


async def test_a_client_shows_itself_before_its_spools_records_are_sent(
    service: ModelService, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(service, path, clock) as client:
        await client.flush()
    order: list[str] = []
    look, begin = Presence.begin, Uplink.begin

    async def looks(self: Presence) -> None:
        await look(self)
        order.append("shown")

    def begins(self: Uplink) -> None:
        order.append("sending")
        begin(self)

    monkeypatch.setattr(Presence, "begin", looks)
    monkeypatch.setattr(Uplink, "begin", begins)
    async with client_of(service, path, clock):
        assert order == ["shown", "sending"]


async def test_a_backlog_without_answers_keeps_no_presence_back(
    service: ModelService, path: Path, clock: Clock
) -> None:
    async with client_of(service, path, clock) as client:
        await client.flush()
        service.answers.clear()
        for _ in range(80):
            await client.add(RECORD)
        await until(lambda: client.tallies.deltas_sent == 64, "all but one place is taken")  # and the first presence
        clock.at_ms += HOUR
        clock.pass_time(5.0)
        await until(lambda: client.tallies.deltas_sent == 65, "the presence is sent, and no answer has come")
        assert client.tallies.presences == 2
        service.answers.set()
        await client.flush()


async def test_a_disk_that_fails_at_a_turn_is_tried_again_until_the_client_has_shown_itself(
    service: ModelService, path: Path, clock: Clock
) -> None:
    async with client_of(service, path, clock) as client:
        spool = client._spool
        assert spool is not None
        await client.flush()
        with spool._lock:
            spool._database.execute("PRAGMA query_only = ON")
        clock.pass_time(3600.0)
        with pytest.raises(SpoolError, match="readonly"):
            await client.add(RECORD)
        with spool._lock:
            spool._database.execute("PRAGMA query_only = OFF")
        assert client.tallies.presences == 1
        clock.pass_time(5.0)
        await until(lambda: client.tallies.presences == 2, "tried again")
        await client.add(RECORD)
        await client.flush()
    assert presences(service) == [START // HOUR, START // HOUR + 1]


async def test_under_protected_participation_a_client_without_records_sends_nothing(path: Path, clock: Clock) -> None:
    service = await started(clock, small_plan())
    async with client_of(service, path, clock) as client:
        for _ in range(3):
            clock.pass_time(3600.0)
            await client.flush()
        await client.add(RECORD, time=START - 50 * HOUR)
        await client.flush()
    assert [delta.records for delta in deltas(service)] == [1]
    assert (client.tallies.deltas, client.tallies.presences, client.tallies.records_absent) == (1, 0, 0)
    await service.stop()
