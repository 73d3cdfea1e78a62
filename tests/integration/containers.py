"""The demo as a process, and what a Docker engine here says."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = {"v2": "docker compose", "1.29": "docker-compose"}


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
