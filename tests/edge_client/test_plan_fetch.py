"""A device and the signature of its plan: kept, checked at every start, and fetched again where it is not enough."""

from pathlib import Path

import pytest

from edge_client import Config, EdgeClient, EdgeError, Policy, PolicyError
from hushsum import Plan
from hushsum.signed_plan import SignedPlan
from hushsum.signing import SigningKey
from tests.edge_client.local_clients import REPORT, RushingClock, client_of, started
from tests.edge_client.local_service import LocalService

KEY = SigningKey(b"planner".ljust(32, b"."))
NEW = SigningKey(b"new planner".ljust(32, b"."))


def signed(plan: Plan, key: SigningKey = KEY) -> SignedPlan:
    return SignedPlan.sign(plan.bundle, key, "planner")


WANTS = Policy(signed_by=KEY.verify_key)


def offline(service: LocalService, path: Path, clock: RushingClock, policy: Policy | None = None) -> EdgeClient:
    """A client that does not look long for its service, which has ended."""
    config = Config(first_contact_s=0.01)
    return EdgeClient(service.target, spool=path, config=config, runtime=clock, client_id="device", policy=policy)


async def test_a_signature_is_kept_beside_the_plan_and_checked_at_every_start(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS):
        pass
    await service.stop()
    async with client_of(service, path, clock, WANTS) as client:  # offline
        await client.add([1.0, 2.0])
    stranger = Policy(signed_by=SigningKey(b"other".ljust(32, b".")).verify_key)
    with pytest.raises(PolicyError, match="signed_by"):
        await offline(service, path, clock, stranger).__aenter__()


@pytest.mark.parametrize("by", [None, SigningKey(b"other".ljust(32, b"."))], ids=["nobody", "a stranger"])
async def test_a_plan_that_is_signed_by_nobody_who_counts_is_not_kept(
    path: Path, clock: RushingClock, by: SigningKey | None
) -> None:
    service = await started(REPORT, clock)
    service.signed = None if by is None else signed(REPORT, by)
    for _ in range(2):
        with pytest.raises(PolicyError, match="signed_by"):
            await client_of(service, path, clock, WANTS).__aenter__()
    await service.stop()
    with pytest.raises(EdgeError, match="sent no plan"):
        await offline(service, path, clock).__aenter__()


async def test_a_spool_that_is_older_than_the_signature_fetches_it_once(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    async with client_of(service, path, clock) as client:
        await client.add([1.0, 2.0])
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS) as client:
        await client.flush(30)
    await service.stop()
    async with client_of(service, path, clock, WANTS):
        pass  # offline
    assert len(service.kept.ids()) == 1


async def test_a_signature_by_a_planners_new_key_is_fetched_and_kept(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS) as client:
        await client.add([1.0, 2.0])
    service.signed = signed(REPORT, NEW)
    async with client_of(service, path, clock, Policy(signed_by=NEW.verify_key)) as client:
        await client.flush(30)
    await service.stop()
    async with client_of(service, path, clock, Policy(signed_by=NEW.verify_key)):
        pass  # offline
    assert len(service.kept.ids()) == 1


@pytest.mark.parametrize(
    "by", [None, KEY, SigningKey(b"other".ljust(32, b"."))], ids=["nobody", "the old", "a stranger"]
)
async def test_what_a_service_has_in_its_place_is_checked_and_not_kept(
    path: Path, clock: RushingClock, by: SigningKey | None
) -> None:
    service = await started(REPORT, clock)
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS):
        pass
    service.signed = None if by is None else signed(REPORT, by)
    with pytest.raises(PolicyError, match="signed_by"):
        await client_of(service, path, clock, Policy(signed_by=NEW.verify_key)).__aenter__()
    await service.stop()
    async with client_of(service, path, clock, WANTS):
        pass  # offline: the one that counted is still there


async def test_a_plan_that_is_refused_for_another_reason_is_not_fetched(path: Path, clock: RushingClock) -> None:
    service = await started(REPORT, clock)
    service.signed = signed(REPORT)
    async with client_of(service, path, clock, WANTS):
        pass
    await service.stop()
    began = clock.seconds
    with pytest.raises(PolicyError, match="max_epsilon"):
        await client_of(service, path, clock, Policy("0.0001", signed_by=KEY.verify_key)).__aenter__()
    assert clock.seconds == began
