"""A run's numbers, and what they accuse it of."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.summary_table import print_summary
from tests.simulator.summaries import GOOD, doctored

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
        ({"deltas_resent": 0}, "no delta was sent again"),
        ({"duplicates_dropped": 0}, "no duplicate came"),
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
