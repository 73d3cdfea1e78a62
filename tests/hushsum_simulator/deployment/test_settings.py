"""The environment of a deployment."""

import sys

import pytest

from hushsum_simulator.deployment.__main__ import main
from hushsum_simulator.deployment.settings import VARIABLES, DeploymentSettings
from hushsum_simulator.errors import VariableError


def test_an_empty_environment_takes_every_default_and_so_does_an_empty_variable() -> None:
    assert DeploymentSettings.from_environment({}) == DeploymentSettings()
    assert DeploymentSettings.from_environment(dict.fromkeys(VARIABLES, " ")) == DeploymentSettings()


def test_what_variables_say_is_read() -> None:
    said = {
        "HUSHSUM_CLIENTS": "12",
        "HUSHSUM_CHURN": "0.5",
        "HUSHSUM_GATEWAYS": "a:1, [::1]:2",
        "HUSHSUM_SECRETS": "/s",
    }
    settings = DeploymentSettings.from_environment(said)
    assert (settings.clients, settings.churn, settings.gateways) == (12, 0.5, ("a:1", "[::1]:2"))
    assert settings.metrics.parent == settings.secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("HUSHSUM_MODE", "public", id="mode"),
        pytest.param("HUSHSUM_FORM", "cube", id="form"),
        pytest.param("HUSHSUM_CLIENTS", "0", id="no-clients"),
        pytest.param("HUSHSUM_CHURN", "nan", id="churn-nan"),
        pytest.param("HUSHSUM_CHURN", "0.6", id="churn-large"),
        pytest.param("HUSHSUM_WINDOW_S", "2.5", id="half-seconds"),
        pytest.param("HUSHSUM_GATEWAYS", "gateway-1", id="no-port"),
        pytest.param("HUSHSUM_GATEWAYS", "gateway-1:70000", id="large-port"),
        pytest.param("HUSHSUM_RECORDS", "39", id="fewer-records-than-clients"),
    ],
)
def test_a_variable_that_says_what_it_must_not_is_named(name: str, value: str) -> None:
    with pytest.raises(VariableError, match=f"{name}: got '{value}', expected") as told:
        DeploymentSettings.from_environment({name: value})
    assert told.value.name == name


def test_a_cohort_needs_more_clients_than_a_few() -> None:
    with pytest.raises(VariableError, match="HUSHSUM_CLIENTS: got '9', expected at least 10"):
        DeploymentSettings.from_environment({"HUSHSUM_MODE": "secure", "HUSHSUM_CLIENTS": "9"})


def test_the_address_of_the_database_shows_nowhere() -> None:
    settings = DeploymentSettings.from_environment({"HUSHSUM_POSTGRES_DSN": "postgresql://u:hidden@h/n"})
    assert "hidden" not in repr(settings)
    assert "hidden" not in str(settings.purpose)


def test_clients_that_show_themselves_have_windows_of_a_minute() -> None:
    assert DeploymentSettings.from_environment({"HUSHSUM_MODE": "secure"}).length_s == 60
    assert DeploymentSettings.from_environment({"HUSHSUM_MODE": "local", "HUSHSUM_FORM": "silo"}).length_s == 60
    assert DeploymentSettings.from_environment({"HUSHSUM_MODE": "local"}).length_s == 20


def test_the_help_names_every_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["deployment", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert [name for name in VARIABLES if name not in shown] == []


def test_a_wrong_variable_ends_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["deployment", "prepare"])
    monkeypatch.setenv("HUSHSUM_MODE", "x")
    assert main() == 2
    assert capsys.readouterr().err.startswith("prepare: HUSHSUM_MODE: got 'x', expected central or ")
