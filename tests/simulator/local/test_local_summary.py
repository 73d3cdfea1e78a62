"""The numbers of a run in local mode, and what they accuse it of."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.local.summary import LocalSummary
from simulator.summary_table import print_summary
from tests.simulator.local.summaries import GOOD_REPORTS, GOOD_SHUFFLED, GOOD_SILOS, doctored


@pytest.mark.parametrize("good", (GOOD_REPORTS, GOOD_SHUFFLED, GOOD_SILOS), ids=("reports", "shuffled", "silos"))
def test_a_run_in_which_all_held_breaks_no_promise(good: LocalSummary) -> None:
    assert good.violations() == []
    assert json.loads(good.to_json())["form"] == good.form


@pytest.mark.parametrize(
    ("good", "changes", "sentence"),
    (
        (GOOD_REPORTS, {"reports_counted": 271_010}, "270 reports were lost"),
        (GOOD_REPORTS, {"reports_counted": 271_281}, "1 reports were counted twice"),
        (GOOD_REPORTS, {"reports_sent": 271_281}, "of 271,281 reports 271,280 were acknowledged"),
        (GOOD_REPORTS, {"deltas_lost": 1}, "1 batches were lost"),
        (GOOD_REPORTS, {"deltas_double_counted": 2}, "2 batches were counted twice"),
        (GOOD_REPORTS, {"report_bytes": 5}, "a report has 5 bytes, and may have 4"),
        (GOOD_REPORTS, {"names_found": 1}, "1 clients' names stand in what the service keeps"),
        (GOOD_REPORTS, {"names_control": False}, "it looked at nothing"),
        (GOOD_REPORTS, {"restarts": 0}, "the server was never killed"),
        (GOOD_REPORTS, {"deltas_resent": 0}, "none was sent again"),
        (GOOD_REPORTS, {"duplicates_dropped": 0}, "no duplicate came"),
        (GOOD_REPORTS, {"account_spent": 8.0}, "a device's own account 8"),
        (GOOD_REPORTS, {"account_spent": 8.0, "epsilon_spent": 8.0}, "more than ε = 4 is spent"),
        (GOOD_REPORTS, {"mean_relative_error": 0.2}, "answers err by 0.2, and say themselves that it is 0.0232"),
        (GOOD_SHUFFLED, {"shuffler_restarts": 0}, "the shuffler was never killed"),
        (GOOD_SHUFFLED, {"shuffled_batches": 0}, "no batch left the shuffler"),
        (GOOD_SILOS, {"submissions_released": 39}, "the release has 39 submissions, and the clients know of 40"),
        (GOOD_SILOS, {"clients": 41}, "41 clients submit, and 40 know that theirs is counted"),
        (GOOD_SILOS, {"noise_variance_z": -7.0}, "the noise's variance is 0.9968 of what it should be"),
        (GOOD_SILOS, {"noise_mean_z": 6.1}, "the noise's mean"),
        (GOOD_SILOS, {"client_z": -30.0}, "a client's sum was lost, counted twice or changed"),
    ),
)
def test_each_broken_promise_is_one_sentence(good: LocalSummary, changes: dict[str, Any], sentence: str) -> None:
    (said,) = doctored(good, **changes).violations()
    assert sentence in said


@pytest.mark.parametrize(
    ("good", "shown"),
    (
        (GOOD_REPORTS, ("271,280", "1,099", "3.31", "the limit is 4", "clients' names found", "× 1.5 as much")),
        (GOOD_SHUFFLED, ("0.474", "135,640", "δ = 1e-6", "shuffler restarts")),
        (GOOD_SILOS, ("179,202", "99.68 %", "noised sums", "who takes part is not hidden")),
    ),
    ids=("reports", "shuffled", "silos"),
)
def test_the_table_shows_the_numbers(
    good: LocalSummary, shown: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(good, Path("out"))
    printed = capsys.readouterr().out
    for text in (*shown, "Nothing was lost"):
        assert text in printed
    assert ("ε, shuffled" in printed) == (good.shuffle_min > 0)


def test_a_run_that_lost_something_does_not_say_that_nothing_was(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored(GOOD_REPORTS, reports_counted=1), Path("out"))
    assert "Nothing was lost" not in capsys.readouterr().out
