"""Puts Prometheus's promtool into .cache/promtool, once; does nothing where it is there, or on the path.

The tests of the alerts need it. Debian's package ``prometheus`` has it: its archive is fetched and unpacked, and
nothing is installed, so that no server starts. Only where apt knows no package yet are its lists fetched, too, which
takes root. What is missing is told in one line: the tests are then left out, except under CI=true, where that is a
failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "promtool"


def promtool() -> str | None:
    """The program's path; None where there is none."""
    return shutil.which("promtool") or shutil.which("promtool", path=str(CACHE))


def fetch() -> str | None:
    """Tries once to fetch it. Returns why that failed, in one line; None: it is there."""
    if missing := [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]:
        return f"there is no {missing[0]}: install Prometheus's promtool, and put it on the path"
    with tempfile.TemporaryDirectory() as folder:
        failure = _ran("apt-get", "download", "prometheus", folder=folder)
        if failure is not None and os.geteuid() == 0:
            failure = _ran("apt-get", "update", folder=folder)
            failure = failure or _ran("apt-get", "download", "prometheus", folder=folder)
        if failure is not None:
            return failure
        (archive,) = Path(folder).glob("prometheus_*.deb")
        if (failure := _ran("dpkg-deb", "--extract", str(archive), "files", folder=folder)) is not None:
            return failure
        CACHE.mkdir(parents=True, exist_ok=True)
        new = CACHE / "promtool.new"
        shutil.copy(Path(folder) / "files" / "usr" / "bin" / "promtool", new)
        new.replace(CACHE / "promtool")
    return None


def _ran(*command: str, folder: str) -> str | None:
    """The last line of what a failed command said; None where it did not fail."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = (ran.stderr.strip() or ran.stdout.strip() or f"status {ran.returncode}").splitlines()[-1]
    return None if ran.returncode == 0 else f"{' '.join(command[:2])}: {said}"


def main() -> int:
    """Tells what is done and what is missing."""
    if promtool() is not None:
        return 0
    print("promtool: fetching Debian's package prometheus into .cache/promtool, for the tests of the alerts")
    failure = fetch()
    if failure is None:
        return 0
    print(f"promtool: {failure}; the tests that need it are left out", file=sys.stderr)
    return 1 if os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
