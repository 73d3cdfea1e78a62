"""A step with buffers in NumPy, compiled, and in Python's integers: the same numbers, and the same bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from hushsum import cumulative, cumulative_loops
from hushsum.compiled import VARIABLE
from hushsum.entropy import KeyedEntropy
from hushsum.privacy.factorisation import UNIT, BufferedToeplitz, buffers_for
from tests.hushsum.cumulative_plans import cumulative_plan

Ints = npt.NDArray[np.int64]
Arrays = tuple[npt.NDArray[Any], ...]  # counters, draws, words, parts, buffers
MADE = (
    buffers_for(10_000, 31),
    buffers_for(2, 24),
    BufferedToeplitz((0,), (UNIT,), 31),
    BufferedToeplitz((0, UNIT - 2, UNIT - 1), (1, 1, UNIT - 2), 27),
)
N = cumulative._BLOCK + 777  # a whole block and a part of one


def arrays(made: BufferedToeplitz, rng: np.random.Generator, bound: int, size: int = N) -> Arrays:
    """Counters, draws and a state; a fifth of them at the ends of the range, at 0, and half a unit from there."""
    depth = len(made.theta)
    found = rng.integers(-bound, bound, (3 + depth, size), endpoint=True)
    ends = np.array([-bound, bound, 0, -1, 1, UNIT // 2, -UNIT // 2, UNIT // 2 - 1, UNIT, -UNIT], np.int64)
    at = rng.random(found.shape) < 0.2
    found[at] = rng.choice(ends[np.abs(ends) <= bound], at.sum())
    parts = rng.integers(0, 2**made.bits, size, np.uint32)
    parts[:4] = (0, 1, 2**made.bits - 1, 2 ** (made.bits - 1))
    return found[0], found[1], found[2], parts, found[3:].copy()


def exactly(made: BufferedToeplitz, given: Arrays) -> Arrays:
    """The same in Python's integers, as the documentation has it."""
    exact, noise, words, parts, buffers = (each.astype(object) for each in given)

    def share(numerator: int, buffer: Ints) -> Ints:
        rounded: Ints = (2 * numerator * buffer + UNIT) // (2 * UNIT)
        return rounded

    w = noise - sum(share(omega, buffer) for omega, buffer in zip(made.omega, buffers, strict=True))
    after = np.array([share(theta, buffer) + w for theta, buffer in zip(made.theta, buffers, strict=True)])
    total = (words << made.bits) + parts + (exact << made.bits) + w
    values = (total + (1 << made.bits - 1)) >> made.bits
    parts = (total % (1 << made.bits)).astype(np.uint32)
    return (
        exact.astype(np.int64),
        values.astype(np.int64),
        (total >> made.bits).astype(np.int64),
        parts,
        after.astype(np.int64),
    )


def advanced(advance: Callable[..., None], made: BufferedToeplitz, given: Arrays) -> Arrays:
    copies = tuple(each.copy() for each in given)
    advance(made, *copies)
    return copies


@pytest.mark.parametrize("made", MADE, ids=str)
@pytest.mark.parametrize("advance", [cumulative.advance, cumulative_loops.advance], ids=["plain", "compiled"])
def test_a_step_is_that_of_exact_integers(
    made: BufferedToeplitz, advance: Callable[..., None], rng: np.random.Generator
) -> None:
    given = arrays(made, rng, 2**60)
    for ours, exact in zip(advanced(advance, made, given), exactly(made, given), strict=True):
        assert ours.dtype == exact.dtype
        assert np.array_equal(ours, exact)


@pytest.mark.parametrize("made", MADE, ids=str)
def test_beyond_64_bits_both_ways_wrap_around_alike(made: BufferedToeplitz, rng: np.random.Generator) -> None:
    given = arrays(made, rng, 2**63 - 1)
    plain, compiled = (advanced(each, made, given) for each in (cumulative.advance, cumulative_loops.advance))
    for one, other in zip(plain, compiled, strict=True):
        assert np.array_equal(one, other)


def test_whole_sequences_have_the_same_bytes_plain_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cumulative_plan(delta="0.000001", sketch={"rows": 64, "buckets": 128})
    sketch = hs.Sketch(plan).add(np.random.default_rng(3).random((50, 2)))
    assert sketch.counters.size >= cumulative._FAST_COUNTERS

    def sequence(kernels: str) -> list[tuple[bytes, bytes]]:
        monkeypatch.setenv(VARIABLE, kernels)
        state, made = cumulative.initial(plan), []
        for number in range(6):
            key = KeyedEntropy(bytes([number]) * 32)
            release, state = cumulative.step(plan, state, sketch, window=number, sealed=bytes(32), entropy=key)
            made.append((release.to_bytes(), state))
        return made

    assert sequence("plain") == sequence("fast")
