"""Modes side by side, and the closed forms of shuffled bit sums, on little data."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import modes
from benchmarks.accuracy.data import DataSet, vectors
from benchmarks.accuracy.mode_page import draw, section
from benchmarks.accuracy.modes import DELTA, ModeSubject
from benchmarks.accuracy.shuffled import (
    IDEALISED,
    RESPONSE,
    features_of,
    idealised_variance,
    local_ratio,
    response_variance,
)
from benchmarks.accuracy.subjects import RELATIVE
from benchmarks.report import Row
from hushsum.privacy.shuffle_amplification import amplified

pytestmark = pytest.mark.usefixtures("repeatable_noise")

N = 400
SKETCH = {"family": "hashed", "kernel": "euclidean", "bandwidth": 1, "buckets": 64}


@pytest.fixture
def little(rng: np.random.Generator) -> DataSet:
    points = rng.normal(5, 1.5, (1240, 2)).clip(0, 10)
    return vectors("skin", "bounds 0 to 10", [0, 0], [10, 10], (points[:-40], points[-40:]))


@pytest.fixture
def measured(little: DataSet, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    subject = ModeSubject("skin", "hashed", SKETCH, RELATIVE)
    monkeypatch.setattr(modes, "MODE_SUBJECTS", (subject,))
    monkeypatch.setattr(modes, "data_sets", lambda names, *, quick: [little])
    monkeypatch.setattr(modes, "_ROWS", 64)
    return [{"part": "mode", **row} for row in modes.measure_modes(quick=True)]


def test_every_mode_errs_as_much_as_it_trusts_fewer_people(measured: list[Row], tmp_path: Path) -> None:
    off = {str(row["mode"]): float(row["records off"]) for row in measured if "records off" in row}
    central, secure = off["central, δ = 10⁻⁶"], off["secure, 1,000 clients"]
    assert central < off["local silo, 1,000 clients"] / 2
    assert secure < off["local silo, 1,000 clients"] / 2
    assert {"local, k-rr", "local, projective", "local silo, 100 clients", "central, δ = 0"} < off.keys()
    page = section(measured)
    assert "| 1,200 | hashed | local, k-rr |" in page
    assert "### skin, by mode" in page
    assert "### taxi" not in page
    draw(tmp_path, measured)
    assert (tmp_path / "modes-skin.png").read_bytes().startswith(b"\x89PNG")
    assert section([]) == ""


def test_the_noise_of_all_clients_has_the_variance_of_their_sum(little: DataSet) -> None:
    """1,000 numbers and more: their variance is within 30 % with a false-alarm rate far below 10⁻⁶."""
    subject = ModeSubject("skin", "", SKETCH, RELATIVE)
    privacy: dict[str, object] = {"epsilon": 1, "delta": 1e-6, "mode": "local", "local": {"form": "silo"}}
    plan = subject.plan(little, 1, {**privacy, "total_delta": 1e-6})
    noise = modes._noise(plan, 50)
    assert noise.var() == pytest.approx(50 * plan.privacy.mechanism.noise().variance, rel=0.3)
    assert len(noise) == math.prod(plan.counters_shape) + 1


def simulated_sums(features: int, rng: np.random.Generator, *, ratio: float | None, epsilon: float = 0.0) -> float:
    """The variance of a density that bit sums give, over everything but the features."""
    points, query = rng.normal(0, 0.01, (N, 2)), np.zeros((1, 2))
    embed = features_of(points, features, rng)
    values, weights = embed(points), embed(query)[0]
    found = []
    for _ in range(300):
        ones = rng.random(values.shape) < (values / math.sqrt(2) + 1) / 2
        if ratio is not None:
            kept = rng.random(ones.shape) < ratio / (ratio + 1)
            stretch = (ratio + 1) / (ratio - 1)
            sums = (2 * (ones == kept).sum(axis=0) - N) * stretch
        else:
            tail = 1 - math.exp(-epsilon)
            sums = 2 * (ones.sum(axis=0) + rng.geometric(tail, features) - rng.geometric(tail, features)) - N
        found.append(float((math.sqrt(2) * sums * weights).mean()) / N)
    return float(np.var(found))


@pytest.mark.statistical
def test_closed_forms_of_bit_sums_are_those_of_simulations(rng: np.random.Generator) -> None:
    """Of 300 collections a variance is within 45 % with a false-alarm rate below 10⁻⁶; the 64 weights add some."""
    assert simulated_sums(64, rng, ratio=1.5) == pytest.approx(response_variance(1.5, 64, N), rel=0.5)
    assert simulated_sums(64, rng, ratio=None, epsilon=0.05) == pytest.approx(idealised_variance(0.05, 64, N), rel=0.5)
    assert response_variance(1.1, 64, N) > 3 * response_variance(1.5, 64, N)


def test_the_local_ratio_is_the_largest_that_is_amplified_to_the_central_epsilon() -> None:
    ratio = local_ratio(100_000, 0.5, DELTA)
    most = amplified(ratio, 100_000, DELTA)
    assert most is not None
    assert 0.49 < float(most) <= 0.5
    assert local_ratio(2, 0.5, DELTA) == Fraction(math.floor(math.exp(0.5) * 10**6), 10**6)
    assert local_ratio(200, 0.5, DELTA) > 1.8 * math.exp(0.5)


def test_the_page_says_where_bit_sums_win() -> None:
    def row(protocol: str, noise: float) -> Row:
        known: Row = {"part": "shuffled", "n": 1000, "epsilon": 1.0, "mean density": 0.1, "messages": 1}
        return known | {"protocol": protocol, "noise": noise, "error": noise + 0.001}

    mode: Row = {
        "part": "mode",
        "data": "skin",
        "sketch": "s",
        "n": 10,
        "epsilon": 1.0,
        RELATIVE: 0.1,
        "records off": 3.0,
    }
    modes_: list[Row] = [
        {**mode, "mode": "the mean"},
        {**mode, "mode": "central, δ = 10⁻⁶", "predicted": 3.0, "bytes": 0},
    ]
    for theirs, said in ((0.02, "are nowhere better"), (0.005, "are better only at n = 1,000")):
        page = section([*modes_, row("k-rr", 0.01), row(RESPONSE, theirs), row(IDEALISED, 0.001)])
        assert f"randomised response {said}" in page
        assert "10 (n = 1,000 and ε = 1) to 10 times" in page
