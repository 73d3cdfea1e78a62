"""Fills .cache/kafka with a broker's files and what makes its starts short, once; does nothing when they are there.

Maven fetches them, from wherever this machine's settings say; build_tools/kafka/jars.sha256 says which files that must
be. What is missing is told in one line: tests that need a broker are then left out, except under CI=true, where that is
a failure.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hushsum_simulator.errors import ServerError
from hushsum_simulator.testbed.kafka import missing_java, prepare_brokers

ROOT = Path(__file__).resolve().parent.parent
POM = ROOT / "build_tools" / "kafka" / "pom.xml"
LISTED = ROOT / "build_tools" / "kafka" / "jars.sha256"
CACHE = ROOT / ".cache" / "kafka"
JARS = CACHE / "jars"
STAMP = CACHE / "ready"
GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def listed() -> dict[str, str]:
    """SHA-256 by file name."""
    rows = (line.split() for line in LISTED.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in rows}


def is_ready() -> bool:
    """Whether the files of today's list are there: they were checked when the stamp was written."""
    return STAMP.exists() and STAMP.read_text(encoding="utf-8") == _wanted()


def problems(folder: Path) -> list[str]:
    """What differs from the list, one line each."""
    wanted = listed()
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*")}
    lines = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    lines += [f"{name} is not in the list" for name in sorted(found.keys() - wanted.keys())]
    return lines + [
        f"{name} has other bytes" for name in sorted(wanted) if found.get(name, wanted[name]) != wanted[name]
    ]


def missing() -> str | None:
    """What is to be installed before this can work; None where all is there."""
    if (java := missing_java()) is not None:
        return java
    if not is_ready() and shutil.which("mvn") is None:
        return "Maven is not there; install it (Debian: apt install maven)"
    return None


def fetch() -> None:
    """Fetches the files, checks each, and moves them to where they are looked for.

    Raises:
        SystemExit: Maven failed, or brought something else.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        folder = Path(temporary) / "jars"
        command = ["mvn", "-B", "-q", "-f", str(POM), GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout[-3000:], file=sys.stderr)
            sys.exit("kafka: Maven failed (see above); mend the cause and run this again: it goes on from here")
        if wrong := problems(folder):
            sys.exit("kafka: Maven brought other files than build_tools/kafka/jars.sha256 lists: " + "; ".join(wrong))
        STAMP.unlink(missing_ok=True)
        shutil.rmtree(JARS, ignore_errors=True)
        folder.rename(JARS)
        STAMP.write_text(_wanted(), encoding="utf-8")


def main() -> None:
    """Says in one line how it went."""
    if (lacking := missing()) is not None:
        print(f"kafka: {lacking}; until then what needs a broker is left out", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
    fetches = not is_ready()
    if fetches:
        print("kafka: fetching a broker for tests into .cache/kafka (40 MB, half a minute, once)")
        fetch()
    try:
        prepares = prepare_brokers(JARS)
    except ServerError as error:
        sys.exit(f"kafka: {error}")
    print(f"kafka: .cache/kafka is {'ready' if fetches or prepares else 'up to date'}")


def _wanted() -> str:
    return hashlib.sha256(LISTED.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
