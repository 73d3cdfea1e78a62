"""What `hushsum simulate` makes of a run's summary. Whole runs are in tests/hushsum_simulator."""

import json
from pathlib import Path

import pytest

from aggregator.fold.verdicts import Verdict, VerdictKind
from hushsum import Plan
from hushsum.delta import DeltaId
from hushsum_simulator import RunSettings, Summary
from hushsum_simulator.demo.evaluation import SentDelta, reconcile
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_simulator.demo.summaries import GOOD, GOOD_REPORTS, GOOD_SECURE, doctored, doctored_local
from tests.plans import model_plan, set_plan, small_plan


def planted(monkeypatch: pytest.MonkeyPatch, summary: Summary) -> list[RunSettings]:
    """Lets every run come to this summary; the settings of each are noted."""
    asked: list[RunSettings] = []

    def run(settings: RunSettings, _: object) -> Summary:
        asked.append(settings)
        return summary

    monkeypatch.setattr("hushsum_simulator.simulate", run)
    return asked


def test_a_good_run_ends_with_0(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planted(monkeypatch, GOOD)
    ended = hushsum("simulate", "--seed", "5", "--epsilon", "1/3", "--columns", "a,b", "--out", "there")
    assert (ended.status, ended.err) == (0, "")
    assert "Nothing was lost" in ended.out
    (settings,) = asked
    assert (settings.seed, settings.columns, settings.out) == (5, ("a", "b"), Path("there"))
    assert settings.epsilon is not None
    assert settings.epsilon * 3 == 1


@pytest.mark.parametrize("plan", (set_plan(), model_plan()), ids=("sets", "models"))
def test_what_cannot_be_simulated_is_told_before_anything_starts(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    started: list[object] = []
    monkeypatch.setattr("hushsum_simulator.demo.runner._run", started.append)
    (tmp_path / "plan.json").write_bytes(plan.bundle)
    (tmp_path / "data.csv").write_text("no records\n")
    data = ("--data", str(tmp_path / "data.csv"), "--out", str(tmp_path / "out"))
    ended = hushsum("simulate", "--plan", str(tmp_path / "plan.json"), *data)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "start hushsum serve, contribute with" in ended.err
    assert not started
    assert not (tmp_path / "out").exists()


def test_a_lost_and_a_doubled_delta_end_with_1_and_a_line_each(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {SentDelta("a", DeltaId(1, sequence)) for sequence in range(3)}
    counted = [DeltaId(1, 0), DeltaId(1, 1), DeltaId(1, 1)]  # 2 is missing, 1 is there twice
    verdicts = [Verdict(VerdictKind.COUNTED, None, id, "a", 5, at) for at, id in enumerate(counted)]
    result = reconcile(sent, verdicts)
    planted(monkeypatch, doctored(deltas_lost=result.lost, deltas_double_counted=result.double_counted))
    ended = hushsum("simulate", "--json")
    assert ended.status == 1
    assert ended.err.splitlines() == [
        "hushsum: 1 deltas were lost: sent, but not counted",
        "hushsum: 1 deltas were counted twice, or never sent",
    ]
    assert json.loads(ended.out)["deltas_lost"] == 1


def test_secure_mode_is_told_to_the_run(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planted(monkeypatch, GOOD_SECURE)
    ended = hushsum("simulate", "--mode", "secure", "--dropout-rate", "0.2", "--cohort", "50", "--delta", "0")
    assert (ended.status, ended.err) == (0, "")
    assert "the plan's noise." in " ".join(ended.out.split())
    (settings,) = asked
    assert (settings.mode, settings.dropout_rate, settings.cohort) == ("secure", 0.2, 50)
    assert settings.delta == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    (
        (("--dropout-rate", "0.1"), "require --mode secure"),
        (("--cohort", "50"), "require --mode secure"),
        (("--mode", "secure", "--deltas", "100"), "--deltas cannot be used with --mode secure"),
        (("--mode", "secure", "--cohort", "50", "--plan", __file__), "--cohort cannot be used with --plan"),
        (("--mode", "secure", "--dropout-rate", "0.5"), "--dropout-rate"),
    ),
)
def test_what_makes_no_sense_together_is_refused(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    asked = planted(monkeypatch, GOOD)
    ended = hushsum("simulate", *arguments)
    assert (ended.status, ended.out, asked) == (2, "", [])
    assert said in ended.err


def test_a_plan_of_another_mode_or_without_room_for_dropouts_is_told_before_anything_starts(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    secure = {"cohort": 8, "dropout": "0.25", "cohort_wait": "5s"}
    plan = small_plan(privacy={"mode": "secure", "delta": "0.000001", "total_delta": "0.000001", "secure": secure})
    (tmp_path / "plan.json").write_bytes(plan.bundle)
    (tmp_path / "data.csv").write_text("no records\n")
    about = ("simulate", "--plan", str(tmp_path / "plan.json"), "--data", str(tmp_path / "data.csv"), "--clients", "16")
    for more, said in (
        ((), "--mode secure beside --plan"),
        (("--mode", "secure", "--dropout-rate", "0.3"), "raise the plan's privacy.secure.dropout"),
        (("--mode", "secure", "--clients", "20"), "choose --cohort so that it divides --clients"),
    ):
        ended = hushsum(*about, *more, "--out", str(tmp_path / "out"))
        assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert said in ended.err


def test_local_mode_is_told_to_the_run_with_the_defaults_of_its_form(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = planted(monkeypatch, GOOD_REPORTS)
    ended = hushsum("simulate", "--mode", "local", "--shuffler", "--randomiser", "projective")
    assert (ended.status, ended.err) == (0, "")
    assert "the service stored the sender of no report." in " ".join(ended.out.split())
    assert hushsum("simulate", "--mode", "local", "--form", "silo").status == 0
    assert hushsum("simulate", "--mode", "local", "--clients", "7", "--deltas", "30").status == 0
    assert hushsum("simulate").status == 0
    reports, silos, few, central = asked
    assert (reports.form, reports.randomiser, reports.shuffler) == ("report", "projective", True)
    assert [(each.clients, each.deltas) for each in asked] == [(200, 1000), (40, 1000), (7, 30), (200, 5000)]
    assert (silos.form, few.mode, central.mode) == ("silo", "local", "central")


@pytest.mark.parametrize(
    ("arguments", "said"),
    (
        (("--form", "silo"), "--form requires --mode local"),
        (("--mode", "secure", "--shuffler"), "--shuffler requires --mode local"),
        (("--mode", "local", "--form", "silo", "--shuffler"), "--shuffler cannot be used with --form silo"),
        (("--mode", "local", "--form", "silo", "--randomiser", "k-rr"), "--randomiser cannot be used with --form silo"),
        (("--mode", "local", "--form", "silo", "--deltas", "9"), "--deltas cannot be used with --form silo"),
        (("--mode", "local", "--cohort", "9"), "--cohort require --mode secure"),
    ),
)
def test_what_does_not_go_with_local_mode_is_told(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    asked = planted(monkeypatch, GOOD_REPORTS)
    ended = hushsum("simulate", *arguments)
    assert ended.status == 2
    assert said in ended.err
    assert not asked


def test_a_lost_report_ends_with_1_and_a_line(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, doctored_local(GOOD_REPORTS, reports_counted=271_279))
    ended = hushsum("simulate", "--mode", "local", "--json")
    assert ended.status == 1
    assert ended.err == "hushsum: 1 reports were lost: acknowledged, but not in the release\n"
