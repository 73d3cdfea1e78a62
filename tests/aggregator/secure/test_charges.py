"""What a secure sum costs the population, and when: with the first vector that is asked for, and never by entering."""

import asyncio
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from aggregator.app import Service
from aggregator.errors import StoreUnavailableError
from aggregator.model import RoundMembers
from hushsum import Plan
from hushsum.errors import BudgetError
from hushsum.secure_sum.messages import Kind
from hushsum_proto import metadata
from hushsum_proto.rounds import Enter, RoundOutcome, RoundResult, Waiting
from tests.aggregator.kafka_logs import until
from tests.aggregator.secure_clients import Line, SecureClient, fleet_of, stub_of
from tests.aggregator.secure_site import LEAST, SIZE, all_parts, plan_of, results, sealed, site_config, total
from tests.services import HOUR_MS, NOW_MS, WINDOW, SetRuntime, counted, service_of, trailing

PLAN = plan_of()
ELSEWHERE = bytes(32)  # a round at another gateway


async def charged(service: Service) -> list[int | None]:
    """The windows that the ledger has paid for."""
    return [spend.window for spend in (await service.store.account("")).spends]


def reason_of(told: object) -> str:
    """Why a call was refused."""
    assert isinstance(told, grpc.aio.AioRpcError), told
    return str(trailing(told)[metadata.REASON])


async def test_entering_windows_takes_nothing_from_the_ledger(tmp_path: Path) -> None:
    runtime = SetRuntime()
    async with service_of(site_config(tmp_path, PLAN), runtime) as service, stub_of(service.grpc) as stub:
        lines = [Line.open(stub, "client-0") for _ in range(6)]
        for number, line in enumerate(lines):
            runtime.set_ms = NOW_MS + number * HOUR_MS
            await line.say(Enter(service.plan.id, WINDOW + number))
            assert await line.hear() == Waiting(SIZE)
        assert await charged(service) == []
        for line in lines:
            line.cut()


async def test_nobody_enters_a_window_that_has_not_begun(tmp_path: Path) -> None:
    runtime = SetRuntime(NOW_MS + HOUR_MS // 2 - 1000)  # a second before the next window, which the skew has opened
    async with service_of(site_config(tmp_path, PLAN), runtime) as service, stub_of(service.grpc) as stub:
        line = Line.open(stub, "client-0")
        await line.say(Enter(PLAN.id, WINDOW + 1))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await line.hear()
        assert reason_of(refused.value) == "unavailable"
        runtime.set_ms += 1000
        line = Line.open(stub, "client-0")
        await line.say(Enter(PLAN.id, WINDOW + 1))
        assert await line.hear() == Waiting(SIZE)
        line.cut()


class Watch:
    """What a fleet has heard, and what the ledger held, when the service had a window charged.

    Args:
        service: It is told to charge as always, then to do what ``then`` does.
        fleet: Its clients say which messages came.
    """

    def __init__(self, service: Service, fleet: list[SecureClient]) -> None:
        self.heard: set[Kind] = set()
        self.at_charge: list[set[Kind]] = []
        self.fails: Exception | None = None
        self._charge = service.store.charge_collection
        service.store.charge_collection = self._watched  # type: ignore[method-assign]  # it is looked at, and goes on
        for client in fleet:
            client.hook = self._hear

    def _hear(self, _: SecureClient, kind: Kind) -> None:
        self.heard.add(kind)

    async def _watched(self, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
        self.at_charge.append(set(self.heard))
        await self._charge(plan, window, members)
        if self.fails is not None:
            raise self.fails


async def test_a_window_is_charged_once_all_shares_are_there_and_before_any_vector_is_asked_for(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        watch = Watch(service, fleet)
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        assert watch.at_charge == [{Kind.INVITATION, Kind.ROSTER, Kind.OPENINGS}]
        assert await charged(service) == [WINDOW]


async def test_a_round_that_ends_before_all_shares_are_there_costs_nothing(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan = plan_of(cohort_wait="100ms")
    async with service_of(site_config(tmp_path, plan)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, LEAST, rng)
        fleet[0].vanishes_at = Kind.OPENINGS
        told = asyncio.gather(*(client.take_part(stub, WINDOW) for client in fleet), return_exceptions=True)
        await until(lambda: min(len(client.waits) for client in fleet[1:]) == 2)  # they wait again: too few are left
        assert await charged(service) == []
        told.cancel()


async def test_a_ledger_that_another_plan_has_emptied_meanwhile_ends_the_round_unspent(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan = plan_of(total_epsilon="1")
    async with service_of(site_config(tmp_path, plan)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, SIZE, rng)
        watch = Watch(service, fleet)
        watch.fails = BudgetError("nothing is left")
        told = await all_parts(fleet, stub)
        assert {reason_of(each) for each in told} == {"budget"}
        assert Kind.GRANT not in watch.heard
        assert not any(client.spent for client in fleet)
        assert counted(service, "hushsum_submissions_spent_total") == 0


async def test_a_ledger_that_does_not_answer_ends_the_round_unspent_and_what_it_charged_stays(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        watch = Watch(service, fleet)
        watch.fails = StoreUnavailableError("the connection broke after the commit")
        told = await all_parts(fleet, stub)
        assert {(each.result, each.again) for each in told if isinstance(each, RoundOutcome)} == {
            (RoundResult.ABORTED, True)
        }
        assert Kind.GRANT not in watch.heard
        assert not any(client.spent for client in fleet)
        assert await charged(service) == [WINDOW]
        watch.fails = None
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE  # nobody lost its window by it


async def test_clients_that_were_never_asked_for_a_vector_enter_again_after_a_round_that_failed(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, 2 * SIZE, rng)
        for client in fleet[:3]:
            client.vanishes_at = Kind.GRANT  # too many for the others to go on
        await all_parts(fleet[:SIZE], stub)
        unspent = [client for client in fleet if not client.spent][:SIZE]
        assert any(client.rounds for client in unspent)
        assert results(await all_parts(unspent, stub)) == [RoundResult.COUNTED] * SIZE
        _, submissions, vector = await sealed(service)
        assert submissions == SIZE
        assert (vector == total(unspent)).all()


async def test_who_goes_before_a_round_knows_its_members_has_to_pause_where_that_ends_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        for client in fleet[:3]:
            client.vanishes_at = Kind.INVITATION
        told = asyncio.gather(*(client.take_part(stub, WINDOW) for client in fleet), return_exceptions=True)
        await until(lambda: counted(service, "hushsum_rounds_total", outcome="again") == 1)
        for client in fleet[:3]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.take_part(stub, WINDOW)
            assert reason_of(refused.value) == "overloaded"
            assert refused.value.details() == "a round failed because of this client: retry later"
        told.cancel()


async def test_a_client_whose_vector_another_round_may_have_is_in_no_cohort(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        await take_elsewhere(service, fleet[0].client_id)
        told = await all_parts(fleet, stub)
        assert results(told) == [RoundResult.UNKNOWN, *[RoundResult.COUNTED] * (SIZE - 1)]
        assert not fleet[0].rounds
        assert (await fleet[0].take_part(stub, WINDOW)).result is RoundResult.UNKNOWN
        _, submissions, vector = await sealed(service)
        assert submissions == SIZE - 1
        assert (vector == total(fleet[1:])).all()


async def take_elsewhere(service: Service, client_id: str) -> None:
    """A round at another gateway asks a client for its vector."""
    members = RoundMembers(ELSEWHERE, (client_id,))
    assert await service.store.claim_clients(PLAN.id, WINDOW, members) == frozenset()
    await service.store.charge_collection(PLAN, WINDOW, members)


async def test_a_round_whose_member_is_in_another_by_now_asks_nobody_for_a_vector_and_goes_on_without_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        claim = service.store.claim_clients
        rounds = 0

        async def overtaken(plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
            nonlocal rounds
            rounds += 1
            taken = await claim(plan_id, window, members)
            if rounds == 1:
                await claim(plan_id, window, RoundMembers(ELSEWHERE, (fleet[0].client_id,)))
            return taken

        service.store.claim_clients = overtaken  # type: ignore[method-assign]  # another gateway comes between
        told = await all_parts(fleet, stub)
        assert reason_of(told[0]) == "overloaded"
        assert not fleet[0].spent
        assert results(told[1:]) == [RoundResult.COUNTED] * (SIZE - 1)
        assert rounds == 2
        _, submissions, vector = await sealed(service)
        assert submissions == SIZE - 1
        assert (vector == total(fleet[1:])).all()


async def test_the_store_is_told_which_members_were_drawn_and_which_are_left_of_another_round(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        claim, claimed = service.store.claim_clients, []

        async def watched(plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
            claimed.append(members)
            return await claim(plan_id, window, members)

        service.store.claim_clients = watched  # type: ignore[method-assign]  # it is looked at, and goes on
        fleet = fleet_of(PLAN, SIZE, rng)
        fleet[0].vanishes_at = Kind.OPENINGS
        assert results(await all_parts(fleet, stub)) == [None] + [RoundResult.COUNTED] * (SIZE - 1)
        names = [client.client_id for client in fleet]
        assert [(sorted(members.clients), members.is_drawn) for members in claimed] == [
            (names, True),
            (names[1:], False),
        ]


async def test_a_cohort_waits_for_a_store_that_is_away_and_is_not_drawn_again(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        claim, asked = service.store.claim_clients, []

        async def away(plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
            asked.append(members)
            if len(asked) < 3:
                raise StoreUnavailableError("away")
            return await claim(plan_id, window, members)

        service.store.claim_clients = away  # type: ignore[method-assign]  # it comes back
        fleet = fleet_of(PLAN, SIZE, rng)
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        assert len(asked) == 3
        assert len(set(asked)) == 1
