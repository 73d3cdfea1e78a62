"""Sums of products from paired sketches: right on average, with honest errors."""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.families.base import VectorRecords
from hushsum.families.paired import Paired
from hushsum.families.paired.moments import Moments, moments
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
FORMS: tuple[dict[str, Any], ...] = (
    {"radius": 2},
    {"form": "orthogonal"},
    {"loss": "margin", "radius": 2},
    {"loss": "margin", "form": "orthogonal"},
)


def family(dim: int = 3, **keys: Any) -> Paired:
    record = VectorRecords(dim, (Fraction(-1),) * dim, (Fraction(1),) * dim)
    return Paired.from_table(Table(keys, "sketch"), record)


def found(sketched: Paired, records: Floats, noise: float = 0.0, seed: int = 0) -> Moments:
    counters = np.zeros(sketched.shape, np.int64)
    sketched.add(counters, sketched.accept(records)[0])
    counters += np.rint(np.random.default_rng(seed).normal(0, noise, counters.shape)).astype(np.int64)
    return moments(sketched.tables, counters)


def exact(keys: dict[str, Any], records: Floats) -> tuple[Floats, Floats]:
    """Σ u·uᵀ and Σ label·u."""
    margin = keys.get("loss") == "margin"
    z = records[:, :-1] * np.where(records[:, -1:] > 0, 1.0, -1.0) if margin else records
    if keys.get("form") == "orthogonal":
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
    return z.T @ z, z.sum(axis=0)


@pytest.mark.statistical
@pytest.mark.parametrize("keys", FORMS)
def test_sums_are_those_of_the_records(keys: dict[str, Any], seed: int, rng: np.random.Generator) -> None:
    records = rng.uniform(-1, 1, (500, 3)) @ np.array([[1, 0.4, 0.2], [0, 0.6, 0.3], [0, 0, 0.5]])
    second, first = exact(keys, records)
    off = []
    for number in range(30):
        sums = found(family(rows=100, power=4, seed=(seed + number) % 2**53, **keys), records, noise=20, seed=number)
        off.append((sums.second - second) / sums.std_error)
        if sums.first is not None:
            assert np.abs(sums.first - first).max() < 0.5 * len(records)
    # An entry's mean error over 30 draws in units of its own error: about N(0, 1/30), and N(0, 2/30) on the diagonal.
    assert np.abs(np.mean(off, axis=0)).max() < 1.5, np.mean(off, axis=0)
    assert 0.4 < np.std(off) < 1.8


@pytest.mark.statistical
def test_first_sums_are_those_of_label_times_features(seed: int, rng: np.random.Generator) -> None:
    keys: dict[str, Any] = {"loss": "margin", "radius": 2}
    records = rng.uniform(-1, 1, (500, 3))
    records[:, 2] = np.where(records[:, 0] > 0, 1, -1)
    firsts = []
    for number in range(30):
        sums = found(family(rows=100, seed=(seed + number) % 2**53, **keys), records)
        assert sums.first is not None
        firsts.append(sums.first)
    spread = np.std(firsts, axis=0, ddof=1) / np.sqrt(30)
    assert np.abs((np.mean(firsts, axis=0) - exact(keys, records)[1]) / spread).max() < 8  # t with 29 degrees: 1e-8


def test_the_regression_loss_holds_no_first_sums_and_few_rows_are_refused(rng: np.random.Generator) -> None:
    records = rng.uniform(-1, 1, (50, 3))
    assert found(family(rows=20, radius=2), records).first is None
    with pytest.raises(ValueError, match="1 are too few for 3 columns, expected at least 2"):
        found(family(rows=1, radius=2), records)


def test_the_estimated_error_grows_with_the_noise(rng: np.random.Generator) -> None:
    records, sketched = rng.uniform(-1, 1, (50, 3)), family(rows=200, radius=2)
    quiet, loud = found(sketched, records), found(sketched, records, noise=1000)
    # Noise of variance σ² on each of 8 counters, R·6 equations, of unit design; times (π/2)·radius².
    assert loud.std_error == pytest.approx(np.sqrt(8 * 1000**2 / 1200) * np.pi / 2 * 4, rel=0.2)
    assert quiet.std_error < loud.std_error / 20
