"""Images of others: pulled, or built from what stands in for them where they cannot be."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from compose.engine import HERE, ROOT, Compose, DemoError, docker

JARS = ROOT / ".cache" / "kafka" / "jars"
KAFKA_CONTEXT = ROOT / ".cache" / "compose" / "kafka"
STAND_IN = "hushsum.stand-in"  # the label of an image that stands in for another


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
    """Puts the broker's files beside the Dockerfile that takes them; fetches them first where they are not here.

    Raises:
        DemoError: They cannot be fetched.
    """
    if not JARS.is_dir():
        folders = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
        fetched = subprocess.run(
            [sys.executable, str(ROOT / "build_tools" / "kafka_jars.py")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folders},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not JARS.is_dir():
            told = (fetched.stdout.strip().splitlines() or ["nothing was said"])[-1]
            raise DemoError(
                f"what stands in for Kafka's image is built of jars that are not here ({told}): `make broker`"
            )
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
