"""The way of a cohort's sum into the log, and what its clients are told when that fails, comes late, or is stopped."""

import asyncio
from pathlib import Path

import grpc.aio
import numpy as np
import pytest

from hushsum.secure_sum.messages import Kind
from hushsum_proto import metadata
from hushsum_proto.rounds import RoundResult, Waiting
from tests.aggregator.secure_clients import Line, fleet_of, stub_of
from tests.aggregator.secure_site import (
    LEAST,
    SIZE,
    SumLog,
    all_parts,
    entered,
    plan_of,
    results,
    sealed,
    site_config,
    total,
    watched,
)
from tests.services import WINDOW, counted, service_of, trailing

PLAN = plan_of()


async def test_a_sum_whose_append_fails_twice_is_counted_once(tmp_path: Path, rng: np.random.Generator) -> None:
    logs: list[SumLog] = []
    async with service_of(site_config(tmp_path, PLAN), wrap_log=watched(logs)) as service:
        (log,) = logs
        log.before = log.after = 1  # once it is not written, once it is and nobody hears of it
        async with stub_of(service.grpc) as stub:
            fleet = fleet_of(PLAN, SIZE, rng)
            assert results(await all_parts(fleet, stub)) == [RoundResult.COUNTED] * SIZE
        assert len(log.sums) == 2
        assert log.sums[0] == log.sums[1]
        cohorts, submissions, vector = await sealed(service)
        assert (cohorts, submissions) == (1, SIZE)
        assert (vector == total(fleet)).all()


async def test_nobody_is_told_before_the_sum_is_durable(tmp_path: Path, rng: np.random.Generator) -> None:
    logs: list[SumLog] = []
    async with service_of(site_config(tmp_path, PLAN), wrap_log=watched(logs)) as service:
        logs[0].hold()
        async with stub_of(service.grpc) as stub:
            fleet = fleet_of(PLAN, SIZE, rng)
            parts = asyncio.ensure_future(all_parts(fleet, stub))
            await logs[0].arrived.wait()
            asking = asyncio.ensure_future(fleet[0].ask(stub, WINDOW, fleet[0].spent))
            await asyncio.wait([parts, asking], timeout=0.2)
            assert not parts.done()
            assert not asking.done()
            logs[0].free()
            assert results(await parts) == [RoundResult.COUNTED] * SIZE
            assert (await asking).result is RoundResult.COUNTED


async def test_a_sum_that_comes_behind_the_seal_is_late_and_in_no_release(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    logs: list[SumLog] = []
    async with service_of(site_config(tmp_path, PLAN), wrap_log=watched(logs)) as service:
        logs[0].hold()
        async with stub_of(service.grpc) as stub:
            fleet = fleet_of(PLAN, SIZE, rng)
            parts = asyncio.ensure_future(all_parts(fleet, stub))
            await logs[0].arrived.wait()
            assert (await sealed(service))[:2] == (0, 0)
            logs[0].free()
            assert results(await parts) == [RoundResult.LATE] * SIZE
            assert (await fleet[0].ask(stub, WINDOW, fleet[0].spent)).result is RoundResult.LATE
        assert counted(service, "hushsum_submissions_spent_total") == SIZE


@pytest.mark.parametrize(("is_written", "result"), [(True, RoundResult.COUNTED), (False, RoundResult.LATE)])
async def test_where_no_append_is_heard_of_until_the_window_is_over_the_folds_say_what_became_of_the_sum(
    tmp_path: Path, rng: np.random.Generator, is_written: bool, result: RoundResult
) -> None:
    logs: list[SumLog] = []
    async with service_of(site_config(tmp_path, PLAN), wrap_log=watched(logs)) as service:
        logs[0].before, logs[0].after = (0, 10**6) if is_written else (10**6, 0)
        async with stub_of(service.grpc) as stub:
            fleet = fleet_of(PLAN, SIZE, rng)
            parts = asyncio.ensure_future(all_parts(fleet, stub))
            await logs[0].arrived.wait()
            while is_written and not logs[0].sums:
                await asyncio.wait([parts], timeout=0.01)
            assert (await sealed(service))[:2] == ((1, SIZE) if is_written else (0, 0))
            assert results(await parts) == [result] * SIZE
        assert counted(service, "hushsum_submissions_spent_total") == (0 if is_written else SIZE)


async def test_a_window_that_is_sealed_under_a_round_ends_it_before_there_is_a_sum(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    logs: list[SumLog] = []
    config = site_config(tmp_path, PLAN, secure_step_s=60.0)
    async with service_of(config, wrap_log=watched(logs)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, rng)
        for client in fleet[4:]:
            client.silent_at = Kind.SURVIVORS
        parts = asyncio.ensure_future(all_parts(fleet, stub))
        while not all(client.fell_silent for client in fleet[4:]):
            await asyncio.wait([parts], timeout=0.01)
        assert (await sealed(service))[:2] == (0, 0)
        assert results(await parts) == [RoundResult.LATE] * SIZE
        assert (await fleet[0].ask(stub, WINDOW, fleet[0].spent)).result is RoundResult.LATE
        assert logs[0].sums == []


async def test_nobody_enters_a_service_that_stops(tmp_path: Path) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        assert service.sums is not None
        service.sums.stop_accepting()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await entered(Line.open(stub, "client-0"), PLAN)
        assert trailing(refused.value)[metadata.REASON] == "shutting_down"


async def test_a_window_that_closes_sends_those_that_wait_for_it_home(tmp_path: Path, rng: np.random.Generator) -> None:
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, LEAST - 1, rng)
        parts = asyncio.ensure_future(all_parts(fleet, stub))
        while not all(client.waits for client in fleet):
            await asyncio.wait([parts], timeout=0.01)
        await sealed(service)
        assert results(await parts) == [RoundResult.LATE] * (LEAST - 1)
        assert results(await all_parts(fleet, stub)) == [RoundResult.LATE] * (LEAST - 1)


async def test_a_stop_lands_the_sum_that_is_there_and_turns_away_those_that_wait(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    logs: list[SumLog] = []
    fleet, waiting = fleet_of(PLAN, SIZE, rng), fleet_of(PLAN, SIZE + 1, rng)[SIZE]
    async with service_of(site_config(tmp_path, PLAN), wrap_log=watched(logs)) as service:
        logs[0].hold()
        address = service.grpc
        channel = stub_of(address)
        stub = await channel.__aenter__()
        parts = asyncio.ensure_future(all_parts(fleet, stub))
        await logs[0].arrived.wait()
        line = Line.open(stub, waiting.client_id)
        assert await entered(line, PLAN) == Waiting(SIZE)
        asyncio.get_running_loop().call_later(0.1, logs[0].free)
    assert results(await parts) == [RoundResult.COUNTED] * SIZE
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await line.hear()
    assert trailing(refused.value)[metadata.REASON] == "shutting_down"
    await channel.__aexit__(None, None, None)
    async with service_of(site_config(tmp_path, PLAN)) as service:
        assert (await sealed(service))[:2] == (1, SIZE)


async def test_a_stop_ends_a_round_that_no_vector_was_asked_for_in_and_its_clients_are_told(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    fleet = fleet_of(PLAN, SIZE, rng)
    for client in fleet[4:]:
        client.silent_at = Kind.OPENINGS
    async with service_of(site_config(tmp_path, PLAN, secure_step_s=60.0)) as service:
        channel = stub_of(service.grpc)
        parts = asyncio.ensure_future(all_parts(fleet, await channel.__aenter__()))
        while not all(client.fell_silent for client in fleet[4:]):
            await asyncio.wait([parts], timeout=0.01)
    assert results(await parts) == [RoundResult.ABORTED] * SIZE
    assert counted(service, "hushsum_submissions_spent_total") == 0
    await channel.__aexit__(None, None, None)
