"""What every test shares: seeds that are the same in every run and are told when a test fails."""

import hashlib
import os
from collections.abc import Generator

import numpy as np
import pytest
import structlog
from hypothesis import settings

# A slow machine is no failure, CI runs the same examples each time, and what fails is printed to be replayed.
settings.register_profile("hushsum", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("hushsum")

SEED_VARIABLE = "HUSHSUM_TEST_SEED"
_BASE = os.environ.get(SEED_VARIABLE, "0")


def pytest_report_header() -> str:
    return f"{SEED_VARIABLE}={_BASE}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This test's own seed below 2^64, made from its name and HUSHSUM_TEST_SEED (any text, default 0)."""
    name = f"{_BASE}/{request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A generator of made-up data (never of private noise), from this test's seed."""
    return np.random.default_rng(seed)


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
