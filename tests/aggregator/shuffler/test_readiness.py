"""A shuffler whose file is gone says so to health checks, and is alive."""

import asyncio
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types

from aggregator.api.server import LIVENESS
from aggregator.shuffler.app import Shuffler, running
from tests.aggregator.shuffler.test_service import PLAN, shuffler_config
from tests.pages import QuickRuntime, asked, until
from tests.services import config_of, service_of


async def said(shuffler: Shuffler) -> list[object]:
    """What the pages say, and gRPC's health service of everything and of the process."""
    page = shuffler.telemetry.health_page
    told: list[object] = [(await asyncio.to_thread(asked, page, path))[0] for path in ("/livez", "/readyz")]
    async with grpc.aio.insecure_channel(shuffler.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", LIVENESS):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            told.append(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return told


async def come_to(shuffler: Shuffler, expected: list[object]) -> None:
    async def has() -> bool:
        return await said(shuffler) == expected

    await until(has)


async def test_a_shuffler_without_its_file_is_alive_and_not_ready_until_it_is_back(tmp_path: Path) -> None:
    directory = shuffler_config(tmp_path, "127.0.0.1:1").shufflers
    async with service_of(config_of(tmp_path, PLAN, shufflers=str(directory))) as aggregator:
        config = shuffler_config(tmp_path, aggregator.grpc, health_listen="127.0.0.1:0")
        async with running(config, QuickRuntime()) as shuffler:
            await come_to(shuffler, [200, 200, "SERVING", "SERVING"])
            file = config.folder / "shuffler.db"
            file.rename(tmp_path / "away.db")
            await come_to(shuffler, [200, 503, "NOT_SERVING", "SERVING"])

            (tmp_path / "away.db").rename(file)
            await come_to(shuffler, [200, 200, "SERVING", "SERVING"])
