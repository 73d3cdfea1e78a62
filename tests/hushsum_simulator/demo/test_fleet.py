"""Every delta of a fleet is known by its id, and so is how many have no answer when their service is gone."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
from typing_extensions import override

from edge_client import SystemRuntime
from hushsum.delta import Delta
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.evaluation import SentDelta
from hushsum_simulator.demo.fleet import Delivery, Fleet, Totals
from hushsum_simulator.progress import Quiet
from tests.edge_client.model_service import ModelService
from tests.plans import small_plan

HOUR = 3_600_000
NOW = 480_000 * HOUR + 1


class StoppedClock(SystemRuntime):
    """Devices whose clock stands still, shortly after a window began."""

    @override
    def now_ms(self) -> int:
        return NOW


def shares() -> Sequence[ClientRecords]:
    """Three clients: with two batches, one and none."""
    records = np.random.default_rng(3).uniform(0, 10, (3, 5, 2))
    return [ClientRecords("a", (records[0], records[1])), ClientRecords("b", (records[2],)), ClientRecords("c", ())]


async def test_a_fleet_knows_every_delta_that_counts(tmp_path: Path) -> None:
    plan = small_plan()
    service = ModelService(plan)
    service.clock_ms = lambda: NOW
    await service.start()
    fleet = Fleet(plan, shares(), target=service.target, folder=tmp_path, time_ms=NOW)
    fleet._devices.close()
    fleet._devices.runtime = StoppedClock()
    fleet.open_gate()
    await fleet.run()
    await service.stop()
    assert fleet.sent == {SentDelta(client_id, id) for client_id, id in service.fold.bytes_of}
    assert len(fleet.sent) == 3
    assert fleet.at_gate
    assert fleet.totals.spooled == fleet.totals.acknowledged == 3
    assert sum(Delta.unpack(data, plan).records for data in service.fold.bytes_of.values()) == 15


async def test_an_answer_that_a_client_notes_after_the_kill_is_not_missing() -> None:
    """Of three durable deltas one is answered, and one's answer is on its way through its client at the kill."""
    fleet, service, sent_again = Mock(), Mock(), asyncio.Event()
    fleet.totals, fleet.progress, fleet.at_gate = Totals(3, 1, 0), (3, 1), True
    fleet.messages, fleet.expected, fleet.hold_bytes = "deltas", 3, 0
    fleet.run = sent_again.wait
    service.durable.return_value = 3

    async def kill() -> None: ...

    async def start() -> None:
        fleet.totals = Totals(3, 2, 0)
        sent_again.set()

    service.kill, service.start = kill, start
    proxy: Any = Mock()
    assert await Delivery(fleet, service, proxy, Quiet()).run() == 1
