"""The numbers of a run in secure mode, and what they accuse it of."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.summary_table import print_summary
from tests.simulator.summaries import GOOD, GOOD_SECURE, doctored_secure
from tests.simulator.test_summary import PROMISED

NEW = ("clients_dropped", "cohorts", "rounds_aborted", "submissions_spent", "upload_bytes_per_client")


def test_both_modes_have_the_keys_of_secure_mode_after_the_promised_ones() -> None:
    central, secure = json.loads(GOOD.to_json()), json.loads(GOOD_SECURE.to_json())
    assert [central[key] for key in NEW] == [0] * 5
    assert [secure[key] for key in NEW] == [20, 2, 3, 189, 261_940.0]
    assert (central["mode"], secure["mode"]) == ("central", "secure")
    assert list(secure)[: len(central)] == list(central)
    assert list(central)[: len(PROMISED)] == PROMISED


def test_a_run_in_which_all_held_breaks_no_promise() -> None:
    assert GOOD_SECURE.violations() == []
    assert doctored_secure(dropout_rate=0.0, clients_dropped=0).violations() == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    (
        ({"submissions_released": 188}, "the release has 188 submissions, and the clients know of 187"),
        ({"submissions_lost": 3}, "189 submissions are spent, but 187 are counted and 3 lost"),
        ({"submissions_lost": 1}, "189 submissions are spent, but 187 are counted and 1 lost"),
        ({"clients_unspent": 10}, "do not add up"),
        ({"stayed_uncounted": 1}, "1 clients that never vanished are in no sum"),
        ({"noise_variance_z": -6.1}, "the noise's variance is 1.0072 of what it should be"),
        ({"noise_mean_z": 6.1}, "the noise's mean is more than 6"),
        ({"client_z": -7.0}, "lost, counted twice or changed"),
        ({"clients_dropped": 0}, "no client vanished"),
    ),
)
def test_each_broken_promise_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    (said,) = doctored_secure(**changes).violations()
    assert sentence in said


def test_the_table_shows_the_cohorts_and_central_mode_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(GOOD_SECURE, Path("out"))
    shown = " ".join(capsys.readouterr().out.split())
    figures = ("261,940", "256,003", "100.72 %", "2.65 %", "2.50 %", "× 1.06", "× 1.62")
    for text in ("2 cohorts of up to 100", "asked afterwards", *figures):
        assert text in shown
    assert "the plan's noise." in shown
    assert "SIGKILL" not in shown


def test_the_table_of_a_bad_run_does_not_call_it_good(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(doctored_secure(client_z=9.0), Path("out"))
    assert "Nothing was lost" not in capsys.readouterr().out


def test_without_a_comparable_query_there_is_no_ratio() -> None:
    assert doctored_secure(mean_relative_error=None).error_ratio is None
    assert doctored_secure(central_relative_error=None).error_ratio is None
    assert GOOD_SECURE.error_ratio == pytest.approx(1.06)
