"""Figures of several seeds, from which rows of the results are made: medians, with the least and the most."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.accuracy.curves import NO_NOISE, PURE
from benchmarks.data_files import shown
from benchmarks.report import Row

#: Of the whole run: each with hash functions and noise of its own.
SEEDS: Final = 10
QUICK_SEEDS: Final = 2
HUSHSUM: Final = "Hushsum"


@dataclass
class Tally:
    """What was measured on one data set for one figure of a paper.

    Attributes:
        figure: Of a paper: see :data:`benchmarks.accuracy.papers.page.SECTIONS`.
        data: The data set; rows mark a stand-in.
        metric: What a value is.
    """

    figure: str
    data: str
    metric: str
    _values: dict[tuple[str, int | float, float, float], list[float]] = field(default_factory=dict)

    def add(
        self, method: str, value: float, *, size: float = 0, epsilon: float = NO_NOISE, delta: float = PURE
    ) -> None:
        """The value of one seed."""
        self._values.setdefault((method, size, epsilon, delta), []).append(float(value))

    def rows(self) -> list[Row]:
        """One row a method, size, ε and δ."""
        return [
            {
                "figure": self.figure,
                "data": shown(self.data),
                "metric": self.metric,
                "method": method,
                "size": size,
                "epsilon": epsilon,
                "delta": delta,
                "median": float(np.median(values)),
                "least": min(values),
                "most": max(values),
                "seeds": len(values),
            }
            for (method, size, epsilon, delta), values in self._values.items()
        ]


def seeds(*, quick: bool) -> Sequence[int]:
    """Their numbers, from 1."""
    return range(1, 1 + (QUICK_SEEDS if quick else SEEDS))
