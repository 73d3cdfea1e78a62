"""What compose/prometheus and compose/grafana ask for, a service exports; their rules parse where promtool is there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.auth.tokens import TokenMetrics
from aggregator.observability.metrics import LedgerFigures, Metrics, StoreMetrics
from aggregator.secure.coordinator import SumMetrics

COMPOSE = Path(__file__).resolve().parent.parent / "compose"
ALERTS = COMPOSE / "prometheus" / "alerts.yml"
ALERT_TESTS = COMPOSE / "prometheus" / "alerts_test.yml"
#: What a rule has, and what it would be by mistake.
PLANTED = {
    "sum by (plan, name) (hushsum_leading": "sum by (name) (0 * hushsum_leading",
    '{role!="shuffler"}': "",
    '{unit="client"}': "",
    "resets(hushsum_stored_fold_lag[5m]) == 0": "resets(hushsum_stored_fold_lag[5m]) >= 0",
    "min_over_time(": "max_over_time(",
}
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(?:hushsum|process|python)_\w+")
OF_PROMETHEUS = {"up"}
LANGUAGE = {"max", "min", "sum", "and", "or", "vector", "rate", "increase", "histogram_quantile"}
LANGUAGE |= {"min_over_time", "resets"}
OF_A_TARGET = {"instance", "job"}


def exported() -> dict[str, set[str]]:
    """The samples that a service may have, with the labels of each."""
    metrics = Metrics()
    StoreMetrics(metrics.registry)
    SumMetrics(metrics.registry)
    TokenMetrics(metrics.registry)
    found = {sample.name: {*sample.labels} for family in metrics.registry.collect() for sample in family.samples}
    for collector, names in metrics.registry._collector_to_names.items():  # those without a sample yet as well
        found |= {name: {"le", *getattr(collector, "_labelnames", ())} for name in names}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, with where it stands."""
    for line in ALERTS.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("expr: "):
            yield "alerts.yml", line.strip().removeprefix("expr: ")
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


def test_there_are_alerts_and_a_dashboard() -> None:
    asked = {name for _, expression in expressions() for name in NAME.findall(expression)}
    assert len(list(expressions())) > 20
    assert {
        "hushsum_stored_fold_lag",
        "hushsum_folded_total",
        "hushsum_refusals_total",
        "hushsum_ledger_epsilon_left",
        "hushsum_windows",
        "hushsum_commit_seconds_bucket",
        "hushsum_releasing_stopped",
    } <= asked


def test_every_metric_that_is_asked_for_is_exported() -> None:
    known = exported()
    for where, expression in expressions():
        for name in NAME.findall(expression):
            assert name in known, f"{where}: {name}"
        lists = r"(?:by|on|group_left) \([^)]*\)"
        rest = NAME.sub("", re.sub(rf'"[^"]*"|\{{[^}}]*\}}|\b{lists}|\[[^]]*\]', "", expression))
        words = set(re.findall(r"[a-z_]+", rest))
        assert words <= {*OF_PROMETHEUS, *LANGUAGE}


def test_every_label_that_is_asked_for_is_one_of_its_metric() -> None:
    known = exported()
    for where, expression in expressions():
        for name, selector in re.findall(r"\b(hushsum_\w+)\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector):
                assert label in known[name], f"{where}: {label} of {name}"
        names = NAME.findall(expression)
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            for label in labels.split(", "):
                assert label in OF_A_TARGET or any(label in known[name] for name in names), f"{where}: {label}"
        for labels in re.findall(r"\bgroup_left \(([^)]*)\)", expression):
            assert {*labels.split(", ")} <= known["hushsum_plan_info"], where


def test_the_dashboard_names_its_provisioned_source() -> None:
    source = (COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    (uid,) = re.findall(r"uid: (\w+)", source)
    for path in DASHBOARDS:
        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        assert {panel["datasource"]["uid"] for panel in panels} == {uid}
        assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_ledgers_figures_are_all_shown() -> None:
    figures = {name for name in LedgerFigures.__dataclass_fields__ if name not in {"population", "unit"}}
    assert {name.removeprefix("hushsum_ledger_") for name in exported() if "_ledger_" in name} == figures


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus's promtool is not installed")
def test_promtool_takes_the_rules_the_settings_and_every_expression(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(COMPOSE / "prometheus" / name, tmp_path / name)
    panels = [
        f"      - record: test:panel_{number}\n        expr: {json.dumps(expression)}\n"
        for number, (_, expression) in enumerate(expressions())
    ]
    (tmp_path / "panels.yml").write_text("groups:\n  - name: panels\n    rules:\n" + "".join(panels))
    for what in (["config", "--syntax-only", "prometheus.yml"], ["rules", "alerts.yml", "panels.yml"]):
        ran = promtool("check", *what, folder=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def promtool(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_alerts_of_what_plans_have_of_their_own_name_the_plan() -> None:
    rules = ALERTS.read_text(encoding="utf-8").split("- alert: ")[1:]
    shared = {rule.split("\n")[0] for rule in rules if "$labels.name" not in rule}
    assert shared == {
        *(
            "HushsumDown",
            "HushsumNotReady",
            "HushsumCommitsFail",
            "HushsumCommitsSlow",
        ),  # of a process, which they name
        *("HushsumTokensUnreadable", "HushsumRoundsFail", "HushsumClockAhead"),  # the same
        "HushsumLedgerHasNoTotal",  # of a population
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus's promtool is not installed")
def test_made_up_processes_raise_the_alerts_that_they_should_and_no_others(tmp_path: Path) -> None:
    for path in (ALERTS, ALERT_TESTS):
        shutil.copy(path, tmp_path / path.name)
    ran = promtool("test", "rules", ALERT_TESTS.name, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr

    rules = (tmp_path / ALERTS.name).read_text(encoding="utf-8")
    for right, wrong in PLANTED.items():
        assert right in rules
        (tmp_path / ALERTS.name).write_text(rules.replace(right, wrong), encoding="utf-8")
        assert promtool("test", "rules", ALERT_TESTS.name, folder=tmp_path).returncode == 1, right
