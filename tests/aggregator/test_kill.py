"""Real processes, really killed in the middle of what they do; the files they leave are opened again."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from aggregator.runtime import SystemRuntime
from hushsum.entropy import OsEntropy
from tests.aggregator.disk_site import DiskSite, client_for, disk_site
from tests.aggregator.victim import PLAN
from tests.doubles import ManualRuntime

ROOT = Path(__file__).resolve().parents[2]
LIVES = 4


def killed(folder: Path, first_number: int | str, lines: int) -> list[list[str]]:
    """What a victim promised before it was killed, some lines after its start."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    command = [sys.executable, "-m", "tests.aggregator.victim", str(folder), str(first_number)]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        promises = [victim.stdout.readline().split() for _ in range(lines)]
        victim.kill()
        promises += [line.split() for line in victim.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    assert all(promises), "the victim died by itself"
    return promises


async def test_whatever_is_killed_every_promise_is_kept(tmp_path: Path, rng: np.random.Generator, seed: int) -> None:
    promises = []
    for life in range(LIVES):
        promises += killed(tmp_path, 700 * life, lines=int(rng.integers(3, 40)))
    acknowledged = [int(words[1]) for words in promises if words[0] == "acknowledged"]
    released = {int(words[1]): words[2] for words in promises if words[0] == "released"}

    site = await DiskSite.open(tmp_path, PLAN, ManualRuntime())
    await site.start()
    for window in await site.store.unfinished(PLAN.id):
        await site.releaser.seal(window, early=True)
        await site.releaser.release(window)
    await site.workers.stop()

    counted = site.counted()
    assert {client_for(number) for number in acknowledged} <= counted.keys(), f"lost; seed {seed}"
    assert set(counted.values()) == {1}, f"counted twice; seed {seed}"
    outcomes = await site.store.outcomes(PLAN.id)
    stored = {outcome.window: outcome.sha256.hex() for outcome in outcomes}
    assert all(outcome.published for outcome in outcomes)
    assert released.items() <= stored.items()
    receipts = {window: digest.hex() for _, _, window, digest, _ in await site.receipts.read()}
    assert receipts == stored
    spends = [spend.window for spend in (await site.store.account("")).spends]
    assert spends == sorted(stored)
    assert len(acknowledged) > 10
    await site.die()


async def test_whoever_is_killed_while_it_draws_the_next_one_draws_the_same(tmp_path: Path) -> None:
    drawn = [tuple(promise) for _ in range(3) for promise in killed(tmp_path, "drawing", lines=1)]
    async with disk_site(tmp_path, PLAN, SystemRuntime(), entropy=OsEntropy()) as site:
        assert [spend.window for spend in (await site.store.account("")).spends] == [site.window]
        stored = await site.releaser.release(site.window)
        assert set(drawn) == {("drawn", str(site.window), stored.sha256.hex())}
        assert [spend.window for spend in (await site.store.account("")).spends] == [site.window]
