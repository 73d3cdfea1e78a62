"""What compose/prometheus and compose/grafana ask for, a service exports; each alert fires, and has its runbook."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from aggregator.auth.tokens import TokenMetrics
from aggregator.observability.host import HostMetrics
from aggregator.observability.metrics import LedgerFigures, Metrics, StoreMetrics
from aggregator.secure.coordinator import SumMetrics
from build_tools.docs_site.service_pages import rules
from build_tools.promtool import promtool

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "compose"
ALERTS = COMPOSE / "prometheus" / "alerts.yml"
ALERT_TESTS = sorted((COMPOSE / "prometheus").glob("alerts*_test.yml"))
RUNBOOKS = ROOT / "docs" / "reference" / "runbooks.md"
RUNBOOK_PARTS = ["What it means", "Look at", "Do", "If nothing is done"]
PROMTOOL = promtool()
LEFT = "hushsum_ledger_epsilon_left"
#: What an alert's rule has, and what it would be by mistake; in three runs, because an alert has several.
PLANTED = (
    {
        "HushsumNobodyReleases": ("sum by (job, plan) (hushsum_leading", "sum by (job) (0 * hushsum_leading"),
        "HushsumLedgerNearlySpent": (f'{LEFT}{{unit="client"}} / hushsum_ledger_epsilon_total{{unit="client"}}', LEFT),
        "HushsumFoldsStandStill": ("resets(hushsum_stored_fold_lag[5m]) == 0", "vector(1)"),
        "HushsumLedgerEndsWithinAWeek": ("[7d:1h]", "[30d:1h]"),
        "HushsumLateDeltas": ('status!="acknowledged"', 'status!="late"'),
        "HushsumUnknownDeltas": ("> 0.01", "> 0.0001"),
        "HushsumCertificateExpires": ("2 * 86400", "3 * 86400"),
        "HushsumCertificateExpiresSoon": ("14 * 86400", "16 * 86400"),
        "HushsumDiskNearlyFull": ("_avail_bytes / hushsum", "_avail_bytes * 100 / hushsum"),
        "HushsumOutcomeOverdue": ("> 900", "> 3600"),
    },
    {
        "HushsumNobodyReleases": ('{role!="shuffler"}', ""),
        "HushsumFoldsStandStill": ("min_over_time(", "max_over_time("),
        "HushsumLedgerEndsWithinAWeek": ("max_over_time(", "min_over_time("),
        "HushsumLateDeltas": ('status="late"', 'status="unknown"'),
        "HushsumOutcomeOverdue": ("max by", "sum by"),
    },
    {"HushsumLedgerEndsWithinAWeek": ('{unit="client"}', "")},
)
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\b(?:hushsum|process|python)_\w+")
OF_PROMETHEUS = {"up"}
LANGUAGE = {"max", "min", "sum", "and", "or", "vector", "rate", "increase", "histogram_quantile"}
LANGUAGE |= {"min_over_time", "max_over_time", "resets", "time", "or"}
OF_A_TARGET = {"instance", "job"}
OF_A_PROCESS = {"plan", "role"}  # the labels of every sample


def exported() -> dict[str, set[str]]:
    """The samples that a service may have, with the labels of each."""
    metrics = Metrics()
    StoreMetrics(metrics.registry)
    SumMetrics(metrics.registry)
    TokenMetrics(metrics.registry)
    HostMetrics(metrics.registry)
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
                assert label in known[name] | OF_A_PROCESS, f"{where}: {label} of {name}"
        names = NAME.findall(expression)
        for labels in re.findall(r"\bby \(([^)]*)\)", expression):
            for label in labels.split(", "):
                assert label in OF_A_TARGET | OF_A_PROCESS or any(label in known[name] for name in names), (
                    f"{where}: {label}"
                )


def test_the_dashboard_names_its_provisioned_source() -> None:
    source = (COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    (uid,) = re.findall(r"uid: (\w+)", source)
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        panels, variables = dashboard["panels"], dashboard["templating"]["list"]
        assert {each["datasource"]["uid"] for each in (*panels, *variables)} == {uid}
        assert len({panel["id"] for panel in panels}) == len(panels)


def test_a_dashboard_shows_the_plans_and_roles_that_are_chosen() -> None:
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        asked = {each["name"]: each["query"] for each in dashboard["templating"]["list"]}
        assert asked == {name: f"label_values(hushsum_plan_info, {name})" for name in OF_A_PROCESS}
        for panel in dashboard["panels"]:
            assert panel["description"], panel["title"]
            for target in panel["targets"]:
                names = NAME.findall(target["expr"])
                chosen = re.findall(r'\{[^}]*plan=~"\$plan", role=~"\$role"\}', target["expr"])
                assert len(chosen) == len(names), f"{panel['title']}: {target['expr']}"


def test_the_page_of_the_dashboard_describes_each_panel_once() -> None:
    page = (ROOT / "docs" / "how-to" / "dashboard.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| \*\*(.+?)\*\* \|", page, re.MULTILINE)
    panels = [panel["title"] for path in DASHBOARDS for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]]
    assert sorted(described) == sorted(panels)


def test_the_ledgers_figures_are_all_shown() -> None:
    figures = {name for name in LedgerFigures.__dataclass_fields__ if name not in {"population", "unit"}}
    assert {name.removeprefix("hushsum_ledger_") for name in exported() if "_ledger_" in name} == figures


def test_every_alert_has_a_severity_of_the_standard_and_a_runbook() -> None:
    for rule in rules():
        assert rule["labels"] == {"severity": rule["labels"]["severity"]}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"reference/runbooks.html#{rule['alert'].lower()}"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    sections = re.split(r"^## ", RUNBOOKS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    runbooks = {section.partition("\n")[0]: section for section in sections}
    assert [name for name in runbooks if name.startswith("Hushsum")] == [rule["alert"] for rule in rules()]
    for rule in rules():
        text = runbooks[rule["alert"]]
        assert re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE) == RUNBOOK_PARTS, rule["alert"]
        assert f"*{rule['labels']['severity']}*" in text.split("**")[0], rule["alert"]
        assert "`" in text.split("**Look at.**")[1].split("**Do.**")[0], f"{rule['alert']}: no command and no metric"


def test_the_tests_of_alerts_see_each_fire_and_see_each_not_fire() -> None:
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for path in ALERT_TESTS:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for check in group["alert_rule_test"]:
                seen[bool(check["exp_alerts"])].add(check["alertname"])
    names = {rule["alert"] for rule in rules()}
    assert seen == {True: names, False: names}


needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there: make promtool says why")


@needs_promtool
def test_promtool_takes_the_rules_the_settings_and_every_expression(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(COMPOSE / "prometheus" / name, tmp_path / name)
    panels = [
        f"      - record: test:panel_{number}\n        expr: {json.dumps(expression)}\n"
        for number, (_, expression) in enumerate(expressions())
    ]
    (tmp_path / "panels.yml").write_text("groups:\n  - name: panels\n    rules:\n" + "".join(panels))
    for what in (["config", "--syntax-only", "prometheus.yml"], ["rules", "alerts.yml", "panels.yml"]):
        ran = run_promtool("check", *what, folder=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def run_promtool(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    assert PROMTOOL is not None, "the test is skipped"
    return subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_alerts_of_what_plans_have_of_their_own_name_the_plan() -> None:
    shared = {rule["alert"] for rule in rules() if "$labels.plan" not in rule["annotations"]["summary"]}
    assert shared == {
        *("HushsumDown", "HushsumNotReady", "HushsumCommitsFail", "HushsumCommitsSlow"),  # of a process
        *("HushsumTokensUnreadable", "HushsumRoundsFail", "HushsumClockAhead"),
        *("HushsumCertificateExpires", "HushsumCertificateExpiresSoon", "HushsumDiskNearlyFull"),
    }
    for rule in rules():
        assert rule["alert"] not in shared or "$labels.instance" in rule["annotations"]["summary"]


@needs_promtool
def test_the_command_of_the_runbooks_runs_every_test_of_alerts() -> None:
    (command,) = re.findall(r"`promtool (test rules .*?)`", RUNBOOKS.read_text(encoding="utf-8"))
    *words, pattern = command.split()
    assert sorted(ROOT.glob(pattern)) == ALERT_TESTS
    ran = run_promtool(*words, *map(str, ALERT_TESTS), folder=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_made_up_processes_raise_the_alerts_that_they_should_and_no_others(tmp_path: Path) -> None:
    names = [path.name for path in ALERT_TESTS]
    for path in (ALERTS, *ALERT_TESTS):
        shutil.copy(path, tmp_path / path.name)
    ran = run_promtool("test", "rules", *names, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr

    for planted in PLANTED:
        text = ALERTS.read_text(encoding="utf-8")
        for alert, (right, wrong) in planted.items():
            before, begin, rest = text.partition(f"- alert: {alert}\n")
            rule, end, after = rest.partition("annotations:")
            assert right in rule, f"{alert}: {right}"
            text = before + begin + rule.replace(right, wrong) + end + after
        (tmp_path / ALERTS.name).write_text(text, encoding="utf-8")
        ran = run_promtool("test", "rules", *names, folder=tmp_path)
        assert {*re.findall(r"alertname: (\w+)", ran.stdout + ran.stderr)} == planted.keys()
