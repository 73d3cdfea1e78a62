"""Fills .cache/peers with what benchmarks measure beside us and our environment does not hold; once.

pip fetches it, from wherever this machine's settings say, without what it depends on: build_tools/peers.txt says which
versions, and which files those must be. A benchmark whose peer is not there says so and goes on.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTED = ROOT / "build_tools" / "peers.txt"
CACHE = ROOT / ".cache" / "peers"
PACKAGES = CACHE / "packages"
STAMP = CACHE / "ready"


def is_ready() -> bool:
    """Whether the packages of today's list are there."""
    return STAMP.exists() and STAMP.read_text(encoding="utf-8") == _wanted()


def fetch() -> str | None:
    """Fetches the packages, and moves them to where they are looked for.

    Returns:
        None, or what went wrong, in one line.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        folder = Path(temporary) / "packages"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--no-compile"]
        command += ["--only-binary", ":all:", "--disable-pip-version-check", "--target", str(folder), "-r", str(LISTED)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or ["no word of it"]
            return f"pip could not fetch build_tools/peers.txt: {said[-1]}"
        STAMP.unlink(missing_ok=True)
        shutil.rmtree(PACKAGES, ignore_errors=True)
        folder.rename(PACKAGES)
        STAMP.write_text(_wanted(), encoding="utf-8")
    return None


def main() -> None:
    """Says in one line how it went."""
    if is_ready():
        print("peers: .cache/peers is up to date")
        return
    print("peers: fetching what benchmarks stand beside into .cache/peers (a few MB, once)")
    if (wrong := fetch()) is not None:
        print(f"peers: {wrong}; until then their figures are left out", file=sys.stderr)
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
    print("peers: .cache/peers is ready")


def _wanted() -> str:
    return hashlib.sha256(LISTED.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
