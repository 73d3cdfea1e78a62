"""How an application tests what it does with a client: a service in memory, no sockets, no waits.

python -m pytest examples/test_applications.py
"""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient, Policy
from edge_client.blocking import EdgeClient as BlockingClient
from edge_client.testing import MemoryService
from examples.script import contribute
from examples.sensor_gateway import SensorGateway
from examples.web_app import ReadingsApp
from hushsum import Plan

PLAN = Plan.from_toml(Path(__file__).with_name("plan.toml"))


@pytest.fixture
def service() -> MemoryService:
    """The service of each test."""
    return MemoryService(PLAN)


async def test_a_device_contributes_and_hears_that_it_was_late(service: MemoryService, tmp_path: Path) -> None:
    """What a service answers is decided by the test, before or after records are added."""
    async with EdgeClient(service, spool=tmp_path / "spool.db", policy=Policy(max_epsilon=1.0)) as client:
        await client.add([[1.5, 2.5], [3.0, 4.0]])
        await client.flush()
        assert service.records == 2
        service.late()
        await client.add([1.5, 2.5])
        with pytest.raises(Exception, match="late"):
            await client.flush()
        assert client.status().late == 1


def test_the_script_leaves_what_it_cannot_send_to_the_next_run(service: MemoryService, tmp_path: Path) -> None:
    """Nothing is lost while the service is away; the next run sends it."""
    spool = str(tmp_path / "spool.db")
    assert contribute(["1.5,2.5"], service, spool) == 0
    assert contribute(["3,4\n", "5,6\n"], service, spool) == 0
    assert service.records == 3


@pytest.mark.parametrize(("body", "status"), (("[1.5, 2.5]", "202"), ('"no reading"', "400"), ("{", "400")))
def test_the_web_app_answers_by_what_became_of_a_reading(
    service: MemoryService, tmp_path: Path, body: str, status: str
) -> None:
    """A WSGI application is called as a server calls it."""
    answered: list[str] = []

    def start_response(line: str, *_: Any) -> Any:
        answered.append(line)

    data = body.encode()
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/reading", "CONTENT_LENGTH": len(data)}
    environ["wsgi.input"] = io.BytesIO(data)
    with BlockingClient(service, spool=tmp_path / "spool.db") as client:
        ReadingsApp(client)(environ, start_response)
        client.flush()
    assert answered[0].startswith(status)
    assert service.records == (status == "202")


async def test_the_gateway_keeps_its_sensors_apart(service: MemoryService, tmp_path: Path) -> None:
    """Each sensor has a client id, a spool, and its own counts."""

    async def lines() -> AsyncIterator[str]:
        for line in ("kitchen 1 2", "cellar 3 4", "kitchen 5 6"):
            yield line

    assert await SensorGateway(service, tmp_path).run(lines()) == {"kitchen": 2, "cellar": 1}
    assert service.records == 3
