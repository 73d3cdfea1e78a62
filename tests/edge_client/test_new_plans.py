"""A client takes its service's new plan up where its policy allows that, and keeps what it has where it does not."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from typing_extensions import override

from edge_client import (
    Config,
    EdgeClient,
    Event,
    EventKind,
    NotCountedError,
    PlanChangedError,
    Policy,
    PolicyError,
    SettingsError,
    Status,
)
from edge_client.plan_fetch import HELD_S
from edge_client.spool.plan_history import TRIES_APART_MS, PlanHistory
from edge_client.testing import MemoryService
from hushsum import Plan
from hushsum.entropy import ReplayableEntropy
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from tests.edge_client.clocks import HOUR, MINUTE, Clock, until
from tests.edge_client.local_clients import RushingClock
from tests.edge_client.local_plans import CLIENT_REPORTS, NEW_REPORTS, report_plan, silo_plan
from tests.edge_client.spools import opened
from tests.plans import client_plan, secure_plan, small_plan

T = TypeVar("T")

KEY: Final = SigningKey(b"planner".ljust(32, b"."))
CONFIG: Final = Config(backoff_first_s=0.01, backoff_longest_s=0.01, close_flush_s=0.0)
WINDOW: Final = {"length": "1h", "lateness": "20m"}
OLD: Final = small_plan(window=WINDOW)
NEW: Final = small_plan(window=WINDOW, sketch={"rows": 10})
FOLLOWS: Final = Policy(signed_by=KEY.verify_key, new_plan_after_s=0, memoise=True)


class Device:
    """A device with one spool, and the service in memory that it contributes to.

    Attributes:
        events: Of all its clients.
        service: Of the plan that is collected now.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = RushingClock()
        self.events: list[Event] = []
        self.services: dict[bytes, MemoryService] = {}
        self.service: MemoryService

    def collect(self, plan: Plan, *, by: SigningKey | None = KEY) -> MemoryService:
        """The service collects this plan from now on; it remembers what it has counted."""
        signed = None if by is None else SignedPlan.sign(plan.bundle, by, "planner")
        new = MemoryService(plan, signed=signed, now_ms=self.clock.now_ms)
        self.service = self.services.setdefault(plan.id, new)
        return self.service

    def client(self, policy: Policy = FOLLOWS) -> EdgeClient:
        return EdgeClient(
            self.service,
            spool=self.path,
            policy=policy,
            config=CONFIG,
            runtime=self.clock,
            on_event=self.events.append,
        )

    async def contribute(self, *, offline: bool = False, policy: Policy = FOLLOWS) -> None:
        """Adds a record and flushes, or leaves it in the spool."""
        async with self.client(policy) as client:
            if offline:
                self.service.go_away()
            await client.add([1.0, 2.0])
            if not offline:
                await client.flush()
        self.service.come_back()

    async def hear_of_other_plan(self, policy: Policy = FOLLOWS) -> None:
        """A client runs until the service has said that it collects another plan."""
        with pytest.raises(PlanChangedError):
            await self._run_until_stopped(policy)
        self.events = [event for event in self.events if event.kind is not EventKind.STOPPED]

    async def _run_until_stopped(self, policy: Policy) -> None:
        async with self.client(policy):
            await until(lambda: EventKind.STOPPED in self.kinds(*EventKind), "it has stopped")

    async def start(self, policy: Policy = FOLLOWS) -> tuple[Plan, Status]:
        """A client that starts and ends: its plan and status; the service may want another plan."""
        client = self.client(policy)
        with suppress(PlanChangedError):
            async with client:
                found = client.plan, client.status()
        return found

    def kinds(self, *kinds: EventKind) -> list[EventKind]:
        return [event.kind for event in self.events if event.kind in kinds]

    @property
    def refusals(self) -> list[str]:
        return [event.detail for event in self.events if event.kind is EventKind.PLAN_REFUSED]


@pytest.fixture
def device(path: Path) -> Device:
    return Device(path)


async def test_a_new_plan_is_taken_up_at_the_next_start_and_what_was_collected_before_waits_for_its_own(
    device: Device,
) -> None:
    device.collect(OLD)
    await device.contribute()
    await device.contribute(offline=True)
    device.collect(NEW)
    await device.hear_of_other_plan()
    async with device.client() as client:
        assert client.plan == NEW
        await client.add([3.0, 4.0])
        await client.flush()
        assert (client.status().queued, client.status().held) == (0, 1)
    assert device.kinds(EventKind.PLAN_CHANGED, EventKind.PLAN_REFUSED) == [EventKind.PLAN_CHANGED]
    async with device.client() as client:  # the change is made once
        assert client.plan == NEW
    device.collect(OLD)
    await device.hear_of_other_plan()
    async with device.client() as client:
        assert client.plan == OLD
        await client.flush()
        status = client.status()
    assert (status.held, status.acknowledged, status.records) == (0, 3, 3)
    assert (device.services[OLD.id].records, device.services[NEW.id].records) == (2, 1)


async def test_without_the_rule_a_device_keeps_its_first_plan(device: Device) -> None:
    device.collect(OLD)
    await device.contribute(policy=Policy())
    device.collect(NEW)
    for _ in range(2):
        await device.hear_of_other_plan(Policy())
    assert (await device.start(Policy()))[0] == OLD
    assert not device.kinds(EventKind.PLAN_CHANGED, EventKind.PLAN_REFUSED)


def test_the_rule_needs_a_signature() -> None:
    with pytest.raises(SettingsError, match="new_plan_after_s: needs signed_by"):
        Policy(new_plan_after_s=0)
    with pytest.raises(SettingsError, match="new_plan_after_s: got -1"):
        Policy(new_plan_after_s=-1, signed_by=KEY.verify_key)


LOCAL: Final = report_plan(unit="client", records_per_client=3)
REFUSED: dict[str, tuple[Plan, Plan, SigningKey | None, str]] = {
    "no signature": (OLD, NEW, None, "signed_by"),
    "the signature of a stranger": (OLD, NEW, SigningKey(bytes(32)), "signed_by"),
    "a weaker mode": (LOCAL, client_plan(), KEY, "rule mode"),
    "a weaker unit": (client_plan(), NEW, KEY, "rule unit"),
    "an epsilon that is too large": (OLD, small_plan(privacy={"epsilon": 5}), KEY, "max_epsilon"),
    "what cannot be opened": (OLD, secure_plan(), KEY, "secure sums"),
}


@pytest.mark.parametrize(("old", "new", "by", "why"), REFUSED.values(), ids=REFUSED)
async def test_a_plan_that_is_not_allowed_or_cannot_be_opened_changes_nothing(
    device: Device, old: Plan, new: Plan, by: SigningKey | None, why: str
) -> None:
    policy = Policy(signed_by=KEY.verify_key, new_plan_after_s=0, max_epsilon=4)
    device.collect(old)
    await device.contribute(offline=True, policy=policy)
    device.collect(new, by=by)
    await device.hear_of_other_plan(policy)
    plan, status = await device.start(policy)
    assert (plan, status.queued, status.held) == (old, 1, 0)
    (detail,) = device.refusals
    assert why in detail
    device.collect(old)
    await device.contribute(policy=policy)
    assert device.service.records == 2


async def test_a_plan_that_this_version_cannot_read_changes_nothing(device: Device) -> None:
    device.collect(OLD)
    await device.contribute(offline=True)
    other = device.collect(NEW)
    await device.hear_of_other_plan()
    other.plan = _Unreadable(NEW)  # type: ignore[assignment]  # as far as a client goes
    plan, status = await device.start()
    assert (plan, status.queued, status.held) == (OLD, 1, 0)
    assert len(device.refusals) == 1


class _Unreadable:
    """A plan of a newer version, as a service sends it."""

    def __init__(self, plan: Plan) -> None:
        from hushsum.plan import plan_id_of

        self.bundle = b"{}"
        self.id = plan_id_of(self.bundle)
        self.hex_id = self.id.hex()
        self.window = plan.window
        self.delta_bytes_max = plan.delta_bytes_max


async def test_an_offline_start_goes_on_under_the_plan_that_it_has(device: Device) -> None:
    device.collect(OLD)
    await device.contribute()
    device.collect(NEW)
    await device.hear_of_other_plan()
    device.service.go_away()
    async with device.client() as client:
        assert client.plan == OLD
        await client.add([1.0, 2.0])
    device.service.come_back()
    async with device.client() as client:
        assert (client.plan, client.status().held) == (NEW, 1)


async def test_plans_are_changed_at_most_once_in_the_time_that_the_policy_sets(device: Device) -> None:
    policy = Policy(signed_by=KEY.verify_key, new_plan_after_s=3600)
    device.collect(OLD)
    await device.contribute(policy=policy)
    device.collect(NEW)
    await device.hear_of_other_plan(policy)
    await device.contribute(policy=policy)
    device.collect(OLD)
    await device.hear_of_other_plan(policy)
    assert (await device.start(policy))[0] == NEW
    device.clock.at_ms -= 10 * HOUR  # a clock that is set back does not make the wait longer
    assert (await device.start(policy))[0] == NEW
    device.clock.at_ms += HOUR - 1
    assert (await device.start(policy))[0] == NEW
    device.clock.at_ms += 1
    assert (await device.start(policy))[0] == OLD


async def test_a_service_that_went_back_to_the_plan_is_not_asked_again(device: Device) -> None:
    device.collect(OLD)
    await device.contribute()
    device.collect(NEW)
    await device.hear_of_other_plan()
    device.collect(OLD)
    await device.contribute()
    spool = opened(device.path)
    assert not PlanHistory(spool).is_told
    spool.close()


async def test_a_start_that_ended_before_the_new_plan_had_opened_is_undone_and_made_again(device: Device) -> None:
    device.collect(OLD)
    await device.contribute(offline=True)
    device.collect(NEW)
    await device.hear_of_other_plan()
    spool = opened(device.path)
    PlanHistory(spool).take_up(NEW, None, device.clock.now_ms())
    spool.close()  # as if it were killed here
    device.service.go_away()
    async with device.client() as client:
        assert (client.plan, client.status().queued) == (OLD, 1)
    device.service.come_back()
    async with device.client() as client:
        assert (client.plan, client.status().held) == (NEW, 1)
    spool = opened(device.path)
    assert spool.signature is not None
    spool.close()


async def test_the_account_goes_on_under_the_new_plan(device: Device) -> None:
    device.collect(CLIENT_REPORTS)
    await device.contribute()
    device.clock.at_ms += HOUR
    await device.contribute()
    device.collect(NEW_REPORTS)
    await device.hear_of_other_plan()
    async with device.client() as client:
        account = client.status().account
        assert account is not None
        assert account.spent.epsilon == 2
        assert account.left.epsilon == 1
        await client.add([1.0, 2.0])
        await client.flush()
        account = client.status().account
        assert account is not None
        assert account.left.epsilon == 0


@pytest.mark.parametrize("while_running", [False, True], ids=["at a start", "while it runs"])
async def test_what_waits_under_an_earlier_plan_is_erased_and_reported_once_its_windows_are_over(
    device: Device, *, while_running: bool
) -> None:
    device.collect(OLD)
    await device.contribute(offline=True)
    device.collect(NEW)
    await device.hear_of_other_plan()
    over_s = (
        OLD.window.end_ms(OLD.window.index_at(device.clock.now_ms())) + 20 * MINUTE - device.clock.now_ms()
    ) / 1000
    if not while_running:
        device.clock.pass_time(over_s)
    async with device.client() as client:
        if while_running:
            assert client.status().held == 1
            for _ in range(3):  # it looks at the clock once an hour
                device.clock.pass_time(over_s)
                await until(lambda: len(device.clock._sleepers) > 0 or client.status().held == 0, "it looks again")
            await until(lambda: client.status().held == 0, "it is erased")
        with pytest.raises(NotCountedError, match="windows are over \\(deltas without an answer: 1\\)") as raised:
            await client.flush()
        await client.flush()
        status = client.status()
        assert (status.held, status.unknown, status.queued) == (0, 1, 0)
        assert client.status(since_start=True).unknown == 0  # it was in the spool
    assert len(raised.value.erased) == 1
    (event,) = [event for event in device.events if event.kind is EventKind.NOT_COUNTED]
    assert event.detail == raised.value.erased[0]
    device.collect(OLD)
    await device.hear_of_other_plan()
    async with device.client() as client:
        assert (client.plan, client.status().queued) == (OLD, 0)
    assert device.service.records == 0


async def test_the_end_of_a_client_warns_of_what_was_erased_of_an_earlier_plan(device: Device) -> None:
    device.collect(OLD)
    await device.contribute(offline=True)
    device.collect(NEW)
    await device.hear_of_other_plan()
    device.clock.pass_time(3 * 3600)
    with pytest.warns(Warning, match="windows are over"):
        async with device.client():
            pass


async def test_a_device_whose_policy_gets_the_rule_later_hears_of_the_new_plan_too(device: Device) -> None:
    device.collect(OLD, by=None)
    await device.contribute(policy=Policy(), offline=True)
    device.collect(NEW)
    plan, status = await device.start()  # its plan has no signature
    assert (plan, status.held) == (NEW, 1)


async def test_what_a_client_without_the_rule_heard_is_remembered(device: Device) -> None:
    device.collect(OLD)
    await device.contribute(policy=Policy())
    device.collect(NEW)
    await device.hear_of_other_plan(Policy())
    assert (await device.start())[0] == NEW


async def test_a_plan_that_the_policy_refuses_by_now_is_replaced_by_one_that_it_allows(device: Device) -> None:
    device.collect(small_plan(window=WINDOW, privacy={"epsilon": 5}))
    await device.contribute()
    strict = Policy(signed_by=KEY.verify_key, new_plan_after_s=0, max_epsilon=2)
    with pytest.raises(PolicyError, match="max_epsilon"):
        await device.start(strict)
    device.collect(NEW)
    assert (await device.start(strict))[0] == NEW


async def test_a_try_that_fails_costs_ten_minutes_and_not_the_time_between_two_changes(device: Device) -> None:
    policy = Policy(signed_by=KEY.verify_key, new_plan_after_s=30 * 24 * 3600)
    device.collect(OLD)
    await device.contribute(policy=policy)
    device.collect(NEW, by=None)
    await device.hear_of_other_plan(policy)
    assert (await device.start(policy))[0] == OLD
    assert len(device.refusals) == 1
    device.service.signed = SignedPlan.sign(NEW.bundle, KEY, "planner")
    device.clock.at_ms += TRIES_APART_MS - 1
    assert (await device.start(policy))[0] == OLD
    device.clock.at_ms += 1
    spool = opened(device.path)
    PlanHistory(spool).take_up(NEW, None, device.clock.now_ms())
    spool.close()  # as if it were killed here
    device.clock.at_ms += TRIES_APART_MS - 1
    assert (await device.start(policy))[0] == OLD
    device.clock.at_ms += 1
    assert (await device.start(policy))[0] == NEW
    assert len(device.refusals) == 1


async def test_a_client_that_stops_for_a_new_plan_says_when_the_next_one_may_take_it_up(device: Device) -> None:
    policy = Policy(signed_by=KEY.verify_key, new_plan_after_s=3600)
    device.collect(OLD)
    await device.contribute(policy=Policy())
    device.collect(NEW)

    async def stopped(policy: Policy) -> list[int | None]:
        with pytest.raises(PlanChangedError) as raised:
            await device._run_until_stopped(policy)
        (event,) = [event for event in device.events if event.kind is EventKind.STOPPED]
        device.events.clear()
        return [raised.value.next_attempt_ms, event.next_attempt_ms]

    now_ms = device.clock.now_ms()
    assert await stopped(Policy()) == [None, None]
    assert (await device.start(policy))[0] == NEW
    device.collect(OLD)
    device.clock.at_ms += 5
    for _ in range(2):
        assert await stopped(policy) == [now_ms + HOUR] * 2
    device.clock.at_ms = now_ms + HOUR
    assert (await device.start(policy))[0] == OLD


async def held_under_an_earlier_plan(device: Device) -> None:
    """Leaves a record under an earlier plan."""
    device.collect(OLD)
    await device.contribute(offline=True)
    device.collect(NEW)
    await device.hear_of_other_plan()
    await device.contribute()


class ErasingClock(RushingClock):
    """Lets an erasure begin, and go on when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.has_begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    @override
    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        if self.is_held and getattr(function, "__name__", "") == "erase":
            self.has_begun.set()
            await self.may_go_on.wait()
        return await super().blocking(function, *arguments)


async def test_what_is_erased_while_a_client_ends_is_reported(device: Device) -> None:
    await held_under_an_earlier_plan(device)
    clock = device.clock = ErasingClock()
    client = await device.client().__aenter__()
    clock.is_held = True
    while not clock.has_begun.is_set():
        clock.pass_time(4 * 3600)
        await asyncio.sleep(0)
    ending = asyncio.create_task(client.end(wait=True))
    for _ in range(100):
        await asyncio.sleep(0)
    clock.may_go_on.set()
    (warning,) = await ending
    assert "windows are over (deltas without an answer: 1)" in str(warning)
    assert len(device.kinds(EventKind.NOT_COUNTED)) == 1
    assert (await device.start())[1].unknown == 1
    assert len(device.kinds(EventKind.NOT_COUNTED)) == 1


async def test_what_a_killed_client_had_erased_is_reported_by_the_next_one(device: Device) -> None:
    await held_under_an_earlier_plan(device)
    spool = opened(device.path)
    assert PlanHistory(spool).erase(device.clock.now_ms() + 10 * HOUR).counts["unknown"] == 1
    spool.close()  # as if it were killed here
    with pytest.warns(Warning, match="windows are over"):
        await device.start()
    assert len(device.kinds(EventKind.NOT_COUNTED)) == 1
    await device.start()
    assert len(device.kinds(EventKind.NOT_COUNTED)) == 1


async def test_a_damaged_delta_of_an_earlier_plan_is_reported_and_stops_nothing(device: Device) -> None:
    await held_under_an_earlier_plan(device)
    with closing(sqlite3.connect(device.path)) as database, database:
        database.execute("UPDATE former_deltas SET bytes = x'00'")
    async with device.client() as client:
        await client.add([1.0, 2.0])
        await client.flush()
        assert client.status().held == 1
    (event,) = [event for event in device.events if event.kind is EventKind.NOT_COUNTED]
    assert event.detail.startswith(f"earlier plan {OLD.hex_id[:12]} in the spool cannot be read")


class MovingClock(Clock):
    """Lets a client wait for nothing; a change of plan takes a time of its own."""

    moving_s = 0.0

    @override
    async def sleep(self, seconds: float) -> None:
        self.seconds += min(seconds, 10.0)
        await asyncio.sleep(0 if seconds <= 10.0 else 3600)

    @override
    async def blocking(self, function: Callable[..., T], *arguments: object) -> T:
        if getattr(function, "__name__", "") == "take_up":
            self.seconds += self.moving_s
        return await super().blocking(function, *arguments)


class TimedService(MemoryService):
    """Notes when it is contacted."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        super().__init__(plan, signed=SignedPlan.sign(plan.bundle, KEY, "planner"), now_ms=clock.now_ms)
        self.clock = clock
        self.contacts: list[float] = []

    @override
    def connect(self) -> Any:
        self.contacts.append(self.clock.seconds)
        return super().connect()


async def contacts_of(path: Path, old: Plan, new: Plan, moving_s: float) -> list[float]:
    """When a device that changes its plan contacts its service, in seconds after the first time."""
    clock = MovingClock()
    spool = opened(path)
    spool.keep_plan(old.bundle, SignedPlan.sign(old.bundle, KEY, "planner").to_bytes())
    PlanHistory(spool).note_other_plan(told=True)
    spool.close()
    service = TimedService(new, clock)
    clock.moving_s = moving_s
    entropy = ReplayableEntropy(b"jitter".ljust(32, b"."))
    client = EdgeClient(service, spool=path, policy=FOLLOWS, config=CONFIG, runtime=clock, entropy=entropy)
    async with client:
        assert client.plan == new
        await until(lambda: len(service.contacts) == 2, "it contacts the service again")
    return [at - service.contacts[0] for at in service.contacts]


async def test_when_a_silo_contacts_its_service_after_a_change_does_not_depend_on_what_is_moved(tmp_path: Path) -> None:
    old, new = silo_plan(epsilon=1, total_epsilon=3), silo_plan(epsilon=1, total_epsilon=3, population="another")
    least_s, most_s = HELD_S
    few = await contacts_of(tmp_path / "few.db", old, new, 0.0)
    many = await contacts_of(tmp_path / "many.db", old, new, 0.95 * least_s)
    assert few == pytest.approx(many)
    assert least_s <= few[1] <= most_s
    back = await contacts_of(tmp_path / "back.db", OLD, new, 0.95 * least_s)  # it may have had the new one before
    assert least_s <= back[1] <= most_s
    at_once = await contacts_of(tmp_path / "central.db", OLD, NEW, 0.0)
    assert at_once[1] < least_s
