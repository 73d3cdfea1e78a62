"""Draws have the distribution that OpenDP's exact samplers draw from, which share nothing with ours."""

import math
from fractions import Fraction
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.noise import SAMPLERS, Sampler

opendp = pytest.importorskip("opendp.prelude")

DRAWS = 60_000  # of OpenDP, and five times as many of ours
BINS = 20
CASES = [(name, scale) for name in SAMPLERS for scale in (1, 1000)]


def theirs(name: str, scale: int, size: int) -> npt.NDArray[np.int64]:
    """Draws of OpenDP's vector sampler of the same distribution."""
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T="i64"))
    if name == "discrete-laplace":
        measurement = opendp.m.make_laplace(domain, opendp.l1_distance(T="i64"), scale=float(scale))
    else:
        measurement = opendp.m.make_gaussian(domain, opendp.l2_distance(T="i64"), scale=math.sqrt(scale))
    return np.array(cast("list[int]", measurement([0] * size)), dtype=np.int64)


def distance(ours: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> tuple[float, int]:
    """χ² of two samples over bins of the second's quantiles, and its degrees of freedom."""
    edges = np.unique(np.quantile(others, np.linspace(0, 1, BINS + 1)[1:-1]))
    a, b = (np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1) for draws in (ours, others))
    share = len(ours) / (len(ours) + len(others))
    expected = (a + b) * share
    statistic = ((a - expected) ** 2 / expected).sum() + ((b - (a + b - expected)) ** 2 / (a + b - expected)).sum()
    return float(statistic), len(edges)


def p_value(sampler: Sampler, others: npt.NDArray[np.int64], key: bytes) -> float:
    from scipy.stats import chi2

    statistic, freedom = distance(sampler.sample(5 * len(others), ReplayableEntropy(key)), others)
    return float(chi2.sf(statistic, freedom))


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "scale"), CASES)
def test_draws_are_distributed_as_those_of_opendp(name: str, scale: int, seed: int) -> None:
    """Two samples, χ²: false alarm 1e-6; a scale 5 % off fails. OpenDP's side is new in every run."""
    others, key = theirs(name, scale, DRAWS), seed.to_bytes(8, "big")
    assert p_value(SAMPLERS[name](Fraction(scale)), others, key) > 1e-6
    wide = Fraction(21, 20) ** (1 if name == "discrete-laplace" else 2)
    assert p_value(SAMPLERS[name](scale * wide), others, key) < 1e-6
