"""The time of uploads, of windows, and of a service that stops; and what one client or one error cannot hold up."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from aggregator.errors import ConfigError, RefusedError, overloaded
from aggregator.secure.coordinator import CohortCoordinator
from aggregator.secure.round import Participant, RoundSettings, message_bytes_max
from aggregator.windows import due_ms
from hushsum.secure_sum.messages import ID_BYTES_MAX, Advertisement, Keys, Kind, pack_advertisement
from hushsum.secure_sum.parameters import round_parameters
from hushsum_proto.rounds import Message, RoundOutcome, RoundReply, RoundResult
from tests.aggregator.secure.test_round import LARGE, ROUND, SETTINGS, Site, site_of
from tests.aggregator.secure_clients import SecureClient, fleet_of, stub_of
from tests.aggregator.secure_site import LEAST, SIZE, all_parts, plan_of, results, sealed, site_config, total
from tests.doubles import ManualRuntime
from tests.services import WINDOW, counted, service_of

PLAN = plan_of()
BY_THE_CLOCK = RoundSettings(SETTINGS.step_s, SETTINGS.upload_s)
NEEDED_MS = int(1000 * (SETTINGS.upload_s + 3 * SETTINGS.step_s))


def test_times_in_which_no_round_could_end_are_refused_at_the_start() -> None:
    cohort, lateness_s = PLAN.privacy.cohort, PLAN.window.lateness_ms / 1000
    assert cohort is not None
    most = 0.75 * (lateness_s - cohort.wait_ms / 1000) - 3 * 20
    RoundSettings(20, most).check(PLAN)
    RoundSettings(20, most + 1, manual=True).check(PLAN)
    with pytest.raises(ConfigError, match=r"secure_upload_s: got .* a round may take"):
        RoundSettings(20, most + 1).check(PLAN)


async def test_once_enough_vectors_are_whole_all_others_have_the_time_of_one_together(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.secure.round.UPLOADS_MAX", 1)
    fleet = fleet_of(PLAN, SIZE, rng)
    for client in fleet[LEAST:]:
        client.silent_at = Kind.GRANT
    async with site_of(fleet) as site:
        await site.runtime.settle(2000)
        await site.runtime.advance(SETTINGS.upload_s - 1)
        assert not site.running.done()
        await site.runtime.advance(1.5)
        end = await site.end()
        assert end.sum is not None
        assert end.sum.submissions == LEAST
        assert (np.concatenate(PLAN.words.centred(end.sum.words)) == total(fleet[:LEAST])).all()
        late = RoundOutcome(ROUND, RoundResult.LEFT_OUT, "the vector did not arrive in time")
        assert await site.outcome(fleet[LEAST]) == late
        unasked = await site.outcome(fleet[LEAST + 1])
        assert unasked == RoundOutcome(
            ROUND, RoundResult.LEFT_OUT, "other participants were slow", again=True, retry_after_ms=1000
        )
        assert fleet[LEAST + 1].client_id not in site.round.granted


@pytest.mark.parametrize("short_ms", [0, 1])
async def test_nobody_is_asked_for_a_vector_that_its_window_has_no_time_for(
    rng: np.random.Generator, short_ms: int
) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    runtime = ManualRuntime(due_ms(PLAN.window, WINDOW) - NEEDED_MS + short_ms)
    site = Site(PLAN, fleet, runtime, BY_THE_CLOCK)
    end = await site.end()
    assert (end.sum is None) is bool(short_ms)
    if short_ms:
        assert (end.result, end.again, site.round.granted) == (RoundResult.LATE, False, frozenset())
        assert "the window is sealed in less than 180 s" in end.why
        assert not any(client.spent for client in fleet)
    await site.close()


async def test_a_window_that_is_sealed_by_hand_has_all_the_time_that_it_gets(rng: np.random.Generator) -> None:
    site = Site(PLAN, fleet_of(PLAN, SIZE, rng), ManualRuntime(due_ms(PLAN.window, WINDOW) + 1000), SETTINGS)
    assert (await site.end()).sum is not None
    await site.close()


async def test_a_stop_lets_a_round_end_that_vectors_were_asked_for_in(tmp_path: Path, rng: np.random.Generator) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)

        def stop(_: SecureClient, kind: Kind) -> None:
            if kind is Kind.GRANT:
                assert service.sums is not None
                service.sums.stop_accepting()

        fleet[0].hook = stop
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        assert counted(service, "hushsum_submissions_spent_total") == 0


async def test_a_message_that_no_client_has_to_send_is_not_even_kept(rng: np.random.Generator) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    fleet[0].silent_at = fleet[1].silent_at = Kind.GRANT
    async with site_of(fleet) as site:
        await site.runtime.settle(2000)
        most = message_bytes_max(round_parameters(PLAN, WINDOW, ROUND))
        for client, size, text in ((fleet[0], most, "format"), (fleet[1], most + 1, f"expected at most {most}")):
            await site.lines[client.client_id].say(Message(bytes(size)))
            refused = await site.outcome(client)
            assert isinstance(refused, RefusedError)
            assert text in str(refused)
            assert refused.refusal.reason == "malformed"


def test_no_message_of_a_client_is_longer_than_the_bound() -> None:
    for plan in (PLAN, LARGE):
        parameters = round_parameters(plan, WINDOW, ROUND)
        most = message_bytes_max(parameters)
        keys = Keys(*(bytes(32) for _ in range(4)))
        longest = pack_advertisement(parameters, Advertisement("x" * ID_BYTES_MAX, keys, bytes(64)))
        shares = 74 + 32 + parameters.degree * 48
        assert most == max(len(longest), shares)


async def test_a_client_that_goes_in_the_moment_that_its_cohort_is_full_holds_nobody_up(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Participant.tell
    going = [f"client-{SIZE - 1}"]

    def unread(part: Participant, reply: RoundReply) -> bool:
        if part.client_id in going:
            going.clear()
            part.end(overloaded("unread"))
            return False
        return tell(part, reply)

    monkeypatch.setattr(Participant, "tell", unread)
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        others = asyncio.ensure_future(all_parts(fleet[:-1], stub))
        while sum(bool(client.waits) for client in fleet) < SIZE - 1:
            assert not others.done(), "they have waited for too short a time"
            await asyncio.sleep(0.005)
        (gone,) = await all_parts(fleet[-1:], stub)
        assert "unread" in str(gone)
        assert results(await others) == [RoundResult.COUNTED] * (SIZE - 1)
        more = [*fleet_of(PLAN, 2 * SIZE - 1, rng)[SIZE:], fleet[-1]]  # no round keeps it
        assert results(await all_parts(more, stub)) == [RoundResult.COUNTED] * len(more)


async def test_a_round_that_cannot_begin_or_end_for_an_error_of_ours_frees_its_place(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.secure.coordinator.ROUNDS_MAX", 1)

    def broken(*_: object) -> list[Participant]:
        raise RuntimeError("ours")

    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, 2 * SIZE, rng)
        with monkeypatch.context() as patched:
            patched.setattr("aggregator.secure.round.round_parameters", broken)
            for _ in range(2):
                assert results(await all_parts(fleet[:SIZE], stub)) == [RoundResult.ABORTED] * SIZE
        with monkeypatch.context() as patched:
            patched.setattr(CohortCoordinator, "_back", broken)
            assert results(await all_parts(fleet[:SIZE], stub)) == [RoundResult.ABORTED] * SIZE
        assert results(await all_parts(fleet[SIZE:], stub)) == [RoundResult.COUNTED] * SIZE
        assert (await sealed(service))[:2] == (1, SIZE)


async def test_one_client_that_spoils_rounds_does_not_use_up_those_of_the_others(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.secure.cohorts.PAUSE_MS", 300_000)  # not over before the others are done
    plan = plan_of(cohort_wait="100ms")
    async with service_of(site_config(tmp_path, plan)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, LEAST + 1, rng)
        spoiler, honest, last = fleet[0], fleet[1:-1], fleet[-1]
        spoiler.vanishes_at = Kind.OPENINGS
        parts = asyncio.ensure_future(all_parts(honest, stub))

        async def spoil() -> None:
            while True:  # it comes again and again, at once
                await asyncio.gather(spoiler.take_part(stub, WINDOW), return_exceptions=True)

        spoiling = asyncio.ensure_future(spoil())
        while not all(client.rounds for client in honest):
            await asyncio.wait([parts], timeout=0.01)
        await asyncio.wait([parts], timeout=0.4)  # they are too few without it
        async with asyncio.timeout(120):
            assert results(await all_parts([last], stub)) == [RoundResult.COUNTED]
        assert results(await parts) == [RoundResult.COUNTED] * (LEAST - 1)
        assert {len(client.rounds) for client in honest} == {2}
        spoiling.cancel()
        await asyncio.wait([spoiling])
