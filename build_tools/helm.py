"""Builds helm into .cache/helm, once; does nothing when it is there.

It is a Go module: Go fetches it from wherever this machine's settings say, and checks it against the checksums that it
knows. What is missing is told in one line: tests that render the chart are then left out, except under CI=true, where
that is a failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

VERSION: Final = "v3.19.5"
MODULE: Final = f"helm.sh/helm/v3/cmd/helm@{VERSION}"
ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".cache" / "helm"
HELM: Final = CACHE / f"helm-{VERSION}"


def main() -> None:
    """Says in one line how it went."""
    if HELM.exists():
        print("helm: .cache/helm is up to date")
        return
    if shutil.which("go") is None:
        _end("Go is not there; install it (Debian: apt install golang)")
    print("helm: building it for tests into .cache/helm (100 MB, some minutes, once)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        environment = {**os.environ, "GOBIN": folder, "GOFLAGS": "-trimpath"}
        built = subprocess.run(
            ["go", "install", MODULE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if built.returncode != 0:
            _end(f"go install {MODULE} failed: {built.stderr.strip()[-2000:]}")
        (Path(folder) / "helm").rename(HELM)
    print("helm: .cache/helm is ready")


def _end(why: str) -> NoReturn:
    print(f"helm: {why}; until then what renders the chart is left out", file=sys.stderr)
    sys.exit(1 if os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    main()
