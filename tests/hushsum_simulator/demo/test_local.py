"""A release of silos without its exact sum is the plan's noise, and a submission that is lost or doubled shows.

The search for names finds what is there, where a service keeps things.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from hushsum import Release
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.local import silo
from hushsum.releases import of_silos
from hushsum_simulator.data import ClientRecords
from hushsum_simulator.demo.evaluation import in_bulk, residual_of
from hushsum_simulator.demo.local import search
from hushsum_simulator.scenario import Material
from tests.hushsum.local_plans import silo_plan
from tests.hushsum_simulator.demo.summaries import is_noise

PLAN = silo_plan(privacy={"epsilon": 1, "delta": Fraction(1, 10**6), "total_delta": Fraction(1, 10**5)})
NUMBER = 6


def material(rng: np.random.Generator) -> Material:
    values = rng.uniform(0, 10, (NUMBER * 1000, 2))
    shares = [ClientRecords(f"c{at}", (values[at * 1000 : (at + 1) * 1000],)) for at in range(NUMBER)]
    return Material(PLAN, shares, values, values[:1])


def released(of: Material, times: Mapping[str, int]) -> Release:
    """The sum of each client's submission so many times."""
    counters, counts = np.zeros(PLAN.counters_shape, np.int64), np.zeros(1, np.int64)
    for share in of.shares:
        sketch = in_bulk(of.only({share.client_id}))
        data = silo.submission(PLAN, sketch.counters, sketch.counts, window=0, id=DeltaId(1, 0), entropy=OsEntropy())
        for _ in range(times[share.client_id]):
            silo.unpack(data, PLAN).add_to(counters, counts)
    return of_silos(PLAN, counters, counts, window=0, submissions=NUMBER)


@pytest.mark.statistical
@pytest.mark.usefixtures("repeatable_noise")
def test_of_all_submissions_nothing_is_left_but_noise(rng: np.random.Generator) -> None:
    """Eight normal quantities within six standard errors: a false alarm in 6·10⁷ runs."""
    of = material(rng)
    clients = Counter(share.client_id for share in of.shares)
    assert is_noise(residual_of(of, released(of, clients), of.shares))


@pytest.mark.parametrize(("times", "sign"), ((0, -1), (2, 1)), ids=("dropped", "doubled"))
def test_a_submission_that_is_not_there_once_is_left_whole(rng: np.random.Generator, times: int, sign: int) -> None:
    of = material(rng)
    numbers = {share.client_id: 1 for share in of.shares} | {"c3": times}
    residual = residual_of(of, released(of, numbers), of.shares)
    assert not is_noise(residual)
    assert sign * residual.client_z > 30


NAMES = ("client-01", "client-02")


def test_a_name_in_a_write_ahead_log_is_found_while_the_file_is_open(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (name TEXT)")
    connection.execute("INSERT INTO t VALUES ('client-02')")
    found = search([tmp_path], NAMES, b"CREATE TABLE t")
    connection.close()
    assert found.names == {"client-02"}
    assert found.control
    assert found.bytes > 4096


def test_a_name_in_a_file_in_a_folder_and_on_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "journal").write_text("... peer=client-01 ...")
    assert search([tmp_path], NAMES, b"...").names == {"client-01"}
    assert search([tmp_path / "deep" / "er" / "journal"], NAMES, b"...").names == {"client-01"}
    assert search([], NAMES, b"...", page=b'sent{by="client-02"}').names == {"client-02"}


def test_a_search_that_missed_what_is_surely_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"plan and client-01")
    good, bad = search([tmp_path], NAMES, b"plan"), search([tmp_path / "none"], NAMES, b"plan")
    assert (good.control, bad.control, (good | bad).control) == (True, False, False)
    assert (good | bad).names == {"client-01"}
