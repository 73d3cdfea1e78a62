"""Plans with ``window.time = "arrival"``: a delta gets the window that is open when it is first sent, and keeps it."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from edge_client import (
    Config,
    EdgeClient,
    Event,
    EventKind,
    EventTimeError,
    FlushTimeoutError,
    NotCountedError,
    Policy,
)
from edge_client.encoding import binding, moved, split
from edge_client.session.driver import PayloadCache
from edge_client.spool.changes import Add, Bind, Change, Rebind, Result, StoredDelta, Unbound
from edge_client.spool.spool import Spool
from edge_client.status import OnEvent
from edge_client.testing import MemoryService
from edge_client.transport.interface import ConnectionLostError, Disconnect
from hushsum import Plan
from hushsum.delta import DeltaId, read_header
from hushsum.errors import ContributionError, PlanError
from hushsum_proto.answers import Answer, Status
from tests.aggregator.deltas import windowed_plan
from tests.edge_client.arrival_victim import PLAN, SENDING, WRITING
from tests.edge_client.clocks import HOUR, START, Clock, until
from tests.edge_client.local_clients import RushingClock
from tests.edge_client.spool.test_spool import ENVIRONMENT, ROOT
from tests.edge_client.spools import opened
from tests.edge_client.test_new_plans import Device
from tests.plans import secure_plan, small_plan, tables

ARRIVAL = {"time": "arrival"}
OF_CLIENTS = small_plan(window=ARRIVAL, privacy={"unit": "client", "records_per_client": 3})
CONFIG = Config(backoff_first_s=0.01, backoff_longest_s=0.01, close_flush_s=0.0)
RECORDS = np.array([[1.0, 2.0], [3.0, 4.0]])
WEEK = 7 * 24 * HOUR


class Service(MemoryService):
    """A service in memory with a clock and windows of its own; it keeps what was sent to it.

    Attributes:
        ahead_ms: Of the device's clock.
        sealed: Windows for which every delta is late.
        erased: Windows of which it knows no ids any more.
        is_mute: It answers nothing, and is gone once a delta has come.
        spool: Where a device's spool is; it is copied at each message, as it is on the disk then.
    """

    def __init__(self, plan: Plan, clock: Clock, spool: Path | None = None) -> None:
        super().__init__(plan, now_ms=lambda: clock.now_ms() + self.ahead_ms)
        self.ahead_ms = 0
        self.sealed: set[int] = set()
        self.erased: set[int] = set()
        self.is_mute = False
        self.spool = spool
        self.asked: list[tuple[int, DeltaId]] = []

    @property
    def window(self) -> int:
        return self.plan.window.index_at(self.now_ms())

    @override
    def _take(self, data: bytes) -> Answer:
        header = read_header(data)
        self.asked.append((header.window, header.id))
        if self.spool is not None:
            for end in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copy(f"{self.spool}{end}", f"{self.spool}.copy{end}")
        if header.window in self.erased:
            return Answer(header.id, Status.UNKNOWN)
        answer = Answer(header.id, Status.LATE) if header.window in self.sealed else super()._take(data)
        if self.is_mute:
            self.go_away()
            raise ConnectionLostError(Disconnect("the answer is lost"))
        return answer


@pytest.fixture
async def clock() -> AsyncIterator[RushingClock]:
    made = RushingClock()
    yield made
    made.close()


def client_of(service: MemoryService, path: Path, clock: Clock, on_event: OnEvent | None = None) -> EdgeClient:
    policy = Policy(max_epsilon=None)
    return EdgeClient(service, spool=path, policy=policy, config=CONFIG, runtime=clock, on_event=on_event)


def killed(path: Path, moment: str) -> str:
    """What a device has sent that was killed at this moment."""
    command = [sys.executable, "-m", "tests.edge_client.arrival_victim", str(path), moment]
    device = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False)
    assert device.returncode == -signal.SIGKILL, device.stderr
    return device.stdout


def has_windows(service: MemoryService, number: int) -> bool:
    return len(service.windows) >= number


# --------------------------------------------------------------------------------------------------------- the plan


def test_records_without_a_time_of_their_own_are_late_for_no_window_and_need_mode_central() -> None:
    assert b'"late":"next"' in PLAN.to_bytes()
    assert b'"time":"arrival"' in PLAN.to_bytes()
    assert Plan.from_bytes(PLAN.to_bytes()).window == PLAN.window
    assert small_plan(window={**ARRIVAL, "late": "next"}).id == PLAN.id
    with pytest.raises(PlanError, match=r"window\.late: got 'drop', expected 'next' with window\.time 'arrival'"):
        small_plan(window={**ARRIVAL, "late": "drop"})
    local = tables(privacy={"mode": "local", "local": {"form": "silo"}}, window=ARRIVAL)
    for make in (partial(secure_plan, window=ARRIVAL), partial(Plan.from_fields, local)):
        with pytest.raises(PlanError, match=r"window\.time: got 'arrival', expected 'event' with modes 'secure' and"):
            make()


# -------------------------------------------------------------------------------------------------------- the spool


@pytest.mark.parametrize("waiting", [Unbound(0), Unbound(5, late=True), Unbound(-3), Unbound(2**40), Unbound(-(2**40))])
def test_a_mark_stands_for_no_window(waiting: Unbound) -> None:
    assert Unbound.read(waiting.mark) == waiting
    assert Unbound.read(waiting.window) is None


def test_a_delta_gets_its_window_in_its_place_once(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = opened(path)
    spool.commit([split(PLAN, RECORDS, Unbound(5).mark)])
    reserved = spool._state.bytes
    [unbound] = spool.load(0, 9, 2**20)
    change = binding(PLAN, 0, unbound.data, PLAN.window.start_ms(9))
    assert isinstance(change, Bind)
    assert change.window == 9
    (stored,) = spool.commit([change])
    spool.close()
    again = opened(path)
    assert again.load(0, 9, 2**20) == stored
    assert stored[0].data == split(PLAN, RECORDS, 9).deltas[0].pack(DeltaId(again.stream, 0))
    assert again.commit([Bind(0, 11, change.records)]) == [stored], "it keeps the window that it has"
    assert binding(PLAN, 0, again.load(0, 9, 2**20)[0].data, PLAN.window.start_ms(11)) is None
    again.commit([Rebind(0, "late", lambda data: moved(PLAN, data, 9))])
    [late] = again.load(0, 9, 2**20)
    assert (late.sequence, Unbound.read(read_header(late.data).window)) == (1, Unbound(10, late=True))
    assert again._state.bytes == reserved


def test_a_delta_waits_for_a_window_with_room_for_all_of_its_records(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    spool.commit([split(OF_CLIENTS, np.ones((8, 2)), Unbound(5).mark)])
    assert [delta.sequence for delta in spool.load(0, 9, 2**20)] == [0, 1, 2], "no delta is larger than a window's room"
    changes = [binding(OF_CLIENTS, n, delta.data, 0) for n, delta in enumerate(spool.load(0, 9, 2**20))]
    assert [bool(result) for result in spool.commit([each for each in changes if each])] == [True, False, False]
    assert spool.rows("SELECT window, records FROM contributions") == [(OF_CLIENTS.window.index_at(0), 3)]


def test_after_the_last_window_of_a_client_what_waits_is_left_out(tmp_path: Path) -> None:
    plan = windowed_plan(1)
    spool = opened(tmp_path / "spool.db")
    spool.commit([split(plan, RECORDS, Unbound(5).mark), split(plan, RECORDS, Unbound(5).mark)])
    first, second = (Bind(n, 7 + n, lambda data: len(data) and 2, 5, 1) for n in range(2))
    [stored, refused] = spool.commit([first, second])
    assert isinstance(stored, tuple)
    assert isinstance(refused, ContributionError)
    assert "has added records to 1 windows, the plan allows 1 a client" in str(refused)
    assert len(spool.unanswered()) == 2


def test_two_bindings_of_one_delta_in_one_transaction_give_it_one_window(tmp_path: Path) -> None:
    """One of a connection that is lost, one of the next."""
    plan = windowed_plan(2, time="arrival")
    spool = opened(tmp_path / "spool.db")
    spool.commit([split(plan, RECORDS, Unbound(5).mark)])
    first, second = spool.commit([Bind(0, window, lambda _: 2, 5, 2) for window in (9, 10)])
    assert first == second == spool.load(0, 9, 2**20)
    assert spool.rows("SELECT window, records FROM contributions") == [(9, 2)]
    assert spool.windows == 1


def test_a_binding_of_a_delta_that_is_gone_changes_nothing_and_harms_no_other(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool.db")
    stored, nothing = spool.commit([split(PLAN, RECORDS, Unbound(5).mark), Bind(7, 9, len)])
    assert isinstance(stored, tuple)
    assert len(stored) == 1
    assert nothing == ()


# ------------------------------------------------------------------------------------------------------- the client


async def test_what_waited_for_weeks_counts_in_the_window_in_which_it_arrives(
    tmp_path: Path, clock: RushingClock
) -> None:
    service, path = Service(PLAN, clock), tmp_path / "s.db"
    service.ahead_ms = 3 * HOUR  # the device's clock decides nothing
    async with client_of(service, path, clock) as client:
        service.go_away()
        for _ in range(3):
            await client.add(RECORDS)
            clock.at_ms += WEEK
        for time in (clock.at_ms, datetime.now(UTC)):
            with pytest.raises(EventTimeError, match="belong to the window in which they are first sent"):
                await client.add(RECORDS, time=time)
    service.come_back()
    async with client_of(service, path, clock) as client:
        await client.flush()
        assert service.windows == {service.window}
        await client.add(RECORDS)
        await client.flush()
        assert (service.records, client.status().deltas_moved, client.status().late) == (8, 0, 0)


async def test_the_window_is_that_of_the_first_sending_not_of_the_connection(
    tmp_path: Path, clock: RushingClock
) -> None:
    service = Service(PLAN, clock)
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await client.flush()
        first = service.window
        clock.pass_time(5 * 3600.0)
        await client.add(RECORDS)
        await client.flush()
        assert service.windows == {first, first + 5}


async def test_a_delta_is_sent_again_for_the_same_window_and_after_a_crash_too(
    tmp_path: Path, clock: RushingClock
) -> None:
    path = tmp_path / "s.db"
    service = Service(PLAN, clock, spool=path)
    async with client_of(service, path, clock) as client:
        await client.add(RECORDS)
        await client.flush()
    # What the disk held when the message came, which is what a device that loses its power then finds.
    lost = opened(Path(f"{path}.copy"))
    [delta] = lost.load(0, 9, 2**20)
    assert [delta.data] == service.received
    lost.close()
    service.spool = None
    clock.at_ms += 3 * HOUR
    async with client_of(service, Path(f"{path}.copy"), clock) as client:
        await client.flush()
    assert len(service.received) == 2
    assert set(service.received) == {delta.data}
    assert service.records == 2


@pytest.mark.parametrize("moment", [SENDING, WRITING])
async def test_a_device_that_is_killed_sends_the_same_delta_again_or_has_sent_none(
    tmp_path: Path, clock: RushingClock, moment: str
) -> None:
    path = tmp_path / "s.db"
    told = killed(path, moment)
    clock.at_ms = START + 3 * HOUR
    service = Service(PLAN, clock)
    async with client_of(service, path, clock) as client:
        await client.flush()
    assert service.records == 2
    if moment == SENDING:
        assert [data.hex() for data in service.received] == [told]
    else:
        assert not told, "nothing had left it"
        assert service.windows == {service.window}


async def test_a_late_delta_waits_for_a_later_window_under_a_new_id(tmp_path: Path, clock: RushingClock) -> None:
    service = Service(PLAN, clock)
    service.sealed = {service.window}  # sealed early
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await until(lambda: client.status().deltas_moved == 1, "it was late")
        assert client.status().queued == 1
        await asyncio.sleep(0.01)
        assert len(service.asked) == 1, "the next window has not begun"
        clock.pass_time(3600.0)
        await client.flush()
    (first, first_id), (second, second_id) = service.asked
    assert second == first + 1
    assert first_id != second_id
    assert (service.records, client.status().late) == (2, 0)


async def test_only_what_was_sent_and_never_answered_is_unknown_after_the_erasure_of_its_window(
    tmp_path: Path, clock: RushingClock
) -> None:
    service, path = Service(PLAN, clock), tmp_path / "s.db"
    service.is_mute = True
    events: list[Event] = []
    async with client_of(service, path, clock) as client:
        await client.add(RECORDS)
        await until(lambda: len(service.asked) == 1, "it is sent")
        service.is_mute = False
        service.erased = {service.window}
        for _ in range(3):
            await client.add(RECORDS)
            clock.at_ms += WEEK
    service.come_back()
    async with client_of(service, path, clock, events.append) as client:
        with pytest.raises(NotCountedError, match=r"1 delta of an ended window whose .* \(unknown\)$"):
            await client.flush()
        assert (client.status().unknown, client.status().acknowledged, client.status().deltas_moved) == (1, 3, 0)
    [told] = [event.detail for event in events if event.kind is EventKind.UNKNOWN]
    assert "cannot tell whether it was counted" in told
    assert [window for window, _ in service.asked[1:]].count(service.window) == 3


async def test_a_client_sends_what_its_bound_allows_in_each_window_and_loses_nothing(
    tmp_path: Path, clock: RushingClock
) -> None:
    service = Service(OF_CLIENTS, clock)
    async with client_of(service, tmp_path / "s.db", clock) as client:
        service.go_away()
        await client.add(np.ones((4, 2)))
        for _ in range(2):
            await client.add(RECORDS)
        service.come_back()
        begun = service.window
        await until(lambda: client.status().queued == client.status().waiting == 3, "the first three records are sent")
        assert service.windows == {begun}
        with pytest.raises(FlushTimeoutError, match=r"3 deltas have no answer .*; 3 of them wait for a later window"):
            await client.flush(timeout_s=0.0)
        flushing = asyncio.create_task(client.flush())
        for hour in range(1, 4):
            await until(partial(has_windows, service, hour), f"{hour} windows have records")
            clock.pass_time(3600.0)
        await flushing
        assert service.windows == {begun, begun + 1, begun + 2}  # with 3, 1 + 2 and 2 records
        assert (service.records, client.status().records_refused, client.status().waiting) == (8, 0, 0)


async def test_a_client_that_may_send_for_no_further_window_says_what_it_leaves_out(
    tmp_path: Path, clock: RushingClock
) -> None:
    service = Service(windowed_plan(1, time="arrival"), clock)
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await client.flush()
        clock.pass_time(3600.0)
        await client.add(RECORDS)
        with pytest.raises(NotCountedError, match="too_many_windows"):
            await client.flush()
        assert client.status().windows_left == 0
    assert (service.records, len(service.received)) == (2, 1)


async def test_a_connection_that_is_lost_while_windows_are_written_uses_no_window_twice(
    tmp_path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, path = Service(windowed_plan(3, time="arrival"), clock), tmp_path / "s.db"
    is_slow, goes_on, honest = threading.Event(), threading.Event(), Spool.commit
    windows: list[int] = []

    def commit(spool: Spool, changes: Sequence[Change]) -> list[Result]:
        if windows and isinstance(changes[0], Add):
            is_slow.set()
            goes_on.wait(30)
        return honest(spool, changes)

    def bound(plan: Plan, sequence: int, data: bytes, service_ms: int) -> Bind | None:
        change = binding(plan, sequence, data, service_ms)
        windows.append(-1 if change is None else change.window)
        return change

    monkeypatch.setattr(Spool, "commit", commit)
    monkeypatch.setattr("edge_client.participation.mode.binding", bound)
    async with client_of(service, path, clock) as client:
        service.go_away()
        await client.add(RECORDS)
        windows.append(0)
        adding = asyncio.create_task(client.add(RECORDS))
        await until(is_slow.is_set, "the disk is slow")
        service.come_back()
        await until(lambda: len(windows) == 2, "the first connection writes the window")
        service.go_away()
        clock.pass_time(3600.0)
        service.come_back()
        await until(lambda: len(windows) == 3, "the second one, too, in the same transaction")
        assert windows[2] == windows[1] + 1
        goes_on.set()
        await adding
        await client.flush()
        assert sorted(window for window, _ in service.asked) == windows[1:3]
    spool = opened(path)
    assert spool.rows("SELECT window, records FROM contributions ORDER BY window") == [
        (each, 2) for each in windows[1:3]
    ]


async def test_a_connection_that_is_over_writes_no_windows_of_what_the_next_one_has_sent(
    tmp_path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, honest = Service(PLAN, clock), PayloadCache.data
    asked = list[int]()
    goes_on = asyncio.Event()

    async def data(cache: PayloadCache, sequence: int) -> bytes:
        asked.append(sequence)
        if len(asked) == 1:
            await goes_on.wait()
        return await honest(cache, sequence)

    monkeypatch.setattr(PayloadCache, "data", data)
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await until(lambda: bool(asked), "the first connection reads")
        service.go_away()
        service.come_back()
        await client.flush()
        goes_on.set()
        await asyncio.sleep(0.01)
        await client.add(RECORDS)
        await client.flush()
    assert service.records == 4


async def test_damaged_bytes_are_refused_and_nothing_waits_for_them(tmp_path: Path, clock: RushingClock) -> None:
    service, path = Service(OF_CLIENTS, clock), tmp_path / "s.db"
    async with client_of(service, path, clock) as client:
        service.go_away()
        for _ in range(2):
            await client.add(RECORDS)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE deltas SET bytes = substr(bytes, 1, length(bytes) - 3) WHERE sequence = 0")
        database.commit()
    service.come_back()
    async with client_of(service, path, clock) as client:
        with pytest.raises(NotCountedError, match="malformed"):
            await client.flush(timeout_s=3600.0)
        assert dict(client.status().refused) == {"malformed": 1}
    assert (service.records, len(service.asked)) == (2, 1)


@pytest.mark.parametrize("ahead_ms", [-(2**63) + 2**50, 2**62])
async def test_a_service_with_a_senseless_clock_makes_no_window_that_stands_for_none(
    tmp_path: Path, clock: RushingClock, ahead_ms: int
) -> None:
    service = Service(small_plan(window={**ARRIVAL, "length": "1s", "lateness": "1s"}), clock)
    service.ahead_ms = ahead_ms
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await until(lambda: len(service.asked) > 0, "it was sent")
    assert Unbound.read(service.asked[0][0]) is None


async def test_bytes_without_a_window_are_never_sent(
    tmp_path: Path, clock: RushingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they were read from the disk while the window was written."""
    service, stale = Service(PLAN, clock), list[object]()
    replace = PayloadCache.replace

    def replaced(self: PayloadCache, bound: StoredDelta) -> None:
        if not stale:
            stale.append(bound)  # once, the cache keeps what it had
        else:
            replace(self, bound)

    monkeypatch.setattr(PayloadCache, "replace", replaced)
    async with client_of(service, tmp_path / "s.db", clock) as client:
        await client.add(RECORDS)
        await client.flush()
    assert stale
    assert [window for window, _ in service.asked] == [service.window]


# ------------------------------------------------------------------------------------------------ a change of plan


async def test_what_waits_without_a_window_is_kept_for_a_plan_that_comes_back(tmp_path: Path) -> None:
    window = {"length": "1h", "lateness": "20m", **ARRIVAL}
    old, new = small_plan(window=window), small_plan(window=window, sketch={"rows": 10})
    device = Device(tmp_path / "s.db")
    device.collect(old)
    await device.contribute()
    await device.contribute(offline=True)
    device.collect(new)
    await device.hear_of_other_plan()
    await device.contribute()
    device.collect(old)
    await device.hear_of_other_plan()
    async with device.client() as client:
        await client.flush()
    assert device.services[old.id].records == 2
    device.clock.close()


async def test_of_a_plan_that_was_replaced_what_has_no_window_is_erased_with_the_window_of_the_change(
    tmp_path: Path,
) -> None:
    window = {"length": "1h", "lateness": "20m", **ARRIVAL}
    old, new = small_plan(window=window), small_plan(window=window, sketch={"rows": 10})
    device = Device(tmp_path / "s.db")
    device.collect(old)
    await device.contribute(offline=True)
    device.clock.at_ms += WEEK
    device.collect(new)
    await device.hear_of_other_plan()  # it was offline for a week
    async with device.client() as client:
        assert (client.plan, client.status().held, client.status().unknown) == (new, 1, 0)
    device.clock.at_ms += 2 * HOUR
    async with device.client() as client:
        with pytest.raises(NotCountedError, match=r"windows are over \(deltas without an answer: 1\)"):
            await client.flush()
        assert (client.status().held, client.status().unknown) == (0, 1)
    device.clock.close()
