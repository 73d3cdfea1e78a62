"""Exact audits of cumulative releases: how far one record moves the noise that the running code draws.

An observer may see every number that a step releases, and of buffered sequences even the finer sums behind them. Which
noise explains the same numbers under a neighbour is found by running :func:`hushsum.cumulative.step` on both, step by
step. The neighbour's record is in one window; nothing of the plan's factorisation is read.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from hushsum import cumulative
from hushsum.cumulative import CumulativeState
from hushsum.entropy import Entropy, KeyedEntropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.mechanisms import Mechanism
from hushsum.sketch import Sketch

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SEALED = bytes(32)


class _Given:
    """A sampler that gives what it is told to."""

    def __init__(self, draws: Integers) -> None:
        self.draws = draws

    def sample(self, size: int, entropy: Entropy) -> Integers:
        """The given draws, whatever the entropy."""
        assert self.draws.shape == (size,)
        assert isinstance(entropy, Entropy)
        return self.draws.copy()


def moved_by_buffers(
    plan: Plan, moved: Integers, *, steps: int, window: int, rounds: int = 2
) -> tuple[Fraction, float]:
    """How far the noise of a sequence moves for one unit, with the same sums shown.

    Args:
        plan: Of cumulative releases with discrete Gaussian noise.
        moved: (n,) int64: by how much the unit moves the counters and count counters of its window.
        steps: How many there are.
        window: The step of which the unit is.
        rounds: How many sequences are drawn; the one that moves most counts.

    Returns:
        ρ of the move, as a sum of squares over 2·(2^k·σ)²; and the most that one draw moves by roundings, in units.
    """
    mechanism, worst, rounded = plan.privacy.mechanism, Fraction(0), 0.0
    for _ in range(rounds):
        shifts = [their - ours for ours, their in _explained(plan, moved, steps=steps, window=window)]
        squares = sum(sum(int(value) ** 2 for value in shift) for shift in shifts)
        units = _units(mechanism)
        worst = max(worst, Fraction(squares) / (2 * mechanism.scale * units))
        # Two counters that move by as much differ by roundings alone.
        alike = np.abs(np.array([shift[moved == moved.max()] for shift in shifts]))
        rounded = max(rounded, float((alike.max(axis=1) - alike.min(axis=1)).max()))
    return worst, rounded


def _units(mechanism: Mechanism) -> int:
    return round(mechanism.noise().variance / mechanism.noise_variance)


def _explained(plan: Plan, moved: Integers, *, steps: int, window: int) -> Iterator[tuple[Integers, Integers]]:
    """Of each step the draws of the running code, and those that explain the same sums for the neighbour."""
    sampler, entropy = plan.privacy.mechanism.noise(), OsEntropy()
    bits = round(math.log2(_units(plan.privacy.mechanism)) / 2)
    ours = theirs = cumulative.initial(plan)
    for number in range(1, steps + 1):
        draws = sampler.sample(moved.size, entropy)
        own, other = _sketch(plan, 0 * moved), _sketch(plan, moved if number == window else 0 * moved)
        ours_after = _stepped(plan, ours, own, number, draws)
        guess = _stepped(plan, theirs, other, number, draws)
        # What is stored rises by one unit with each of the draw.
        missing = (ours_after.words - guess.words << bits) + ours_after.parts - guess.parts
        theirs_after = _stepped(plan, theirs, other, number, draws + missing)
        assert (ours_after.words == theirs_after.words).all()
        assert (ours_after.parts == theirs_after.parts).all()
        yield draws, draws + missing
        ours, theirs = ours_after.to_bytes(), theirs_after.to_bytes()


def _stepped(plan: Plan, state: bytes, sketch: Sketch, number: int, draws: Integers) -> CumulativeState:
    with patch.object(Mechanism, "noise", lambda _: _Given(draws)):
        _, after = cumulative.step(plan, state, sketch, window=number, sealed=_SEALED, entropy=OsEntropy())
    return CumulativeState.from_bytes(plan, after)


def _sketch(plan: Plan, values: Integers) -> Sketch:
    split = math.prod(plan.counters_shape)
    return Sketch.of_counters(plan, values[:split].reshape(plan.counters_shape), values[split:])


def epsilon_by_tree(plan: Plan, l1: int, *, steps: int) -> float:
    """The largest loss that a sequence with discrete Laplace noise has, over all windows of one unit.

    The releases of all steps tell the noise of every node that was used, so that the loss is that of the nodes.

    Args:
        plan: Of cumulative releases with discrete Laplace noise, and at least as many counters as ``steps``.
        l1: By how much the unit moves the counters of its window, in L1 norm.
        steps: How many there are.

    Raises:
        ValueError: The releases do not tell all nodes.
    """
    rows = incidence(plan, steps=steps)
    rows = rows[:, rows.any(axis=0)]
    if np.linalg.matrix_rank(rows) < rows.shape[1]:
        raise ValueError(f"{steps} releases do not tell the noise of {rows.shape[1]} nodes")
    scale, worst = float(plan.privacy.mechanism.scale), 0.0
    for window in range(steps):
        later = np.where(np.arange(steps) >= window, 1.0, 0.0)
        nodes, *_ = np.linalg.lstsq(rows, later)
        if np.allclose(rows @ nodes, later, atol=1e-9):
            worst = max(worst, float(np.abs(nodes).sum()) * l1 / scale)
        else:  # a number that one neighbour alone can show
            return math.inf
    return worst


def incidence(plan: Plan, *, steps: int) -> Floats:
    """(steps, draws): how often each draw of noise is in each release of the running code, with its sign."""
    sampler = OneHot()
    rows, state = [], cumulative.initial(plan)
    empty = _sketch(plan, np.zeros(math.prod(plan.counters_shape) + plan.count_counters, np.int64))
    with patch.object(Mechanism, "noise", lambda _: sampler):
        for number in range(1, steps + 1):
            entropy = KeyedEntropy(number.to_bytes(32, "big"))
            release, state = cumulative.step(plan, state, empty, window=number, sealed=_SEALED, entropy=entropy)
            rows.append(np.concatenate([release.counters.reshape(-1), release.counts]))
    return np.array(rows, np.float64)


class OneHot:
    """A sampler whose draws tell which they are: a draw of a new key is 1 at a place of its own."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}

    def sample(self, size: int, entropy: Entropy) -> Integers:
        """(size,) zeros, and 1 at the place of the next bytes."""
        place = self._places.setdefault(entropy.read(32), len(self._places))
        values = np.zeros(size, np.int64)
        values[place] = 1
        return values
