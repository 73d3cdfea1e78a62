"""Secure sums from outside: whole rounds over real gRPC, and what becomes of clients that do not keep to them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from structlog.testing import capture_logs

from aggregator.errors import ConfigError
from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum.secure_sum.client import ClientRound
from hushsum.secure_sum.messages import Kind
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto import metadata
from hushsum_proto.rounds import Enter, Message, RoundOutcome, RoundRequest, RoundResult, VectorChunk, Waiting
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.kafka_logs import until
from tests.aggregator.secure_clients import Line, SecureClient, Stub, fleet_of, stub_of
from tests.aggregator.secure_site import LEAST, SIZE, all_parts, entered, plan_of, results, sealed, site_config, total
from tests.plans import small_plan
from tests.services import (
    HOUR_MS,
    NOW_MS,
    WINDOW,
    Contributor,
    RawClient,
    SetRuntime,
    config_of,
    counted,
    service_of,
    trailing,
)

PLAN = plan_of()


async def test_a_whole_round_is_counted_once_and_its_sum_is_exact(tmp_path: Path, rng: np.random.Generator) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        assert {wait for client in fleet for wait in client.waits} == {Waiting(SIZE)}
        assert await fleet[0].ask(stub, WINDOW, fleet[0].spent) == fleet[0].outcome
        cohorts, submissions, vector = await sealed(service)
        assert (cohorts, submissions) == (1, SIZE)
        assert (vector == total(fleet)).all()
        assert counted(service, "hushsum_cohorts_total") == 1
        assert counted(service, "hushsum_rounds_total", outcome="counted") == 1
        assert counted(service, "hushsum_submissions_spent_total") == 0
        assert counted(service, "hushsum_clients_dropped_total") == 0


async def test_fewer_clients_are_a_cohort_once_the_first_has_waited(tmp_path: Path, rng: np.random.Generator) -> None:
    plan = plan_of(cohort_wait="100ms")
    async with service_of(site_config(tmp_path, plan)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, LEAST, rng)
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * LEAST
        assert (await sealed(service))[:2] == (1, LEAST)


async def test_two_cohorts_of_a_window_add_up(tmp_path: Path, rng: np.random.Generator) -> None:
    async with service_of(site_config(tmp_path, PLAN, partitions=3)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, 2 * SIZE, rng)
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * 2 * SIZE
        cohorts, submissions, vector = await sealed(service)
        assert (cohorts, submissions) == (2, 2 * SIZE)
        assert (vector == total(fleet)).all()


@pytest.mark.parametrize(
    ("kind", "rounds", "is_counted", "lost"),
    [
        (Kind.INVITATION, 1, False, 0),
        (Kind.ROSTER, 2, False, 0),
        (Kind.OPENINGS, 2, False, 0),
        (Kind.INBOX, 1, False, 0),
        (Kind.GRANT, 1, False, 1),
        (Kind.SURVIVORS, 1, True, 0),
        (Kind.QUORUM, 1, True, 0),
    ],
)
async def test_wherever_a_client_vanishes_the_others_are_counted_and_it_is_told_the_truth(
    tmp_path: Path, rng: np.random.Generator, kind: Kind, rounds: int, is_counted: bool, lost: int
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        fleet[3].vanishes_at = kind
        told = results(await all_parts(fleet, stub))
        assert told.pop(3) is None
        assert told == [RoundResult.COUNTED] * (SIZE - 1)
        assert [len(client.rounds) for client in fleet if client is not fleet[3]] == [rounds] * (SIZE - 1)
        if fleet[3].spent:
            became = await fleet[3].ask(stub, WINDOW, fleet[3].spent)
            assert became.result is (RoundResult.COUNTED if is_counted else RoundResult.LEFT_OUT)
        inside = [client for client in fleet if is_counted or client is not fleet[3]]
        cohorts, submissions, vector = await sealed(service)
        assert (cohorts, submissions) == (1, len(inside))
        assert (vector == total(inside)).all()
        assert counted(service, "hushsum_submissions_spent_total") == lost
        assert counted(service, "hushsum_cohorts_total") == 1
        assert counted(service, "hushsum_rounds_total", outcome="again") == rounds - 1


@pytest.mark.parametrize("kind", [Kind.INVITATION, Kind.ROSTER, Kind.GRANT])
async def test_a_client_that_falls_silent_is_let_go_and_holds_nobody_up_for_longer_than_a_step(
    tmp_path: Path, rng: np.random.Generator, kind: Kind
) -> None:
    # Longer than what keeps the others on a busy machine: nobody waits for it but this test.
    config = site_config(tmp_path, PLAN, secure_step_s=2.5, secure_upload_s=2.5)
    async with service_of(config) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        fleet[5].silent_at = kind
        outcomes = await all_parts(fleet, stub)
        silent = outcomes.pop(5)
        if isinstance(silent, RoundOutcome):
            assert (kind, silent.result) == (Kind.GRANT, RoundResult.LEFT_OUT)
        else:
            assert isinstance(silent, grpc.aio.AioRpcError)
            assert silent.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
        assert results(outcomes) == [RoundResult.COUNTED] * (SIZE - 1)
        assert (await sealed(service))[:2] == (1, SIZE - 1)


async def test_what_was_on_its_way_when_a_round_ended_is_no_fault_in_the_next_one(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        fleet[3].vanishes_at = Kind.OPENINGS
        for client in fleet[4:]:
            client.stutters = True
        told = results(await all_parts(fleet, stub))
        assert told.pop(3) is None
        assert told == [RoundResult.COUNTED] * (SIZE - 1)


async def test_with_too_few_left_nothing_is_summed_and_everybody_is_told(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        for client in fleet[:3]:
            client.vanishes_at = Kind.GRANT
        told = results(await all_parts(fleet, stub))
        assert told == [None] * 3 + [RoundResult.ABORTED] * 5
        assert (await sealed(service))[:2] == (0, 0)
        spent = {client.client_id for client in fleet if client.spent}
        assert counted(service, "hushsum_submissions_spent_total") == len(spent) >= 3
        again = {client.client_id for client in fleet[3:] if client.outcome is not None and client.outcome.again}
        assert again.isdisjoint(spent)


@pytest.mark.parametrize("voids", [True, False], ids=["suspect", "liar"])
async def test_that_a_client_may_have_spoilt_a_round_is_in_the_journal_and_never_which(
    tmp_path: Path, voids: bool, rng: np.random.Generator
) -> None:
    """One sends a check that no seed fits; or reveals others than it was given, which the others make up for."""
    fleet = fleet_of(PLAN, SIZE, rng)
    honest = fleet[0].machine_of

    def corrupt(window: int, round_id: bytes) -> ClientRound:
        machine = honest(window, round_id)
        own = machine._own
        assert own is not None
        if voids:
            sealed = own.sealed_shares
            own.sealed_shares = lambda: [bytes(32), *sealed()[1:]]  # type: ignore[method-assign]  # its own lie, of this one
        else:
            own.revealed = lambda survivors: [bytes(16)] * (len(survivors) - 1)  # type: ignore[method-assign]  # its own lie, of this one
        return machine

    fleet[0].machine_of = corrupt  # type: ignore[method-assign]  # this one alone
    with capture_logs() as lines:
        async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
            told = await all_parts(fleet, stub)
    assert results(told) == [RoundResult.ABORTED if voids else RoundResult.COUNTED] * SIZE
    (line,) = [line for line in lines if "clients" in line and line["log_level"] == "warning"]
    assert line["clients"] == 1
    assert "client-" not in str(lines)
    assert ("reconstruction of secrets failed" if voids else "shares that differ from those they received") in line[
        "event"
    ]


async def test_a_second_call_of_a_client_takes_its_place_while_it_waits_and_not_in_its_round(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        first = Line.open(stub, fleet[0].client_id)
        await first.say(Enter(PLAN.id, WINDOW))
        assert await first.hear() == Waiting(SIZE)
        squatters: list[asyncio.Task[object]] = []

        def squat(client: SecureClient, kind: Kind) -> None:
            if kind is Kind.ROSTER:
                line = Line.open(stub, client.client_id)
                squatters.append(asyncio.ensure_future(entered(line, PLAN)))

        fleet[0].hook = squat
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        with pytest.raises(grpc.aio.AioRpcError, match="a newer call of this client"):
            await first.hear()
        with pytest.raises(grpc.aio.AioRpcError, match="a round of this client is in progress"):
            await squatters[0]
        later = Line.open(stub, fleet[0].client_id)
        assert await entered(later, PLAN) == RoundOutcome(
            b"", RoundResult.UNKNOWN, "a vector of this client was already accepted in this window"
        )


# --------------------------------------------------------------------------------------------------------- refusals


def delta_for(plan: Plan) -> bytes:
    """A delta as somebody would send it who takes the plan for a central one."""
    _, data = Contributor(small_plan(), stream=1).delta()
    return data.replace(small_plan().id, plan.id)


async def _refusal(stub: Stub, *requests: RoundRequest, client_id: str = "client-0") -> tuple[str, str]:
    """(reason, text) of a call that is refused."""
    line = Line.open(stub, client_id)
    for request in requests:
        await line.say(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _heard_out(line)
    return str(trailing(refused.value)[metadata.REASON]), str(refused.value.details())


async def _heard_out(line: Line) -> None:
    async with asyncio.timeout(120):  # a call that is not refused would be listened to for ever
        while True:
            await line.hear()


async def test_what_cannot_take_part_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        enter = Enter(PLAN.id, WINDOW)
        assert (await _refusal(stub, Enter(bytes(32), WINDOW)))[0] == "wrong_plan"
        assert (await _refusal(stub, Enter(bytes(32), WINDOW, bytes(32))))[0] == "wrong_plan"
        assert (await _refusal(stub, Enter(PLAN.id, WINDOW + 100)))[0] == "window_in_future"
        assert (await _refusal(stub, Enter(PLAN.id, WINDOW - 100)))[0] == "window_in_past"
        assert (await _refusal(stub, Message(b"?"))) == ("malformed", "expected the message enter first")
        assert (await _refusal(stub, enter, Message(b"?")))[0] == "malformed"
        assert (await _refusal(stub, enter, VectorChunk(0, b"?")))[0] == "malformed"
        assert (await _refusal(stub, enter, enter))[1] == "message enter received twice in one call"
        became = await fleet_of(PLAN, 1, np.random.default_rng(0))[0].ask(stub, WINDOW, bytes(32))
        assert became.result is RoundResult.UNKNOWN


async def test_a_window_that_no_gateway_had_open_is_refused(tmp_path: Path) -> None:
    runtime = SetRuntime()
    async with service_of(site_config(tmp_path, PLAN), runtime) as service:
        assert service.grpc
    runtime.set_ms = NOW_MS + 100 * HOUR_MS
    async with service_of(site_config(tmp_path, PLAN), runtime) as service, stub_of(service.grpc) as stub:
        assert (await _refusal(stub, Enter(PLAN.id, WINDOW + 50)))[0] == "window_not_open"


async def test_a_ledger_that_could_not_pay_refuses_the_window_before_anybody_waits(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan, runtime = plan_of(total_epsilon="1"), SetRuntime()
    async with service_of(site_config(tmp_path, plan), runtime) as service, stub_of(service.grpc) as stub:
        assert results(await all_parts(fleet_of(plan, SIZE, rng), stub)) == [RoundResult.COUNTED] * SIZE
        runtime.set_ms = NOW_MS + HOUR_MS
        assert (await _refusal(stub, Enter(plan.id, WINDOW + 1)))[0] == "budget"


async def test_with_a_pool_a_cohort_is_drawn_once_so_many_wait_and_the_others_wait_on(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    pool = 2 * SIZE
    plan = plan_of(pool=pool)
    # Were fewer streams let in than the plan's pool, no cohort would ever be drawn.
    async with service_of(site_config(tmp_path, plan, sessions_max=1)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(plan, pool, rng)
        first = [asyncio.ensure_future(client.take_part(stub, WINDOW)) for client in fleet[:-1]]
        await until(lambda: all(client.waits for client in fleet[:-1]))
        await asyncio.sleep(0.5)  # five times cohort_wait, which draws nobody here
        assert counted(service, "hushsum_cohorts_total") == 0
        last = asyncio.ensure_future(fleet[-1].take_part(stub, WINDOW))
        everybody = [*first, last]
        while sum(each.done() for each in everybody) < SIZE:
            await asyncio.wait([each for each in everybody if not each.done()], return_when=asyncio.FIRST_COMPLETED)
        drawn = [client for client, each in zip(fleet, everybody, strict=True) if each.done()]
        assert [each.result().result for each in everybody if each.done()] == [RoundResult.COUNTED] * SIZE
        assert counted(service, "hushsum_cohorts_total") == 1
        _, submissions, vector = await sealed(service)
        assert submissions == SIZE
        assert (vector == total(drawn)).all()
        assert [(await each).result for each in everybody].count(RoundResult.LATE) == pool - SIZE


async def test_a_central_plan_takes_no_part_and_a_secure_plan_no_delta(tmp_path: Path) -> None:
    central = small_plan()
    async with service_of(config_of(tmp_path, central)) as service, stub_of(service.grpc) as stub:
        assert (await _refusal(stub, Enter(central.id, WINDOW)))[0] == "wrong_mode"
        # A device of a plan that was replaced hears that, whatever the mode of the new one.
        for spent_round in (b"", bytes(32)):
            assert (await _refusal(stub, Enter(PLAN.id, WINDOW, spent_round)))[0] == "wrong_plan"
        for plan_id, reason in ((PLAN.id, "wrong_plan"), (central.id, "wrong_mode")):
            asked = pb.GetDirectoryRequest(plan_id=plan_id)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetDirectory(asked, metadata=((metadata.CLIENT_ID, "client-0"),)).read()
            assert trailing(refused.value)[metadata.REASON] == reason
    (tmp_path / "secure").mkdir()
    async with service_of(site_config(tmp_path / "secure", PLAN)) as service, RawClient(service.grpc) as client:
        answer = await client.submit_one(PLAN.id, delta_for(PLAN))
        assert answer.refusal is not None
        assert answer.refusal.reason == "wrong_mode"
        (streamed,) = await client.submit(PLAN.id, [delta_for(PLAN)])
        assert streamed.refusal is not None
        assert streamed.refusal.reason == "wrong_mode"


async def test_a_stream_that_says_nothing_holds_no_place_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.api.secure_sum.ENTER_S", 0.1)
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        assert (await _refusal(stub))[0] == "unavailable"


# -------------------------------------------------------------------------------------------------------- directory


def directory_of(number: int, role: Role = Role.CLIENT) -> tuple[list[SigningKey], str]:
    keys = [SigningKey.generate(OsEntropy()) for _ in range(number)]
    entries = [DirectoryKey(f"client-{index}", role, key.verify_key) for index, key in enumerate(keys)]
    return keys, "\n".join(map(toml_of, entries))


async def test_a_directory_is_given_to_clients_and_nobody_else_takes_part(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    keys, toml = directory_of(SIZE)
    file = tmp_path / "clients.toml"
    file.write_text(toml)
    directory = Directory.from_toml(toml)
    plan = plan_of(directory=directory.digest().hex())
    config = site_config(tmp_path, plan, client_directory=str(file))
    async with service_of(config) as service, stub_of(service.grpc) as stub:
        call = stub.GetDirectory(pb.GetDirectoryRequest(plan_id=plan.id), metadata=((metadata.CLIENT_ID, "client-0"),))
        assert b"".join([chunk.data async for chunk in call]) == directory.to_bytes()
        assert (await _refusal(stub, Enter(plan.id, WINDOW), client_id="stranger"))[0] == "unauthenticated"
        fleet = fleet_of(plan, SIZE, rng)
        for client, key in zip(fleet, keys, strict=True):
            client.key, client.directory = key, directory
        fleet[0].key = SigningKey.generate(OsEntropy())
        with pytest.raises(ValueError, match="the identity key of client-0 is not that of a client"):
            fleet[0].machine_of(WINDOW, bytes(32))
        fleet[0].key = keys[0]
        assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE


async def test_nobody_takes_the_place_of_a_client_of_the_directory_or_asks_for_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    keys, toml = directory_of(SIZE)
    file = tmp_path / "clients.toml"
    file.write_text(toml)
    directory = Directory.from_toml(toml)
    plan = plan_of(directory=directory.digest().hex())
    config = site_config(tmp_path, plan, client_directory=str(file))
    async with service_of(config) as service, stub_of(service.grpc) as stub:
        victim, other = fleet_of(plan, 2, rng)
        for client, key in zip((victim, other), keys, strict=False):
            client.key, client.directory = key, directory
        waiting = Line.open(stub, "client-0")
        await waiting.say(victim.enter(WINDOW))
        assert await waiting.hear() == Waiting(SIZE)
        signed = victim.enter(WINDOW)
        for forged in (
            replace(signed, signature=b""),
            replace(signed, signature=bytes(64)),
            other.enter(WINDOW),
            victim.enter(WINDOW + 1),
            victim.enter(WINDOW, bytes(32)),
        ):
            for enter in (
                replace(forged, window=WINDOW, spent_round=b""),
                replace(forged, spent_round=bytes([1] * 32)),
            ):
                reason, text = await _refusal(stub, enter)
                assert (reason, "signature does not match" in text) == ("unauthenticated", True)
        assert service.sums is not None
        assert (await victim.ask(stub, WINDOW, bytes(32))).result is RoundResult.UNKNOWN
        more = Line.open(stub, "client-1")
        await more.say(other.enter(WINDOW))
        assert await more.hear() == Waiting(SIZE)  # the first one waits on, in its first call
        waiting.cut()
        more.cut()


async def test_a_directory_that_the_plan_does_not_name_is_refused_at_the_start(tmp_path: Path) -> None:
    _, named = directory_of(2)
    _, other = directory_of(2)
    digest = Directory.from_toml(named).digest().hex()
    plan, file = plan_of(directory=digest), tmp_path / "clients.toml"
    file.write_text(other)
    other_digest = Directory.from_toml(other).digest().hex()
    for settings, text in (
        ({"client_directory": str(file)}, f"digest {other_digest}, expected {digest}"),
        ({}, f"required: plan 'test' names the key registry {digest}"),
        ({"client_directory": str(tmp_path / "none")}, "No such file"),
    ):
        with pytest.raises(ConfigError, match=text):
            async with service_of(site_config(tmp_path, plan, **settings)):
                pass
    with pytest.raises(ConfigError, match="has no key registry"):
        async with service_of(site_config(tmp_path, PLAN, client_directory=str(file), data=str(tmp_path / "other"))):
            pass


async def test_a_directory_with_other_keys_than_clients_is_refused_at_the_start(tmp_path: Path) -> None:
    _, toml = directory_of(2, Role.PRODUCER)
    plan, file = plan_of(directory=Directory.from_toml(toml).digest().hex()), tmp_path / "clients.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError, match=r"keys\.client-0 is a producer key, expected role client"):
        async with service_of(site_config(tmp_path, plan, client_directory=str(file))):
            pass
