"""Calls that last and that nobody signs in for: few at once, so that devices and the operator always have room."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection_pb2_grpc  # type: ignore[import-untyped]  # it ships no types

from aggregator.api import catalog as server_catalogue
from aggregator.api.server import HEALTH_WATCHERS_MAX, REFLECTIONS_MAX
from aggregator.errors import ConfigError, RefusedError
from aggregator.rate_limits import ConcurrencyLimit
from hushsum_proto.answers import Status
from hushsum_proto.v1 import wire_pb2 as pb
from tests.plans import small_plan
from tests.services import Contributor, RawClient, config_of, service_of, trailing

PLAN = small_plan()


async def refused_of(calls: "Sequence[grpc.aio.Call]", most: int) -> list[str | bytes]:
    """The reasons of those calls that ended, once all beyond ``most`` did."""
    codes = [asyncio.ensure_future(call.code()) for call in calls]
    ended: set[asyncio.Future[grpc.StatusCode]] = set()
    while len(ended) < len(calls) - most:
        done, _ = await asyncio.wait({*codes} - ended, return_when=asyncio.FIRST_COMPLETED)
        ended |= done
    reasons: list[str | bytes] = []
    for call, code in zip(calls, codes, strict=True):
        if code.done():
            assert code.result() is grpc.StatusCode.RESOURCE_EXHAUSTED
            reasons.append(dict(await call.trailing_metadata())["hushsum-reason"])
        else:
            call.cancel()
    await asyncio.wait(codes)
    return reasons


async def test_watchers_beyond_their_places_are_refused_and_devices_are_served(tmp_path: Path) -> None:
    most = server_catalogue.WATCHERS_MAX
    async with (
        service_of(config_of(tmp_path, PLAN)) as service,
        RawClient(service.grpc) as client,
        RawClient(service.grpc, None) as idle,
    ):
        calls = [idle.catalog.WatchReleases(pb.ListReleasesRequest()) for _ in range(most + 5)]
        ending = asyncio.create_task(refused_of(calls, most))

        assert (await client.hello()).plan_id == PLAN.id
        assert (await client.submit_one(PLAN.id, Contributor(PLAN, 3).delta()[1])).status is Status.ACKNOWLEDGED
        await client.administration.GetStatus(pb.StatusRequest())
        assert await ending == ["overloaded"] * 5


async def test_watchers_of_health_and_reflections_have_few_places(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        watching = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(HEALTH_WATCHERS_MAX + 3)]
        for each in watching:
            with suppress(grpc.aio.AioRpcError):  # one that has made room before it was answered
                await each.read()  # a client hears of an end only once it has read what came before
        assert await refused_of(watching, HEALTH_WATCHERS_MAX) == ["overloaded"] * 3
        reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        asking = [reflection.ServerReflectionInfo() for _ in range(REFLECTIONS_MAX + 3)]
        assert await refused_of(asking, REFLECTIONS_MAX) == ["overloaded"] * 3
        # All have gone: their places are free again.
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


def test_a_place_is_given_back_whatever_happens() -> None:
    places = ConcurrencyLimit(1, "readers")

    def fail() -> None:
        with places.taken():
            with pytest.raises(RefusedError, match="at most 1 readers"), places.taken():
                pass
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()


async def test_releases_are_read_by_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_catalogue, "READINGS_MAX", 0)
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.catalog.GetRelease(pb.GetReleaseRequest()).read()

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing(caught.value)["hushsum-reason"] == "overloaded"


@pytest.mark.timeout(300)  # of the 600 s that a stop may take
@pytest.mark.parametrize("name", ["", "nobody.knows"])
async def test_a_watcher_of_health_does_not_hold_up_a_stop(tmp_path: Path, name: str) -> None:
    told = []
    async with service_of(config_of(tmp_path, PLAN, stop_s=600.0)) as service:
        client = RawClient(service.grpc)
        watching = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=name))
        told.append((await watching.read()).status)
    while not isinstance(said := await watching.read(), type(grpc.aio.EOF)):
        told.append(said.status)
    await client.channel.close(None)

    assert await watching.code() is grpc.StatusCode.OK
    reply = health_pb2.HealthCheckResponse
    assert told == ([reply.SERVICE_UNKNOWN] if name else [reply.SERVING, reply.NOT_SERVING])


async def test_a_host_that_is_not_found_is_told_apart_from_a_port_that_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"host of nowhere\.invalid:0 cannot be resolved"):
        async with service_of(config_of(tmp_path, PLAN, listen="nowhere.invalid:0", insecure=True)):
            pass
