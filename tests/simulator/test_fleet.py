"""Every delta of a fleet is known by its id, the presences of clients without records too."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from edge_client import SystemRuntime
from hushsum import Plan
from hushsum.delta import Delta, read_header
from hushsum.errors import Reason
from hushsum_proto.answers import Answer, Refusal, Status
from simulator.fleet import Fleet
from simulator.reconciliation import Sent
from simulator.shares import Share
from tests.edge_client.model_service import Fold, ModelService
from tests.plans import small_plan

HOUR = 3_600_000
NOW = 480_000 * HOUR + 1


class StoppedClock(SystemRuntime):
    """Devices whose clock stands still, shortly after a window began."""

    @override
    def now_ms(self) -> int:
        return NOW


class YoungFold(Fold):
    """Takes nothing for the windows before this one: in these there was no service."""

    @override
    def take(self, client_id: str, data: bytes) -> Answer:
        header = read_header(data)
        if header.window < NOW // HOUR:
            return Answer(header.id, Status.REFUSED, Refusal.of(Reason.WINDOW_IN_PAST, "before the first"))
        return super().take(client_id, data)


def shares() -> Sequence[Share]:
    """Three clients: with two batches, one and none."""
    records = np.random.default_rng(3).uniform(0, 10, (3, 5, 2))
    return [Share("a", (records[0], records[1])), Share("b", (records[2],)), Share("c", ())]


@pytest.mark.parametrize(("participation", "deltas"), [("public", 6), ("protected", 3)])
async def test_a_fleet_knows_every_delta_that_counts_and_no_presence_that_was_refused(
    tmp_path: Path, participation: str, deltas: int
) -> None:
    plan: Plan = small_plan(privacy={"participation": participation})
    service = ModelService(plan, YoungFold(plan))
    service.clock_ms = lambda: NOW
    await service.start()
    fleet = Fleet(plan, shares(), target=service.target, folder=tmp_path, time_ms=NOW)
    fleet._runtime.close()
    fleet._runtime = StoppedClock()
    fleet.open_gate()
    await fleet.run()
    await service.stop()
    assert fleet.sent == {Sent(client_id, id) for client_id, id in service.fold.bytes_of}
    assert len(fleet.sent) == deltas
    assert fleet.at_gate
    assert fleet.totals.deltas == fleet.totals.acknowledged == deltas
    assert sum(Delta.unpack(data, plan).records for data in service.fold.bytes_of.values()) == 15
