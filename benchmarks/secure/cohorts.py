"""Cohorts drawn from pools: what the draw costs a gateway, and what the pool costs a fleet in waiting and in noise."""

from fractions import Fraction
from itertools import count
from math import sqrt

from aggregator.secure.cohorts import CallKey, CohortRules, Cohorts, Entered, RoundOver, Starts
from benchmarks.report import Row
from benchmarks.stopwatch import Rounds
from hushsum.entropy import OsEntropy
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.cohort_draw import corrupt_drawn

TITLE = (
    "Cohorts of N drawn from a pool of P (0: none) with c corrupt clients in the fleet: microseconds that one client "
    "costs the gateway until it is in a round, clients that arrive before the first cohort is drawn, clients of the "
    "fleet that are in no cohort of a window, and the noise beside that of a cohort of which nobody is corrupt"
)
SETTINGS = [(100, 0, 0), (100, 1000, 10), (100, 1000, 50), (100, 10_000, 100), (1000, 10_000, 100)]
SETTINGS_QUICK = SETTINGS[:2]


def measure(*, quick: bool) -> list[Row]:
    """One row for each N, P and c."""
    return [_measure(*setting, quick=quick) for setting in (SETTINGS_QUICK if quick else SETTINGS)]


def _measure(size: int, pool: int, corrupt: int, *, quick: bool) -> Row:
    rules = CohortRules(size, size, wait_ms=1, rounds_max=4, pool=pool)
    fleet = 20 * max(pool, size)
    left: list[int] = []
    case = Rounds({"window": lambda: left.append(_window(rules, fleet))}, repeats=1 if quick else 3)
    k = corrupt_drawn(pool, corrupt, size) if pool else size // 10
    few, none = (sqrt(1 / Cohort(size=size, corrupt=Fraction(each, size)).honest_survivors) for each in (k, 0))
    return {
        "N": size,
        "P": pool,
        "c": corrupt,
        "us a client": 1e6 * case.seconds("window") / fleet,
        "arrive first": max(pool, size),
        "fleet": fleet,
        "in no cohort": left[-1],
        "corrupt of a cohort": k,
        "noise/none corrupt": few / none,
    }


def _window(rules: CohortRules, fleet: int) -> int:
    """Everybody enters once, and each round ends at once; how many wait at the end."""
    cohorts, numbers = Cohorts(rules, OsEntropy()), count()
    for number in range(fleet):
        for effect in cohorts.handle(Entered(CallKey(f"client-{number}", next(numbers)), 0, 0)):
            if isinstance(effect, Starts):
                members = frozenset(caller.client_id for caller in effect.callers)
                cohorts.handle(RoundOver(0, effect.callers, (), members, 0))
    return cohorts.waiting
