"""Secure sums of a service of several processes: devices and log have their keys, and every cohort counts once."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from aggregator.fold.fold import NOBODY
from aggregator.fold.verdicts import RememberedKind
from aggregator.log.entries import SignedMessages
from aggregator.log.kafka.client import KafkaSettings
from aggregator.log.kafka.log import KafkaLog
from aggregator.model import NewEntry
from aggregator.runtime import SystemRuntime
from aggregator.store.postgres import PostgresDatabase, PostgresSettings
from aggregator.store.store import Store
from aggregator.workers.remote import RemoteFolds
from edge_client import Config, EdgeClient
from edge_client import SystemRuntime as DeviceRuntime
from hushsum import Plan, Sketch
from hushsum.delta import digest
from hushsum.entropy import OsEntropy
from hushsum.errors import Reason
from hushsum.labels import ENTRY
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import CohortSumEntry, partition_of_sum
from hushsum_proto.rounds import Enter, RoundOutcome, RoundResult, entry_parts
from hushsum_simulator.console import Console
from hushsum_simulator.plans import central_twin
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from tests.aggregator.secure_clients import Line, stub_of
from tests.brokers import fresh_prefix
from tests.doubles import RecordingObserver
from tests.integration.test_cluster import metric
from tests.plans import small_plan
from tests.processes import Aggregator

COHORT = 8
PARTITIONS = 2
ROLES = {"gateway-1": "gateway", "gateway-2": "gateway", "worker": "worker", "releaser": "releaser"}
DEVICE = Config(backoff_first_s=0.05, backoff_longest_s=0.2, close_flush_s=0.0)
EVERYTHING_S = 300


def keys_in(folder: Path, roles: Mapping[str, Role]) -> Path:
    """Makes a key for each name, and the directory of them all."""
    lines = []
    for name, role in roles.items():
        key = SigningKey.generate(OsEntropy())
        key.save(folder / f"{name}.pem")
        lines.append(toml_of(DirectoryKey(name, role, key.verify_key)))
    file = folder / f"of-{'-'.join(sorted(set(roles.values())))}.toml"
    file.write_text("".join(lines))
    return file


def plan_of(clients: Path) -> Plan:
    """A plan of these clients alone; ε is so large that every share of the noise is 0, but for one in 10^20."""
    secure = {"cohort": COHORT, "dropout": "0.25", "corrupt": "0.1", "cohort_wait": "5m"}
    return small_plan(
        sketch={"rows": 4, "buckets": 32},
        privacy={
            "mode": "secure",
            "epsilon": 1000,
            "total_epsilon": 5000,
            "total_delta": "0.000000001",
            "secure": {**secure, "directory": Directory.from_toml(clients.read_text()).digest().hex()},
        },
        window={"length": "3650d"},
    )


class Site:
    """Two gateways, a worker and a releaser, which share a signed log and know the clients.

    Attributes:
        processes: By name.
    """

    def __init__(self, folder: Path, plan: Plan, clients: Path, kafka: KafkaBroker, dsn: str) -> None:
        self._folder, self._plan = folder, plan
        self._kafka = KafkaSettings(kafka.bootstrap, fresh_prefix())
        (folder / "plan.json").write_bytes(plan.bundle)
        names = {name: Role(role) for name, role in ROLES.items() if role in {"gateway", "releaser"}}
        self._directory = keys_in(folder, names)
        shared = {
            "plan": str(folder / "plan.json"),
            "log": "kafka",
            "store": "postgresql",
            "partitions": PARTITIONS,
            "manual": True,
            "kafka_bootstrap": self._kafka.bootstrap,
            "kafka_prefix": self._kafka.prefix,
            "kafka_session_s": 6,  # what a broker allows at least
            "checkpoint_s": 3600,  # so that a worker that is killed has stored nothing of what it had folded
            "directory": str(self._directory),
            "client_directory": str(clients),
        }
        self.processes = {
            name: Aggregator(
                folder,
                name,
                {**shared, "role": role, **({f"{role}_key": str(folder / f"{name}.pem")} if name in names else {})},
                dsn,
            )
            for name, role in ROLES.items()
        }

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(each.start() for each in self.processes.values()))
        await asyncio.gather(*(each.listening() for each in self.processes.values()))
        return self

    async def __aexit__(self, *_: object) -> None:
        stops = (each.stop(signal.SIGKILL) for each in self.processes.values())
        await asyncio.gather(*stops, return_exceptions=True)

    async def append_again(self, entry: CohortSumEntry) -> None:
        """As the first gateway does after an append of which it never heard: the same sum once more."""
        directory = Directory.from_toml(self._directory.read_text())
        key = SigningKey.load(self._folder / "gateway-1.pem")
        messages = SignedMessages(self._plan.id, directory, gateway=key)
        runtime, observer = SystemRuntime(1), RecordingObserver()
        log = await KafkaLog.open(self._kafka, self._plan, PARTITIONS, messages, runtime, observer)
        where = partition_of_sum(entry.id, PARTITIONS)
        await log.append([NewEntry(where, entry.window, entry_to_bytes(entry))])
        await log.close()


def names_of(cohort: int) -> list[str]:
    return [f"device-{cohort}-{number}" for number in range(COHORT)]


class Cohort:
    """Devices that take part together, each with its key, its spool and its records.

    Args:
        folder: Of keys and spools.
        number: Tells it from others.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.names = names_of(number)
        rng = np.random.default_rng([17, number])
        self.records = [rng.uniform(0, 10, (2 + each, 2)) for each in range(COHORT)]
        self._runtime = DeviceRuntime()

    @asynccontextmanager
    async def devices(self, target: str) -> AsyncIterator[list[EdgeClient]]:
        async with AsyncExitStack() as stack:
            stack.callback(self._runtime.close)
            clients = [
                EdgeClient(
                    target,
                    spool=self.folder / f"{name}.spool",
                    client_id=name,
                    key=self.folder / f"{name}.pem",
                    config=DEVICE,
                    runtime=self._runtime,
                )
                for name in self.names
            ]
            yield [await stack.enter_async_context(client) for client in clients]

    async def take_part(self, target: str) -> None:
        """Every device adds its records, takes part, and is told that it counts."""
        async with self.devices(target) as devices:
            await asyncio.gather(*(device.add(own) for device, own in zip(devices, self.records, strict=True)))
            await asyncio.gather(*(device.flush(240) for device in devices))
            tallies = [device.status() for device in devices]
        assert {(each.submissions_spent, each.submissions_counted, each.submissions_lost) for each in tallies} == {
            (1, 1, 0)
        }

    @property
    def window_and_round(self) -> tuple[int, bytes]:
        """The window and the round that its devices have spent, by their spools: the same for all."""
        rows: set[tuple[int, bytes]] = set()
        for name in self.names:
            database = sqlite3.connect(self.folder / f"{name}.spool")
            rows.update(database.execute("SELECT window, round FROM rounds"))
            database.close()
        ((window, round_id),) = rows
        return window, round_id


def entry_of(plan: Plan, cohort: Cohort) -> CohortSumEntry:
    """The sum that a gateway had to write: without noise it is that of the records."""
    window, round_id = cohort.window_and_round
    sketch = sketch_of(plan, cohort)
    words = np.concatenate([sketch.counters.ravel(), sketch.counts.ravel()]).astype(plan.words.dtype)
    return CohortSumEntry(plan.id, window, round_id, COHORT, plan.words.pack(words), 0)


def sketch_of(plan: Plan, *cohorts: Cohort) -> Sketch:
    sketch = Sketch(central_twin(plan))
    for cohort in cohorts:
        for records in cohort.records:
            sketch.add(records)
    return sketch


async def outcome_at(address: str, key_file: Path, enter: Enter) -> RoundOutcome:
    """What a gateway says at last to the client of a key that enters."""
    client_id, key = key_file.stem, SigningKey.load(key_file)
    async with stub_of(address) as stub:
        line = Line.open(stub, client_id)
        await line.say(replace(enter, signature=key.sign(ENTRY, *entry_parts(enter, client_id))))
        while not isinstance(reply := await line.hear(), RoundOutcome):
            pass
        return reply


async def folded(worker: Aggregator, sums: int) -> None:
    """Returns once a worker has folded so many entries since its start, and not one more."""
    while True:
        found = await metric(worker, "hushsum_folded_total")
        assert found <= sums
        if found == sums:
            return
        await asyncio.sleep(0.1)


@pytest.mark.long
async def test_two_gateways_sum_a_cohort_each_and_a_worker_that_is_killed_counts_both_once(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    dsn = postgres.fresh_database()
    first, second = Cohort(tmp_path, 1), Cohort(tmp_path, 2)
    clients = keys_in(tmp_path, dict.fromkeys([*first.names, *second.names], Role.CLIENT))
    plan = plan_of(clients)
    async with Site(tmp_path, plan, clients, kafka, dsn) as site, asyncio.timeout(EVERYTHING_S):
        running = site.processes
        addresses = [await running[f"gateway-{number}"].address() for number in (1, 2)]
        await first.take_part(addresses[0])
        await folded(running["worker"], 1)
        assert await running["worker"].stop(signal.SIGKILL) == -signal.SIGKILL
        await second.take_part(addresses[1])  # nobody folds meanwhile: a sum counts once it is in the log and in time
        await site.append_again(entry_of(plan, first))
        await running["worker"].start()
        await folded(running["worker"], 3)  # nothing of the first was stored

        window, round_id = first.window_and_round
        async with Console(await running["releaser"].address()) as console:
            assert await console.seal(early=True) == window
            await assert_remembered(dsn, plan, [entry_of(plan, each) for each in (first, second)])
            asked = Enter(plan.id, window, round_id)
            one = tmp_path / f"{first.names[0]}.pem"
            told = [(await outcome_at(address, one, asked)).result for address in addresses]
            assert told == [RoundResult.COUNTED, RoundResult.UNKNOWN], (
                "a round is remembered where it was run, and nowhere else"
            )
            entered = await outcome_at(addresses[1], one, Enter(plan.id, window))
            assert entered.result is RoundResult.LATE
            released = await console.release()
        async with Console(addresses[1]) as console:
            release = await console.fetch(released.release)
            status = await console.status()
    assert (release.submissions, release.cohorts) == (2 * COHORT, 2)
    assert np.array_equal(release.counters, sketch_of(plan, first, second).counters)
    assert (status.epsilon_spent, status.epsilon_left) == ("1000", "4000")
    for process in running.values():
        assert "Traceback" not in process.output.read_text(), process.name


async def assert_remembered(dsn: str, plan: Plan, sums: list[CohortSumEntry]) -> None:
    """What gateways tell of sums by what the folds have stored, once the window is sealed."""
    runtime = SystemRuntime(1)
    store = Store(await PostgresDatabase.open(PostgresSettings(dsn, pool=2), runtime))
    folds = RemoteFolds(plan, store, runtime, RecordingObserver())

    async def recalled(entry: CohortSumEntry, sign: bytes) -> tuple[RememberedKind, Reason | None]:
        partition = partition_of_sum(entry.id, PARTITIONS)
        return await folds.recall(partition, NOBODY, entry.id, sign, entry.window)

    try:
        for entry in sums:
            assert await recalled(entry, digest(entry.sum)) == (RememberedKind.COUNTED, None)
            assert await recalled(entry, bytes(8)) == (RememberedKind.REFUSED, Reason.ID_REUSED)
            never = entry._replace(round=bytes(32))
            assert await recalled(never, digest(entry.sum)) == (RememberedKind.LATE, None)
    finally:
        await folds.stop()
        await store.close()
