"""What a run of the demo is filled in from: the shell, `.env` beside the compose file, the demo's own sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_SHOWN_S = 60.0  # where clients show themselves, no window is shorter
_WINDOW_S, _LATENESS_S = 20.0, 60.0


def read(path: Path) -> dict[str, str]:
    """The variables of a `.env` file as Compose reads it; none where there is no file."""
    if not path.exists():
        return {}
    lines = map(_LINE.fullmatch, path.read_text(encoding="utf-8").splitlines())
    return {line[1]: _value(line[2]) for line in lines if line is not None}


@dataclass(frozen=True)
class Sizes:
    """How long a run takes, by what it is filled in from.

    Attributes:
        windows: How many the fleet contributes to.
        window_s: How long each is.
        lateness_s: How long each stays open after its end.
        in_turns: Whether clients submit once a window, and are answered all at once.
    """

    windows: int
    window_s: float
    lateness_s: float
    in_turns: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Sizes":
        """Of these variables.

        Raises:
            ValueError: One is no number.
        """
        in_turns = _in_turns(environment)
        window_s = float(environment.get("WINDOW_S") or _WINDOW_S)
        lateness_s = float(
            environment.get("LATENESS_S") or (_LATENESS_S if in_turns else max(_LATENESS_S, 2 * window_s))
        )
        window_s = max(_SHOWN_S, window_s) if in_turns else window_s
        return cls(int(environment.get("WINDOWS") or 4), window_s, lateness_s, in_turns)


def resolved(mode: str | None, image: str, beside: Mapping[str, str], shell: Mapping[str, str]) -> dict[str, str]:
    """Every variable that a run has.

    Args:
        mode: What the command line says.
        image: The name of our image where nobody says another.
        beside: Of `.env`.
        shell: Of the process.
    """
    said = {**beside, **shell}
    said["MODE"] = mode or said.get("MODE") or "central"
    # A port that is free, unless one is asked for: several demos may run beside each other.
    own = {"GATEWAY_PORT": "", "WINDOWS": "2" if _in_turns(said) else "4"}
    return {**own, **said, "IMAGE": said.get("IMAGE") or image}


def _in_turns(environment: Mapping[str, str]) -> bool:
    mode = environment.get("MODE")
    return mode == "secure" or (mode == "local" and environment.get("FORM") == "silo")


def _value(text: str) -> str:
    for quote in "\"'":
        if text.startswith(quote):
            return text[1:].partition(quote)[0]
    return re.split(r"\s#", f" {text}", maxsplit=1)[0].strip()
