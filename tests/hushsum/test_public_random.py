"""Public draws: frozen bytes, streams that do not depend on how they are cut, and the distributions they claim."""

import hashlib
import json
import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, norm

from hushsum import labels
from hushsum.entropy import Entropy, OsEntropy, ReplayableEntropy
from hushsum.errors import PlanError
from hushsum.public_random import NORMAL_LIMIT, PublicSeed, PublicStream, _ln
from tests.vectors.generate_draws import PATH, STREAMS, vectors_of

Floats = npt.NDArray[np.float64]
FALSE_ALARM = 1e-6
FROZEN: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))


class Draw(Protocol):
    """The next n draws of a stream."""

    def __call__(self, stream: PublicStream, n: int, /) -> npt.NDArray[Any]: ...


KINDS: dict[str, Draw] = {
    "words": PublicStream.words,
    "uniform": PublicStream.uniform,
    "normal": PublicStream.normal,
}
each_kind = pytest.mark.parametrize("draw", KINDS.values(), ids=KINDS)


def stream_of(seed: int, purpose: str = "test") -> PublicStream:
    return PublicStream(PublicSeed(seed % 2**53), purpose)


def standard_normal_p_value(draws: Floats, cells: int = 50) -> float:
    """Pearson's χ² over cells of equal probability."""
    edges = norm.ppf(np.arange(1, cells) / cells)
    observed = np.bincount(np.searchsorted(edges, draws), minlength=cells)
    expected = len(draws) / cells
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), cells - 1))


def test_the_vectors_hold_every_stream() -> None:
    assert [(entry["seed"], entry["purpose"]) for entry in FROZEN] == list(STREAMS)


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda entry: f"{entry['seed']}-{entry['purpose']}")
def test_frozen_draws_are_drawn_again(frozen: dict[str, Any]) -> None:
    assert vectors_of(frozen["seed"], frozen["purpose"]) == frozen


def test_a_word_is_what_the_documentation_says() -> None:
    purpose = "hashed/rehash"
    prefix = labels.PUBLIC_DRAWS + (7).to_bytes(8, "little") + len(purpose).to_bytes(8, "little") + purpose.encode()
    expected = []
    for block in range(3):
        data = hashlib.shake_256(prefix + block.to_bytes(8, "little")).digest(8192)
        expected += [int.from_bytes(data[at : at + 8], "little") for at in range(0, 8192, 8)]
    assert stream_of(7, purpose).words(3072).tolist() == expected
    assert stream_of(7, purpose).uniform(3072).tolist() == [(word >> 11) / 2**53 for word in expected]


def test_a_normal_is_made_of_the_words_in_order() -> None:
    """The polar method in plain Python with the C library's logarithm: the same draws to a few ulps."""
    uniform = iter(stream_of(3).uniform(4000))
    expected: list[float] = []
    while len(expected) < 2000:
        u, v = 2 * next(uniform) - 1, 2 * next(uniform) - 1
        s = u * u + v * v
        if 0 < s < 1:
            factor = math.sqrt(-2 * math.log(s) / s)
            expected += [u * factor, v * factor]
    assert np.allclose(stream_of(3).normal(2000), expected[:2000], rtol=1e-15, atol=0)


@each_kind
@pytest.mark.parametrize("cut", ((5, 5), (1,) * 10, (0, 3, 0, 7), (9, 1), (2, 8)))
def test_draws_do_not_depend_on_how_many_are_asked_for_at_once(draw: Draw, cut: tuple[int, ...], seed: int) -> None:
    stream = stream_of(seed)
    parts = [draw(stream, n) for n in cut]
    assert np.concatenate(parts).tobytes() == draw(stream_of(seed), 10).tobytes()


@each_kind
def test_random_cuts_over_many_blocks_change_nothing(draw: Draw, seed: int, rng: np.random.Generator) -> None:
    total = 300_000  # more than one round of the polar method
    at = np.sort(rng.integers(0, total, 40))
    sizes = np.diff(np.concatenate([[0], at, [total]]))
    stream = stream_of(seed)
    assert np.concatenate([draw(stream, int(n)) for n in sizes]).tobytes() == draw(stream_of(seed), total).tobytes()


def test_words_after_normals_do_not_depend_on_how_the_normals_were_cut(seed: int) -> None:
    whole, cut = stream_of(seed), stream_of(seed)
    whole.normal(10)
    for n in (3, 4, 3):
        cut.normal(n)
    assert np.array_equal(whole.words(5), cut.words(5))


@each_kind
def test_purposes_and_seeds_give_streams_that_share_nothing(draw: Draw) -> None:
    names = [(0, "a"), (0, "b"), (1, "a"), (0, "ab"), (0, ""), (256, ""), (0, "a\0"), (2**53 - 1, "a")]
    drawn = [draw(stream_of(*name), 200) for name in names]
    assert len(np.unique(np.concatenate(drawn))) == 200 * len(names)


def test_the_logarithm_is_within_an_ulp_or_so_of_the_c_library(rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.random(20_000) + 2.0**-60,
            2.0 ** rng.uniform(-104, 0, 20_000),
            1 - 2.0 ** -np.arange(1.0, 53),
            np.nextafter(np.sqrt(0.5), [0.0, 1.0]),
            [2.0**-104, 1.0, 0.5, 0.25],
        ]
    )
    expected = np.array([math.log(value) for value in x])
    assert np.all(np.abs(_ln(x) - expected) <= 2 * np.spacing(np.abs(expected)))


@pytest.mark.statistical
def test_normals_are_standard_normal(seed: int) -> None:
    """χ² in 50 cells on 10^6 draws, and the products of neighbours: false alarms 1e-6 and 4e-8 (5.5 σ)."""
    draws = stream_of(seed).normal(1_000_000)
    assert standard_normal_p_value(draws) > FALSE_ALARM
    for step in (1, 2):
        assert abs((draws[step:] * draws[:-step]).mean()) < 5.5 / math.sqrt(len(draws) - step)


@pytest.mark.statistical
@pytest.mark.parametrize("scale", (0.95, 1.05))
def test_a_scale_that_is_5_percent_wrong_is_caught(scale: float, seed: int) -> None:
    assert standard_normal_p_value(scale * stream_of(seed).normal(1_000_000)) < FALSE_ALARM


@pytest.mark.statistical
def test_uniforms_are_uniform_in_every_bit(seed: int) -> None:
    """Each of the 53 bits is one in half of 10^5 draws within 6 σ: false alarm 53 × 2e-9."""
    bits = (stream_of(seed).uniform(100_000) * 2.0**53).astype(np.uint64)
    for bit in range(53):
        share = float((bits >> np.uint64(bit) & np.uint64(1)).mean())
        assert abs(share - 0.5) < 6 * 0.5 / math.sqrt(100_000), bit


def test_no_normal_is_beyond_its_stated_limit() -> None:
    least = np.array([2.0**-104])  # the least squared radius: one coordinate of the square at 2^-52
    assert np.sqrt(-2 * _ln(least))[0] < NORMAL_LIMIT < 1.01 * np.sqrt(-2 * _ln(least))[0]


@each_kind
def test_no_draws_are_an_empty_array(draw: Draw) -> None:
    assert draw(stream_of(1), 0).shape == (0,)


@pytest.mark.parametrize("value", (-1, 2**53, True, 1.0, "1", None))
def test_a_seed_is_an_integer_of_its_range(value: Any) -> None:
    with pytest.raises(PlanError, match=r"sketch\.seed"):
        PublicSeed(value)


def test_a_public_seed_is_no_entropy() -> None:
    assert not isinstance(PublicSeed(1), Entropy)
    assert not isinstance(stream_of(1), Entropy)
    assert not hasattr(PublicSeed(1), "read")


@pytest.mark.parametrize("entropy", (OsEntropy(), ReplayableEntropy(b"key")), ids=repr)
def test_an_entropy_is_no_public_seed(entropy: Any) -> None:
    with pytest.raises(PlanError, match=r"sketch\.seed"):
        PublicSeed(entropy)
    with pytest.raises(AttributeError):
        PublicStream(entropy, "test")
