"""Whether what runs draws from the law that the exact audits take for granted: goodness of fit.

It sees what is not rare. What is drawn once in 2^64 times is the business of the samplers' own tests, which
drive them with crafted words.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.noisy_max import scale_for, win_probabilities
from simulator.audits import selections
from simulator.audits.confidence import ERROR, Integers
from simulator.audits.laws import stated, tail
from simulator.audits.report import Check
from simulator.audits.service import Seen
from simulator.audits.shares import honest_shares, sum_law

_EXPECTED: Final = 20.0  # of a cell, at least


def sampler_check(mechanism: Mechanism, draws: int) -> Check:
    """χ² of fresh draws against the stated law; an honest sampler fails with probability 10⁻⁶."""
    name, sampler = mechanism.name, mechanism.noise()
    reach = max(8, int(40 * sampler.std))
    law = stated(name, sampler.scale, reach)
    chances = [float(law[k][0]) for k in range(-reach, reach + 1)]
    seen = np.bincount(np.clip(sampler.sample(draws, OsEntropy()), -reach, reach) + reach, minlength=len(chances))
    return fit_check(f"{name} of parameter {sampler.scale} is drawn as stated", seen, chances)


def shares_check(plan: Plan, draws: int) -> Check:
    """The same of the noise in the sum of a cohort of mode secure, with as few honest clients as its clients sign."""
    name, share, number = plan.privacy.mechanism.name, plan.privacy.mechanism.share(), honest_shares(plan)
    reach = max(8, int(20 * share.std * math.sqrt(number)))
    chances = sum_law(name, share, number, reach)
    drawn = share.sample(number * draws, OsEntropy()).reshape(number, draws).sum(axis=0)
    seen = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(chances))
    return fit_check(f"{number} shares of {name} noise sum to what is stated", seen, chances.tolist())


def selection_check(epsilon: Fraction, runs: int) -> Check:
    """The same of report noisy max, whose outcomes are its candidates."""
    utilities = tuple(range(selections.CANDIDATES))
    won = [int(row[0]) for row in selections.winners(utilities, 1, epsilon, runs)]
    chances = win_probabilities(utilities, scale_for(1, epsilon)).tolist()
    return fit_check("report-noisy-max chooses as stated", np.bincount(won, minlength=len(utilities)), chances)


def outcome_check(plan: Plan, clients: int, seen: Sequence[Seen]) -> Check:
    """The same of how often windows of so many clients are released, where a noised number decides it."""
    noise = plan.privacy.mechanism.clients_noise()
    assert noise is not None, "the plan has a test"
    released = sum(release is not None for release, _ in seen)
    chance = float(tail(noise.scale, plan.window.min_clients - clients)[0])
    counted = np.array([len(seen) - released, released])
    return fit_check("windows are withheld as often as stated", counted, [1 - chance, chance])


def fit_check(what: str, seen: Integers, chances: Sequence[float], *, tests: int = 1) -> Check:
    """χ² of what was seen against stated chances; honest draws fail with 10⁻⁶, over so many tests together."""
    from scipy.stats import chisquare

    expected = np.array(chances) * seen.sum()
    # Neighbouring outcomes share a cell until enough are expected in it.
    cell = np.floor((np.cumsum(expected) - expected / 2) / max(_EXPECTED, seen.sum() / 60)).astype(np.int64)
    if len(chances) <= 8:
        cell = np.arange(len(chances))
    wanted, found = np.bincount(cell, expected), np.bincount(cell, seen)
    kept = wanted > 0
    p_value = float(chisquare(found[kept], wanted[kept] * seen.sum() / wanted[kept].sum()).pvalue)
    return Check(what, p_value > ERROR / tests, f"p = {p_value:.2g} of {seen.sum():,} draws")
