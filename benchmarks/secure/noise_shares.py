"""Noise shares: one client's draws beside as many central ones."""

from collections.abc import Callable
from fractions import Fraction

from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from hushsum.entropy import OsEntropy
from hushsum.noise import Sampler, warm_up
from hushsum.privacy.mechanisms import Mechanism

TITLE = "Noise shares of one client, nanoseconds a draw on one core, beside central noise of the whole scale"
DRAWS, DRAWS_QUICK = 1_000_000, 20_000
SCALES = {
    "discrete-laplace": [Fraction(40), Fraction(1053)],
    "discrete-gaussian": [Fraction(1000**2), Fraction(10**5) ** 2],
}
SURVIVORS = (70, 700)  # honest, of cohorts of 100 and 1,000


def measure(*, quick: bool) -> list[Row]:
    """One row for each mechanism, scale and number of honest survivors."""
    warm_up()
    return [
        _measure(Mechanism(name, scale, 1, honest_survivors=survivors), quick=quick)
        for name, scales in SCALES.items()
        for scale in scales
        for survivors in SURVIVORS
    ]


def _measure(mechanism: Mechanism, *, quick: bool) -> Row:
    draws = DRAWS_QUICK if quick else DRAWS
    share, central = mechanism.share(), mechanism.noise()
    rounds = Rounds({"share": _draw(share, draws), "central": _draw(central, draws)}, repeats=1 if quick else 7)
    return {
        "mechanism": mechanism.name,
        "central std": central.std,
        "honest survivors": mechanism.honest_survivors or 0,
        "share std": share.std,
        "share ns": 1e9 * rounds.seconds("share") / draws,
        "central ns": 1e9 * rounds.seconds("central") / draws,
        "share/central": rounds.ratio(["share"], ["central"]),
    }


def _draw(sampler: Sampler, draws: int) -> Callable[[], object]:
    entropy = OsEntropy()
    return lambda: sampler.sample(draws, entropy)
