"""What an attacker sees of one window: a row of numbers, from published outcomes alone.

The attacker knows the plan, both neighbouring data sets, and how the noise is meant to be distributed; whatever
distinguishes the two must show in one of these numbers.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum.sketch import Sketch

Floats = npt.NDArray[np.float64]

COLUMNS: Final = (
    "released",  # 1, or 0: the window is withheld
    "times withheld",  # before this outcome was final, by all that was told of the window
    "noisy count",
    "counters along the difference",  # the best test of Gaussian noise
    "counters along the difference, clipped",  # of Laplace noise
    "density",  # at a public place
    "count implied by answers",  # what a kernel sum is divided by to give a density
)
_PLACE: Final = np.array([[5.0]])


class View:
    """Looks at outcomes of two neighbouring data sets.

    Args:
        plan: Of the outcomes.
        first: The exact sketch of one data set,
        second: and of its neighbour.
        asks: Whether the release is asked too; that takes most of the time.
    """

    def __init__(self, plan: Plan, first: Sketch, second: Sketch, *, asks: bool = True) -> None:
        self._plan, self._asks = plan, asks
        values = [
            np.append(sketch.counters.reshape(-1), sketch.counts).astype(np.float64) for sketch in (first, second)
        ]
        self._change = values[1] - values[0]
        self._middle = (values[0] + values[1]) / 2

    def row(self, release: Release | None, *, withheld: int = 0) -> list[float]:
        """The numbers of one outcome; None: withheld for good."""
        if release is None:
            return [0.0, float(withheld), *[np.nan] * (len(COLUMNS) - 2)]
        shown = np.append(release.counters.reshape(-1), release.counts).astype(np.float64) - self._middle
        half = np.abs(self._change) / 2
        clipped = np.clip(shown, -half, half) @ np.sign(self._change)
        return [
            1.0,
            float(withheld),
            release.count,
            float(shown @ self._change),
            float(clipped),
            *self._answers(release),
        ]

    def _answers(self, release: Release) -> tuple[float, float]:
        if not self._asks:
            return np.nan, np.nan
        total, density = (float(answer.value[0]) for answer in (release.kernel_sum(_PLACE), release.density(_PLACE)))
        return density, total / density if density else np.nan


def stacked(rows: Sequence[Sequence[float]]) -> Floats:
    """(n, columns) of n runs."""
    return np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))
