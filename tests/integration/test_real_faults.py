"""The real service, Kafka and PostgreSQL under faults: nothing lost, nothing doubled, no stack trace, retries counted.

The oracle is the release itself: its plan's noise is drawn as ever and rounds away, and every delta is known by its
cells (hushsum_simulator.chaos.senders, whose own tests plant mistakes).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aggregator.app import Service, running
from aggregator.runtime import SystemRuntime
from hushsum_simulator.chaos.cluster import Operator
from hushsum_simulator.chaos.run import fault_plan, run
from hushsum_simulator.chaos.senders import Sender, SenderJournal
from hushsum_simulator.testbed.postgres import missing_postgres
from hushsum_simulator.testbed.tcp_proxy import Fault, TcpProxy
from tests.brokers import JARS, ProxiedKafka, ProxiedPostgres, fresh_prefix, left_out, missing_kafka
from tests.services import config_of

PLAN = fault_plan()
SENDERS = 4
RATE = 50.0
STRUCK_S = 3.0  # how long a fault waits for a request that it is for
HELD_S = 0.7
PATIENCE_S = 180.0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kills_and_pauses_of_every_process_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    if (why := missing_kafka() or missing_postgres()) is not None:
        left_out(why)
    lines: list[str] = []
    tally = await run(rounds=1, seed=seed % 2**32, jars=JARS, folder=tmp_path, load_s=3.0, strikes=4, say=lines.append)
    told = "\n".join([*lines, str(tally)])
    assert tally.clean, told
    assert (tally.rounds, tally.strikes) == (1, 4), told
    assert tally.acknowledged > 0, told


class Load:
    """Senders of one window, and what they were told."""

    def __init__(self, service: Service, window: int, seed: int) -> None:
        self.journal = SenderJournal(PLAN, window)
        self.senders = [Sender(PLAN, number, [service.grpc], RATE, seed) for number in range(SENDERS)]

    async def under(self, faults: Callable[[], Awaitable[None]]) -> None:
        """Sends while the faults go on, and then until everything is answered."""
        tasks = [asyncio.create_task(sender.run()) for sender in self.senders]
        try:
            for sender in self.senders:
                sender.journal = self.journal
            await faults()
            for sender in self.senders:
                sender.journal = None
            async with asyncio.timeout(PATIENCE_S):
                while not all(sender.idle for sender in self.senders):
                    assert not any(task.done() for task in tasks), "a sender has failed"
                    await asyncio.sleep(0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


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
        load = Load(service, window, seed % 2**32)
        before = retries(service)
        await load.under(lambda: every_fault(proxy))
        await operator.seal(window)
        _, release = await operator.release(window)
        counted = retries(service) - before

    verdict = load.journal.judge(release.counters, release.counts)
    assert verdict.acknowledged == len(load.journal.sent) > 0
    assert (verdict.lost, verdict.doubled, verdict.unexplained, load.journal.contradicted) == (0, 0, False, 0)
    assert proxy.struck >= len(Fault)
    assert counted > 0
    assert "Traceback" not in capfd.readouterr().err
