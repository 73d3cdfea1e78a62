"""How far a device has come in a round of a secure sum can be shown while it runs."""

import asyncio
from pathlib import Path

from edge_client import Config, EdgeClient
from edge_client.status import RoundProgress
from hushsum.secure_sum.client import ClientStep
from tests.edge_client.round_service import RoundService
from tests.edge_client.secure_plans import keys_of
from tests.plans import small_plan

CONFIG = Config(backoff_first_s=0.001, backoff_longest_s=0.002, close_flush_s=0.0, first_contact_s=5.0)
PLAN = small_plan(
    privacy={
        "mode": "secure",
        "total_delta": "0.000001",
        "secure": {"cohort": 5, "corrupt": 0, "dropout": "0.25", "cohort_wait": "5s"},
    },
    sketch={"rows": 4, "buckets": 16},
    window={"length": "3650d"},  # one window, whenever this runs
)


async def test_a_device_stands_in_a_round_as_long_as_it_is_in_one(tmp_path: Path) -> None:
    service = RoundService(PLAN, seats=1)
    service.companion_keys = keys_of(("device-b", "device-c", "device-d", "device-e"))
    await service.start()
    seen: list[RoundProgress] = []
    try:
        async with EdgeClient(service.target, spool=tmp_path / "spool", client_id="device-a", config=CONFIG) as client:
            before = client.status().round
            work = asyncio.create_task(client.flush(20))
            while not work.done():
                if (progress := client.status().round) is not None:
                    seen.append(progress)
                await asyncio.sleep(0)
            await work
            assert (before, client.status().round) == (None, None)
            assert client.status().submissions_counted == 1
    finally:
        await service.stop()
    assert {standing.round for standing in seen} == service.sums.keys()
    order = list(ClientStep)
    steps = [order.index(standing.step) for standing in seen]
    assert steps == sorted(steps)
    assert ClientStep.ADVERTISED in {standing.step for standing in seen}  # it waits for others there
    assert ClientStep.REFUSED not in {standing.step for standing in seen}
