"""What a process knows to be paid for is believed for a while, and not at all once the store may have gone back."""

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from aggregator.app import Service
from aggregator.errors import RefusedError, StoreUnavailableError
from aggregator.ingest.collection_budget import BELIEVED_S, CollectionBudget
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.staleness_guard import StalenessGuard
from hushsum_proto.answers import Status
from tests.aggregator.local_clients import batch_of, report_plan
from tests.doubles import ManualRuntime, MemoryStore
from tests.services import NOW_MS, WINDOW, RawClient, config_of, service_of

PLAN = report_plan()


class Ledger(MemoryStore):
    """Counts what it is asked, and answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.free = asyncio.Event()
        self.free.set()

    async def charge_collection(self, *_: object) -> None:
        self.questions += 1
        await self.free.wait()


async def test_the_ledgers_word_is_asked_for_again_after_a_while() -> None:
    store, runtime = Ledger(), ManualRuntime(NOW_MS)
    charges = CollectionBudget(partial(store.charge_collection, PLAN), runtime)
    for asked in (1, 2, 3):
        assert not charges.is_covered(WINDOW)
        assert await charges.covered(WINDOW)
        assert await charges.covered(WINDOW)
        await runtime.advance(BELIEVED_S - 0.01)
        assert (charges.is_covered(WINDOW), store.questions) == (True, asked)
        await runtime.advance(0.02)


async def test_a_word_that_was_asked_for_before_the_store_went_back_is_not_believed() -> None:
    store, runtime = Ledger(), ManualRuntime(NOW_MS)
    charges = CollectionBudget(partial(store.charge_collection, PLAN), runtime)
    store.free.clear()
    charging = asyncio.create_task(charges.covered(WINDOW))
    await runtime.settle()
    assert store.questions == 1
    charges.forget()
    store.free.set()
    assert await charging
    assert not charges.is_covered(WINDOW)
    assert await charges.covered(WINDOW)
    assert charges.is_covered(WINDOW)
    charges.forget()
    assert not charges.is_covered(WINDOW)


async def uncharge(service: Service) -> None:
    """What a store has lost that was set back to a copy from before the charge."""

    async def deleted(tx: object) -> None:
        await tx.execute("DELETE FROM spends")  # type: ignore[attr-defined]  # tx is a transaction

    await service.store.database.write(deleted)


async def spends_of(service: Service) -> int:
    return len((await service.store.account("")).spends)


def lose_window(service: Service) -> None:
    del service.gateway._window_tracker._known[WINDOW]  # as a refresh does that does not find it


def set_mark_back(service: Service) -> None:
    staleness = StalenessGuard(1)
    staleness.update_positions({0: 5})
    staleness.set_targets({0: 5})
    staleness.update_positions({0: 4})
    service.gateway._window_tracker._staleness = staleness
    with pytest.raises(RefusedError):
        service.gateway.check_running()
    service.gateway._window_tracker._staleness = None


@pytest.mark.parametrize("notice", [lose_window, set_mark_back])
async def test_a_gateway_that_notices_an_older_store_has_it_charged_again(tmp_path: Path, notice: object) -> None:
    assert callable(notice)
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        assert (await client.submit_one(PLAN.id, batch_of(PLAN, 1, 3))).status is Status.ACKNOWLEDGED
        await uncharge(service)
        notice(service)
        assert (await client.submit_one(PLAN.id, batch_of(PLAN, 2, 3))).status is Status.ACKNOWLEDGED
        assert await spends_of(service) == 1


async def test_a_window_that_is_lost_between_append_and_answer_is_charged_again(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service, RawClient(service.grpc) as client:
        await client.submit_one(PLAN.id, batch_of(PLAN, 1, 3))
        await uncharge(service)
        honest = WindowTracker.refresh
        window_tracker = service.gateway._window_tracker

        async def loses(windows: Collection[int] = ()) -> None:
            del windows
            window_tracker._known.pop(WINDOW, None)

        window_tracker.refresh = loses  # type: ignore[method-assign]  # the store went back in this moment
        (answer,) = await client.submit(PLAN.id, [batch_of(PLAN, 2, 3)])
        assert answer.refusal is not None
        window_tracker.refresh = honest.__get__(window_tracker)  # type: ignore[method-assign]  # as it was
        await window_tracker.open_accepted()
        assert (await client.submit_one(PLAN.id, batch_of(PLAN, 3, 3))).status is Status.ACKNOWLEDGED
        assert await spends_of(service) == 1


async def test_a_ledger_that_does_not_answer_makes_nothing_paid() -> None:
    class Away(Ledger):
        async def charge_collection(self, *_: object) -> None:
            raise StoreUnavailableError("away")

    charges = CollectionBudget(partial(Away().charge_collection, PLAN), ManualRuntime(NOW_MS))
    with pytest.raises(StoreUnavailableError):
        await charges.covered(WINDOW)
    assert not charges.is_covered(WINDOW)
