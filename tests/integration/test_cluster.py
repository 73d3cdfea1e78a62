"""A gateway, two workers and two releasers as processes of their own, around a real broker and a real database."""

import asyncio
import re
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store
from hushsum import Sketch
from hushsum.releases import Release
from hushsum_proto import convert_admin
from hushsum_proto.answers import Status
from hushsum_proto.messages import ServiceStatus
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from tests.brokers import fresh_prefix
from tests.plans import small_plan
from tests.processes import Aggregator, processes
from tests.services import Contributor, RawClient, page_of, trailing

PLAN = small_plan(window={"length": "3650d"})
WINDOW = PLAN.window.index_at(SystemRuntime(1).now_ms())  # ten years long: it does not end meanwhile
ROLES = {
    "gateway": "gateway",
    "worker-1": "worker",
    "worker-2": "worker",
    "releaser-1": "releaser",
    "releaser-2": "releaser",
}
CLIENTS = 6
DELTAS = 25  # of each client, in each of two halves
ELSEWHERE = re.compile(r"process (\S+) is the releaser: send the request to (\S+)")


def settings_of(folder: Path, kafka: KafkaBroker) -> dict[str, object]:
    plan = folder / "plan.json"
    plan.write_bytes(PLAN.bundle)
    return {
        "plan": str(plan),
        "log": "kafka",
        "store": "postgresql",
        "partitions": 4,
        "manual": True,
        "kafka_bootstrap": kafka.bootstrap,
        "kafka_prefix": fresh_prefix(),
        "checkpoint_s": 0.5,
    }


async def send(address: str, contributors: list[Contributor]) -> None:
    """Half of what every client sends, each on a stream of its own; all of it is acknowledged."""

    async def one(number: int, contributor: Contributor) -> None:
        async with RawClient(address, f"client-{number}") as client:
            answers = await client.submit(PLAN.id, [contributor.delta()[1] for _ in range(DELTAS)])
            assert [answer.status for answer in answers] == [Status.ACKNOWLEDGED] * DELTAS

    await asyncio.gather(*(one(*each) for each in enumerate(contributors)))


async def refusal_of(address: str, window: int) -> grpc.aio.AioRpcError | None:
    """What a process answers when it is to seal a window; None: it does."""
    async with RawClient(address) as client:
        try:
            await client.administration.SealWindow(pb.SealWindowRequest(window=window, early=True))
        except grpc.aio.AioRpcError as error:
            return error
    return None


async def leader_of(releasers: list[Aggregator]) -> tuple[Aggregator, Aggregator]:
    """The one that releases, and one that does not and names it to whoever asks."""
    addresses = [await each.address() for each in releasers]
    while True:
        for other, leader in ((0, 1), (1, 0)):
            refused = await refusal_of(addresses[other], WINDOW + 9)  # there never was one: the leader refuses it too
            named = refused and ELSEWHERE.search(refused.details() or "")
            if refused and named and named[2] == addresses[leader]:
                assert trailing(refused)["hushsum-reason"] == "unavailable"
                return releasers[leader], releasers[other]
        await asyncio.sleep(0.1)


async def seal(address: str) -> None:
    """Seals the window, by a process that may have to take over first."""
    while (refused := await refusal_of(address, WINDOW)) is not None:
        assert refused.code() is grpc.StatusCode.UNAVAILABLE, refused
        await asyncio.sleep(0.1)


async def next_release(address: str) -> pb.ReleaseInfo:
    async with RawClient(address) as client:
        async for info in client.catalog.WatchReleases(pb.ListReleasesRequest()):
            return info
    raise AssertionError("the stream has ended")


async def status_of(address: str) -> ServiceStatus:
    async with RawClient(address) as client:
        return convert_admin.status_from_wire(await client.administration.GetStatus(pb.StatusRequest()))


async def metric(process: Aggregator, name: str) -> float:
    page = await asyncio.to_thread(page_of, str((await process.listening())["metrics"]))
    return sum(float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}[{{ ]", line))


async def all_held(workers: list[Aggregator], partitions: int) -> None:
    """Returns once these workers hold all partitions between them, and each of them some."""
    while True:
        held = [await metric(worker, "hushsum_partitions_held") for worker in workers]
        if sum(held) == partitions and all(held):
            return
        await asyncio.sleep(0.1)


@pytest.mark.long
async def test_a_service_of_five_processes_counts_exactly_while_a_worker_and_a_releaser_are_stopped(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    dsn = postgres.fresh_database()
    contributors = [Contributor(PLAN, stream + 1, window=WINDOW) for stream in range(CLIENTS)]
    async with processes(tmp_path, ROLES, settings_of(tmp_path, kafka), dsn) as running, asyncio.timeout(300):
        gateway = await running["gateway"].address()
        await all_held([running["worker-1"], running["worker-2"]], 4)
        await send(gateway, contributors)

        assert await running["worker-1"].stop() == 0
        await send(gateway, contributors)
        await all_held([running["worker-2"]], 4)
        leader, other = await leader_of([running["releaser-1"], running["releaser-2"]])
        assert (await metric(leader, "hushsum_leading"), await metric(other, "hushsum_leading")) == (1, 0)
        assert await leader.stop() == 0

        watching = asyncio.create_task(next_release(gateway))
        await seal(await other.address())
        await assert_exact(dsn, contributors)
        async with RawClient(await other.address()) as client:
            released = await client.release()
        told = await watching
        assert told == released.release, "the gateway tells what another process has published"
        async with RawClient(gateway) as client:
            chunks = [chunk async for chunk in client.catalog.GetRelease(_get(told))]
        assert Release.from_bytes(b"".join(chunk.data for chunk in chunks)).window == WINDOW
        assert (await status_of(gateway)).releaser_address == await other.address()
        states = {
            dict((await status_of(await running[name].address())).windows)[WINDOW] for name in ("gateway", "worker-2")
        }
        assert states == {"released"}
        left = [running["gateway"], running["worker-2"], other]
        assert [await each.stop() for each in left] == [0, 0, 0]
    for process in running.values():
        assert "Traceback" not in process.output.read_text(), process.name


def _get(info: pb.ReleaseInfo) -> pb.GetReleaseRequest:
    return pb.GetReleaseRequest(plan_id=info.plan_id, kind=info.kind, window=info.window)


async def assert_exact(dsn: str, contributors: list[Contributor]) -> None:
    """What the database holds of the sealed window is what the clients have sent."""
    runtime = SystemRuntime(1)
    store = Store(await PostgresDatabase.open(PostgresSettings(dsn, pool=2), runtime))
    sealed = await store.sealed_window(PLAN, WINDOW)
    await store.close()
    expected = Sketch(PLAN)
    expected.add(np.concatenate([records for each in contributors for records in each.records]))
    assert sealed is not None
    assert np.array_equal(sealed.sketch.counters, expected.counters)
    assert np.array_equal(sealed.sketch.counts, expected.counts)
    assert len(expected.counters.nonzero()[0]) > 0
