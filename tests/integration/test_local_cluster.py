"""Local mode of a service of several processes: every report and every silo counts once, and no report is anybody's."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import numpy as np
import pytest

from aggregator.log.kafka.client import KafkaSettings
from aggregator.runtime import SystemRuntime
from hushsum import Plan
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local import report_batch, silo
from hushsum.releases import Release
from hushsum.signing import Role
from hushsum_proto.answers import Answer, Status
from hushsum_proto.batches import topic_of
from hushsum_simulator.console import Console
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.kafka_logs import files_of, records_in, times_in
from tests.aggregator.local_clients import batch_of
from tests.brokers import fresh_prefix
from tests.integration.test_cluster import metric
from tests.integration.test_secure_cluster import keys_in
from tests.plans import small_plan
from tests.processes import Aggregator
from tests.services import RawClient

ROLES = {"gateway-1": "gateway", "gateway-2": "gateway", "worker": "worker", "releaser": "releaser"}
PARTITIONS = 2
DEVICES = 12
BATCHES = 10  # of each device in each half
REPORTS = 7  # of each batch
pytestmark = pytest.mark.timeout(900)
FOLDED_S = 3  # then most of what came is folded, and nothing of it stored; to be sure takes a minute of the page
EVERYTHING_S = 600  # the page of a plan of reports shows whole minutes


def plan_of(**local: object) -> Plan:
    """A plan whose window is ten years long: it does not end meanwhile, and its start is long ago."""
    return small_plan(window={"length": "3650d"}, privacy={"mode": "local", "epsilon": 2, "local": local})


class Site:
    """Two gateways, a worker and a releaser, which share a signed log.

    Attributes:
        running: By name.
        window: The one that is open.
    """

    def __init__(self, folder: Path, plan: Plan, kafka: KafkaBroker, dsn: str) -> None:
        self.plan, self.kafka, self.dsn = plan, kafka, dsn
        self.prefix, self.began_ms = fresh_prefix(), SystemRuntime(1).now_ms()
        self.window = plan.window.index_at(self.began_ms)
        (folder / "plan.json").write_bytes(plan.bundle)
        keys = {name: Role(role) for name, role in ROLES.items() if role != "worker"}
        shared: Mapping[str, object] = {
            "plan": str(folder / "plan.json"),
            "log": "kafka",
            "store": "postgresql",
            "partitions": PARTITIONS,
            "manual": True,
            "kafka_bootstrap": kafka.bootstrap,
            "kafka_prefix": self.prefix,
            "kafka_session_s": 6,  # what a broker allows at least
            "checkpoint_s": 3600,  # so that a worker that is killed has stored nothing of what it had folded
            "directory": str(keys_in(folder, keys)),
            "log_level": "debug",
        }
        self.running = {
            name: Aggregator(
                folder,
                name,
                {**shared, "role": role, **({f"{role}_key": str(folder / f"{name}.pem")} if name in keys else {})},
                dsn,
            )
            for name, role in ROLES.items()
        }

    async def submit(self, gateway: int, client_id: str, data: Sequence[bytes]) -> list[Answer]:
        async with RawClient(await self.running[f"gateway-{gateway}"].address(), client_id) as client:
            return await client.submit(self.plan.id, data)

    async def folded(self, entries: int) -> None:
        """Returns once the worker has folded so many entries since its start, and not one more."""
        while True:
            found = await metric(self.running["worker"], "hushsum_folded_total")
            assert found <= entries
            if found == entries:
                return
            await asyncio.sleep(0.1)

    async def kill_worker(self) -> None:
        assert await self.running["worker"].stop(signal.SIGKILL) == -signal.SIGKILL

    async def released(self) -> Release:
        """What becomes of the window, as a gateway gives it out."""
        async with Console(await self.running["releaser"].address()) as console:
            assert await console.seal(early=True) == self.window
            released = await console.release()
        async with Console(await self.running["gateway-2"].address()) as console:
            return await console.fetch(released.release)

    @property
    def topic(self) -> str:
        return topic_of(KafkaSettings("", self.prefix).prefix, self.plan.id)


@asynccontextmanager
async def site_of(folder: Path, plan: Plan, kafka: KafkaBroker, postgres: Postgres) -> AsyncIterator[Site]:
    site = Site(folder, plan, kafka, postgres.fresh_database())
    processes = site.running.values()
    try:
        await asyncio.gather(*(each.start() for each in processes))
        await asyncio.gather(*(each.listening() for each in processes))
        async with asyncio.timeout(EVERYTHING_S):
            yield site
    finally:
        await asyncio.gather(*(each.stop(signal.SIGKILL) for each in processes), return_exceptions=True)
    for each in processes:
        assert "Traceback" not in each.output.read_text(), each.name


def name_of(device: int) -> str:
    return f"wren-{0xC0FFEE + device:x}"


async def contribute(site: Site, half: int) -> list[bytes]:
    """Each device sends its batches of one half, and all of them again to the other gateway, as after a lost answer."""

    async def one(device: int) -> list[bytes]:
        first = 1 + (half * DEVICES + device) * BATCHES
        sent = [batch_of(site.plan, first + n, REPORTS, window=site.window) for n in range(BATCHES)]
        for gateway in (1 + device % 2, 2 - device % 2):
            answers = await site.submit(gateway, name_of(device), sent)
            assert {answer.status for answer in answers} <= {Status.ACKNOWLEDGED, Status.COUNTED}
        return sent

    return [data for sent in await asyncio.gather(*map(one, range(DEVICES))) for data in sent]


async def tables(dsn: str) -> dict[str, bytes]:
    """Every row of every table, as the database writes it out: bytes in hexadecimal."""
    connection = await asyncpg.connect(dsn)
    try:
        names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'hushsum'")
        rows = {name: await connection.fetch(f'SELECT t::text FROM hushsum."{name}" t') for (name,) in names}
    finally:
        await connection.close()
    return {name: "\n".join(row for (row,) in found).encode() for name, found in rows.items()}


async def assert_anonymous(site: Site) -> None:
    """No record, no file of the broker, no table and no journal tells who has sent a report, or when it came."""
    places = {f"table {name}": data for name, data in (await tables(site.dsn)).items()}
    assert b"wren" not in places["table plans"]
    assert site.plan.hex_id.encode() in b"".join(places.values()), "what stands there is found"
    files = files_of(site.kafka, site.topic)
    places |= {f"the broker's {path.name}": path.read_bytes() for path in files}
    places |= {f"the journal of {name}": each.output.read_bytes() for name, each in site.running.items()}
    for device in range(DEVICES):
        name = name_of(device).encode()
        for needle in (name, name.hex().encode()):
            assert [place for place, data in places.items() if needle in data] == []
    now_ms = SystemRuntime(1).now_ms()
    assert [each for path in files for each in times_in(path, site.began_ms, now_ms)] == []


@pytest.mark.long
@pytest.mark.slow
async def test_reports_of_two_gateways_count_once_over_a_worker_that_is_killed_and_are_nobodys(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    plan = plan_of()
    async with site_of(tmp_path, plan, kafka, postgres) as site:
        sent = await contribute(site, 0)
        await asyncio.sleep(FOLDED_S)
        await site.kill_worker()
        sent += await contribute(site, 1)  # nobody folds meanwhile
        await site.running["worker"].start()
        records = await records_in(kafka, site.topic, PARTITIONS)
        assert len(records) >= 2
        await assert_anonymous(site)
        release = await site.released()
        records += await records_in(kafka, site.topic, PARTITIONS)
        await assert_anonymous(site)
    assert {record.timestamp for record in records} == {plan.window.start_ms(site.window)}
    assert {(record.timestamp_type, record.key, record.headers) for record in records} == {(0, None, ())}
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
    for data in sent:
        report_batch.unpack(data, plan).count_into(counters, counts)
    assert counts.tolist() == [2 * DEVICES * BATCHES * REPORTS]
    assert np.array_equal(release.counters, counters), "none is lost, and none is doubled"
    assert release.count == counts[0]


@pytest.mark.long
async def test_a_silo_counts_once_over_a_worker_that_is_killed_and_no_second_submission_of_its_does(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    plan = plan_of(form="silo")
    rng = np.random.default_rng(41)

    def submission(client: int, stream: int) -> bytes:
        counters = rng.integers(0, 50, plan.counters_shape) + client
        counts = np.array([client * plan.privacy.mechanism.count_scale])
        id = DeltaId(stream, 0)
        return silo.submission(plan, counters, counts, window=site.window, id=id, entropy=OsEntropy())

    async with site_of(tmp_path, plan, kafka, postgres) as site:
        own = [submission(client, 1 + client) for client in range(DEVICES)]
        half = DEVICES // 2

        async def send(clients: range, gateway: int) -> set[Status]:
            answers = [await site.submit(gateway, name_of(client), [own[client]]) for client in clients]
            return {answer.status for (answer,) in answers}

        assert await send(range(half), 1) == {Status.ACKNOWLEDGED}
        await site.folded(half)
        await site.kill_worker()
        assert await send(range(half, DEVICES), 2) == {Status.ACKNOWLEDGED}
        assert await send(range(DEVICES), 2) == {Status.ACKNOWLEDGED}
        await site.submit(1, name_of(0), [submission(0, 99)])
        await site.running["worker"].start()
        await site.folded(2 * DEVICES + 1)
        release = await site.released()
        stamps = {record.timestamp_type for record in await records_in(kafka, site.topic, PARTITIONS)}
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(1, np.int64)
    for data in own:
        silo.unpack(data, plan).add_to(counters, counts)
    assert release.submissions == DEVICES
    assert np.array_equal(release.counters, counters)
    assert np.array_equal(release.counts, counts)
    assert stamps <= {1}, "the brokers' own time, by which a name's entries are kept"
