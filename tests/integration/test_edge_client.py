"""Devices and the real service, over kills of the service and restarts of the devices: each record counts once."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import override

from aggregator.auth.tokens import change_table, issue
from aggregator.fold.verdicts import VerdictKind
from aggregator.model import Scope
from aggregator.store.store import read_sealed, read_verdicts
from edge_client import (
    AuthenticationError,
    Config,
    Credentials,
    EdgeClient,
    FlushTimeoutError,
    NotCountedError,
    Policy,
    SystemRuntime,
)
from hushsum import Plan, Sketch
from hushsum.entropy import OsEntropy
from hushsum_simulator.testbed.process import free_port
from tests.plans import small_plan
from tests.services import NOW_MS, WINDOW, RawClient, config_of, service_of

ROOT = Path(__file__).resolve().parents[2]
PLAN = small_plan(sketch={"rows": 40, "buckets": 512}, window={"length": "3650d"})  # it does not end meanwhile
CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.2, close_flush_s=0.0)
DEVICES = 6
BATCHES = 60


class Aggregator:
    """``python -m aggregator`` as a process of its own, always on the same port."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.data = folder / "data"
        self.target = f"127.0.0.1:{free_port()}"
        self._plan_file = folder / "plan.json"
        self._plan_file.write_bytes(plan.to_bytes())
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        arguments = [
            *("--plan", str(self._plan_file), "--data", str(self.data), "--listen", self.target),
            *("--metrics-listen", "", "--partitions", "4", "--manual", "--retain-verdicts", "--log-format", "json"),
        ]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aggregator", *arguments),
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"},
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if line.startswith(b"{") and json.loads(line)["event"] == "listening":
                self.target = json.loads(line)["grpc"]
                self._drain = asyncio.create_task(self._process.stderr.read())
                return
        pytest.fail(f"the aggregator did not start: {await self._process.wait()}")

    async def end(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._drain is not None
        self._process.send_signal(number)
        await self._process.wait()
        await self._drain
        self._process = None

    async def seal(self) -> int:
        async with RawClient(self.target) as client:
            return await client.seal()

    async def kill_if_running(self) -> None:
        if self._process is not None:
            await self.end(signal.SIGKILL)


@asynccontextmanager
async def aggregator_of(folder: Path, plan: Plan) -> AsyncIterator[Aggregator]:
    aggregator = Aggregator(folder, plan)
    await aggregator.start()
    try:
        yield aggregator
    finally:
        await aggregator.kill_if_running()


@pytest.fixture
def runtime() -> Iterator[SystemRuntime]:
    runtime = SystemRuntime(4)
    yield runtime
    runtime.close()


def device(aggregator: Aggregator, path: Path, runtime: SystemRuntime) -> EdgeClient:
    policy = Policy(max_epsilon=1.0)
    return EdgeClient(aggregator.target, spool=path, client_id=path.stem, policy=policy, config=CONFIG, runtime=runtime)


def assert_counted_once(aggregator: Aggregator, records: npt.NDArray[np.float64], window: int, deltas: int) -> None:
    expected = Sketch(aggregator.plan)
    expected.add(records)
    sealed = read_sealed(aggregator.data / "store.db", aggregator.plan, window)
    assert sealed is not None
    assert np.array_equal(sealed.counters, expected.counters)
    assert np.array_equal(sealed.counts, expected.counts)
    verdicts = [verdict for _, verdict in read_verdicts(aggregator.data / "store.db", aggregator.plan)]
    counted = Counter((each.client_id, each.id) for each in verdicts if each.kind is VerdictKind.COUNTED)
    assert len(counted) == deltas
    assert set(counted.values()) == {1}


@pytest.mark.slow
async def test_a_fleet_loses_and_doubles_nothing_over_kills_of_the_service_and_restarts_of_its_devices(
    tmp_path: Path, runtime: SystemRuntime, rng: np.random.Generator
) -> None:
    records = rng.uniform(0, 10, (DEVICES, BATCHES, 5, 2))
    async with aggregator_of(tmp_path, PLAN) as aggregator:
        paths = [tmp_path / f"device-{number}.db" for number in range(DEVICES)]

        async def contribute(path: Path, batches: npt.NDArray[np.float64]) -> None:
            async with device(aggregator, path, runtime) as client:
                for batch in batches:
                    await client.add(batch)

        async def all_of_them(part: slice) -> None:
            await asyncio.gather(*(contribute(path, records[n, part]) for n, path in enumerate(paths)))

        await all_of_them(slice(0, 20))  # devices leave without waiting for answers
        running = asyncio.create_task(all_of_them(slice(20, 40)))
        await asyncio.wait([running], timeout=0.05)
        await aggregator.end(signal.SIGKILL)
        await running
        await all_of_them(slice(40, BATCHES))  # offline
        await aggregator.start()
        clients = [device(aggregator, path, runtime) for path in paths]
        await asyncio.gather(*(client.__aenter__() for client in clients))
        await asyncio.gather(*(client.flush(timeout_s=120) for client in clients))
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))
        for client in clients:
            assert client.status().acknowledged == client.status().deltas == BATCHES
        assert_counted_once(aggregator, records.reshape(-1, 2), await aggregator.seal(), DEVICES * BATCHES)


class DeviceRuntime(SystemRuntime):
    """A device whose clock agrees with that of the services in ``tests.services``."""

    @override
    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def in_time() -> Iterator[DeviceRuntime]:
    runtime = DeviceRuntime()
    yield runtime
    runtime.close()


async def test_a_device_hears_what_became_of_a_delta_after_its_window_was_sealed(
    tmp_path: Path, in_time: DeviceRuntime
) -> None:
    plan = small_plan()
    async with (
        service_of(config_of(tmp_path, plan)) as service,
        EdgeClient(service.grpc, spool=tmp_path / "spool.db", config=CONFIG, runtime=in_time) as client,
    ):
        await client.add([[1.0, 2.0], [3.0, 4.0]])
        await client.flush(timeout_s=120)
        async with RawClient(service.grpc) as operator:
            assert await operator.seal() == WINDOW
        await client.add([5.0, 6.0])
        with pytest.raises(NotCountedError, match="1 delta arrived after their window was sealed"):
            await client.flush(timeout_s=120)
        await client.add([7.0, 8.0], time=plan.window.start_ms(WINDOW + 5))
        with pytest.raises(NotCountedError, match="window_in_future"):
            await client.flush(timeout_s=120)
        expected = Sketch(plan)
        expected.add([[1.0, 2.0], [3.0, 4.0]])
        sealed = await service.store.sealed_window(plan, WINDOW)
        assert sealed is not None
        assert np.array_equal(sealed.sketch.counters, expected.counters)
    tallies = client.status()
    assert (tallies.acknowledged, tallies.late, tallies.refused) == (1, 1, {"window_in_future": 1})


async def test_a_service_that_shuts_down_finishes_what_it_took_and_the_rest_waits_for_the_next_one(
    tmp_path: Path, in_time: DeviceRuntime, rng: np.random.Generator
) -> None:
    plan = small_plan()
    records = rng.uniform(0, 10, (100, 2, 2))
    target = f"127.0.0.1:{free_port()}"
    async with service_of(config_of(tmp_path, plan, listen=target)):
        client = EdgeClient(target, spool=tmp_path / "spool.db", config=CONFIG, runtime=in_time)
        await client.__aenter__()
        for batch in records[:60]:
            await client.add(batch)
    for batch in records[60:]:
        await client.add(batch)
    with pytest.raises(FlushTimeoutError):
        await client.flush(timeout_s=0.1)
    async with service_of(config_of(tmp_path, plan, listen=target)) as service:
        await client.flush(timeout_s=120)
        await client.__aexit__(None, None, None)
        async with RawClient(target) as operator:
            assert await operator.seal() == WINDOW
        expected = Sketch(plan)
        expected.add(records.reshape(-1, 2))
        sealed = await service.store.sealed_window(plan, WINDOW)
        assert sealed is not None
        assert np.array_equal(sealed.sketch.counters, expected.counters)
        assert np.array_equal(sealed.sketch.counts, expected.counts)
    assert client.status().acknowledged == 100


async def test_a_spool_takes_the_name_of_the_token_that_the_service_accepts_first(
    tmp_path: Path, in_time: DeviceRuntime
) -> None:
    alice, bob, eve = (issue(OsEntropy(), name, (Scope.SUBMIT,), now_ms=NOW_MS) for name in ("alice", "bob", "eve"))
    file, spool = tmp_path / "tokens.jsonl", tmp_path / "spool.db"
    change_table(file, lambda table: table.changed(with_=[alice.entry, bob.entry]))
    config = config_of(tmp_path, small_plan(), authentication="token", tokens=str(file))

    def device(token: str, client_id: str | None = None) -> EdgeClient:
        shown = Credentials(token=token)
        return EdgeClient(
            service.grpc, spool=spool, client_id=client_id, config=CONFIG, runtime=in_time, credentials=shown
        )

    async def contribute(client: EdgeClient) -> None:
        async with client:
            assert client.client_id == "alice"
            await client.add([1.0, 2.0])
            await client.flush(timeout_s=120)

    async with service_of(config) as service:
        for token, name, said in (
            (eve.text, None, "expected a valid token with every call: this one has none, or one that is unknown"),
            (alice.text, "till-3", "the token belongs to 'alice', but the caller declares another client id"),
        ):  # neither binds the spool
            with pytest.raises(AuthenticationError, match=said):
                await device(token, name).__aenter__()
        for name in (None, "alice", None):
            await contribute(device(alice.text, name))
        with pytest.raises(AuthenticationError, match="the token belongs to 'bob'"):
            await contribute(device(bob.text))
        async with device(alice.text) as client:
            await client.flush(timeout_s=120)
        assert client.status().acknowledged == client.status().deltas >= 3
