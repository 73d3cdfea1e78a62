"""What a gateway says of a delta, by where its window stands: over a real channel, with a real log and store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.app import Service
from aggregator.errors import LogError
from aggregator.interfaces import Log
from hushsum import Reason
from hushsum_proto.answers import Answer, Fault, ServiceReason, Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import (
    HOUR_MS,
    NOW_MS,
    WINDOW,
    Contributor,
    HeldLog,
    RawClient,
    SetRuntime,
    config_of,
    counted,
    ends_of,
    folded_all,
    service_of,
)

PLAN = small_plan()


class Held:
    """A service whose log the test holds back."""

    def __init__(self) -> None:
        self.log: HeldLog | None = None

    def __call__(self, log: Log) -> Log:
        self.log = HeldLog(log)
        return self.log


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[Service, HeldLog, RawClient]]:
    wrap = Held()
    config = config_of(tmp_path, PLAN, partitions=2)
    async with service_of(config, wrap_log=wrap) as service, RawClient(service.grpc) as client:
        assert wrap.log is not None
        yield service, wrap.log, client


def statuses(answers: list[Answer]) -> list[Status]:
    return [answer.status for answer in answers]


async def test_hello_names_the_open_windows_and_the_limits(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, in_flight_max=17, skew_s=2 * 3600.0)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        welcome = await client.hello(PLAN.id)

        assert (welcome.window, welcome.oldest_window, welcome.newest_window) == (WINDOW, WINDOW, WINDOW + 2)
        assert (welcome.now_ms, welcome.plan_id) == (NOW_MS, PLAN.id)
        assert (welcome.in_flight_max, welcome.delta_bytes_max) == (17, PLAN.delta_bytes_max)


async def test_each_delta_of_a_stream_is_acknowledged_by_its_id(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        ids, deltas = zip(*(contributor.delta() for _ in range(40)), strict=True)

        answers = await client.submit(PLAN.id, deltas)

        assert sorted(answer.id for answer in answers if answer.id) == sorted(ids)
        assert set(statuses(answers)) == {Status.ACKNOWLEDGED}
        assert await ends_of(service) == [40]
        assert counted(service, "hushsum_deltas_total", status="acknowledged") == 40


async def test_nothing_is_answered_before_the_append_is_durable(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    log.hold()
    call = asyncio.create_task(client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1]))
    await log.arrived()

    # Another whole call goes there and back meanwhile: whatever could have been answered would have been.
    await client.hello()
    assert not call.done()
    assert counted(service, "hushsum_deltas_total", status="acknowledged") == 0

    log.free()
    assert (await call).status is Status.ACKNOWLEDGED


async def test_what_comes_during_an_append_is_appended_together(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    contributor = Contributor(PLAN, 3)
    log.hold()
    first = asyncio.create_task(client.submit_one(PLAN.id, contributor.delta()[1]))
    await log.arrived()
    deltas = [contributor.delta()[1] for _ in range(50)]
    others = asyncio.create_task(client.submit(PLAN.id, deltas))
    while service.gateway.waiting < 51:
        await client.hello()
    log.free()

    assert statuses([await first, *(await others)]) == [Status.ACKNOWLEDGED] * 51
    assert log.groups == [1, 50]


async def test_an_append_delayed_past_its_seal_is_answered_late(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    log.hold()
    delta_id, delta = Contributor(PLAN, 3).delta()
    call = asyncio.create_task(client.submit_one(PLAN.id, delta))
    await log.arrived()

    assert await client.seal() == WINDOW
    log.free()

    assert await call == Answer(delta_id, Status.LATE)
    # It stands in the log, after the seal, and the fold says the same of it.
    assert sum(await ends_of(service)) == 2 + 1
    await folded_all(service)
    partition = next(p for p in "01" if counted(service, "hushsum_folded_total", partition=p, verdict="late"))
    assert counted(service, "hushsum_folded_total", partition=partition, verdict="late") == 1


async def test_after_the_seal_a_counted_delta_is_answered_counted_and_another_late(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, _, client = held
    contributor = Contributor(PLAN, 3)
    (counted_id, sent), (late_id, unsent) = contributor.delta(), contributor.delta()
    assert (await client.submit_one(PLAN.id, sent)).status is Status.ACKNOWLEDGED
    await client.seal()
    ends = await ends_of(service)

    assert await client.submit_one(PLAN.id, sent) == Answer(counted_id, Status.COUNTED)
    assert await client.submit_one(PLAN.id, unsent) == Answer(late_id, Status.LATE)
    assert await ends_of(service) == ends, "nothing of a sealed window need be written"


async def test_a_resend_that_is_delayed_past_the_seal_is_answered_counted(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    delta_id, delta = Contributor(PLAN, 3).delta()
    assert (await client.submit_one(PLAN.id, delta)).status is Status.ACKNOWLEDGED
    await folded_all(service)
    log.hold()
    again = asyncio.create_task(client.submit_one(PLAN.id, delta))
    await log.arrived()
    await client.seal()

    log.free()

    assert await again == Answer(delta_id, Status.COUNTED)


async def test_after_the_release_what_became_of_a_delta_is_unknown(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    _, _, client = held
    contributor = Contributor(PLAN, 3)
    (sent_id, sent), (unsent_id, unsent) = contributor.delta(), contributor.delta()
    assert (await client.submit_one(PLAN.id, sent)).status is Status.ACKNOWLEDGED
    await client.seal()
    await client.release()

    assert await client.submit_one(PLAN.id, sent) == Answer(sent_id, Status.UNKNOWN)
    assert await client.submit_one(PLAN.id, unsent) == Answer(unsent_id, Status.UNKNOWN)


async def test_after_the_release_and_a_restart_it_is_still_unknown(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    delta_id, delta = Contributor(PLAN, 3).delta()
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, delta)
        await client.seal()
        await client.release()
    async with service_of(config, SetRuntime(NOW_MS + 5 * HOUR_MS)) as service, RawClient(service.grpc) as client:
        assert await client.submit_one(PLAN.id, delta) == Answer(delta_id, Status.UNKNOWN)


async def test_the_same_delta_twice_on_its_way_is_appended_once(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    _, delta = Contributor(PLAN, 3).delta()
    log.hold()
    call = asyncio.create_task(client.submit(PLAN.id, [delta, delta, delta]))
    await log.arrived()
    await client.hello()
    log.free()

    assert statuses(await call) == [Status.ACKNOWLEDGED] * 3
    assert sum(await ends_of(service)) == 1


async def test_a_caller_that_gives_up_takes_nothing_from_another(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    _, delta = Contributor(PLAN, 3).delta()
    log.hold()
    first = asyncio.create_task(client.submit_one(PLAN.id, delta))
    await log.arrived()
    second = asyncio.create_task(client.submit_one(PLAN.id, delta))
    await client.hello()
    first.cancel()
    await asyncio.wait([first])
    await client.hello()
    log.free()

    assert (await second).status is Status.ACKNOWLEDGED
    assert counted(service, "hushsum_deltas_total", status="acknowledged") >= 1


async def test_a_delta_whose_append_failed_may_be_sent_again(
    held: tuple[Service, HeldLog, RawClient],
) -> None:
    service, log, client = held
    _, delta = Contributor(PLAN, 3).delta()
    log.failures.append(LogError("log: database or disk is full"))

    (refused,) = await client.submit(PLAN.id, [delta])

    assert refused.refusal is not None
    assert (refused.refusal.reason, refused.refusal.fault) == (ServiceReason.UNAVAILABLE, Fault.SERVICE)
    assert refused.refusal.retry
    assert refused.refusal.retry_after_ms > 0
    assert counted(service, "hushsum_commit_failures_total") == 1
    assert statuses(await client.submit(PLAN.id, [delta])) == [Status.ACKNOWLEDGED]


async def test_windows_open_by_the_clock_alone(tmp_path: Path) -> None:
    runtime = SetRuntime()
    config = config_of(tmp_path, PLAN, skew_s=0.0)
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        _, tomorrow = Contributor(PLAN, 4, WINDOW + 1).delta()
        (early,) = await client.submit(PLAN.id, [tomorrow])
        runtime.set_ms += HOUR_MS
        (due,) = await client.submit(PLAN.id, [tomorrow])

        assert early.refusal is not None
        assert early.refusal.reason is Reason.WINDOW_IN_FUTURE
        assert due.status is Status.ACKNOWLEDGED
        assert (await client.hello()).oldest_window == WINDOW, "by hand, a window stays open until it is sealed"


async def test_after_a_step_of_the_clock_the_service_itself_opens_the_window(tmp_path: Path) -> None:
    runtime = SetRuntime()
    config = config_of(tmp_path, PLAN, skew_s=0.0)
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        runtime.set_ms += 5 * HOUR_MS

        welcome = await client.hello()

        assert (welcome.window, welcome.newest_window) == (WINDOW + 5, WINDOW + 5)
        assert await service.store.windows(PLAN.id) == {WINDOW: "open", WINDOW + 5: "open"}


async def test_after_a_step_of_the_clock_a_delta_decides_nothing_about_windows(tmp_path: Path) -> None:
    runtime = SetRuntime()
    config = config_of(tmp_path, PLAN, skew_s=3600.0)
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        runtime.set_ms += 5 * HOUR_MS

        (answer,) = await client.submit(PLAN.id, [Contributor(PLAN, 4, WINDOW + 6).delta()[1]])

        # Its own window alone would be there, had the delta opened it.
        assert answer.status is Status.ACKNOWLEDGED
        assert {WINDOW + 5, WINDOW + 6} <= (await service.store.windows(PLAN.id)).keys()


async def test_a_window_that_nobody_had_open_takes_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN)
    async with service_of(config):
        pass
    async with service_of(config, SetRuntime(NOW_MS + 5 * HOUR_MS)) as service, RawClient(service.grpc) as client:
        (slept,) = await client.submit(PLAN.id, [Contributor(PLAN, 4, WINDOW + 2).delta()[1]])
        (opened,) = await client.submit(PLAN.id, [Contributor(PLAN, 5, WINDOW).delta()[1]])

        assert slept.refusal is not None
        assert slept.refusal.reason is ServiceReason.WINDOW_NOT_OPEN
        assert not slept.refusal.retry
        assert opened.status is Status.ACKNOWLEDGED
        assert sum(await ends_of(service)) == 1


async def test_without_manual_windows_are_sealed_and_released_when_their_time_has_come(tmp_path: Path) -> None:
    runtime = SetRuntime()
    config = config_of(tmp_path, PLAN, manual=False)
    async with service_of(config, runtime) as service, RawClient(service.grpc) as client:
        delta_id, delta = Contributor(PLAN, 3).delta()
        assert (await client.submit_one(PLAN.id, delta)).status is Status.ACKNOWLEDGED
        runtime.set_ms += HOUR_MS

        async for info in client.catalog.WatchReleases(pb.ListReleasesRequest()):
            assert (info.kind, info.window) == ("tumbling", WINDOW)
            break

        assert await client.submit_one(PLAN.id, delta) == Answer(delta_id, Status.UNKNOWN)
