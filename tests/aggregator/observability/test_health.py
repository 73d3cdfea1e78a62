"""Alive is not ready: what /livez, /readyz and the health service say while a real service starts, hangs and stops."""

import asyncio
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from prometheus_client import CollectorRegistry

from aggregator.api import server as probes_module
from aggregator.api.admission_control import OpenCalls
from aggregator.api.connections import ConnectionGuard
from aggregator.api.server import LIVENESS, Probes
from aggregator.app import Service
from aggregator.config import Config
from aggregator.errors import AggregatorError
from aggregator.model import NewEntry
from aggregator.observability.health import STALLED_S, Health
from aggregator.observability.metrics import Metrics
from hushsum_proto.v1 import wire_pb2 as pb
from tests.doubles import ManualRuntime
from tests.pages import QuickRuntime, asked, until
from tests.plans import small_plan
from tests.services import config_of, service_of

PLAN = small_plan()
OK, STALLED, UNREADY = (200, "ok\n"), (503, "stalled\n"), (503, "unready\n")


def watched_config(folder: Path, **settings: object) -> Config:
    return config_of(folder, PLAN, health_listen="127.0.0.1:0", **settings)


async def pages(service: Service) -> tuple[object, object]:
    """What /livez and /readyz say."""
    address = service.telemetry.health_page
    return await asyncio.to_thread(asked, address, "/livez"), await asyncio.to_thread(asked, address, "/readyz")


async def health(service: Service, name: str) -> str:
    """What gRPC's health service says of a name."""
    async with grpc.aio.insecure_channel(service.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


async def test_a_service_that_runs_is_alive_and_ready_and_says_nothing_else(tmp_path: Path) -> None:
    async with service_of(watched_config(tmp_path)) as service:
        assert await pages(service) == (OK, OK)
        assert await asyncio.to_thread(asked, service.telemetry.health_page, "/metrics") == (404, "")
        assert [await health(service, name) for name in ("", LIVENESS)] == ["SERVING", "SERVING"]


async def test_an_event_loop_that_hangs_is_told_by_another_thread(tmp_path: Path) -> None:
    async with service_of(watched_config(tmp_path), QuickRuntime()) as service:

        async def goes_on() -> bool:
            return await pages(service) == (OK, OK)

        await until(goes_on)
        address, said = service.telemetry.health_page, OK
        while said == OK:
            said = asked(address, "/livez")  # here, on the event loop: nothing else of the service runs meanwhile
        assert said == STALLED
        assert asked(address, "/readyz") == UNREADY
        await until(goes_on)


async def test_a_store_whose_file_is_gone_makes_a_service_unready_and_leaves_it_alive(tmp_path: Path) -> None:
    config = watched_config(tmp_path)
    async with service_of(config, QuickRuntime()) as service:
        store = config.folder / "store.db"
        store.rename(tmp_path / "away.db")

        async def unready() -> bool:
            return await pages(service) == (OK, UNREADY)

        await until(unready)
        assert [await health(service, name) for name in ("", LIVENESS)] == ["NOT_SERVING", "SERVING"]
        assert service.metrics.registry.get_sample_value("hushsum_ready") == 0

        shutil.copy(tmp_path / "away.db", store)
        await asyncio.sleep(0.5)
        assert (await pages(service))[1] == UNREADY, "another file is not the one that is written to"
        store.unlink()
        (tmp_path / "away.db").rename(store)

        async def ready() -> bool:
            return await pages(service) == (OK, OK) and await health(service, "") == "SERVING"

        await until(ready)


async def test_a_service_that_drains_is_alive_and_not_ready_whatever_else_is_found(tmp_path: Path) -> None:
    async with service_of(watched_config(tmp_path)) as service:
        service.telemetry.drains()
        assert await pages(service) == (OK, UNREADY)

    server = grpc.aio.server()
    probes = Probes(OpenCalls(), Metrics(), ConnectionGuard(16, CollectorRegistry()))
    probes.add_to(server, ["some.Service"])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def said(name: str) -> str:
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))

        probes.drain()
        probes.tell(ready=True)  # the probes go on meanwhile
        assert [await said(name) for name in ("", "some.Service", LIVENESS)] == [*["NOT_SERVING"] * 2, "SERVING"]
    await server.stop(None)


async def test_what_cannot_go_on_is_not_alive(tmp_path: Path) -> None:
    said: list[object] = []

    async def run() -> None:
        async with service_of(watched_config(tmp_path)) as service:
            newer = pb.Entry(format_version=2).SerializeToString()
            await service.log.append([NewEntry(0, PLAN.window.index_at(service.runtime.now_ms()), newer)])

            async def failed() -> bool:
                return await pages(service) == (STALLED, UNREADY)

            await until(failed)
            said.append([await health(service, name) for name in ("", LIVENESS)])

    with suppress(AggregatorError):  # a stop tells the failure as well
        await run()
    assert said == [["NOT_SERVING", "NOT_SERVING"]]


async def test_before_it_serves_a_process_is_alive_and_not_ready() -> None:
    runtime = ManualRuntime()
    state = Health(runtime)
    assert (state.is_alive, state.is_ready) == (True, False)
    state.serves = True
    assert state.is_ready
    beating = asyncio.create_task(state.beat())
    await runtime.advance(STALLED_S + 10)
    assert state.is_alive
    beating.cancel()
    await asyncio.wait([beating])
    await runtime.advance(STALLED_S)
    assert (state.is_alive, state.is_ready) == (False, False)


async def test_a_watcher_hears_of_a_drain_that_begins_during_its_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asked_for_all(_: object, message: Coroutine[object, object, object]) -> object:
        message.close()
        return health_pb2.HealthCheckRequest(service="")

    probes = Probes(OpenCalls(), Metrics(), ConnectionGuard(16, CollectorRegistry()))
    probes.add_to(grpc.aio.server(), [])
    monkeypatch.setattr(probes, "_read", asked_for_all)
    replies = []
    async for reply in probes._watch(None, None):  # type: ignore[arg-type]  # its reading is replaced
        replies.append(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
        probes.drain()  # before the loop goes on: the reply is on its way
    assert replies == ["SERVING", "NOT_SERVING"]


async def test_who_watches_health_without_end_keeps_nobody_from_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes_module, "HEALTH_WATCHERS_MAX", 3)
    server, probes = grpc.aio.server(), Probes(OpenCalls(), Metrics(), ConnectionGuard(16, CollectorRegistry()))
    probes.add_to(server, [])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watching = []
        for _ in range(5):
            watching.append(stub.Watch(health_pb2.HealthCheckRequest()))
            assert (await watching[-1].read()).status == health_pb2.HealthCheckResponse.SERVING, (
                "the newest is answered"
            )
        for ended in watching[:2]:
            assert await ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any(each.done() for each in watching[2:])
        for each in watching:
            each.cancel()
    await server.stop(None)
