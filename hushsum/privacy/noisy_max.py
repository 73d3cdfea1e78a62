"""Report noisy max: one of a few public candidates by their utilities on private data, at pure ε, drawn exactly.

The candidate with the greatest u_r + E_r wins, where E_r are independent exponentials of mean 2Δ/ε and Δ is how far
one unit can move each utility. It is drawn as *permute and flip* (McKenna and Sheldon 2020; that both are the same:
Ding, Kifer, Saghaian Nikoofar, Wang, Xiao and Zhang 2021), which needs no real number: each candidate stays in with
probability exp(−(max u − u_r)·ε/2Δ), independently, and one of those that stayed in is taken, uniformly.

**It is that mechanism**: the best candidate's value is above max u for certain, so the winner's is too. Candidate r
comes above max u with the probability that it stays in, and by how much it does is again exponential of the same mean,
whatever its utility: among those above, all are equally likely to be the highest.

**It is ε-private**: fix the other candidates' noise, and let m be the greatest of their values. Candidate r wins with
probability min(1, exp(−(m − u_r)·ε/2Δ)). A neighbouring data set moves m by at most Δ and u_r by at most Δ, so this
changes by a factor of at most e^ε, for every noise of the others and so on average. Ties of utilities need no rule of
their own: no coin differs between equal ones.

Its error is never larger than the exponential mechanism's, stochastically (McKenna and Sheldon 2020, theorem 2).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.entropy import Entropy
from hushsum.noise.exp_thresholds import Form, ProbabilityThreshold
from hushsum.noise.random_words import below, word
from hushsum.privacy.calibration import round_up
from hushsum.privacy.events import REPORT_NOISY_MAX, Event
from hushsum.sensitivity import Sensitivity

_BITS: Final = 64  # of a first word
_FAR: Final = Fraction(1000)  # e^-1000 is 0 in float64


def scale_for(sensitivity: int, epsilon: Fraction) -> Fraction:
    """2Δ/ε, the mean of the exponential noise, rounded towards more noise to 6 significant digits.

    Args:
        sensitivity: Δ: one unit moves each utility by at most so much, up or down, each its own way; at least 1.
        epsilon: Above 0, exact.

    Raises:
        TypeError: A parameter is not exact.
        ValueError: A parameter is out of range.
    """
    if not isinstance(epsilon, Fraction) or type(sensitivity) is not int:
        came = f"{type(sensitivity).__name__} and {type(epsilon).__name__}"
        raise TypeError(f"sensitivity and epsilon are an int and a Fraction, got {came}")
    if sensitivity < 1 or epsilon <= 0:
        raise ValueError(f"expected a sensitivity of at least 1 and an epsilon above 0, got {sensitivity}, {epsilon}")
    return round_up(2 * sensitivity / epsilon)


def report_noisy_max(utilities: Sequence[int], *, sensitivity: int, epsilon: Fraction, entropy: Entropy) -> int:
    """The number of the candidate that wins.

    Every candidate takes one word of entropy, whatever its utility.

    Args:
        utilities: Of each candidate, exact integers; larger is better. At least one.
        sensitivity: Δ, see :func:`scale_for`.
        epsilon: Of this one choice, for the unit that Δ is about.
        entropy: Private randomness.

    Raises:
        TypeError: ``entropy`` cannot be read from, or a number is not exact.
        ValueError: There is no candidate, or a parameter is out of range.
        OSError: ``entropy`` gave fewer bytes than it was asked for.
    """
    if not isinstance(entropy, Entropy):
        raise TypeError(f"a winner is drawn from an Entropy, got {type(entropy).__name__}")
    scale = scale_for(sensitivity, epsilon)
    gaps = _gaps(utilities)
    first = [word(entropy) for _ in gaps]
    stays = [ProbabilityThreshold(gap / scale, Form.TAIL) for gap in gaps]
    left = [r for r, (p, digits) in enumerate(zip(stays, first, strict=True)) if below(p, digits, _BITS, entropy)]
    return left[_uniform(len(left), entropy)]


def event(candidates: int, *, sensitivity: int, epsilon: Fraction) -> Event:
    """What a ledger keeps of one call with so many utilities. An Event refuses a scale below 2Δ/ε."""
    moved = Sensitivity(candidates, candidates * sensitivity, candidates * sensitivity**2, sensitivity)
    return Event(REPORT_NOISY_MAX, scale_for(sensitivity, epsilon), moved, epsilon)


def win_probabilities(utilities: Sequence[int], scale: Fraction) -> npt.NDArray[np.float64]:
    """(candidates,) float64: how likely each is to win; for audits and advice, never for drawing.

    Candidate r's is p_r·E[1/(1 + J)], J the number of others that stay in, summed over all its values.
    """
    stays = [math.exp(-min(gap / scale, _FAR)) for gap in _gaps(utilities)]
    chances = np.empty(len(stays))
    for r, own in enumerate(stays):
        others = np.ones(1)
        for p in stays[:r] + stays[r + 1 :]:
            others = np.append(others * (1.0 - p), 0.0) + np.append(0.0, others * p)
        chances[r] = own * float((others / np.arange(1, len(others) + 1)).sum())
    return chances


def _gaps(utilities: Sequence[int]) -> list[int]:
    if not utilities or any(type(utility) is not int for utility in utilities):
        raise ValueError("utilities: expected at least one, all of them integers")
    best = max(utilities)
    return [best - utility for utility in utilities]


def _uniform(count: int, entropy: Entropy) -> int:
    """Each of 0 to count − 1 with the same probability: words beyond the last whole multiple are drawn again."""
    whole = 2**_BITS // count * count
    while (drawn := word(entropy)) >= whole:
        pass
    return drawn % count
