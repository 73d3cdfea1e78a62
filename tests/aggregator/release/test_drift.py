"""The p-value of the metrics page: of the two newest released windows, after each release and after a start."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest

from aggregator.app import Service
from aggregator.release.drift import p_value
from hushsum import Plan, Sketch
from hushsum.delta import DeltaId, encode
from hushsum.entropy import OsEntropy
from hushsum.releases import draw
from tests.plans import small_plan
from tests.services import WINDOW, RawClient, config_of, service_of

PLAN = small_plan(sketch={"rows": 60, "buckets": 256}, privacy={"epsilon": 50, "total_epsilon": 1000})
CUMULATIVE = small_plan(
    sketch={"rows": 60, "buckets": 256},
    privacy={"epsilon": 50, "total_epsilon": 1000},
    window={"release": "cumulative", "horizon": 10},
)


async def released(client: RawClient, plan: Plan, number: int, centre: float) -> None:
    records = np.random.default_rng(number).normal(centre, 0.5, (2000, 2))
    delta, _ = encode(plan, records, window=WINDOW + number, id=DeltaId(3, number))
    assert delta is not None
    await client.submit_one(plan.id, delta.pack(plan))
    await client.seal()
    await client.release()


async def shown(service: Service, *, small: bool) -> float:
    async with asyncio.timeout(120):
        while True:
            found = service.metrics.registry.get_sample_value("hushsum_drift_p_value")
            if found is not None and not math.isnan(found) and (found < 1e-3) == small:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("plan", [PLAN, CUMULATIVE], ids=["tumbling", "cumulative"])
async def test_a_window_of_another_population_shows_after_its_release_and_after_a_start(
    tmp_path: Path, plan: Plan
) -> None:
    config = config_of(tmp_path, plan, skew_s=4 * 3600.0, metrics_listen="127.0.0.1:0")
    async with service_of(config) as service, RawClient(service.grpc) as client:
        await released(client, plan, 0, 3.0)
        await released(client, plan, 1, 3.0)
        await shown(service, small=False)
        await released(client, plan, 2, 6.0)
        await shown(service, small=True)
    async with service_of(config) as service:
        await shown(service, small=True)


def test_one_window_has_nothing_to_be_compared_with() -> None:
    only = draw(Sketch(PLAN), kind="tumbling", window=WINDOW, entropy=OsEntropy(), accounted=True)
    assert p_value([only.to_bytes()]) is None
