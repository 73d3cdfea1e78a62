"""What every test shares: seeds that are told when a test fails, and real brokers that start when a test asks."""

import contextlib
import gc
import hashlib
import importlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, settings

from aggregator.logs import LIBRARIES
from hushsum import compiled
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from hushsum_simulator.testbed.tcp_proxy import TcpProxy
from tests.brokers import ProxiedKafka, ProxiedPostgres, some_postgres, started_kafka

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

TESTS = Path(__file__).parent

#: Modules whose ``warm_up`` compiles loops of their own. The first takes half of the time.
LOOPS = (
    "hushsum.families.lsh.compiled.engine",
    "aggregator.fold.fold",
    "hushsum.families.fourier.engine_compiled",
    "hushsum.families.partition.engine_compiled",
    "hushsum.noise",
    "hushsum.cumulative_loops",
    "hushsum.local.report_batch_loops",
    "hushsum.families.hermite.loops",
    "hushsum.families.vector_loops",
    "hushsum.families.lsh.compiled.single_row",
)

#: Files that take long: few tests, each of minutes or processes of its own, or (the checks of all families) many tests.
WHOLE_RUNS = ("tests/integration/", "tests/hushsum_simulator/", "tests/benchmarks/", "tests/checks/")

#: The broker while it runs, and the files with tests that are known to use it.
BROKER = pytest.StashKey[KafkaBroker]()
WITH_BROKER = pytest.StashKey[set[Path]]()


# Before each test pytest-randomly sets `random` and numpy's global generator to what its seed and the test's name give.
# That is left on: the libraries' own draws (of a next broker, of a pause) are repeated with the order, and nothing that
# must be unique comes from there: ports are drawn by `secrets`, names of topics and databases are UUIDs.


def pytest_configure() -> None:
    """Processes that tests start can be interrupted, also where a shell has started this one in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Makes this worker's share of what every process would else make anew in a fresh clone.

    That is a minute for compiled loops, which each process of a service needs before it listens, and half of the time
    that collection takes, for pytest's own compiled modules of tests. What another worker has made is found in the
    caches. xdist hands out the first test when all workers have collected, so that no test starts before.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    gc.disable()
    number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    compile_loops(number, workers)
    if [session.config.rootpath / arg for arg in session.config.args] == [TESTS]:
        for path in sorted(TESTS.rglob("test_*.py"))[number::workers]:
            module = path.relative_to(TESTS.parent).with_suffix("").parts
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collection imports it again, and reports it
                importlib.import_module(".".join(module))


def pytest_collection_finish() -> None:
    """What collection has made stays until the end: the garbage collector need not look through it again and again."""
    gc.enable()
    gc.freeze()


def compile_loops(number: int, workers: int) -> None:
    """This worker's share of the compiled loops: the first has one half, the others share the other."""
    share = LOOPS[1:][number - 1 :: workers - 1] if number else LOOPS[:1]
    if compiled.enabled():
        for name in share:
            importlib.import_module(name).warm_up()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what belongs to this run; whole runs come first, so that none is left alone at the end.

    Files whose tests use a broker follow each other, so that it need not run for long. pytest-randomly has shuffled the
    tests by its seed, the same in every process of xdist; the sort is stable, so that the order of files among the
    whole runs, and among the others, stays random.
    """
    wanted = LONG_VARIABLE in os.environ
    left_out = [item for item in items if (item.get_closest_marker("long") is not None) is not wanted]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    kept = [item for item in items if item not in dropped]
    with_broker = {item.path for item in kept if "kafka" in getattr(item, "fixturenames", ())}
    config.stash[WITH_BROKER] = with_broker

    def place(item: pytest.Item) -> tuple[bool, bool]:
        is_whole, uses_broker = item.nodeid.startswith(WHOLE_RUNS), item.path in with_broker
        return not is_whole, is_whole == uses_broker

    items[:] = sorted(kept, key=place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ends the broker where a file comes that does not use it: waiting, it takes a twentieth of a core."""
    if item.path not in item.config.stash[WITH_BROKER]:
        end_broker(item.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    end_broker(config)


def end_broker(config: pytest.Config) -> None:
    if (broker := config.stash.get(BROKER, None)) is not None:
        broker.close()
        del config.stash[BROKER]


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


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> KafkaBroker:
    """One real broker for tests that follow each other; each takes a prefix of its own (tests.brokers.fresh_prefix)."""
    stash = request.config.stash
    stash[WITH_BROKER].add(request.path)
    if BROKER not in stash:
        stash[BROKER] = started_kafka()
    return stash[BROKER]


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
    """A command that ran inside a test leaves no logger behind: not its own, and no handler of the libraries' loggers.

    Without a configuration structlog writes to standard output, where the next test reads a command's result.
    """
    kept = [(logger, logger.handlers, logger.propagate) for logger in map(logging.getLogger, LIBRARIES)]
    yield
    structlog.reset_defaults()
    for logger, handlers, propagates in kept:
        logger.handlers, logger.propagate = handlers, propagates


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = getattr(item, "funcargs", {})
    if report.failed and "seed" in used:
        report.sections.append(("seed", f"seed {used['seed']}, of {SEED_VARIABLE}={_BASE}"))
    return report
