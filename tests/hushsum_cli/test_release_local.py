"""`hushsum release show`, `hushsum query` and `hushsum ledger show` of local releases."""

import json
from pathlib import Path

import numpy as np
import pytest

from hushsum import Plan
from hushsum.privacy.ledger import Ledger
from hushsum.privacy.spending import spend_of
from hushsum.releases import Release, of_reports, of_silos
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan

DELTA = {"delta": "0.000001"}


def local_plan(local: dict[str, object] | None = None, **privacy: object) -> Plan:
    return small_plan(privacy={"mode": "local", "local": local or {}, **privacy})


def reported(plan: Plan, number: int, *, shuffled: bool = False) -> Release:
    """A release of so many reports, spread over rows and outputs, but not evenly."""
    counters = np.zeros(plan.counters_shape, np.int64)
    _, rows, outputs = counters.shape
    np.add.at(counters[0], (np.arange(number) % rows, np.arange(number) ** 2 % outputs), 1)
    return of_reports(plan, counters, np.array([number]), window=7, shuffled=shuffled)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "week.hush"


def shown(hushsum: Hushsum, release: Release, file: Path) -> str:
    release.save(file)
    ended = hushsum("release", "show", str(file))
    assert ended.status == 0, ended.err
    return " ".join(ended.out.split())


def told(hushsum: Hushsum, file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(hushsum("release", "show", str(file), "--json").out)
    return found


def test_a_release_of_reports_tells_their_exact_number_and_nothing_of_a_shuffler(hushsum: Hushsum, file: Path) -> None:
    text = shown(hushsum, reported(local_plan(), 1200), file)
    assert "reports 1,200, one per record (exact)" in text
    assert "±" not in text
    assert "shuffle" not in text
    fields = told(hushsum, file)
    assert (fields["count"], fields["count_std_error"]) == (1200, 0)
    assert (fields["shuffled"], fields["amplified"]) == (False, None)


def test_what_a_shuffler_adds_is_shown_where_reports_came_through_one_alone(hushsum: Hushsum, file: Path) -> None:
    plan = local_plan({"shuffle_min": 10_000}, **DELTA)
    text = shown(hushsum, reported(plan, 20_000, shuffled=True), file)
    epsilon = 0.0530053
    assert f"shuffled ε = {epsilon}" in text
    assert "against observers after the shuffler" in text
    amplified = told(hushsum, file)["amplified"]
    assert isinstance(amplified, dict)
    assert float(amplified["epsilon"]) == epsilon
    assert amplified["delta"] == "0.000001"


def test_too_few_shuffled_reports_are_said_to_add_nothing(hushsum: Hushsum, file: Path) -> None:
    text = shown(hushsum, reported(local_plan({"shuffle_min": 1}, **DELTA), 900, shuffled=True), file)
    assert "shuffled too few" in text
    assert told(hushsum, file)["amplified"] is None


def test_a_release_of_silos_tells_how_many_contributed(hushsum: Hushsum, file: Path) -> None:
    plan = local_plan({"form": "silo"})
    counters = np.zeros(plan.counters_shape, np.int64)
    release = of_silos(plan, counters, np.array([0]), window=7, submissions=12)
    text = shown(hushsum, release, file)
    assert "sum of 12 clients, each with its own noise on every counter" in text
    assert "(noisy count ± standard error)" in text
    fields = told(hushsum, file)
    assert fields["submissions"] == 12
    assert "cohorts" not in fields


def test_a_query_of_reports_has_error_bars_and_their_exact_number(hushsum: Hushsum, file: Path) -> None:
    reported(local_plan(), 1200).save(file)
    ended = hushsum("query", str(file), "--at", "3,7")
    assert ended.status == 0, ended.err
    assert "1,200 reports in total (exact)" in ended.out
    found = json.loads(hushsum("query", str(file), "--at", "3,7", "--json").out)
    assert found["count"] == {"value": 1200.0, "std_error": 0.0}
    assert found["answers"][0]["std_error"] > 0


def test_a_query_of_labelled_reports_tells_about_how_many_each_class_has(hushsum: Hushsum, file: Path) -> None:
    plan = small_plan(record={"classes": ["a", "b"]}, privacy={"mode": "local"})
    reported(plan, 1200).save(file)
    found = json.loads(hushsum("query", str(file), "--at", "3,7", "--label", "a", "--json").out)
    assert found["count"]["value"] == 1200
    assert set(found["counts"]) == {"a", "b"}
    assert all(number["std_error"] > 0 for number in found["counts"].values())


def test_a_ledger_shows_the_likelihood_ratio_of_randomised_reports(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = local_plan()
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.charge(spend_of(plan, kind="tumbling", window=7), plan.limits)
    shown = hushsum("ledger", "show", str(tmp_path / "ledger.db")).out
    assert "k-rr" in shown
    assert "λ = 2.71828" in shown
