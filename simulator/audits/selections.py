"""Report noisy max, audited: the exact chances of every winner, and what many choices prove.

The chances are the stated ones (:func:`hushsum.privacy.noisy_max.win_probabilities`). Neighbouring data sets move every
utility by one sensitivity at most, each its own way.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, product
from typing import Final

from hushsum.entropy import OsEntropy
from hushsum.privacy.noisy_max import report_noisy_max, scale_for, win_probabilities

CANDIDATES: Final = 3
_SPREAD: Final = 4  # utilities are audited from 0 to this, in sensitivities: beyond, gaps change no ratio


def exact_epsilon(sensitivity: int, epsilon: Fraction) -> float:
    """The largest ln of a ratio of chances over all winners and all neighbouring utilities."""
    scale = scale_for(sensitivity, epsilon)
    pairs = [*neighbours(sensitivity)]
    known = {utilities: win_probabilities(utilities, scale) for utilities in {*chain(*pairs)}}
    return max(math.log(p / q) for first, second in pairs for p, q in zip(known[first], known[second], strict=True))


def neighbours(sensitivity: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Utilities that one unit may turn into each other, the worst cases among them."""
    levels = range(0, _SPREAD * sensitivity + 1, sensitivity)
    for utilities in product(levels, repeat=CANDIDATES):
        for moves in product((-sensitivity, 0, sensitivity), repeat=CANDIDATES):
            yield utilities, tuple(utility + move for utility, move in zip(utilities, moves, strict=True))


def winners(utilities: Sequence[int], sensitivity: int, epsilon: Fraction, runs: int) -> list[list[float]]:
    """Rows of one number, the winner, of so many choices."""
    entropy = OsEntropy()
    return [
        [float(report_noisy_max(utilities, sensitivity=sensitivity, epsilon=epsilon, entropy=entropy))]
        for _ in range(runs)
    ]
