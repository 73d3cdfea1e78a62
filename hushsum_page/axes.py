"""Axes of pictures: where ticks stand and what they say, and scales of colours."""

import math
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
#: Steps of a time axis, in ms.
_TIME_STEPS_MS: Final = (
    *(1000 * seconds for seconds in (1, 5, 15, 30)),
    *(_MINUTE_MS * minutes for minutes in (1, 5, 15, 30, 60, 120, 180, 360, 720)),
    *(_DAY_MS * days for days in (1, 2, 7, 14, 28, 91, 182, 364, 728, 1820, 3640)),
)
# Anchors of matplotlib's viridis, between which colours are interpolated; readable without colour vision, and in grey.
_VIRIDIS: Final = (
    *("#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c"),
    *("#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725"),
)
# ColorBrewer's PuOr, reversed: orange above 0, purple below, told apart without colour vision.
_DIFFERENCE: Final = (
    *("#2d004b", "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7"),
    *("#fee0b6", "#fdb863", "#e08214", "#b35806", "#7f3b08"),
)
COLOURS: Final = 48


class Tick(NamedTuple):
    """A mark of an axis: its value, and its text."""

    at: float
    text: str


def ticks(low: float, high: float, number: int = 6) -> list[Tick]:
    """About ``number`` round values from ``low`` to ``high``; fewer where the range is empty or not finite."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [Tick(low, f"{low:.4g}")] if math.isfinite(low) else []
    rough = (high - low) / max(number - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in _STEPS if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    if not first <= last <= first + 4 * number:  # no round value, or a range that is tiny beside its values
        return [Tick(low, f"{low:.6g}"), Tick(high, f"{high:.6g}")]
    return [Tick(each * step, _number_text(each * step, step)) for each in range(first, last + 1)]


def _number_text(value: float, step: float) -> str:
    largest = max(abs(value), step)
    if value == 0:
        return "0"
    if largest >= 1e7 or step < 1e-5:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if decimals < 6 and abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1
    return f"{value:,.{decimals}f}"


def time_ticks(low_ms: float, high_ms: float, number: int = 6) -> list[Tick]:
    """About ``number`` round moments (ms since 1970 UTC), with their texts in UTC."""
    if high_ms <= low_ms:
        return [Tick(low_ms, f"{datetime.fromtimestamp(low_ms / 1000, UTC):%Y-%m-%d %H:%M}")]
    rough = (high_ms - low_ms) / max(number, 1)
    step = next((each for each in _TIME_STEPS_MS if each >= rough), _TIME_STEPS_MS[-1])
    form = "%H:%M:%S" if step < _MINUTE_MS else "%m-%d %H:%M" if step < _DAY_MS else "%Y-%m-%d"
    first, last = math.ceil(low_ms / step), math.floor(high_ms / step)
    return [
        Tick(float(each * step), f"{datetime.fromtimestamp(each * step / 1000, UTC):{form}}")
        for each in range(first, last + 1)
    ]


class ColourScale(NamedTuple):
    """Numbers as one of :data:`COLOURS` colours.

    Attributes:
        low: The number of the first colour.
        high: That of the last.
        is_root: Whether equal steps of colour are equal steps of the square root, so that slopes show beside peaks.
        is_signed: Whether the colours are those of a difference.
    """

    low: float
    high: float
    is_root: bool = False
    is_signed: bool = False

    def share(self, values: Floats) -> Floats:
        """Where values lie on the scale, from 0 to 1; NaN where they are NaN."""
        if not self.high > self.low:
            return np.where(np.isnan(values), np.nan, 0.5)
        share: Floats = np.clip((values - self.low) / (self.high - self.low), 0.0, 1.0)
        return np.sqrt(share) if self.is_root else share

    def level(self, values: Floats) -> npt.NDArray[np.int64]:
        """The number of the colour of each value; −1 where there is none."""
        share = self.share(values)
        known = ~np.isnan(share)
        level = np.where(known, share, 0.0) * COLOURS
        return np.where(known, np.minimum(level.astype(np.int64), COLOURS - 1), -1)

    def colour(self, level: int) -> str:
        """A colour by its number, as ``#rrggbb``."""
        anchors = _DIFFERENCE if self.is_signed else _VIRIDIS
        place = level / (COLOURS - 1) * (len(anchors) - 1)
        first = min(int(place), len(anchors) - 2)
        part = place - first
        mixed = (
            round((1 - part) * int(anchors[first][at : at + 2], 16) + part * int(anchors[first + 1][at : at + 2], 16))
            for at in (1, 3, 5)
        )
        return "#" + "".join(f"{each:02x}" for each in mixed)
