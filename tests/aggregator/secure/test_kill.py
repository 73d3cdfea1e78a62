"""A service that is really killed with a cohort's sum in its hands: nothing is counted twice, and nobody is lied to."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.aggregator.secure_clients import fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, plan_of, sealed, site_config, total
from tests.services import WINDOW, service_of

ROOT = Path(__file__).resolve().parents[3]
PLAN = plan_of()


def killed(folder: Path, when: str) -> bytes:
    """The round that was spent when the service was killed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    command = [sys.executable, "-m", "tests.aggregator.secure_victim", str(folder), when]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        for line in victim.stdout:
            if line.startswith("spent "):
                victim.kill()
                return bytes.fromhex(line.split()[1])
    raise AssertionError("the victim died by itself")


@pytest.mark.parametrize(("when", "cohorts"), [("before", 0), ("after", 1)])
async def test_after_a_kill_between_the_last_share_and_the_answer_the_sum_is_in_the_log_once_or_never(
    tmp_path: Path, when: str, cohorts: int
) -> None:
    spent = killed(tmp_path, when)
    async with service_of(site_config(tmp_path, PLAN)) as service, stub_of(service.grpc) as stub:
        fleet = fleet_of(PLAN, SIZE, np.random.default_rng(0))
        for client in fleet:
            assert (await client.ask(stub, WINDOW, spent)).result == "unknown"
        counted_cohorts, submissions, vector = await sealed(service)
        assert (counted_cohorts, submissions) == (cohorts, cohorts * SIZE)
        assert (vector == cohorts * total(fleet)).all()
