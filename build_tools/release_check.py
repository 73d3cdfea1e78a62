"""Builds wheel and sdist twice to the same bytes, installs the wheel in a fresh environment, and runs the demo from it.

Both builds are of what git has, in two folders, with other times and permissions of files. The wheel is also built from
the sdist. What was checked is left in build/release. It needs a package index for the packages of the lock.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KEPT: Final = ROOT / "build" / "release"
DEMO: Final = ("simulate", "--clients", "4", "--out", "demo")


def epoch() -> str:
    """The time that built files have: that of the last commit, or SOURCE_DATE_EPOCH of the environment."""
    return os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").strip()


def copy_of_sources(folder: Path, *, umask: int) -> None:
    """What git tracks, as it is now, with these permissions and with times of its own."""
    for name in _git("ls-files", "-z").split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(0o777 & ~umask if os.access(source, os.X_OK) else 0o666 & ~umask)
            os.utime(target, (umask * 10**6, umask * 10**6))


def build(sources: Path, out: Path, *targets: str) -> dict[str, bytes]:
    """Builds with the backend of pyproject.toml that is installed here; the files by their names."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    words = [word for target in targets for word in ("--target", target)]
    done = subprocess.run([*command, *words], cwd=sources, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"release-check: hatchling failed: {done.stderr.strip()}")
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def built_twice(folder: Path) -> dict[str, bytes]:
    """Wheel and sdist.

    Raises:
        SystemExit: Two builds differ, or the wheel of the sdist does.
    """
    first, second = folder / "one", folder / "the other"
    copy_of_sources(first / "sources", umask=0o022)
    copy_of_sources(second / "sources", umask=0o077)
    files = build(first / "sources", first / "out", "sdist", "wheel")
    again = build(second / "sources", second / "out", "sdist", "wheel")
    (sdist,) = (name for name in files if name.endswith(".tar.gz"))
    with tarfile.open(first / "out" / sdist) as archive:
        archive.extractall(folder, filter="data")
    of_sdist = build(folder / sdist.removesuffix(".tar.gz"), folder / "of sdist", "wheel")
    for name, data in files.items():
        if data != again.get(name) or (name.endswith(".whl") and data != of_sdist.get(name)):
            sys.exit(f"release-check: {name} has other bytes when it is built again")
    return files


def run_installed(wheel: Path, folder: Path) -> None:
    """Installs a wheel with the packages of the lock and nothing else of here, and runs the demo."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = folder / "fresh" / "bin" / "python"
    constraints = folder / "constraints.txt"
    pins = re.findall(r"^[a-z0-9-]+==[^\\\n]+", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    constraints.write_text("\n".join(pins), encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    for command in (
        [sys.executable, "-m", "venv", str(folder / "fresh")],
        [*install, "--constraint", str(constraints), f"hushsum[all] @ {wheel.as_uri()}"],
        [str(python), "-m", "pip", "check"],
        [str(python.with_name("hushsum")), *DEMO],
    ):
        subprocess.run(command, cwd=folder, env=environment, check=True)


def main() -> None:
    """Says what was built, with its digests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-only", action="store_true", help="install nothing, and run nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = built_twice(folder)
        KEPT.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (KEPT / name).write_bytes(data)
            print(f"release-check: {name} twice the same, SHA-256 {hashlib.sha256(data).hexdigest()}")
        if not arguments.build_only:
            (wheel,) = (KEPT / name for name in files if name.endswith(".whl"))
            run_installed(wheel, folder)
            print("release-check: installed in a fresh environment, the demo passed")


def _git(*words: str) -> str:
    # Where another user owns the checkout, git wants to be told that this is meant.
    command = ["git", "-c", "safe.directory=*", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
