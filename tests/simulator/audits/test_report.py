import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hushsum_cli.audit import audit
from simulator.audits import runner
from simulator.audits.report import Check, Report, Row, print_report
from tests.hushsum_cli.calling import Hushsum
from tests.simulator.audits import planted

ROW = Row("fold", "record", "add/remove", "discrete-laplace", 1.0, 0.0, exact=1.0 + 1e-12, audited=0.6, runs=1000)


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
    assert "Nothing that was found" not in capsys.readouterr().out


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
    rows: tuple[Row, ...],
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
