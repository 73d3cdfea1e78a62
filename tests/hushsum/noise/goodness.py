"""How well draws fit the distribution that a sampler states: Pearson's χ² over bins of equal enough weight."""

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from hushsum.noise import Sampler

FALSE_ALARM = 1e-6  # of one test; the expected counts below are large enough for the χ² tail to be that exact
EXPECTED_MIN = 200.0
BINS_MAX = 60
BINS_FEW = 5
REACH_MAX = 10**6


def p_value(sampler: Sampler, draws: npt.NDArray[np.int64]) -> float:
    """The probability that draws of exactly the stated distribution fit it as badly as these."""
    reach = int(40 * sampler.std) + 40  # what lies beyond is below e^-40: it joins the outermost bins
    cumulative = _cumulative(sampler, reach)
    while cumulative[-1] < 1 - 1e-9 and reach < REACH_MAX:  # a share is nearly always 0: its tail is long for its std
        reach *= 2
        cumulative = _cumulative(sampler, reach)
    assert abs(cumulative[-1] - 1) < 1e-9, f"the stated probabilities sum to {cumulative[-1]}"
    edges = _edges(cumulative * len(draws), max(EXPECTED_MIN, len(draws) / BINS_MAX))
    if len(edges) < BINS_FEW:  # nearly all draws are one value: the others still tell
        edges = _edges(cumulative * len(draws), EXPECTED_MIN)
    expected = np.diff(np.concatenate(([0.0], cumulative[edges[:-1]], [1.0]))) * len(draws)
    places = np.clip(draws, -reach, reach) + reach
    observed = np.bincount(np.searchsorted(edges, places, side="left"), minlength=len(edges))
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, len(edges) - 1))


def _cumulative(sampler: Sampler, reach: int) -> npt.NDArray[np.float64]:
    """The stated P(≤ k) of k from −reach to reach."""
    return np.cumsum(np.exp(sampler.log_probability(np.arange(-reach, reach + 1, dtype=np.int64))))


def _edges(cumulative: npt.NDArray[np.float64], weight: float) -> npt.NDArray[np.int64]:
    """Last index of each bin, where every bin weighs at least ``weight``."""
    edges: list[int] = []
    start = 0.0
    while True:
        index = int(np.searchsorted(cumulative, start + weight))
        if index >= len(cumulative) or cumulative[-1] - cumulative[index] < weight:
            return np.array([*edges, len(cumulative) - 1], dtype=np.int64)
        edges.append(index)
        start = float(cumulative[index])
