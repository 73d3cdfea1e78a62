"""How the programs of a deployment write files: whole or not at all, and secrets for their owner alone."""

import json
import os
from pathlib import Path
from typing import Any, Final

from simulator.errors import JourneyError

_PUBLIC: Final = 0o644
_PRIVATE: Final = 0o600


def write_public(path: Path, data: bytes) -> None:
    """Puts a file in its place that everybody may read."""
    _write(path, data, _PUBLIC)


def write_private(path: Path, data: bytes) -> None:
    """Puts a file in its place that its owner alone may read."""
    _write(path, data, _PRIVATE)


def write_json(path: Path, value: object) -> None:
    """The same of JSON that everybody may read."""
    write_public(path, json.dumps(value, allow_nan=False).encode() + b"\n")


def read_json(path: Path, maker: str) -> Any:  # Any: whatever JSON holds
    """What such a file holds.

    Args:
        path: The file.
        maker: The program that writes it.

    Raises:
        JourneyError: It is not there, or holds something else.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise JourneyError(f"{path} is not there: {maker} writes it, and has to come to its end first") from error
    except (OSError, ValueError) as error:
        raise JourneyError(f"{path}: not what {maker} writes: {error}") from error


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
        os.fchmod(descriptor, mode)  # whatever this process masks
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    beside.replace(path)
