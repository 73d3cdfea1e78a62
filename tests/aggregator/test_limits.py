"""What one client may send, ask for and hold: a greedy one is told to wait, and nobody else notices it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from aggregator.app import Service
from aggregator.config import Config
from aggregator.errors import LogUnavailableError, RefusedError
from aggregator.interfaces import Log
from aggregator.rate_limits import DELTA_COST_MIN, CallLimits, QuotaReservation, SendLimits, share_of
from edge_client import Config as DeviceConfig
from edge_client import EdgeClient, SystemRuntime
from hushsum.plan import Plan
from hushsum_proto import convert
from hushsum_proto.answers import Answer, ServiceReason, Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.local_clients import batch_of, noised, report_plan, silo_plan, submit_large
from tests.aggregator.secure_clients import Line, fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, all_parts, plan_of, results, site_config
from tests.doubles import ManualRuntime
from tests.edge_client.clocks import until
from tests.plans import small_plan
from tests.services import NOW_MS, Contributor, HeldLog, RawClient, config_of, counted, ends_of, service_of, trailing

PLAN, REPORTS, SILO = small_plan(), report_plan(), silo_plan()
NEVER = 0.001  # a rate at which nobody pays anything off while a test runs
ONE = {"client_bytes_rate": NEVER, "client_bytes_burst": 1}  # one delta, and then no more


def delta_of(plan: Plan, number: int) -> bytes:
    """A delta of its own stream, in whatever form the plan's clients send it."""
    if plan is REPORTS:
        return batch_of(plan, number, 3)
    contributor = Contributor(plan, number) if plan is PLAN else None
    return noised(plan, Contributor(PLAN, number).delta()[0]) if contributor is None else contributor.delta()[1]


def is_limited(answer: Answer) -> bool:
    refusal = answer.refusal
    return refusal is not None and refusal.reason is ServiceReason.RATE_LIMITED and refusal.retry_after_ms > 0


async def refused_with(call: Awaitable[object]) -> object:
    """The reason with which a call is refused for the moment, and that it says when to come again."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(trailing(caught.value)["hushsum-retry-after-ms"]) > 0
    return trailing(caught.value)["hushsum-reason"]


def held_in(held: list[HeldLog]) -> Callable[[Log], Log]:
    def wrap(log: Log) -> Log:
        held.append(HeldLog(log))
        return held[-1]

    return wrap


# ------------------------------------------------------------------------------------------------- bytes, in every mode


@pytest.mark.parametrize("plan", [PLAN, SILO, REPORTS], ids=["central", "silo", "reports"])
async def test_in_every_mode_a_client_beyond_its_bytes_waits_and_others_do_not(tmp_path: Path, plan: Plan) -> None:
    async with (
        service_of(config_of(tmp_path, plan, **ONE)) as service,
        RawClient(service.grpc) as alice,
        RawClient(service.grpc, "bob") as bob,
    ):
        first, second, third, fourth = (delta_of(plan, number) for number in range(1, 5))
        answers = await alice.submit(plan.id, [first, second])
        assert sorted(answer.status for answer in answers) == [Status.ACKNOWLEDGED, Status.REFUSED]
        assert sum(map(is_limited, answers)) == 1
        assert await refused_with(alice.collection.SubmitOne(one(plan, third), metadata=alice.metadata)) == (
            "rate_limited"
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await submit_large(alice, plan, third)
        assert trailing(caught.value)["hushsum-reason"] == "rate_limited"
        assert (await bob.submit_one(plan.id, fourth)).status is Status.ACKNOWLEDGED
        assert counted(service, "hushsum_refusals_total", reason="rate_limited") == 3
        assert sum(await ends_of(service)) == 2


def one(plan: Plan, data: bytes) -> pb.SubmitRequest:
    return convert.submission_to_wire(plan.id, data)


async def test_each_delta_costs_a_kibibyte_at_least_whatever_it_holds(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, client_bytes_rate=NEVER, client_bytes_burst=5 * DELTA_COST_MIN - 1)
    async with service_of(config) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        sent = [contributor.delta()[1] for _ in range(20)]
        assert max(map(len, sent)) < DELTA_COST_MIN
        answers = await client.submit(PLAN.id, sent)
        assert [answer.status for answer in answers].count(Status.ACKNOWLEDGED) == 5
        assert sum(map(is_limited, answers)) == 15


async def test_bytes_that_are_no_delta_cost_as_much_as_one(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, **ONE)) as service, RawClient(service.grpc) as client:
        (malformed,) = await client.submit(PLAN.id, [b"no delta"])
        (delta,) = await client.submit(PLAN.id, [Contributor(PLAN, 3).delta()[1]])
        assert malformed.refusal is not None
        assert malformed.refusal.reason == "newer_format"
        assert is_limited(delta)


async def test_what_is_too_large_is_told_so_and_not_to_wait(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN, pending_bytes_max=1)) as service, RawClient(service.grpc) as client:
        (answer,) = await client.submit(PLAN.id, [bytes(PLAN.upload_bytes_max + 1)])
        assert answer.refusal is not None
        assert answer.refusal.reason == "too_large"


async def test_what_the_service_could_not_take_costs_nothing(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, **ONE)
    async with service_of(config, wrap_log=held_in(held)) as service, RawClient(service.grpc) as client:
        delta = Contributor(PLAN, 3).delta()[1]
        for _ in range(3):
            held[0].failures.append(LogUnavailableError("not now"))
            (answer,) = await client.submit(PLAN.id, [delta])
            assert answer.refusal is not None
            assert answer.refusal.reason is ServiceReason.UNAVAILABLE
        assert (await client.submit(PLAN.id, [delta]))[0].status is Status.ACKNOWLEDGED
        assert is_limited((await client.submit(PLAN.id, [delta]))[0])  # it was paid for this time


async def test_a_resend_of_what_is_on_its_way_costs_nothing(tmp_path: Path) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, client_bytes_rate=NEVER, client_bytes_burst=2 * DELTA_COST_MIN - 1)
    async with service_of(config, wrap_log=held_in(held)) as service, RawClient(service.grpc) as client:
        contributor = Contributor(PLAN, 3)
        first, second, third = (contributor.delta()[1] for _ in range(3))
        held[0].hold()
        call = asyncio.create_task(client.submit(PLAN.id, [first] * 50 + [second, third]))
        await until(lambda: counted(service, "hushsum_refusals_total", reason="rate_limited") >= 1, "nobody is limited")
        held[0].free()
        answers = await call
        assert [answer.status for answer in answers].count(Status.ACKNOWLEDGED) == 51
        assert sum(map(is_limited, answers)) == 1


# ------------------------------------------------------------------------------------------------- calls and sessions


async def test_a_client_beyond_its_calls_waits_and_others_and_readers_do_not(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAN, client_calls_rate=NEVER, client_calls_burst=2)
    async with (
        service_of(config) as service,
        RawClient(service.grpc) as alice,
        RawClient(service.grpc, "bob") as bob,
        RawClient(service.grpc, None) as nobody,
    ):
        for _ in range(3):
            await alice.hello()
        hello = pb.HelloRequest(protocol_versions=[1])
        for _ in range(2):
            assert await refused_with(alice.collection.Hello(hello, metadata=alice.metadata)) == "rate_limited"
        with pytest.raises(grpc.aio.AioRpcError):
            await alice.submit(PLAN.id, [])
        await bob.hello()
        for _ in range(9):
            await nobody.catalog.ListReleases(pb.ListReleasesRequest())
            await nobody.administration.GetStatus(pb.StatusRequest())
        # Its deltas are limited by their bytes: a call of each is none of the others.
        assert (await alice.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])).status is Status.ACKNOWLEDGED


async def test_a_client_has_few_sessions_and_others_have_theirs(tmp_path: Path) -> None:
    async with (
        service_of(config_of(tmp_path, PLAN, client_sessions_max=2)) as service,
        RawClient(service.grpc) as alice,
        RawClient(service.grpc, "bob") as bob,
    ):
        contributor = Contributor(PLAN, 3)
        streams = [alice.collection.Submit(None, metadata=alice.metadata) for _ in range(2)]
        for stream in streams:
            await stream.write(one(PLAN, contributor.delta()[1]))
            await stream.read()
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await alice.submit(PLAN.id, [contributor.delta()[1]])
            assert trailing(caught.value)["hushsum-reason"] == "rate_limited"
            assert int(trailing(caught.value)["hushsum-retry-after-ms"]) > 0
        assert [answer.status for answer in await bob.submit(PLAN.id, [Contributor(PLAN, 4).delta()[1]])] == [
            Status.ACKNOWLEDGED
        ]
        await streams[0].done_writing()
        assert await streams[0].read() is grpc.aio.EOF
        assert [answer.status for answer in await alice.submit(PLAN.id, [contributor.delta()[1]])] == [
            Status.ACKNOWLEDGED
        ]
        streams[1].cancel()


async def test_a_client_has_few_streams_of_secure_sums_and_a_whole_cohort_still_meets(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan = plan_of()
    config = site_config(tmp_path, plan, client_sessions_max=3)
    async with service_of(config) as service, stub_of(service.grpc) as stub:
        idle = [Line.open(stub, "greedy") for _ in range(3)]
        while counted(service, "hushsum_refusals_total", reason="rate_limited") < 1:
            line = Line.open(stub, "greedy")
            idle.append(line)
            await asyncio.sleep(0.01)
        assert results(await all_parts(fleet_of(plan, SIZE, rng), stub)) == ["counted"] * SIZE
        for line in idle:
            line.cut()


async def test_a_client_of_a_secure_sum_that_talks_too_much_is_listened_to_more_slowly_and_not_refused(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan = plan_of()
    config = site_config(tmp_path, plan, client_bytes_rate=20_000.0, client_bytes_burst=1)
    async with service_of(config) as service, stub_of(service.grpc) as stub:
        assert results(await all_parts(fleet_of(plan, SIZE, rng), stub)) == ["counted"] * SIZE


# ------------------------------------------------------------------------------------------------------ what all share


@pytest.mark.parametrize(
    "limit", [{"pending_entries_max": 8}, {"pending_bytes_max": 4 * PLAN.upload_bytes_max}], ids=["entries", "bytes"]
)
async def test_a_greedy_client_fills_a_share_of_the_queue_and_another_one_is_served(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    held: list[HeldLog] = []
    config = config_of(tmp_path, PLAN, **limit)
    async with (
        service_of(config, wrap_log=held_in(held)) as service,
        RawClient(service.grpc) as alice,
        RawClient(service.grpc, "bob") as bob,
    ):
        greedy = Contributor(PLAN, 3)
        sent = [greedy.delta(9)[1] for _ in range(200)]
        assert sum(map(len, sent)) > PLAN.upload_bytes_max
        held[0].hold()
        taking = asyncio.create_task(alice.submit(PLAN.id, sent))
        await until(lambda: counted(service, "hushsum_refusals_total", reason="rate_limited") >= 1, "nobody is limited")
        before = service.gateway.waiting
        other = asyncio.create_task(bob.submit(PLAN.id, [Contributor(PLAN, 4).delta()[1]]))
        await until(lambda: service.gateway.waiting > before, "it is not taken")
        held[0].free()
        assert [answer.status for answer in await other] == [Status.ACKNOWLEDGED]
        answers = await taking
        assert any(map(is_limited, answers))
        assert counted(service, "hushsum_refusals_total", reason="overloaded") == 0
        # What was answered holds nothing any more.
        assert (await alice.submit(PLAN.id, [greedy.delta()[1]]))[0].status is Status.ACKNOWLEDGED


def test_one_client_gets_a_quarter_of_what_is_shared_and_one_largest_thing_at_least() -> None:
    assert share_of(400) == 100
    assert share_of(400, 150) == 150
    assert share_of(1) == 1


# ---------------------------------------------------------------------------------------------------------- by itself


def sends(**limits: float) -> SendLimits:
    return SendLimits(limits.get("rate", 1024.0), int(limits.get("burst", 1)), int(limits.get("held", 10**6)), TIME)


def test_an_empty_delta_that_is_answered_after_the_others_of_its_client_ends_nothing() -> None:
    limits = SendLimits(1024.0, 10**6, 10**6, ManualRuntime())
    junk, empty, other = limits.take("a", 4), limits.take("a", 0), limits.take("b", 8)
    for reservation in (junk, empty, other):
        reservation.release()
    assert len(limits) == 0


TIME = ManualRuntime()


def reason_of(take: Callable[[], object]) -> object:
    with pytest.raises(RefusedError) as caught:
        take()
    assert caught.value.refusal.retry_after_ms > 0
    return caught.value.refusal.reason


def test_what_a_client_holds_is_its_own_and_is_forgotten_when_it_is_answered(seed: int) -> None:
    rng, limits = np.random.default_rng(seed), sends(rate=1e12, burst=10**12, held=10_000)
    holding: dict[str, list[tuple[QuotaReservation, int]]] = {"alice": [], "bob": []}
    for _ in range(2000):
        client = str(rng.choice(["alice", "bob"]))
        if holding[client] and rng.random() < 0.5:
            holding[client].pop()[0].release()
            continue
        size, held = int(rng.integers(1, 3000)), sum(each for _, each in holding[client])
        if held + size > 10_000:
            assert reason_of(lambda client=client, size=size: limits.take(client, size)) is (  # type: ignore[misc]  # a default binds it
                ServiceReason.RATE_LIMITED
            )
        else:
            holding[client].append((limits.take(client, size), size))
    for each in holding.values():
        for taken, _ in each:
            taken.release()
    assert len(limits) == 0


def test_a_client_that_waits_as_long_as_it_was_told_is_taken() -> None:
    runtime = ManualRuntime()
    limits = SendLimits(1024.0, 1, 10**6, runtime)
    limits.take("alice", 5000)
    with pytest.raises(RefusedError) as caught:
        limits.check("alice")
    runtime._elapsed.reach(caught.value.refusal.retry_after_ms)
    limits.check("alice")
    limits.take("alice", 1)


def test_a_full_table_refuses_who_comes_new_as_overload_and_nobody_who_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, calls = sends(rate=NEVER, burst=10**6), CallLimits(NEVER, 1000, 9, TIME)
    for rates in (limits.rates, calls.rates):
        monkeypatch.setattr(rates, "_clients_max", 2)
    for client in ("alice", "bob", "alice"):
        limits.take(client, 1)
        calls.begin(client, lasts=False)
    assert reason_of(lambda: limits.take("carol", 1)) is ServiceReason.OVERLOADED
    assert reason_of(lambda: calls.begin("carol", lasts=False)) is ServiceReason.OVERLOADED
    limits.take("bob", 1)
    calls.begin("", lasts=False)  # who has no name is not limited here


def test_a_stream_that_is_refused_takes_no_place_and_one_that_ends_gives_it_back() -> None:
    calls = CallLimits(1e6, 10**6, 2, TIME)
    for _ in range(5):
        calls.begin("alice", lasts=True)
        calls.begin("alice", lasts=True)
        assert reason_of(lambda: calls.begin("alice", lasts=True)) is ServiceReason.RATE_LIMITED
        calls.begin("bob", lasts=True)
        for name in ("alice", "alice", "bob"):
            calls.end(name)
        assert len(calls) == 0


# ------------------------------------------------------------------------------------------------------------- devices


async def test_a_device_that_is_limited_waits_and_gets_everything_through(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    config = config_of(tmp_path, PLAN, client_bytes_rate=20.0 * DELTA_COST_MIN, client_bytes_burst=1, skew_s=86_400.0)
    async with service_of(config) as service:
        clock = DeviceClock()
        async with EdgeClient(service.grpc, spool=tmp_path / "spool.db", config=QUICK, runtime=clock) as client:
            for record in rng.uniform(0, 10, (6, 2)):
                await client.add(record[None])
                await asyncio.sleep(0.002)
            await client.flush(timeout_s=120)
        clock.close()
        assert client.status().acknowledged == client.status().deltas > 1
        assert not client.status().refused
        assert counted(service, "hushsum_refusals_total", reason="rate_limited") > 0
        assert await total(service) == 6


QUICK = DeviceConfig(backoff_first_s=0.01, backoff_longest_s=0.05, close_flush_s=0.0)


class DeviceClock(SystemRuntime):
    """A device's wall clock that stands where the service's does."""

    def now_ms(self) -> int:
        return NOW_MS


async def total(service: Service) -> int:
    """Records that are counted once the window is sealed."""
    async with RawClient(service.grpc) as operator:
        window = await operator.seal()
    sealed = await service.store.sealed_window(service.plan, window)
    assert sealed is not None
    return int(sealed.sketch.counts.sum()) // service.plan.privacy.mechanism.count_scale


def test_a_config_says_all_limits(tmp_path: Path) -> None:
    config: Config = config_of(tmp_path, PLAN)
    assert (config.client_bytes_burst, config.client_calls_burst, config.client_sessions_max) == (2**28, 1000, 16)
    assert config.client_streams_max == 1024
