"""Degree and threshold of a secure sum's neighbour graph (Bell, Bonawitz, Gascón, Lepoint, Raykova 2020, SecAgg+).

The graph is a ring in random order in which each client knows the k/2 before it and the k/2 behind it; its secrets are
shared with these k neighbours, any t of whom open them. Corrupt clients stand where the permutation puts them, and so
do those that drop out: how many are among k given places is hypergeometric, and its tails are exact integers.

Security, failing with at most 2^−40 in all (σ):

* no honest client has t corrupt neighbours; against a server that lies, none has 2t − k: with x of them the k − x
  others can be split in two views that hold t shares each only if x ≥ 2t − k;
* the clients that are neither corrupt nor dropped stay connected. A ring falls apart only where two separate runs of
  k/2 places are corrupt or dropped. A lying server says who "dropped" when it knows the ring: so each client refuses a
  survivor set that leaves fewer than ``window_survivors`` in any run of k/2 places. Two runs without an honest
  survivor then hold twice as many corrupt clients, which is what fails with less than the rest of 2^−40.

Correctness, failing with at most 2^−20 (η): t neighbours of every survivor survive, and no such refusal happens.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import comb
from typing import Final

SECURITY: Final = Fraction(1, 2**40)
CORRECTNESS: Final = Fraction(1, 2**20)
DEGREE_MAX: Final = 254  # shares have the places 1 to 254 in GF(256)


@dataclass(frozen=True)
class Degrees:
    """What a plan fixes of its neighbour graphs.

    Attributes:
        degree: k, at most 254; a roster of at most k + 1 members is a complete graph.
        threshold: t, how many neighbours' shares open a secret.
        window_survivors: How many survivors each run of k/2 places must hold; 0: nothing is checked, for the graph is
            complete or the server honest.
    """

    degree: int
    threshold: int
    window_survivors: int


@dataclass(frozen=True)
class _Cohort:
    """Rosters of ``least`` to ``members`` clients, ``corrupt`` of them corrupt; of ``members``, ``dropout`` drop."""

    members: int
    least: int
    corrupt: int
    dropout: int
    malicious: bool


@lru_cache(maxsize=256)
def degrees(members: int, survivors_min: int, corrupt: int, *, malicious: bool) -> Degrees:
    """The least that is secure and correct for every roster from ``survivors_min`` to ``members`` clients.

    A small roster has the greater share of corrupt clients, and a large one may lose the more before it fails.

    Args:
        members: N, the most clients of a roster, at least 2.
        survivors_min: S, with fewer survivors a round fails.
        corrupt: How many clients at most are corrupt, below S.
        malicious: Whether the server may lie.

    Raises:
        ValueError: Nothing is; the text says what to change.
    """
    return _smallest(_Cohort(members, survivors_min, corrupt, members - survivors_min, malicious))


def degree_and_threshold(members: int, corrupt: int, dropout: int, *, malicious: bool) -> tuple[int, int]:
    """The least (k, t) for a roster of exactly ``members`` clients, as Bell et al. tabulate it.

    Args:
        members: Clients of the graph, at least 2.
        corrupt: How many of them at most are corrupt.
        dropout: How many of them at most drop out.
        malicious: Whether the server may lie.

    Returns:
        The smallest even degree with the smallest threshold; where no ring is safe, that of the complete graph.

    Raises:
        ValueError: Nothing is; the text says what to change.
    """
    found = _smallest(_Cohort(members, members, corrupt, dropout, malicious))
    return found.degree, found.threshold


@lru_cache(maxsize=256)
def _smallest(cohort: _Cohort) -> Degrees:
    corrupt, dropout = cohort.corrupt, cohort.dropout
    if cohort.members < 2 or corrupt < 0 or dropout < 0 or corrupt + dropout >= cohort.members:
        raise ValueError(
            f"a graph of {cohort.members} clients, {corrupt} corrupt and {dropout} dropping: expected at least 2, "
            "of whom at least one neither is corrupt nor drops"
        )
    for degree in range(2, min(cohort.least - 2, DEGREE_MAX) + 1, 2):
        ring = _ring(cohort, degree)
        if ring is not None:
            return ring
    degree = cohort.members - 1
    threshold = (degree + corrupt) // 2 + 1 if cohort.malicious else corrupt + 1
    if degree > DEGREE_MAX or threshold > degree - dropout:
        raise ValueError(
            f"no graph of {cohort.members} clients is safe with {corrupt} corrupt and {dropout} dropping: "
            "expected a larger cohort, or fewer corrupt or dropping clients"
        )
    return Degrees(degree, threshold, 0)


def _ring(cohort: _Cohort, degree: int) -> Degrees | None:
    """The smallest threshold that is secure at this degree, if it is correct too: a greater one is less so."""
    members, corrupt, dropout = cohort.members, cohort.corrupt, cohort.dropout
    spare = SECURITY
    if not cohort.malicious:  # who dropped is random too: two runs of bad places are one set of k
        spare -= comb(members, 2) * _tail(members, corrupt + dropout, degree, degree)
    if spare <= 0:
        return None
    views = _least(members, cohort.least - 1, corrupt, degree, spare)  # corrupt neighbours that no honest client has
    threshold = (degree + views + 1) // 2 if cohort.malicious else max(1, views)
    if threshold > degree:
        return None
    failure = members * _tail(members - 1, dropout, degree, degree - threshold + 1)
    window = 0
    if cohort.malicious:
        spare -= members * _tail(cohort.least - 1, corrupt, degree, 2 * threshold - degree)
        in_two = _least(comb(members, 2), cohort.least, corrupt, degree, spare)
        window = (in_two + 1) // 2
        if window > degree // 2:
            return None
        failure += members * _tail(members, dropout, degree // 2, degree // 2 - window + 1)
    return Degrees(degree, threshold, window) if failure <= CORRECTNESS else None


def _least(places: int, population: int, marked: int, drawn: int, allowed: Fraction) -> int:
    """The least number of marked ones that any of so many places holds with a probability of at most ``allowed``."""
    number = 0
    while places * _tail(population, marked, drawn, number) > allowed:
        number += 1
    return number


def _tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[at least ``least`` of ``drawn`` are marked], drawn without replacement; exact."""
    if least > drawn:
        return Fraction(0)
    return Fraction(_tails(population, marked, drawn)[max(0, least)], _row(population)[drawn])


@lru_cache(maxsize=1024)
def _tails(population: int, marked: int, drawn: int) -> tuple[int, ...]:
    """Entry i: how many of the C(population, drawn) choices hold at least i marked ones."""
    inside, outside = _row(marked), _row(population - marked)
    exactly = (inside[i] * outside[drawn - i] for i in range(drawn, -1, -1))
    return tuple(accumulate(exactly))[::-1]


@lru_cache(maxsize=64)
def _row(n: int) -> tuple[int, ...]:
    """C(n, i) for i up to the greatest degree."""
    row = [1]
    for i in range(DEGREE_MAX):
        row.append(row[-1] * (n - i) // (i + 1))
    return tuple(row)
