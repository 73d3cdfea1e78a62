"""A folder of spools: a client goes on under its service's new plan, and forgets nothing that it has spent."""

import queue
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from edge_client import (
    AccountError,
    Config,
    EdgeClient,
    Event,
    EventKind,
    NotCountedError,
    PlanChangedError,
    Policy,
    PolicyError,
    SpoolInUseError,
)
from edge_client import blocking as blocking_client
from edge_client.testing import MemoryService
from hushsum import Plan
from tests.edge_client.clocks import HOUR, START, Clock, until
from tests.plans import small_plan

QUICK = Config(backoff_first_s=0.001, backoff_longest_s=0.002, close_flush_s=0.0, first_contact_s=5.0)
OLD, NEW = small_plan(), small_plan(sketch={"rows": 30})


def report_plan(rows: int, total: int = 3, epsilon: int = 1) -> Plan:
    """A plan under which the device pays for ``total / epsilon`` windows."""
    privacy = {"mode": "local", "epsilon": epsilon, "total_epsilon": total, "unit": "client", "records_per_client": 1}
    return small_plan(sketch={"rows": rows}, privacy={**privacy, "local": {}})


class Place:
    """A device's folder of spools, the service that it contributes to, and what the device was told."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.clock = Clock()
        self.service_ms = START
        self.service = MemoryService(plan, now_ms=lambda: self.service_ms)
        self.events: list[Event] = []

    def client(self, policy: Policy | None = None) -> EdgeClient:
        return EdgeClient(
            self.service,
            spool=self.path,
            policy=policy,
            config=QUICK,
            runtime=self.clock,
            on_event=self.events.append,
        )

    def change_to(self, plan: Plan) -> None:
        self.service.plan = plan

    def pass_windows(self, number: int) -> None:
        self.service_ms += number * HOUR
        self.clock.at_ms += number * HOUR

    async def told(self, kind: EventKind, times: int = 1) -> None:
        await until(lambda: self.kinds[kind] == times, f"{kind.value}, {times} times")

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.path.glob("*.db"))

    @property
    def kinds(self) -> Counter[EventKind]:
        return Counter(event.kind for event in self.events)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "spools"
    path.mkdir()
    return path


async def test_a_new_plan_is_taken_up_and_what_waits_under_the_old_one_is_kept_and_sent_when_it_comes_back(
    folder: Path,
) -> None:
    place = Place(folder, OLD)
    async with place.client() as client:
        await client.add([1.0, 2.0])
        await client.flush(30)
    place.service.go_away()
    async with place.client() as client:
        await client.add([[1.0, 2.0], [3.0, 4.0]])
        place.change_to(NEW)
        place.service.come_back()
        place.clock.pass_time(1)
        await place.told(EventKind.PLAN_CHANGED, 1)
        assert client.plan == NEW
        await client.add([5.0, 6.0])
        await client.flush(30)
        assert (client.status().held, client.status().acknowledged) == (1, 1)
        name = client.client_id
    assert place.files == ["plan-0001.db", "plan-0002.db"]
    place.change_to(OLD)
    async with place.client() as client:  # it begins with the plan in use, and hears of the other
        await place.told(EventKind.PLAN_CHANGED, 2)
        await client.flush(30)
        assert (client.plan, client.client_id) == (OLD, name)
        assert (client.status().held, client.status().acknowledged) == (0, 2)
    place.clock.close()
    assert len(place.service.received) == 3
    assert EventKind.STOPPED not in place.kinds


@pytest.mark.filterwarnings("ignore::edge_client.ClockWarning")
async def test_what_no_service_took_before_its_window_was_over_is_erased_and_reported(folder: Path) -> None:
    place = Place(folder, OLD)
    async with place.client():
        pass
    place.service.go_away()
    async with place.client() as client:
        await client.add([1.0, 2.0])
    place.change_to(NEW)
    place.service.come_back()
    place.clock.at_ms += 9000 * HOUR  # a device whose clock is wrong erases nothing
    async with place.client() as client:
        await place.told(EventKind.PLAN_CHANGED, 1)
        assert client.status().held == 1
    place.clock.at_ms = START
    place.pass_windows(2)
    async with place.client() as client:
        await place.told(EventKind.WITHDRAWN, 1)
        with pytest.raises(NotCountedError, match="1 delta of a plan that is no longer collected") as raised:
            await client.flush(30)
        await client.flush(30)
        assert (client.status().held, client.status().withdrawn, raised.value.withdrawn) == (0, 1, 1)
    place.clock.close()
    assert place.files == ["plan-0002.db"]


async def test_a_plan_that_the_policy_refuses_is_not_taken_up_and_what_was_collected_stays(folder: Path) -> None:
    place = Place(folder, OLD)
    policy = Policy(max_epsilon=1.0)
    async with place.client(policy):
        pass
    place.change_to(small_plan(privacy={"epsilon": 2.0}))
    for number in (1, 2):
        client = place.client(policy)
        await client.__aenter__()
        await place.told(EventKind.STOPPED, number)
        with pytest.raises(PolicyError, match="max_epsilon"):
            await client.add([1.0, 2.0])
        await client.end(wait=False)
        assert client.plan == OLD
    place.clock.close()
    assert place.kinds[EventKind.STOPPED] == 2
    assert place.files == ["plan-0001.db"]


async def test_a_device_pays_for_all_plans_of_a_population_from_one_account(folder: Path) -> None:
    place = Place(folder, report_plan(20))
    plans = [report_plan(20), report_plan(30, total=5), report_plan(20)]
    for number, plan in enumerate(plans):
        place.change_to(plan)
        async with place.client() as client:
            await place.told(EventKind.PLAN_CHANGED, number)
            await client.add([1.0, 2.0])
            await client.flush(30)
            account = client.status().account
            assert account is not None
            assert (len(account.spends), float(account.limits.epsilon)) == (number + 1, 3.0), "the lowest limits hold"
        place.pass_windows(1)
    async with place.client() as client:
        with pytest.raises(AccountError, match="0 of 3 is left"):
            await client.add([1.0, 2.0])
    place.clock.close()
    assert place.files == ["plan-0001.db", "plan-0002.db"], "a spool that holds spends stays"


async def test_a_silos_records_under_a_plan_that_is_no_longer_collected_are_erased_and_its_spends_stay(
    folder: Path,
) -> None:
    privacy = {"mode": "local", "epsilon": 1, "total_epsilon": 3, "local": {"form": "silo"}}
    place = Place(folder, small_plan(privacy=privacy))
    async with place.client() as client:
        await client.add([[1.0, 2.0], [3.0, 4.0]])
    place.change_to(small_plan(privacy=privacy, sketch={"rows": 30}))
    async with place.client():
        await place.told(EventKind.PLAN_CHANGED)
    place.pass_windows(2)
    client = place.client()
    await client.__aenter__()
    window = START // HOUR
    await until(lambda: any("no longer collected" in event.detail for event in place.events), "the erasure")
    (warning,) = await client.end(wait=True)
    assert f"window {window}: " in str(warning)
    assert "no longer collected" in str(warning)
    place.clock.close()
    with closing(sqlite3.connect(folder / "plan-0001.db")) as database:
        assert not database.execute("SELECT * FROM pending").fetchall()


async def test_a_population_that_the_device_spent_of_in_another_unit_is_refused(folder: Path) -> None:
    place = Place(folder, report_plan(20))
    async with place.client() as client:
        await client.add([1.0, 2.0])
        await client.flush(30)
    place.change_to(small_plan(privacy={"mode": "local", "epsilon": 1, "total_epsilon": 3, "local": {}}))
    client = place.client()
    await client.__aenter__()
    await place.told(EventKind.STOPPED, 1)
    with pytest.raises(PolicyError, match="rule population"):
        await client.add([1.0, 2.0])
    await client.end(wait=False)
    place.clock.close()


async def test_records_that_were_hashed_under_the_old_plan_are_not_stored_under_the_new_one(folder: Path) -> None:
    place = Place(folder, OLD)
    async with place.client() as client:
        await client.flush(30)
        hashed = await client.encode([1.0, 2.0], None, None, columns=None, by_position=False)
        place.change_to(NEW)
        place.service.go_away()
        await client.add([1.0, 2.0])
        place.service.come_back()
        place.clock.pass_time(1)
        await place.told(EventKind.PLAN_CHANGED)
        with pytest.raises(PlanChangedError, match="add them again"):
            await client.store(hashed)
        assert client.status().records == 0
    place.clock.close()


async def test_one_client_at_a_time_has_a_folder_whatever_its_plan_is(folder: Path) -> None:
    place = Place(folder, OLD)
    async with place.client():
        place.change_to(NEW)
        with pytest.raises(SpoolInUseError):
            await place.client().__aenter__()
    place.clock.close()


def test_the_blocking_client_goes_on_under_a_new_plan(folder: Path) -> None:
    service = MemoryService(OLD)
    with blocking_client.EdgeClient(service, spool=folder, config=QUICK) as client:
        client.add([1.0, 2.0])
        client.flush(30)
    service.plan = NEW
    events: queue.Queue[Event] = queue.Queue()
    with blocking_client.EdgeClient(service, spool=folder, config=QUICK, on_event=events.put) as client:
        while events.get(timeout=60).kind is not EventKind.PLAN_CHANGED:
            pass
        client.add([1.0, 2.0])
        client.flush(30)
        assert client.plan == NEW
        assert client.status().acknowledged == 1
