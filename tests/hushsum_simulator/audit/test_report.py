"""The limits hold as often as they say, computed over all outcomes of a binomial, not sampled."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom

from hushsum_cli.audit import audit
from hushsum_simulator.audit import runner
from hushsum_simulator.audit.report import (
    AuditRow,
    Check,
    Hits,
    Report,
    at_least,
    at_most,
    epsilon_at_least,
    print_report,
)
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_simulator.audit import planted

ROW = AuditRow("fold", "record", "add/remove", "discrete-laplace", 1.0, 0.0, exact=1.0 + 1e-12, audited=0.6, runs=1000)


def test_a_promise_holds_while_nothing_that_was_found_is_above_it() -> None:
    assert ROW.holds
    assert not replace(ROW, exact=1.001).holds
    assert not replace(ROW, exact=math.inf).holds
    assert not replace(ROW, audited=1.001).holds
    assert not replace(ROW, redrawn=1).holds
    assert replace(ROW, exact=None, audited=None).holds


def test_every_broken_promise_gets_a_sentence() -> None:
    report = Report((ROW, replace(ROW, audited=1.5)), (Check("noise differs", False, "3 different of 4"),), 1.0)
    first, second = report.violations()
    assert first == (
        "fold, unit record, add/remove, discrete-laplace: claimed epsilon 1, found 1 exactly and at least 1.5"
    )
    assert second == "noise differs: 3 different of 4"
    assert Report((ROW,), (), 1.0).violations() == []


def test_a_report_is_json_even_where_epsilon_is_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report((replace(ROW, exact=math.inf),), (), 1.0)
    assert json.loads(report.to_json())["rows"][0]["exact"] == "infinite"
    print_report(report)
    assert "No finding" not in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("sources_on_path")
def test_the_command_audits_this_installation_and_ends_with_status_0() -> None:
    ended = CliRunner().invoke(audit, ["--quick", "--runs", "100", "--json"], standalone_mode=False)
    assert ended.exception is None, ended.output
    assert ended.return_value == 0, ended.output
    found = json.loads(ended.stdout)
    assert all(each["holds"] for each in found["rows"] + found["checks"])
    assert {row["unit"] for row in found["rows"]} == {"record", "client"}
    assert {row["relation"] for row in found["rows"]} == {"add/remove", "zero-out", "replace"}
    noise, randomisers = (
        {"discrete-laplace", "discrete-gaussian", "report-noisy-max"},
        {"k-rr", "projective", "one-bit"},
    )
    assert {row["mechanism"] for row in found["rows"]} == noise | randomisers


@pytest.mark.parametrize(
    ("rows", "checks", "sentence"),
    (
        ((ROW, replace(ROW, exact=2.0)), (), "hushsum: fold, unit record, add/remove, discrete-laplace: claimed"),
        ((ROW,), (Check("noise differs", False, "3 of 4"),), "hushsum: noise differs: 3 of 4"),
        ((ROW,), (Check("noise differs", True, "4 of 4"),), ""),
    ),
    ids=("a broken promise", "a broken check", "neither"),
)
@pytest.mark.parametrize("form", ((), ("--json",)), ids=("table", "json"))
def test_the_command_ends_with_status_1_where_anything_is_broken(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows: tuple[AuditRow, ...],
    checks: tuple[Check, ...],
    sentence: str,
    form: tuple[str, ...],
) -> None:
    monkeypatch.setattr(runner, "audit", lambda *_: Report(rows, checks, 1.0))
    ended = Hushsum(monkeypatch, capsys)("audit", *form)
    assert ended.status == (1 if sentence else 0)
    assert ended.err.startswith(sentence)
    assert bool(ended.err) == bool(sentence)


def test_the_command_finds_a_planted_mistake_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(iter(runner.plans()))
    monkeypatch.setattr(runner, "plans", lambda: iter([first]))  # one is enough, and quick
    for others in ("_others", "_checks"):
        monkeypatch.setattr(runner, others, lambda *_: iter(()))
    honest = Hushsum(monkeypatch, capsys)("audit", "--quick", "--runs", "100")
    assert (honest.status, honest.err) == (0, "")
    planted.half_the_noise(monkeypatch)
    ended = Hushsum(monkeypatch, capsys)("audit", "--quick", "--runs", "100", "--json")
    assert ended.status == 1
    assert not all(each["holds"] for each in json.loads(ended.out)["rows"])
    assert "claimed epsilon" in ended.err


P = np.linspace(0.001, 0.999, 333)


@pytest.mark.parametrize("error", [0.2, 0.01, 1e-6])
@pytest.mark.parametrize("runs", [1, 7, 60])
def test_a_limit_is_wrong_with_the_stated_probability_at_most_whatever_the_truth(runs: int, error: float) -> None:
    hits = np.arange(runs + 1)
    chances = binom.pmf(hits[:, np.newaxis], runs, P)
    above = at_least(hits, runs, error)[:, np.newaxis] > P
    below = at_most(hits, runs, error)[:, np.newaxis] < P
    assert (chances * above).sum(axis=0).max() <= error * (1 + 1e-9)
    assert (chances * below).sum(axis=0).max() <= error * (1 + 1e-9)


def test_the_limits_come_as_near_as_they_may() -> None:
    runs, error = 60, 0.2
    hits = np.arange(runs + 1)
    above = at_least(hits, runs, error)[:, np.newaxis] > P
    assert (binom.pmf(hits[:, np.newaxis], runs, P) * above).sum(axis=0).max() > error / 2


def test_nothing_and_everything_have_limits_too() -> None:
    assert at_least(0, 10, 0.01) == 0
    assert at_most(10, 10, 0.01) == 1
    assert at_most(0, 10, 0.01) == pytest.approx(1 - 0.01**0.1)


def test_epsilon_is_bounded_by_what_both_limits_leave() -> None:
    p, q = float(at_least(900, 1000, 5e-7)), float(at_most(100, 1000, 5e-7))
    found = epsilon_at_least(Hits(900, 1000), Hits(100, 1000), delta=0.01, error=1e-6)
    assert found == pytest.approx(math.log((p - 0.01) / q))
    assert 1.5 < found < math.log(9)


@pytest.mark.parametrize("likelier", [0, 3, 100])
def test_an_event_that_is_as_frequent_on_both_proves_nothing(likelier: int) -> None:
    assert epsilon_at_least(Hits(likelier, 1000), Hits(likelier, 1000), delta=0.0, error=1e-6) == 0


def test_the_lower_limit_of_epsilon_is_wrong_as_seldom_as_it_says() -> None:
    # All pairs of outcomes of 30 runs each, of an event of probabilities e·q and q.
    runs, error, q = 30, 0.1, 0.3
    p = q * math.e
    wrong = sum(
        binom.pmf(first, runs, p) * binom.pmf(second, runs, q)
        for first in range(runs + 1)
        for second in range(runs + 1)
        if epsilon_at_least(Hits(first, runs), Hits(second, runs), delta=0.0, error=error) > 1
    )
    assert 0 < wrong <= error
