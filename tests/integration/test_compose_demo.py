"""The whole demo in containers, where a Docker engine answers: broken, stopped, and nothing left of it."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from compose.engine import Compose
from tests.integration.containers import ROOT, TOOLS, answers, demo, left_of, needs_engine

# Windows long enough for a fault in each where other tests run beside, open for longer than anything is away.
SMALL = {"CLIENTS": "12", "RECORDS": "12000", "WINDOWS": "3", "WINDOW_S": "20", "LATENESS_S": "50"}
SMALL_SECURE = {"CLIENTS": "40", "RECORDS": "4000", "WINDOWS": "2"}  # of a minute each: no shorter ones can be had


def in_the_image(image: str, *command: str) -> str:
    confined = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none"]
    done = subprocess.run(["docker", "run", *confined, image, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image of these sources alone; its layers stay, for the next time."""
    name = f"hushsum:test-{uuid.uuid4().hex[:8]}"
    built = demo("--build-only", IMAGE=name)
    assert built.returncode == 0, built.stdout
    yield name
    subprocess.run(["docker", "image", "rm", name], capture_output=True, check=True)


@needs_engine
@pytest.mark.slow
@pytest.mark.long  # an image is built, and containers start and stop
@pytest.mark.timeout(3600)  # the first one builds, which takes a quarter of an hour on a slow machine
class TestContainers:
    def test_the_image_brings_its_compiled_loops_and_no_other_user(self, image: str) -> None:
        code = "from aggregator.fold import fold; from hushsum.families.lsh.compiled import engine; "
        code += "engine.warm_up(); fold.warm_up()"
        listing = "find /tmp/numba -name '*.nb*' | sort | xargs md5sum"
        told = in_the_image(
            image, "sh", "-c", f'id -u; {listing} >/tmp/a; python -c "{code}"; {listing} | cmp /tmp/a; wc -l </tmp/a'
        )
        user, files = told.split()
        assert user == "10001"
        assert int(files) > 50

    def test_central_sums_survive_kills_and_nothing_is_left_behind(self, image: str) -> None:
        self.demonstrate(image, "central", next(filter(answers, TOOLS.values())))

    @pytest.mark.parametrize("mode", ["local", "secure"])
    def test_the_other_modes_do_too(self, image: str, mode: str) -> None:
        self.demonstrate(image, mode, next(filter(answers, TOOLS.values())))

    def test_the_older_compose_does_too(self, image: str) -> None:
        if not answers(TOOLS["1.29"]):
            pytest.skip("docker-compose is not there")
        self.demonstrate(image, "central", TOOLS["1.29"])

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
    def test_a_run_that_is_stopped_leaves_nothing_behind_however_often(
        self, image: str, number: signal.Signals
    ) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        words = [sys.executable, "-m", "compose.demo", "--no-build", "--project", project]
        with subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **SMALL, "IMAGE": image},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            until = time.monotonic() + 120
            while not left_of(project) and time.monotonic() < until:
                time.sleep(0.2)
            assert running.poll() is None
            for _ in range(3):  # whoever is impatient
                running.send_signal(number)
                time.sleep(0.7)
            told, _ = running.communicate(timeout=300)
        assert running.returncode == 128 + number, told
        assert f"stopped by {number.name}" in told
        assert not left_of(project)

    def test_what_run_has_started_is_taken_down_too(self, image: str) -> None:
        """`docker compose run` makes a container that a plain `down` of some versions leaves."""
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        named = {**os.environ, "IMAGE": image, "MODE": "central"}
        compose = Compose(next(filter(answers, TOOLS.values())).split(), project, named)
        with pytest.raises(subprocess.TimeoutExpired):
            compose.show("run", "--rm", "--no-deps", "-T", "prepare", "sleep", "600", limit_s=20)
        code = "import sys; from compose.engine import Compose; Compose(sys.argv[2:], sys.argv[1], {}).down()"
        done = subprocess.run(
            [sys.executable, "-c", code, project, *next(filter(answers, TOOLS.values())).split()],
            cwd=ROOT,
            env=named,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not left_of(project)

    def test_what_the_engine_starts_again_by_itself_is_counted(self, image: str) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        named = [f"--label=com.docker.compose.project={project}", "--label=com.docker.compose.service=worker-2"]
        words = ["docker", "run", "--detach", "--restart=on-failure:2", "--network=none", *named, image, "false"]
        subprocess.run(words, capture_output=True, check=True)
        compose = Compose(next(filter(answers, TOOLS.values())).split(), project, {})
        until = time.monotonic() + 60
        while compose.restarts() != {"worker-2": 2} and time.monotonic() < until:
            time.sleep(0.2)
        found = compose.restarts()
        subprocess.run(["docker", "rm", "--force", *left_of(project).split()], capture_output=True, check=True)
        assert found == {"worker-2": 2}

    def test_a_run_that_fails_says_so_and_leaves_nothing_behind(self, image: str) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        ended = demo("--no-build", "--project", project, **SMALL, IMAGE=image, DATA="not-there.csv")
        assert ended.returncode == 1, ended.stdout
        assert "not-there.csv" in ended.stdout
        assert not left_of(project)

    def demonstrate(self, image: str, mode: str, command: str) -> None:
        project = f"hushsum-test-{uuid.uuid4().hex[:8]}"
        sizes = SMALL_SECURE if mode == "secure" else SMALL
        ended = demo("--no-build", "--mode", mode, "--project", project, **sizes, IMAGE=image, COMPOSE=command)
        assert ended.returncode == 0, ended.stdout
        for service in ("worker-1", "gateway-1"):
            assert f"{service} is killed (SIGKILL)" in ended.stdout, ended.stdout
            assert f"{service} is started again" in ended.stdout, ended.stdout
        for line in ("Kafka is restarted", "all are back and healthy", "nothing lost, nothing doubled"):
            assert line in ended.stdout, ended.stdout
        assert not left_of(project)
