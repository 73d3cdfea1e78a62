"""What the CLI tells of pools: what is assumed, how many of a cohort follow from it, and what that costs."""

import json
import math
from pathlib import Path

import pytest

from hushsum.privacy.graph_degree import degrees
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_cli.test_plan import SECURE

POOL = "[privacy.secure]\ncorrupt_clients = 50\npool = 1000\n"
GUESSES = ("--records", "2e4", "--density", "0.2", "--memory-mib", "0.2")


def written(tmp_path: Path, pool: str = POOL) -> str:
    path = tmp_path / "secure.toml"
    path.write_text(f"{SECURE}\n{pool}")
    return str(path)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_made_plan_says_what_its_pool_and_its_corrupt_clients_cost(hushsum: Hushsum, tmp_path: Path) -> None:
    ended = hushsum("plan", "make", written(tmp_path))
    assert ended.status == 0, ended.err
    graph = degrees(100, 90, 24, malicious=True)
    shown = words(ended.out)
    for text in (
        "ε = 1, δ = 8.18546e-12 per record",
        "at most 24 corrupt: the noise of h = 66 honest survivors",
        f"{graph.degree} neighbours per client, any {graph.threshold} of which can reconstruct its mask",
        "no cohort is drawn while fewer than 1,000 clients wait",
        "assumed at most 50 clients of the fleet are corrupt (corrupt_clients); for a malicious server, also that",
        "cohorts are drawn from at least 1,000 clients waiting at one gateway (10 times the cohort size): at most 24",
        "at most 24 of 100 are corrupt, except with probability 2^-43 per draw",
        "about 1.23 times that of central mode if all 100 clients stay, 1.17 times that with no corrupt clients",
    ):
        assert text in shown
    assert "states no pool" not in shown
    fields = json.loads(hushsum("plan", "show", str(tmp_path / "secure.json"), "--json").out)
    assert fields["plan"]["privacy"]["secure"]["corrupt"] == "0.24"
    assert fields["secure"] == {
        "corrupt_of_cohort": 24,
        "honest_survivors": 66,
        "degree": graph.degree,
        "threshold": graph.threshold,
        "noise_to_central": math.sqrt(100 / 66),
        "noise_to_none_corrupt": math.sqrt(90 / 66),
    }


def test_a_fleet_in_which_nobody_is_corrupt_is_called_an_assumption(hushsum: Hushsum, tmp_path: Path) -> None:
    shown = words(hushsum("plan", "show", written(tmp_path, POOL.replace("50", "0"))).out)
    assert (
        "assumed no client of the fleet is corrupt (corrupt_clients = 0): a corrupt client could leave "
        "out its share of the noise" in shown
    )


def test_a_server_that_is_trusted_to_draw_is_not_said_to_lie(hushsum: Hushsum, tmp_path: Path) -> None:
    curious = f'{POOL}adversary = "honest-but-curious"\n'
    assert "malicious" not in words(hushsum("plan", "show", written(tmp_path, curious)).out)


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        (POOL.replace("corrupt_clients = 50\n", ""), "privacy.secure.corrupt_clients: is missing"),
        (POOL.replace("pool = 1000\n", ""), "privacy.secure.pool: is missing"),
        (POOL.replace("50", "400"), "400 corrupt clients in a pool of 1000 allow 74 corrupt in a cohort of 100"),
        (f"{POOL}corrupt = 0.1\n", "expected at least 0.24: 50 corrupt clients in a pool of 1000"),
    ],
    ids=["no-corrupt-clients", "no-pool", "too-many", "too-small-a-share"],
)
def test_keys_of_a_pool_that_do_not_fit_are_refused_by_name(
    hushsum: Hushsum, tmp_path: Path, pool: str, told: str
) -> None:
    ended = hushsum("plan", "make", written(tmp_path, pool))
    assert ended.status != 0
    assert told in words(ended.err)


def test_advice_says_who_is_left_over_because_fewer_than_a_pool_wait(hushsum: Hushsum, tmp_path: Path) -> None:
    asked = ("plan", "advise", written(tmp_path), *GUESSES, "--clients", "2550")
    told = words(hushsum(*asked).out)
    for text in (
        "assumed at most 50 clients of the fleet are corrupt",
        "with exactly h in 16 cohorts",  # from 2,550, 2,450 … 1,050 that wait
        "if all 1,600 clients stay",
        "share 39.2% of the clients must wait at one gateway before a cohort is drawn",
        "left over 950 clients (37.3%) or more per window",
    ):
        assert text in told
    fields = json.loads(hushsum(*asked, "--json").out)["secure"]
    assert (fields["cohorts"], fields["clients_in_cohorts"], fields["corrupt_of_cohort"]) == (16, 1600, 24)
    assert (fields["corrupt_clients"], fields["pool"]) == (50, 1000)


def test_advice_says_that_a_fleet_is_smaller_than_the_pool(hushsum: Hushsum, tmp_path: Path) -> None:
    told = words(hushsum("plan", "advise", written(tmp_path), *GUESSES, "--clients", "999").out)
    assert "no cohort 999 clients, but a pool needs 1,000" in told
    assert "left over" not in told
