"""What every test shares: seeds that are told when a test fails, and real brokers that start when a test asks."""

import hashlib
import os
import signal
from collections.abc import AsyncIterator, Generator

import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, settings

from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from hushsum_simulator.testbed.tcp_proxy import TcpProxy
from tests.brokers import ProxiedKafka, ProxiedPostgres, running_kafka, some_postgres

# A slow machine is no failure, CI runs the same examples each time, and what fails is printed to be replayed.
settings.register_profile(
    "hushsum",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("hushsum")

SEED_VARIABLE = "HUSHSUM_TEST_SEED"
_BASE = os.environ.get(SEED_VARIABLE, "0")


#: Set, only the tests that are marked as long run; else all others.
LONG_VARIABLE = "HUSHSUM_TEST_LONG"

#: Few tests, each of minutes or processes of its own.
WHOLE_RUNS = ("tests/integration/", "tests/hushsum_simulator/", "tests/benchmarks/")


# Before each test pytest-randomly sets `random` and numpy's global generator to what its seed and the test's name give.
# That is left on: the libraries' own draws (of a next broker, of a pause) are repeated with the order, and nothing that
# must be unique comes from there: ports are drawn by `secrets`, names of topics and databases are UUIDs.


def pytest_configure() -> None:
    """Processes that tests start can be interrupted, also where a shell has started this one in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what belongs to this run; whole runs come first, so that none is left alone at the end.

    pytest-randomly has shuffled them by its seed, the same in every process of xdist; the sort is stable, so that the
    order of files among the whole runs, and among the others, stays random.
    """
    wanted = LONG_VARIABLE in os.environ
    left_out = [item for item in items if (item.get_closest_marker("long") is not None) is not wanted]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    kept = (item for item in items if item not in dropped)
    items[:] = sorted(kept, key=lambda item: not item.nodeid.startswith(WHOLE_RUNS))


def pytest_report_header() -> str:
    return f"{SEED_VARIABLE}={_BASE}; random order: --randomly-seed=N repeats one, -p no:randomly turns it off"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This test's own seed below 2^64, made from its name and HUSHSUM_TEST_SEED (any text, default 0)."""
    name = f"{_BASE}/{request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator of made-up data (never of private noise), from this test's seed."""
    return np.random.default_rng(seed)


@pytest.fixture
def repeatable_noise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of the operating system's entropy comes from this test's seed: for what looks at how large it is."""
    stream = ReplayableEntropy(seed.to_bytes(8, "big"))
    monkeypatch.setattr(OsEntropy, "read", lambda _, size: stream.read(size))


@pytest.fixture(scope="session")
def kafka() -> Generator[KafkaBroker, None, None]:
    """One real broker for all tests; each takes a prefix of its own (tests.brokers.fresh_prefix)."""
    with running_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Generator[Postgres, None, None]:
    """One real database server for all tests; each takes ``fresh_database()``."""
    with some_postgres() as server:
        yield server


@pytest.fixture
async def kafka_behind_proxy(kafka: KafkaBroker) -> AsyncIterator[ProxiedKafka]:
    """The broker as seen through a proxy of this test's own."""
    async with TcpProxy(kafka.proxied, kafka.proxy_port) as proxy:
        yield ProxiedKafka(kafka, proxy)


@pytest.fixture
async def postgres_behind_proxy(postgres: Postgres) -> AsyncIterator[ProxiedPostgres]:
    """The database server as seen through a proxy of this test's own."""
    async with TcpProxy(":".join(map(str, postgres.address))) as proxy:
        yield ProxiedPostgres(postgres, proxy)


@pytest.fixture(autouse=True)
def _own_journal() -> Generator[None, None, None]:
    """A command that ran inside a test leaves no journal behind that writes where that test was captured."""
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = getattr(item, "funcargs", {})
    if report.failed and "seed" in used:
        report.sections.append(("seed", f"seed {used['seed']}, of {SEED_VARIABLE}={_BASE}"))
    return report
