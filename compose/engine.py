"""What the demo asks of a Docker engine: through `docker compose` or docker-compose, whichever is there."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
JARS = ROOT / ".cache" / "kafka" / "jars"
KAFKA_CONTEXT = ROOT / ".cache" / "compose" / "kafka"
STAND_IN = "hushsum.stand-in"  # the label of an image that stands in for another
PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"


class DemoError(Exception):
    """The demo cannot begin or go on; its text says what to do."""


class State:
    """What the engine says of a container.

    Args:
        status: Its word for it: created, running, exited, ...
        text: Its sentence: "Up 5 seconds (healthy)", "Exited (0) 3 seconds ago".
    """

    def __init__(self, status: str, text: str = "") -> None:
        self.status, self._text = status, text
        left = re.match(r"Exited \((\d+)\)", text)
        self.exit_status = int(left[1]) if left else None

    def __str__(self) -> str:
        return self._text or self.status

    @property
    def has_ended(self) -> bool:
        """Whether it ran and does no more."""
        return self.status in {"exited", "dead"}

    @property
    def is_healthy(self) -> bool:
        """Whether it says of itself that it is ready."""
        return self.status == "running" and "(healthy)" in self._text


class Compose:
    """One project.

    Args:
        command: What calls Compose.
        project: Its name.
        environment: What the compose file is filled in from.
    """

    def __init__(self, command: list[str], project: str, environment: Mapping[str, str]) -> None:
        self._command, self._project, self._environment = command, project, dict(environment)
        self._files = [HERE / "docker-compose.yml"]

    def use_stand_ins(self) -> None:
        """From now on the images that cannot be pulled are built."""
        self._files = [HERE / "docker-compose.yml", HERE / "stand-ins.yml"]

    @property
    def shown(self) -> str:
        """The command with its options, for somebody to go on with."""
        return f"MODE={self._environment['MODE']} {shlex.join(self._call())}"

    def run(self, *arguments: str, limit_s: float) -> str:
        """Runs one command of Compose; returns what it printed.

        Raises:
            DemoError: It failed; what it printed has been shown.
            subprocess.TimeoutExpired: It did not end in time.
        """
        done = subprocess.run(
            [*self._call(), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=limit_s,
        )
        if done.returncode != 0:
            print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
            raise DemoError(f"`{' '.join([*self._command, *arguments])}` failed with {done.returncode}; see above")
        return done.stdout

    def show(self, *arguments: str, limit_s: float) -> int:
        """Runs one command that prints for whoever looks on; returns its exit status."""
        call = [*self._call(), *arguments]
        done = subprocess.run(call, env=self._environment, stdin=subprocess.DEVNULL, check=False, timeout=limit_s)
        return done.returncode

    def up(self, *services: str) -> None:
        """Starts these, and nothing that they depend on: the caller has waited for that."""
        self.run("up", "--detach", "--no-deps", "--no-build", *services, limit_s=120)

    def down(self) -> None:
        """Removes containers, networks and volumes; a second Ctrl-C does not stop it half-way."""
        subprocess.run(
            [*self._call(), "down", "--volumes", "--remove-orphans", "--timeout", "3"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=180,
            start_new_session=True,
        )

    def states(self) -> dict[str, State]:
        """Of every container of the project, by service."""
        shown = "{{.Label %s}}\t{{.State}}\t{{.Status}}"
        listed = docker(
            "ps", "--all", "--filter", f"label={PROJECT}={self._project}", "--format", shown % f'"{SERVICE}"'
        )
        rows = (line.split("\t") for line in listed.splitlines())
        return {service: State(status, text) for service, status, text in rows}

    def container(self, service: str) -> str:
        """The id of its container: Compose itself would start again what a service once waited for.

        Raises:
            DemoError: There is none.
        """
        named = (f"label={PROJECT}={self._project}", f"label={SERVICE}={service}")
        found = docker("ps", "--all", "--quiet", "--filter", named[0], "--filter", named[1]).split()
        if not found:
            raise DemoError(f"{service} has no container")
        return found[0]

    def progress(self) -> dict[str, Any]:  # Any: what the fleet's JSON holds
        """How far the fleet says that it is; empty while it says nothing."""
        text = docker("exec", self.container("fleet"), "cat", "/reports/progress.json", fails=True)
        try:
            told = json.loads(text)
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}

    def show_last_lines(self) -> None:
        """Of what has ended badly; where nothing has, of what is not ready; where everything is, of everything."""
        try:
            states = self.states()
            failed = [name for name, each in states.items() if each.exit_status not in {0, None}]
            waiting = [name for name, each in states.items() if not each.is_healthy and not each.has_ended]
            for name in sorted(failed or waiting or states):
                print(f"---- {name}: {states[name]}", file=sys.stderr, flush=True)
                told = subprocess.run(
                    [*self._call(), "logs", "--no-color", "--tail", "25", name],
                    env=self._environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                    timeout=60,
                )
                print(told.stdout, file=sys.stderr, flush=True)
        except (DemoError, subprocess.TimeoutExpired) as error:
            print(f"compose-demo: no logs: {error}", file=sys.stderr)

    def image_of(self, service: str) -> str:
        """The name of the image that a service runs, from the file as Compose reads it."""
        read = self.run("config", limit_s=60)
        block = re.search(rf"^  {service}:\n((?:    .*\n|\n)+)", read, re.MULTILINE)
        image = re.search(r"^    image: (\S+)$", block[1], re.MULTILINE) if block else None
        if image is None:
            raise DemoError(f"docker-compose.yml names no image for {service}")
        return image[1]

    def _call(self) -> list[str]:
        files = [word for file in self._files for word in ("--file", str(file))]
        return [*self._command, "--project-name", self._project, *files]


def docker(*arguments: str, fails: bool = False) -> str:
    """What the engine answers; empty where it fails and that is allowed.

    Raises:
        DemoError: It fails.
    """
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        if fails:
            return ""
        raise DemoError(f"`docker {arguments[0]}` failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def find_compose() -> list[str]:
    """What calls Compose here: what COMPOSE says, `docker compose`, or docker-compose.

    Raises:
        DemoError: There is no Docker, no engine answers, or there is no Compose.
    """
    if shutil.which("docker") is None:
        raise DemoError("docker is not there; install Docker, or run `make demo`, which needs none")
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except (DemoError, subprocess.TimeoutExpired) as error:
        raise DemoError(
            f"no Docker engine answers; start one, or run `make demo`, which needs none ({error})"
        ) from None
    named = os.environ.get("COMPOSE")
    tried = [shlex.split(named)] if named else [["docker", "compose"], ["docker-compose"]]
    for command in tried:
        if shutil.which(command[0]) is not None:
            done = subprocess.run([*command, "version"], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return command
    raise DemoError(f"{' and '.join(map(shlex.join, tried))}: not there; install Docker's Compose plug-in")


def wants_stand_ins(compose: Compose, services: tuple[str, ...], say: Callable[[str], None]) -> bool:
    """Whether an image is neither here nor can be pulled; an image that stood in before is built again."""
    for service in services:
        image = compose.image_of(service)
        label = docker(
            "image", "inspect", "--format", f'here {{{{index .Config.Labels "{STAND_IN}"}}}}', image, fails=True
        )
        if label.startswith("here"):
            if label.strip() != "here":
                say(f"{image} here is one that stands in for the official one")
                return True
            continue
        say(f"pulling {image}")
        pulled = subprocess.run(["docker", "pull", "--quiet", image], capture_output=True, text=True, check=False)
        if pulled.returncode != 0:
            say(f"{image} cannot be pulled ({pulled.stderr.strip()[-80:]}): building what stands in for it")
            return True
    return False


def prepare_stand_ins() -> None:
    """Puts the broker's files beside the Dockerfile that takes them.

    Raises:
        DemoError: They have not been fetched.
    """
    if not JARS.is_dir():
        raise DemoError("the stand-in for Kafka is made of the jars that `make broker` fetches: run it first")
    jars = KAFKA_CONTEXT / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in JARS.glob("*.jar")}
    for name in {path.name for path in jars.iterdir()} - wanted.keys():
        (jars / name).unlink()
    for name, path in wanted.items():
        if not (jars / name).exists():
            shutil.copy2(path, jars / name)
    for path in (HERE / "stand-ins" / "kafka").iterdir():
        shutil.copy2(path, KAFKA_CONTEXT / path.name)
