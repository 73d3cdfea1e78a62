"""What compose/prometheus and compose/grafana ask for, a service exports; their rules parse where promtool is there."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.callers.tokens.metrics import TokenMetrics
from aggregator.secure.metrics import SumMetrics
from aggregator.watching.ledger_figures import LedgerFigures
from aggregator.watching.metrics import Metrics

COMPOSE = Path(__file__).resolve().parent.parent / "compose"
ALERTS = COMPOSE / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(?:hushsum|process|python)_\w+")
OF_PROMETHEUS = {"up"}


def exported() -> dict[str, set[str]]:
    """The samples that a service may have, with the labels of each."""
    metrics = Metrics()
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
        rest = NAME.sub("", re.sub(r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)|\[[^]]*\]', "", expression))
        words = set(re.findall(r"[a-z_]+", rest))
        assert words <= {*OF_PROMETHEUS, "max", "min", "sum", "or", "vector", "rate", "increase", "histogram_quantile"}


def test_every_label_that_is_asked_for_is_one_of_its_metric() -> None:
    known = exported()
    for where, expression in expressions():
        for name, selector in re.findall(r"\b(hushsum_\w+)\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector):
                assert label in known[name], f"{where}: {label} of {name}"
        names = NAME.findall(expression)
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            for label in labels.split(", "):
                assert label == "instance" or any(label in known[name] for name in names), f"{where}: {label}"


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
        ran = subprocess.run(["promtool", "check", *what], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
