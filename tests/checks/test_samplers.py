"""What every sampler of noise must do. It finds them in ``SAMPLERS`` and ``SHARES``: a new one needs no new file."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from hushsum.compiled import VARIABLE
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.noise import SAMPLERS, SHARES, Sampler
from hushsum.public_random import PublicSeed
from tests.hushsum.noise.goodness import FALSE_ALARM, p_value

SCALES = (Fraction(1, 2), Fraction(22, 7), Fraction(5000))
SHARED = ((Fraction(1, 2), 1), (Fraction(22, 7), 5), (Fraction(1053), 80))  # the scale of h shares, and h
DRAWS = 100_000

EXAMPLES = {f"{name}-{scale}": make(scale) for name, make in SAMPLERS.items() for scale in SCALES} | {
    f"{name}-{scale}-of-{shares}": make(scale, shares) for name, make in SHARES.items() for scale, shares in SHARED
}


@pytest.fixture(params=EXAMPLES)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return EXAMPLES[request.param]


@pytest.fixture
def key(seed: int) -> bytes:
    return seed.to_bytes(8, "big")


@pytest.mark.statistical
def test_draws_have_the_stated_distribution(sampler: Sampler, key: bytes) -> None:
    """χ² against the stated probabilities, false alarm 1e-6."""
    assert p_value(sampler, sampler.sample(DRAWS, ReplayableEntropy(key))) > FALSE_ALARM


@pytest.mark.statistical
def test_draws_have_mean_zero_and_the_stated_variance(sampler: Sampler, key: bytes) -> None:
    """Mean and variance within 5.5 and 6 of their own standard errors: false alarm below 1e-6."""
    draws = sampler.sample(DRAWS, ReplayableEntropy(key)).astype(np.float64)
    assert abs(draws.mean()) < 5.5 * sampler.std / np.sqrt(DRAWS)
    error = np.std(draws**2) / np.sqrt(DRAWS)
    assert abs((draws**2).mean() - sampler.variance) < 6 * error


def test_the_stated_distribution_is_symmetric_and_sums_to_one(sampler: Sampler) -> None:
    k = np.arange(int(300 * sampler.std) + 50)  # a share's tail is long for its standard deviation
    right, left = sampler.log_probability(k), sampler.log_probability(-k)
    assert np.array_equal(right, left)
    assert 2 * np.exp(right).sum() - np.exp(right[0]) == pytest.approx(1, abs=1e-9)


def test_draws_are_int64_of_the_size_asked_for(sampler: Sampler, key: bytes) -> None:
    for size in (0, 1, 17):
        draws = sampler.sample(size, ReplayableEntropy(key))
        assert draws.dtype == np.int64
        assert draws.shape == (size,)


def test_the_same_entropy_gives_the_same_draws_and_another_gives_others(sampler: Sampler, key: bytes) -> None:
    draws = sampler.sample(500, ReplayableEntropy(key))
    assert np.array_equal(draws, sampler.sample(500, ReplayableEntropy(key)))
    assert not np.array_equal(draws, sampler.sample(500, ReplayableEntropy(key + b"x")))


def test_what_was_drawn_before_leaves_no_trace(sampler: Sampler, key: bytes) -> None:
    draws = sampler.sample(500, ReplayableEntropy(key))
    sampler.sample(4321, OsEntropy())
    assert np.array_equal(draws, sampler.sample(500, ReplayableEntropy(key)))


def test_draws_do_not_depend_on_the_size_of_a_block(
    sampler: Sampler, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * sampler.block_draws + 3  # several blocks and a part of one, with many ties
    usual = sampler.sample(size, ReplayableEntropy(key))
    for block in (5, 1000, 10**6):
        monkeypatch.setattr(type(sampler), "block_draws", block)
        assert np.array_equal(usual, sampler.sample(size, ReplayableEntropy(key)))


def test_compiled_loops_and_plain_ones_draw_the_same(
    sampler: Sampler, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 4095, 4096, 4099, 30_001):
        drawn = []
        for kernels in ("plain", "fast"):
            monkeypatch.setenv(VARIABLE, kernels)
            drawn.append(sampler.sample(size, ReplayableEntropy(key)))
        assert np.array_equal(drawn[0], drawn[1])


def test_a_draw_reads_the_same_bytes_whatever_runs(
    sampler: Sampler, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the same entropy would give other draws from the second call on."""
    after = []
    for kernels in ("plain", "fast"):
        monkeypatch.setenv(VARIABLE, kernels)
        entropy = ReplayableEntropy(key)
        sampler.sample(50_000, entropy)
        after.append(entropy.read(16))
    assert after[0] == after[1]


def test_a_public_seed_is_no_source_of_noise(sampler: Sampler) -> None:
    with pytest.raises(TypeError, match="Entropy"):
        sampler.sample(1, PublicSeed(7))  # type: ignore[arg-type]  # of the wrong type on purpose


FORK = """
import os, sys
from fractions import Fraction
from hushsum.entropy import OsEntropy
from hushsum.noise import SAMPLERS, SHARES
sampler = SHARES[sys.argv[2]](Fraction(10**6), 3) if sys.argv[1] == "share" else SAMPLERS[sys.argv[2]](Fraction(10**6))
entropy = OsEntropy()
sampler.sample(100, entropy)  # whatever it keeps is there before the fork
child = os.fork()
print(sampler.sample(100, entropy).tolist(), flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.parametrize(
    "what", [("whole", name) for name in SAMPLERS] + [("share", name) for name in SHARES], ids="-".join
)
def test_two_sides_of_a_fork_draw_different_noise(what: tuple[str, str]) -> None:
    run = subprocess.run([sys.executable, "-c", FORK, *what], capture_output=True, text=True, timeout=300, check=True)
    draws = run.stdout.splitlines()
    assert len(draws) == 2
    assert draws[0] != draws[1]
