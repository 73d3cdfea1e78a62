"""What the demo asks of a Docker engine: through `docker compose` or docker-compose, whichever is there."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROJECT = "com.docker.compose.project"
SERVICE = "com.docker.compose.service"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DOWN_ROUNDS = 5


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
        status, told = self._ended(arguments, subprocess.PIPE, limit_s)
        if status != 0:
            print("\n".join(told.splitlines()[-40:]), file=sys.stderr)
            raise DemoError(f"`{' '.join([*self._command, *arguments])}` failed with {status}; see above")
        return told

    def show(self, *arguments: str, limit_s: float) -> int:
        """Runs one command that prints for whoever looks on; returns its exit status."""
        return self._ended(arguments, None, limit_s)[0]

    def _ended(self, arguments: tuple[str, ...], out: int | None, limit_s: float) -> tuple[int, str]:
        """Runs one command; whatever stops this process or its waiting ends all that the command has started."""
        with subprocess.Popen(
            [*self._call(), *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=None if out is None else subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                told, _ = process.communicate(timeout=limit_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            return process.returncode, told or ""

    def up(self, *services: str) -> None:
        """Starts these, and nothing that they depend on: the caller has waited for that."""
        self.run("up", "--detach", "--no-deps", "--no-build", *services, limit_s=120)

    def down(self) -> None:
        """Removes every container of the project, those of `run` too, its volumes and networks; no signal stops it.

        Raises:
            DemoError: Something is left.
        """
        ignore_signals()
        left: list[str] = []
        for _ in range(DOWN_ROUNDS):
            self._remove("ps", "rm")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ended(("down", "--volumes", "--remove-orphans", "--timeout", "3"), subprocess.PIPE, 120)
            time.sleep(1.0)  # one that was cut short may have asked for a container that the engine still makes
            if not (left := self.left()):
                return
            for kind in ("volume", "network"):
                self._remove(f"{kind} ls", f"{kind} rm")
        raise DemoError(f"not everything could be removed: {', '.join(left)}")

    def left(self) -> list[str]:
        """Containers, volumes and networks that bear the project's name."""
        kinds = {"ps": "container", "volume ls": "volume", "network ls": "network"}
        return [f"{kind} {each}" for words, kind in kinds.items() for each in self._labelled(words)]

    def _labelled(self, words: str) -> list[str]:
        everything = ["--all"] if words == "ps" else []
        return docker(*words.split(), *everything, "--quiet", "--filter", f"label={PROJECT}={self._project}").split()

    def _remove(self, listing: str, removing: str) -> None:
        more = {"rm": ["--force", "--volumes"], "volume rm": ["--force"]}.get(removing, [])
        for each in self._labelled(listing):
            docker(*removing.split(), *more, each, fails=True)

    def restarts(self) -> dict[str, int]:
        """How often the engine has started each service again by itself, because it had ended."""
        found = self._labelled("ps")
        shown = f'{{{{index .Config.Labels "{SERVICE}"}}}} {{{{.RestartCount}}}}'
        rows = docker("inspect", "--format", shown, *found).splitlines() if found else []
        return {service: int(count) for service, count in map(str.split, rows) if int(count)}

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
        fleet, file = self.container("fleet"), "/reports/progress.json"
        text = docker("exec", fleet, "cat", file, fails=True)
        if not text:  # it has ended, or is about to begin: this is an archive of the file
            text = "".join(re.findall(r"\{.*\}", docker("cp", f"{fleet}:{file}", "-", fails=True)))
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


def ignore_signals() -> None:
    """From now on nobody stops this process half-way."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


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
