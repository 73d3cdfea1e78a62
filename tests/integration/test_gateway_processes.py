"""Two gateway processes on one port, around a real broker and a real database; one is killed in the middle."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import grpc.aio
import pytest

from hushsum_proto.answers import Status
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from tests.brokers import fresh_prefix
from tests.integration.test_cluster import PLAN, WINDOW, assert_exact, seal
from tests.plans import secure_plan
from tests.processes import Aggregator
from tests.services import Contributor, RawClient

CONNECTIONS = 40  # all of them at one of two processes: a chance below 1e-11
VISITS = 60


def pids(folder: Path) -> dict[int, int]:
    """The process of each gateway, by its number."""
    said = (folder / "gateway").glob("process-*/listening.json")
    return {int(file.parent.name[-1]): json.loads(file.read_text())["pid"] for file in said}


def sockets_of(pid: int) -> int:
    """Its open sockets."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += str(link.readlink()).startswith("socket:")
    return count


def alive(each: int) -> bool:
    return Path(f"/proc/{each}").exists()


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0.05)


@pytest.mark.long
async def test_two_gateways_share_a_port_and_nothing_is_lost_when_one_is_killed(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    dsn = postgres.fresh_database()
    shared: dict[str, object] = {
        "plan": str(tmp_path / "plan.json"),
        "log": "kafka",
        "store": "postgresql",
        "partitions": 2,
        "manual": True,
        "kafka_bootstrap": kafka.bootstrap,
        "kafka_prefix": fresh_prefix(),
        "checkpoint_s": 0.5,
    }
    of_gateway = {"role": "gateway", "processes": 2, "metrics_listen": "", "postgres_pool": 3}
    worker = Aggregator(tmp_path, "worker", {**shared, "role": "worker"}, dsn)
    gateway = Aggregator(tmp_path, "gateway", {**shared, **of_gateway}, dsn)
    releaser = Aggregator(tmp_path, "releaser", {**shared, "role": "releaser"}, dsn)
    async with AsyncExitStack() as stack, asyncio.timeout(480):
        for each in (worker, gateway, releaser):
            await each.start()
            stack.push_async_callback(each.stop, signal.SIGKILL)
        address = await gateway.address()
        first = pids(tmp_path)
        assert len(set(first.values())) == 2
        before = {pid: sockets_of(pid) for pid in first.values()}
        host, _, port = address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS)]
        await until(lambda: all(sockets_of(pid) > before[pid] for pid in first.values()))
        for _, writer in idle:
            writer.close()

        contributors = [Contributor(PLAN, number + 1, window=WINDOW) for number in range(VISITS)]

        async def visit(number: int) -> None:
            """A device that sends its delta until it is acknowledged."""
            _, data = contributors[number].delta()
            while True:
                try:
                    async with RawClient(address, f"client-{number}") as client:
                        (answer,) = await client.submit(PLAN.id, [data])
                    if answer.status in {Status.ACKNOWLEDGED, Status.COUNTED}:
                        return
                except grpc.aio.AioRpcError:
                    pass  # its gateway was killed
                await asyncio.sleep(0.05)

        half = [asyncio.ensure_future(visit(number)) for number in range(VISITS // 2)]
        os.kill(first[0], signal.SIGKILL)
        await asyncio.gather(*half)
        await until(lambda: pids(tmp_path).get(0, first[0]) != first[0])
        assert pids(tmp_path)[1] == first[1]
        await asyncio.gather(*(visit(number) for number in range(VISITS // 2, VISITS)))
        last = pids(tmp_path)
        await seal(await releaser.address())
        await assert_exact(dsn, contributors)
        assert await gateway.stop() == 0
        assert not any(map(alive, last.values()))


@pytest.mark.long
async def test_gateways_end_when_their_parent_is_killed_and_one_that_cannot_start_ends_the_parent(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    settings: dict[str, object] = {
        "plan": str(tmp_path / "plan.json"),
        "role": "gateway",
        "processes": 2,
        "metrics_listen": "",
        "log": "kafka",
        "store": "postgresql",
        "postgres_pool": 3,
        "kafka_bootstrap": kafka.bootstrap,
        "kafka_prefix": fresh_prefix(),
    }
    gateway = Aggregator(tmp_path, "gateway", settings, postgres.fresh_database())
    await gateway.start()
    await gateway.address()
    children = list(pids(tmp_path).values())
    await gateway.stop(signal.SIGKILL)
    async with asyncio.timeout(120):
        await until(lambda: not any(map(alive, children)))

    (tmp_path / "secure.json").write_bytes(secure_plan().bundle)
    for name, why in (("no", "No such file"), ("secure", "not allowed with secure sums")):
        plan = {"plan": str(tmp_path / f"{name}.json")}
        wrong = Aggregator(tmp_path, name, {**settings, **plan}, postgres.fresh_database())
        await wrong.start()
        assert await wrong.ended() == 1
        assert why in wrong.output.read_text()
        assert "did not start" in wrong.output.read_text()
