"""The real service, Kafka and PostgreSQL under faults: nothing lost, nothing doubled, no stack trace, retries counted.

The oracle is the release itself: its plan's noise is drawn as ever and rounds away, and every delta is known by its
cells (hushsum_simulator.deployment.verdicts; test_faults.py plants mistakes).
"""

import asyncio
from pathlib import Path

import pytest

from aggregator.app import Service, running
from aggregator.runtime import SystemRuntime
from hushsum_simulator.demo.services import Operator
from hushsum_simulator.deployment.faults import fault_plan, run_faults
from hushsum_simulator.deployment.journal import KEPT
from hushsum_simulator.deployment.senders import SenderFleet
from hushsum_simulator.deployment.verdicts import VerdictTally, by_id, read_from_release
from hushsum_simulator.testbed.postgres import missing_postgres
from hushsum_simulator.testbed.tcp_proxy import Fault, TcpProxy
from tests.brokers import JARS, ProxiedKafka, ProxiedPostgres, fresh_prefix, left_out, missing_kafka
from tests.services import config_of

PLAN = fault_plan()
SENDERS = 4
RATE = 50.0
STRUCK_S = 120.0  # how long a fault waits for a request that it is for
HELD_S = 0.7
PATIENCE_S = 180.0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_and_pauses_of_every_process_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    if (why := missing_kafka() or missing_postgres()) is not None:
        left_out(why)
    lines: list[str] = []
    found = run_faults(rounds=1, seed=seed % 2**32, jars=JARS, folder=tmp_path, load_s=3.0, strikes=4, say=lines.append)
    told = "\n".join([*lines, str(found)])
    assert found.is_clean, told
    assert (found.rounds, found.strikes) == (1, 4), told
    assert found.deltas.counted > 0, told


def retries(service: Service) -> float:
    """What was tried again, of any kind."""
    samples = (sample for metric in service.metrics.registry.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name == "hushsum_retries_total")


async def every_fault(proxy: TcpProxy) -> None:
    """Each kind once, with a moment of peace between them."""
    for fault in Fault:
        before = proxy.struck
        proxy.inject(fault)
        async with asyncio.timeout(STRUCK_S):
            while proxy.struck == before:  # noqa: ASYNC110  the proxy counts, and tells nobody
                await asyncio.sleep(0.01)
        await asyncio.sleep(HELD_S)
        proxy.heal()
    for begin in (proxy.refuse, proxy.fall_silent, lambda: proxy.delay(0.1)):
        begin()
        await asyncio.sleep(HELD_S)
        proxy.heal()
    await asyncio.sleep(HELD_S)


@pytest.mark.long
@pytest.mark.parametrize("broken", ["kafka", "postgres"])
async def test_behind_a_link_that_breaks_in_every_way_nothing_is_lost_or_doubled(
    broken: str,
    kafka_behind_proxy: ProxiedKafka,
    postgres_behind_proxy: ProxiedPostgres,
    tmp_path: Path,
    seed: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = config_of(
        tmp_path,
        PLAN,
        log="kafka",
        store="postgresql",
        partitions=2,
        kafka_bootstrap=kafka_behind_proxy.bootstrap,
        kafka_prefix=fresh_prefix(),
        kafka_session_s=3.0,
        postgres_dsn=postgres_behind_proxy.fresh_database()[0],
        lease_s=2.0,
        checkpoint_s=0.3,
    )
    proxy = kafka_behind_proxy.proxy if broken == "kafka" else postgres_behind_proxy.proxy
    async with running(config, SystemRuntime()) as service:
        operator = Operator([service.grpc], [service.grpc])
        window = await operator.first_window()
        before = retries(service)
        async with SenderFleet(PLAN, [service.grpc], clients=SENDERS, rate=RATE, seed=seed % 2**32) as fleet:
            fleet.fill(window)
            await every_fault(proxy)
            fleet.fill(None)
            await fleet.answered(PATIENCE_S)
        await operator.seal(window)
        _, release = await operator.release(window)
        counted = retries(service) - before

    journal = fleet.journal(window)
    verdicts, is_explained = read_from_release(PLAN, journal, fleet.cells(), release.counters, release.counts)
    sent = len(fleet.cells())
    assert by_id(journal, verdicts)[window] == VerdictTally(sent=sent, counted=sent)
    assert all(answer in KEPT for account in journal.accounts.values() for answer in account.answers.values())
    assert (sent > 0, is_explained, fleet.contradicted) == (True, True, 0)
    assert proxy.struck >= len(Fault)
    assert counted > 0
    assert "Traceback" not in capfd.readouterr().err
