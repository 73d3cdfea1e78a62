"""A run's numbers, and what they accuse it of.

The numbers of a run in secure mode, and what they accuse it of.

The numbers of a run in local mode, and what they accuse it of.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hushsum_simulator.demo.local import LocalSummary
from hushsum_simulator.demo.summary import error_ratio, print_summary
from tests.hushsum_simulator.demo.summaries import (
    GOOD,
    GOOD_REPORTS,
    GOOD_SECURE,
    GOOD_SHUFFLED,
    GOOD_SILOS,
    doctored,
    doctored_local,
    doctored_secure,
)

PROMISED = [
    "records",
    "records_dropped",
    "deltas_sent",
    "deltas_resent",
    "duplicates_dropped",
    "deltas_counted",
    "deltas_lost",
    "deltas_double_counted",
    "counters_equal",
    "bytes_per_record",
    "restarts",
    "seconds",
    "mean_relative_error",
    "expected_relative_error",
    "epsilon_spent",
    "epsilon_left",
]


def test_the_promised_keys_come_first_in_the_json() -> None:
    assert list(json.loads(GOOD.to_json()))[: len(PROMISED)] == PROMISED


def test_a_run_in_which_all_held_breaks_no_promise() -> None:
    assert GOOD.violations() == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    (
        ({"deltas_lost": 1}, "1 deltas were lost"),
        ({"deltas_double_counted": 2}, "2 deltas were counted twice"),
        ({"counters_equal": False}, "counters differ"),
        ({"deltas_resent": 0}, "no delta was resent"),
        ({"unacknowledged_at_kill": 0}, "no delta was resent"),
        ({"duplicates_dropped": 0}, "no duplicate arrived"),
        ({"restarts": 0}, "never killed"),
    ),
)
def test_each_broken_promise_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    (said,) = doctored(**changes).violations()
    assert sentence in said


def test_the_table_shows_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(GOOD, Path("out"))
    shown = capsys.readouterr().out
    for text in ("271,280", "5,121", "124", "794", "31.5", "2.07 %", "3.23 %", "above 271", "SIGKILL"):
        assert text in shown
    assert "price of unit client" not in shown


def test_the_table_of_unit_client_shows_the_price(capsys: pytest.CaptureFixture[str]) -> None:
    paid = doctored(
        unit="client", records_per_client=5, records=1000, clients=200, mean_kernel_sum=30.0, noise_std_error=235.0
    )
    print_summary(paid, Path("out"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "× 5" in shown
    assert "783 %" in shown  # 235 of 30
    assert "16,000 clients" in shown  # 200 clients · 235/30 / 10 % = 15,667


def test_the_table_of_a_bad_run_does_not_call_it_good(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored(deltas_lost=1), Path("out"))
    assert "Nothing was lost" not in capsys.readouterr().out


def test_an_expected_error_that_is_unknown_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored(expected_relative_error=None), Path("out"))
    assert "unknown" in capsys.readouterr().out


NEW = ("clients_dropped", "cohorts", "rounds_aborted", "submissions_spent", "upload_bytes_per_client")


def test_both_modes_have_the_keys_of_secure_mode_after_the_promised_ones() -> None:
    central, secure = json.loads(GOOD.to_json()), json.loads(GOOD_SECURE.to_json())
    assert [central[key] for key in NEW] == [0] * 5
    assert [secure[key] for key in NEW] == [20, 2, 3, 189, 261_940.0]
    assert (central["mode"], secure["mode"]) == ("central", "secure")
    assert list(secure)[: len(central)] == list(central)
    assert list(central)[: len(PROMISED)] == PROMISED


def test_a_run_in_secure_mode_in_which_all_held_breaks_no_promise() -> None:
    assert GOOD_SECURE.violations() == []
    assert doctored_secure(dropout_rate=0.0, clients_dropped=0).violations() == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    (
        ({"submissions_released": 188}, "the release has 188 submissions, but the clients have answers for 187"),
        ({"submissions_lost": 3}, "189 submissions are spent, but 187 are counted and 3 lost"),
        ({"submissions_lost": 1}, "189 submissions are spent, but 187 are counted and 1 lost"),
        ({"clients_unspent": 10}, "do not add up"),
        ({"stayed_uncounted": 1}, "1 clients that never dropped out are in no sum"),
        ({"noise_variance_z": -6.1}, "the variance of the noise is 1.0072 × the stated one"),
        ({"noise_mean_z": 6.1}, "the noise's mean is more than 6"),
        ({"client_z": -7.0}, "lost, counted twice or changed"),
        ({"clients_dropped": 0}, "no client dropped out"),
    ),
)
def test_each_broken_promise_of_secure_mode_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    (said,) = doctored_secure(**changes).violations()
    assert sentence in said


def test_the_table_shows_the_cohorts_and_central_mode_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(GOOD_SECURE, Path("out"))
    shown = " ".join(capsys.readouterr().out.split())
    figures = ("261,940", "256,003", "100.72 %", "2.65 %", "2.50 %", "1.06 ×", "× 1.62")
    for text in ("2 cohorts of up to 100", "asked later", *figures):
        assert text in shown
    assert "the plan's noise." in shown
    assert "SIGKILL" not in shown


def test_the_table_of_a_bad_run_in_secure_mode_does_not_call_it_good(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored_secure(client_z=9.0), Path("out"))
    assert "Nothing was lost" not in capsys.readouterr().out


def test_without_a_comparable_query_there_is_no_ratio() -> None:
    assert error_ratio(doctored_secure(mean_relative_error=None), 0.025) is None
    assert error_ratio(GOOD_SECURE, None) is None
    assert error_ratio(GOOD_SECURE, GOOD_SECURE.central_relative_error) == pytest.approx(1.06)


@pytest.mark.parametrize("good", (GOOD_REPORTS, GOOD_SHUFFLED, GOOD_SILOS), ids=("reports", "shuffled", "silos"))
def test_a_run_in_local_mode_in_which_all_held_breaks_no_promise(good: LocalSummary) -> None:
    assert good.violations() == []
    assert json.loads(good.to_json())["form"] == good.form


@pytest.mark.parametrize(
    ("good", "changes", "sentence"),
    (
        (GOOD_REPORTS, {"reports_counted": 271_010}, "270 reports were lost"),
        (GOOD_REPORTS, {"reports_counted": 271_281}, "1 reports were counted twice"),
        (GOOD_REPORTS, {"reports_sent": 271_281}, "271,280 of 271,281 reports were acknowledged"),
        (GOOD_REPORTS, {"deltas_lost": 1}, "1 batches were lost"),
        (GOOD_REPORTS, {"deltas_double_counted": 2}, "2 batches were counted twice"),
        (GOOD_REPORTS, {"report_bytes": 5}, "a report has 5 bytes, and may have 4"),
        (GOOD_REPORTS, {"names_found": 1}, "1 names of clients are in the data or output"),
        (GOOD_REPORTS, {"names_control": False}, "the search for names did not find a known string"),
        (GOOD_REPORTS, {"restarts": 0}, "the server was never killed"),
        (GOOD_REPORTS, {"deltas_resent": 0}, "was resent, so the kill tested nothing"),
        (GOOD_SHUFFLED, {"unacknowledged_at_kill": 0}, "was resent, so the kill tested nothing"),
        (GOOD_REPORTS, {"duplicates_dropped": 0}, "no duplicate arrived"),
        (GOOD_REPORTS, {"account_spent": 8.0}, "a device ledger 8"),
        (GOOD_REPORTS, {"account_spent": 8.0, "epsilon_spent": 8.0}, "more than ε = 4 is spent"),
        (GOOD_REPORTS, {"mean_relative_error": 0.2}, "the relative error is 0.2, expected 0.0232"),
        (GOOD_SHUFFLED, {"shuffler_restarts": 0}, "the shuffler was never killed"),
        (GOOD_SHUFFLED, {"shuffled_batches": 0}, "no batch left the shuffler"),
        (
            GOOD_SILOS,
            {"submissions_released": 39},
            "the release has 39 submissions, but the clients have answers for 40",
        ),
        (GOOD_SILOS, {"clients": 41}, "41 clients submit, and 40 have the answer that theirs is counted"),
        (GOOD_SILOS, {"noise_variance_z": -7.0}, "the variance of the noise is 0.9968 × the stated one"),
        (GOOD_SILOS, {"noise_mean_z": 6.1}, "the noise's mean"),
        (GOOD_SILOS, {"client_z": -30.0}, "a client's sum was lost, counted twice or changed"),
    ),
)
def test_each_broken_promise_of_local_mode_is_one_sentence(
    good: LocalSummary, changes: dict[str, Any], sentence: str
) -> None:
    (said,) = doctored_local(good, **changes).violations()
    assert sentence in said


@pytest.mark.parametrize(
    ("good", "shown"),
    (
        (GOOD_REPORTS, ("271,280", "1,099", "3.31", "the limit is 4", "clients' names found", "× 1.5 as much")),
        (GOOD_SHUFFLED, ("0.474", "135,640", "δ = 1e-6", "shuffler restarts")),
        (GOOD_SILOS, ("179,202", "99.68 %", "noised sums", "participation is not hidden")),
    ),
    ids=("reports", "shuffled", "silos"),
)
def test_the_table_of_local_mode_shows_the_numbers(
    good: LocalSummary, shown: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(good, Path("out"))
    printed = capsys.readouterr().out
    for text in (*shown, "Nothing was lost"):
        assert text in printed
    assert ("ε, shuffled" in printed) == (good.shuffle_min > 0)


def test_a_run_that_lost_something_does_not_say_that_nothing_was(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored_local(GOOD_REPORTS, reports_counted=1), Path("out"))
    assert "Nothing was lost" not in capsys.readouterr().out
