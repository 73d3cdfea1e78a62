"""Devices, a real service and an analyst: which windows are released."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from edge_client import Config, EdgeClient
from hushsum import Plan, Release, Sketch
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_simulator.console import Console
from hushsum_simulator.errors import ServiceError
from tests.integration.test_edge_client import DeviceRuntime
from tests.plans import small_plan
from tests.services import WINDOW, RawClient, config_of, counted, service_of

CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.2, close_flush_s=0.0)


@pytest.fixture
def in_time() -> Iterator[DeviceRuntime]:
    runtime = DeviceRuntime()
    yield runtime
    runtime.close()


async def collected(
    folder: Path, runtime: DeviceRuntime, plan: Plan, records: list[int]
) -> tuple[pb.ReleaseInfo, Release | None, Sketch]:
    """What a service makes of a window in which device i has ``records[i]`` records; what it must hold, exactly.

    An analyst lists and fetches it.
    """
    expected, rng = Sketch(plan), np.random.default_rng(1)
    async with service_of(config_of(folder, plan, partitions=2)) as service, AsyncExitStack() as stack:
        for device, size in enumerate(records):
            client = EdgeClient(service.grpc, spool=folder / f"{device}.db", config=CONFIG, runtime=runtime)
            await stack.enter_async_context(client)
            values = rng.uniform(0, 10, (size, 2))
            if size:
                await client.add(values)
                expected.add(values, clients=[device] * size if plan.privacy.unit == "client" else None)
            await client.flush(timeout_s=120)
        async with RawClient(service.grpc) as operator:
            assert await operator.seal() == WINDOW
            sealed = await service.store.sealed_window(plan, WINDOW)
            assert sealed is not None
            assert np.array_equal(sealed.sketch.counters, expected.counters)
            assert np.array_equal(sealed.sketch.counts, expected.counts)
            told = (await operator.release()).release
        assert counted(service, "hushsum_outcomes_withheld_total", kind="tumbling") == told.withheld
        async with Console(service.grpc) as analyst:
            (info,) = await analyst.releases()
            assert info.withheld == told.withheld
            if info.withheld:
                with pytest.raises(ServiceError, match=f"window {WINDOW} is withheld"):
                    await analyst.fetch(info)
                return told, None, expected
            return told, await analyst.fetch(info), expected


@pytest.mark.parametrize(("min_clients", "withheld"), [(1, False), (10**6, True)])
async def test_devices_are_counted_with_noise(
    tmp_path: Path, in_time: DeviceRuntime, min_clients: int, withheld: bool
) -> None:
    # The test has an epsilon of 45: once in 10^50 windows three clients are taken for none. The counters have 5.
    privacy: dict[str, object] = {"epsilon": 50, "min_clients_share": "0.9"}
    plan = small_plan(privacy=privacy, window={"min_clients": min_clients})
    told, release, expected = await collected(tmp_path, in_time, plan, [1, 2, 1])
    assert told.withheld == withheld
    if release is not None:
        assert abs(release.count - expected.records) < 60  # one in 10^12 is off by as much
