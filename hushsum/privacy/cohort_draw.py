"""How many corrupt clients a cohort may hold that is drawn uniformly from a pool of clients that wait.

One honest client is in the cohort; its N − 1 others are a uniform choice of the pool's P − 1 others, of which at most c
are corrupt. How many of those are chosen is hypergeometric. A larger pool, or fewer corrupt clients in it, makes every
tail of that smaller: at least P and at most c are enough.
"""

from fractions import Fraction
from functools import lru_cache
from typing import Final

#: The probability that one draw puts more corrupt clients in a cohort than :func:`corrupt_drawn` says.
BAD_DRAW: Final = Fraction(1, 2**43)
_BITS: Final = 256  # of a probability, relative to the likeliest number's


@lru_cache(maxsize=256)
def corrupt_drawn(pool: int, corrupt: int, cohort: int) -> int:
    """The least k with P[Hypergeometric(P − 1, min(c, P − 1), N − 1) > k] ≤ 2⁻⁴³.

    In integers alone: probabilities have 256 bits, those above k rounded up and all together rounded down. Both errors
    are below 2⁻²⁰⁰ of the whole, and where they decided, k would be one too large.

    Args:
        pool: P, clients that wait, above N.
        corrupt: c, how many clients in all are corrupt, at least 0.
        cohort: N, at least 1.

    Raises:
        ValueError: A number is out of range.
    """
    if not 1 <= cohort < pool or corrupt < 0:
        raise ValueError(f"a cohort of {cohort} from a pool of {pool}, {corrupt} corrupt: expected 1 <= N < P, c >= 0")
    others, marked, drawn = pool - 1, min(corrupt, pool - 1), cohort - 1
    rest = others - marked - drawn  # below 0: so many more corrupt ones are chosen for sure
    mode, most = (drawn + 1) * (marked + 1) // (others + 2), min(marked, drawn)
    whole, part, i = 0, 1 << _BITS, mode  # probabilities are multiples of the greatest, that of the mode
    while part:
        whole += part
        part = part * i * (rest + i) // ((marked - i + 1) * (drawn - i + 1))
        i -= 1
    above: list[int] = []  # from that of mode + 1
    low = high = 1 << _BITS
    i = mode
    while i < most and high > 1:
        ways, of = (marked - i) * (drawn - i), (i + 1) * (rest + i + 1)
        low, high = low * ways // of, -(-high * ways // of)
        i += 1
        whole += low
        above.append(high)
    tail, allowed = most - i, whole * BAD_DRAW.numerator // BAD_DRAW.denominator  # no later one is greater than 1
    while above and tail + above[-1] <= allowed:
        tail += above.pop()
    return mode + len(above)  # never below the mode: its own probability is greater than what is allowed
