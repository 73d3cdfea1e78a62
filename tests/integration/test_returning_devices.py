"""Devices that come back late, with a wrong clock, a full disk or an old copy of their spool, and the real service.

The service runs in this process, where a test sets its clock; in long tests in a process of its own, which is killed
before it is asked for its sum. Nothing counts twice, and what counts nowhere is an event, a number of the status and an
error of the next flush.
"""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from aggregator.app import Service
from aggregator.config import Config as AggregatorConfig
from aggregator.store.store import read_sealed
from edge_client import (
    ClockWarning,
    Config,
    EdgeClient,
    Event,
    EventKind,
    FlushTimeoutError,
    NotCountedError,
    PlanChangedError,
    Policy,
    SettingsError,
    SpoolError,
)
from edge_client.runtime import wall_clock_ms
from hushsum import Plan, Sketch
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from tests.edge_client.clocks import until
from tests.integration.test_edge_client import Aggregator, aggregator_of
from tests.integration.test_local_devices import DeviceClock
from tests.plans import secure_plan, small_plan
from tests.services import HOUR_MS, NOW_MS, WINDOW, RawClient, SetRuntime, config_of, service_of

CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.2, close_flush_s=0.0)
MONTH = 30 * 24  # windows of an hour
YEAR_MS = 365 * 24 * HOUR_MS
DISK_BYTES = 256 * 1024
PLAN = small_plan()
PLANNER = SigningKey(b"planner".ljust(32, b"."))
FOLLOWS = Policy(signed_by=PLANNER.verify_key, new_plan_after_s=0)
SILO = small_plan(privacy={"mode": "local", "epsilon": 40, "total_epsilon": 100, "local": {"form": "silo"}})
REPORTS = small_plan(privacy={"mode": "local", "epsilon": 4, "total_epsilon": 100, "local": {}})


class Device:
    """A device with one spool, which it may start from several times; it keeps every event."""

    def __init__(self, clock: DeviceClock, spool: Path) -> None:
        self.clock = clock
        self.spool = spool
        self.events: list[Event] = []
        self.policy: Policy | None = None
        self.key: SigningKey | None = None

    def client(self, target: str, spool: Path | None = None) -> EdgeClient:
        return EdgeClient(
            target,
            spool=spool or self.spool,
            client_id="device",
            config=CONFIG,
            runtime=self.clock,
            policy=self.policy,
            key=self.key,
            on_event=self.events.append,
        )

    @property
    def kinds(self) -> Counter[EventKind]:
        return Counter(event.kind for event in self.events)


@dataclass(frozen=True)
class Collecting:
    """A service that runs: where it listens, and a call that seals the window of this moment and gives its sum."""

    target: str
    sealed: Callable[[], Awaitable[Sketch]]


@dataclass(frozen=True)
class Place:
    """Where the services of a test run: in its process, where the clock stands still, or in one of their own."""

    folder: Path
    is_here: bool
    now_ms: int

    @property
    def window(self) -> int:
        return PLAN.window.index_at(self.now_ms)

    @asynccontextmanager
    async def collecting(self, plan: Plan) -> AsyncIterator[Collecting]:
        if self.is_here:
            async with service_of(config_of(self.folder, plan)) as service:
                yield Collecting(service.grpc, lambda: sealed(service, plan, self.window))
        else:
            async with aggregator_of(self.folder, plan) as process:
                yield Collecting(process.target, lambda: sealed_in(process, self.window))


@pytest.fixture(params=["here", pytest.param("process", marks=[pytest.mark.long, pytest.mark.slow])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    is_here = request.param == "here"
    return Place(tmp_path, is_here, NOW_MS if is_here else wall_clock_ms())


@pytest.fixture
async def device(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Device]:
    clock = DeviceClock()
    if "place" in request.fixturenames:
        place: Place = request.getfixturevalue("place")
        clock.set_ms = place.now_ms
    yield Device(clock, tmp_path / "spool.db")
    clock.close()


async def sealed(service: Service, plan: Plan, window: int) -> Sketch:
    """The exact sum of a window, which is sealed with all before it."""
    async with RawClient(service.grpc) as operator:
        while await operator.seal() != window:
            await operator.release()
    found = await service.store.sealed_window(plan, window)
    assert found is not None
    return found.sketch


async def sealed_in(process: Aggregator, window: int) -> Sketch:
    """The same of a service in a process of its own, which is killed and started again in between."""
    await process.end(signal.SIGKILL)
    await process.start()
    async with RawClient(process.target) as operator:
        await operator.hello(wait=True)
        while await operator.seal() != window:
            await operator.release()
    found = read_sealed(process.data / "store.db", process.plan, window)
    assert found is not None
    return Sketch.of_counters(process.plan, found.counters, found.counts)


def assert_holds(sketch: Sketch, *records: npt.ArrayLike, plan: Plan = PLAN) -> None:
    """A sum is that of these records, each once."""
    expected = Sketch(plan)
    for each in records:
        rows = np.reshape(each, (-1, 2))
        expected.add(rows, clients=["device"] * len(rows) if plan.privacy.unit == "client" else None)
    assert np.array_equal(sketch.counters, expected.counters)
    assert np.array_equal(sketch.counts, expected.counts)


def deltas_in(spool: Path) -> list[bytes]:
    with closing(sqlite3.connect(spool)) as database:
        return [data for (data,) in database.execute("SELECT bytes FROM deltas ORDER BY sequence")]


# ------------------------------------------------------------------------------------------------------ after a month


async def test_after_a_month_what_was_counted_stays_counted_once_and_what_came_too_late_is_reported(
    tmp_path: Path, device: Device
) -> None:
    there = SetRuntime()
    async with service_of(config_of(tmp_path, PLAN), there) as service:
        async with device.client(service.grpc) as client:
            await client.flush(120)
        async with device.client("127.0.0.1:1") as client:  # offline
            await client.add([[1.0, 2.0], [3.0, 4.0]])
            await client.add([5.0, 6.0])
        answered, _ = deltas_in(device.spool)
        async with RawClient(service.grpc, "device") as wire:  # it came, and its answer never did
            await wire.submit_one(PLAN.id, answered)
        assert_holds(await sealed(service, PLAN, WINDOW), [[1.0, 2.0], [3.0, 4.0]])
        async with RawClient(service.grpc) as operator:
            await operator.release()
        there.set_ms = device.clock.set_ms = NOW_MS + MONTH * HOUR_MS
        async with device.client(service.grpc) as client:
            await client.add([7.0, 8.0])
            with pytest.raises(NotCountedError, match="not counted: 2 deltas of an ended window"):
                await client.flush(120)
            await client.flush(120)
            status = client.status()
        assert (status.acknowledged, status.unknown, status.late, status.queued) == (1, 2, 0, 0)
        assert device.kinds[EventKind.UNKNOWN] == 2
        assert_holds(await sealed(service, PLAN, WINDOW + MONTH), [7.0, 8.0])


async def test_a_device_under_a_plan_of_arrival_comes_back_after_months_with_a_wrong_clock_and_loses_nothing(
    tmp_path: Path, device: Device
) -> None:
    plan = small_plan(window={"time": "arrival"}, privacy={"unit": "client", "records_per_client": 2})
    there = SetRuntime()
    async with service_of(config_of(tmp_path, plan), there) as service:
        async with device.client(service.grpc) as client:
            await client.flush(120)
        async with device.client("127.0.0.1:1") as client:  # offline
            for month in range(1, 3):
                await client.add([[1.0, 2.0], [3.0, month]])
                device.clock.set_ms = NOW_MS + month * MONTH * HOUR_MS
        there.set_ms = NOW_MS + MONTH * HOUR_MS  # a month less than by the device's clock
        async with device.client(service.grpc) as client:
            told = client.status
            await until(lambda: (told().waiting, told().acknowledged) == (1, 1), "one delta waits, one is counted")
            with pytest.raises(FlushTimeoutError, match="1 of them wait for a later window"):
                await client.flush(0.1)
        assert_holds(await sealed(service, plan, WINDOW + MONTH), [[1.0, 2.0], [3.0, 1.0]], plan=plan)
        there.set_ms += HOUR_MS
        async with device.client(service.grpc) as client:
            await client.flush(120)
            status = client.status()
        assert (status.acknowledged, status.late, status.unknown, status.waiting, status.queued) == (2, 0, 0, 0, 0)
        assert EventKind.CLOCK_OFF not in device.kinds, "its clock dates nothing"
        assert_holds(await sealed(service, plan, WINDOW + MONTH + 1), [[1.0, 2.0], [3.0, 2.0]], plan=plan)


async def test_a_silo_that_comes_back_after_a_month_reports_the_window_that_it_never_submitted(
    tmp_path: Path, device: Device
) -> None:
    there = SetRuntime()
    async with service_of(config_of(tmp_path, SILO), there) as service:
        async with device.client(service.grpc) as client:
            await client.add([[1.0, 2.0], [3.0, 4.0]])
        there.set_ms = device.clock.set_ms = NOW_MS + MONTH * HOUR_MS
        async with device.client(service.grpc) as client:
            with pytest.raises(NotCountedError, match=f"window {WINDOW}: .*did not run") as raised:
                await client.flush(120)
            status = client.status()
        assert list(raised.value.windows) == [WINDOW]
        assert (status.windows_unspent, status.records_unspent, status.submissions_counted) == (1, 2, 1)
        assert [event.window for event in device.events if event.kind is EventKind.NOT_COUNTED] == [WINDOW]


async def test_a_silo_spends_nothing_for_a_window_before_the_first_of_its_service(
    tmp_path: Path, device: Device
) -> None:
    early_ms = WINDOW * HOUR_MS + 60_000  # the window before may still be summed, but the service began after it
    device.clock.set_ms = early_ms
    async with service_of(config_of(tmp_path, SILO), SetRuntime(early_ms)) as service:
        async with device.client(service.grpc) as client:
            await client.add([[1.0, 2.0], [3.0, 4.0]])
            await client.flush(120)
            status = client.status()
            assert status.account is not None
            assert [spend.window for spend in status.account.spends] == [WINDOW]
            assert status.submissions_counted == 1
        async with device.client(service.grpc) as client:
            await client.add([5.0, 6.0], time=early_ms - 120_000)
            with pytest.raises(NotCountedError, match=f"window {WINDOW - 1}: the service takes window {WINDOW} and"):
                await client.flush(120)
            status = client.status()
        assert status.account is not None
        assert [spend.window for spend in status.account.spends] == [WINDOW]


@pytest.mark.long
@pytest.mark.slow
async def test_a_device_that_comes_back_to_a_process_many_windows_later_counts_nothing_twice(
    tmp_path: Path, device: Device
) -> None:
    plan = small_plan(window={"length": "5s", "lateness": "2m"})
    async with aggregator_of(tmp_path, plan) as process:
        device.clock.set_ms = wall_clock_ms()
        window = plan.window.index_at(device.clock.set_ms)
        async with device.client(process.target) as client:
            await client.flush(120)
        async with device.client("127.0.0.1:1") as client:  # offline
            await client.add([[1.0, 2.0], [3.0, 4.0]])
            await client.add([5.0, 6.0])
        answered, _ = deltas_in(device.spool)
        async with RawClient(process.target, "device") as wire:  # it came, and its answer never did
            await wire.submit_one(plan.id, answered)
        assert_holds(await sealed_in(process, window), [[1.0, 2.0], [3.0, 4.0]])
        async with RawClient(process.target) as operator:
            await operator.release()
        await asyncio.sleep(max(0, plan.window.start_ms(window + 3) - wall_clock_ms()) / 1000)
        now_ms = device.clock.set_ms = wall_clock_ms()
        async with device.client(process.target) as client:
            await client.add([7.0, 8.0])
            with pytest.raises(NotCountedError, match="not counted: 2 deltas of an ended window"):
                await client.flush(120)
            status = client.status()
        assert (status.acknowledged, status.unknown, status.late, status.queued) == (1, 2, 0, 0)
        assert_holds(await sealed_in(process, plan.window.index_at(now_ms)), [7.0, 8.0])


# ----------------------------------------------------------------------------------------------- a clock that is wrong


@pytest.mark.parametrize(("off_ms", "reason"), [(YEAR_MS, "window_in_future"), (-YEAR_MS, "window_in_past")])
async def test_a_clock_that_is_a_year_off_is_warned_of_and_counts_nothing_until_it_is_right(
    place: Place, device: Device, off_ms: int, reason: str
) -> None:
    async with place.collecting(PLAN) as service:
        device.clock.set_ms = place.now_ms + off_ms
        async with device.client(service.target) as client:
            await client.add([1.0, 2.0])
            with (
                pytest.warns(ClockWarning, match=r"clock is 3153[56]\d\d\d s (ahead of|behind) the service's"),
                pytest.raises(NotCountedError, match=reason),
            ):
                await client.flush(120)
            await client.add([3.0, 4.0], time=place.now_ms)  # its own time is right
            await client.flush(120)
            device.clock.set_ms = place.now_ms
            await client.add([5.0, 6.0])
            await client.flush(120)
            status = client.status()
        assert status.acknowledged == 2
        assert status.refused == {reason: 1}
        assert device.kinds[EventKind.CLOCK_OFF] == 1
        assert_holds(await service.sealed(), [3.0, 4.0], [5.0, 6.0])


@pytest.mark.parametrize("plan", [SILO, REPORTS], ids=["silo", "reports"])
@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS], ids=["ahead", "behind"])
async def test_a_device_that_spends_its_own_budget_goes_on_once_its_clock_is_right(
    place: Place, device: Device, plan: Plan, off_ms: int
) -> None:
    async with place.collecting(plan) as service:
        device.clock.set_ms = place.now_ms + off_ms
        with warnings.catch_warnings(action="ignore", category=ClockWarning):
            async with device.client(service.target) as client:
                await client.add([1.0, 2.0])
                with pytest.raises(NotCountedError):
                    await client.flush(120)
        device.clock.set_ms = place.now_ms
        async with device.client(service.target) as client:
            await client.add([3.0, 4.0])
            is_unspent, is_over = plan is SILO, plan is SILO and off_ms < 0
            with pytest.raises(NotCountedError, match="ended while this") if is_over else nullcontext():
                await client.flush(120)
            status = client.status()
        assert status.account is not None
        wrong = PLAN.window.index_at(place.now_ms + off_ms)  # a silo spends nothing for what the service does not take
        spent = [place.window] if is_unspent else [place.window, wrong]
        assert sorted(spend.window or 0 for spend in status.account.spends) == sorted(spent)
        assert status.acknowledged == 1
        sketch = await service.sealed()
        assert sketch.counters.any()


# -------------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few hundred KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"a file system of a given size needs the right to mount one: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


async def test_on_a_full_disk_records_are_refused_whole_and_those_before_them_count_once(
    place: Place, small_disk: Path, device: Device, rng: np.random.Generator
) -> None:
    kept: list[npt.NDArray[np.float64]] = []

    async def fill(client: EdgeClient) -> None:
        for _ in range(2000):
            batch = rng.uniform(0, 10, (20, 2))
            await client.add(batch)
            kept.append(batch)

    device.spool = small_disk / "spool.db"
    async with place.collecting(PLAN) as service:
        async with device.client(service.target) as client:
            await client.flush(120)
        (small_disk / "other").write_bytes(bytes(DISK_BYTES // 2))  # of another program
        async with device.client("127.0.0.1:1") as client:  # offline: nothing is answered, so nothing is removed
            with pytest.raises(SpoolError, match="full"):
                await fill(client)
            assert client.status().records == 20 * len(kept) > 0
        assert device.kinds[EventKind.SPOOL_FULL] == 1
        async with device.client(service.target) as client:  # still full: answers may not be durable yet, and wait
            with suppress(FlushTimeoutError):
                await client.flush(2)
            (small_disk / "other").unlink()
            batch = rng.uniform(0, 10, (20, 2))
            await client.add(batch)
            kept.append(batch)
            await client.flush(120)
            status = client.status()
        assert (status.queued, status.acknowledged + status.counted) == (0, len(kept))
        assert_holds(await service.sealed(), *kept)


# ------------------------------------------------------------------------------------------------- a spool from a copy


async def test_a_spool_from_a_copy_counts_nothing_twice_and_says_what_to_do(
    tmp_path: Path, place: Place, device: Device
) -> None:
    copy = tmp_path / "copy.db"
    async with place.collecting(PLAN) as service:
        async with device.client(service.target) as client:
            await client.flush(120)
        async with device.client("127.0.0.1:1") as client:
            await client.add([1.0, 1.0])
        shutil.copy(device.spool, copy)  # with one delta that is not answered
        async with device.client(service.target) as client:
            await client.add([2.0, 2.0])
            await client.flush(120)
        async with device.client(service.target, copy) as client:
            await client.add([3.0, 3.0])
            with pytest.raises(NotCountedError, match=r"1 delta refused for id_reused .*copy.*Continue with the spool"):
                await client.flush(120)
            status = client.status()
        assert (status.acknowledged, status.refused) == (1, {"id_reused": 1})
        (refusal,) = [event for event in device.events if event.kind is EventKind.REFUSED]
        assert "Continue with the spool" in refusal.detail
        assert_holds(await service.sealed(), [1.0, 1.0], [2.0, 2.0])


async def test_a_silo_from_a_copy_that_submits_a_window_again_is_told_that_it_spent_it_twice(
    tmp_path: Path, place: Place, device: Device
) -> None:
    copy = tmp_path / "copy.db"
    async with place.collecting(SILO) as service:
        async with device.client(service.target) as client:
            await client.add([1.0, 1.0])
        shutil.copy(device.spool, copy)
        async with device.client(service.target) as client:
            await client.flush(120)
        async with device.client(service.target, copy) as client:
            with pytest.raises(NotCountedError, match=r"id_reused .*copy.*Continue with the spool"):
                await client.flush(120)
            status = client.status()
        assert (status.submissions_counted, status.submissions_lost) == (0, 1)
        assert device.kinds[EventKind.REFUSED] == 1


# ---------------------------------------------------------------------------------------------------------- a new plan


def signed_config(folder: Path, plan: Plan, **settings: str) -> AggregatorConfig:
    """Settings of a service whose plan a planner has signed."""
    folder.mkdir()
    config = config_of(folder, plan, **settings)
    signature_file(folder / "plan.json").write_bytes(SignedPlan.sign(plan.bundle, PLANNER, "planner").to_bytes())
    return config


async def run_until_stopped(device: Device, target: str) -> None:
    before = device.kinds[EventKind.STOPPED]
    async with device.client(target):
        await until(lambda: device.kinds[EventKind.STOPPED] > before, "the client has stopped")


async def test_a_device_follows_its_service_to_a_new_plan_and_back_and_counts_each_record_once(
    tmp_path: Path, device: Device
) -> None:
    device.policy = FOLLOWS
    other = small_plan(sketch={"rows": 10})
    old, new = signed_config(tmp_path / "old", PLAN), signed_config(tmp_path / "new", other)
    async with service_of(old) as service, device.client(service.grpc) as client:
        for number in range(70):
            await client.add([number / 10, 1.0])
        await client.flush(120)
    async with device.client("127.0.0.1:1") as client:  # offline
        await client.add([8.0, 8.0])
    async with service_of(new) as service:
        with pytest.raises(PlanChangedError):
            await run_until_stopped(device, service.grpc)
        async with device.client(service.grpc) as client:
            assert client.plan == other
            for number in range(70):  # the service meets the stream at a number above 64
                await client.add([number / 10, 2.0])
            await client.flush(120)
            assert client.status().held == 1
        assert_holds(await sealed(service, other, WINDOW), [[number / 10, 2.0] for number in range(70)], plan=other)
    async with service_of(old) as service:
        with pytest.raises(PlanChangedError):
            await run_until_stopped(device, service.grpc)
        async with device.client(service.grpc) as client:
            assert client.plan == PLAN
            await client.add([9.0, 9.0])
            await client.flush(120)
            status = client.status()
        assert (status.acknowledged, status.held, status.queued) == (142, 0, 0)
        first = [[number / 10, 1.0] for number in range(70)]
        assert_holds(await sealed(service, PLAN, WINDOW), first, [8.0, 8.0], [9.0, 9.0])


async def test_on_a_full_disk_a_device_keeps_the_plan_that_it_has_and_follows_once_there_is_room(
    tmp_path: Path, small_disk: Path, device: Device, rng: np.random.Generator
) -> None:
    device.policy, device.spool = FOLLOWS, small_disk / "spool.db"
    other = small_plan(sketch={"rows": 10})
    old, new = signed_config(tmp_path / "old", PLAN), signed_config(tmp_path / "new", other)
    async with service_of(old) as service, device.client(service.grpc) as client:
        await client.flush(120)
    async with device.client("127.0.0.1:1") as client:  # offline
        for _ in range(20):
            await client.add(rng.uniform(0, 10, (20, 2)))
    async with service_of(new) as service:
        with pytest.raises(PlanChangedError):
            await run_until_stopped(device, service.grpc)
        with suppress(OSError):
            (small_disk / "other").write_bytes(bytes(DISK_BYTES))
        with pytest.raises(PlanChangedError):
            await run_until_stopped(device, service.grpc)
        (refused,) = [event.detail for event in device.events if event.kind is EventKind.PLAN_REFUSED]
        assert "full" in refused
        (small_disk / "other").unlink()
        async with device.client(service.grpc) as client:
            assert (client.plan, client.status().held) == (other, 20)


async def test_a_device_of_a_secure_plan_hears_of_one_in_local_mode_and_takes_it_up(
    tmp_path: Path, device: Device
) -> None:
    device.policy = FOLLOWS
    secure = signed_config(tmp_path / "secure", secure_plan())
    local = signed_config(tmp_path / "local", SILO)
    async with service_of(secure) as service, device.client(service.grpc):
        pass
    async with service_of(local) as service:
        with pytest.raises(PlanChangedError):
            async with device.client(service.grpc) as client:
                await client.flush(120)
        async with device.client(service.grpc) as client:
            assert client.plan == SILO
            await client.add([1.0, 1.0])
            await client.flush(120)
            assert client.status().submissions_counted == 1


async def test_a_device_that_could_not_fetch_its_plans_key_registry_takes_the_next_plan_up(
    tmp_path: Path, device: Device
) -> None:
    device.policy = FOLLOWS
    key = SigningKey(b"device".ljust(32, b"."))
    (tmp_path / "clients.toml").write_text(toml_of(DirectoryKey("device", Role.CLIENT, key.verify_key)))
    registry = Directory.from_toml((tmp_path / "clients.toml").read_text())
    plan = secure_plan(cohort={"directory": registry.digest().hex()})
    named = signed_config(tmp_path / "secure", plan, client_directory=str(tmp_path / "clients.toml"))
    local = signed_config(tmp_path / "local", SILO)
    async with service_of(named) as service:
        with pytest.raises(SettingsError, match="the plan names a key registry"):
            await device.client(service.grpc).__aenter__()
    device.key = key
    async with service_of(local) as service:
        with pytest.raises(PlanChangedError, match="the service sent no key registry"):
            await device.client(service.grpc).__aenter__()
        async with device.client(service.grpc) as client:
            assert client.plan == SILO
