"""What the discrete Gaussian sampler really does, read off by driving it with crafted words: see ``observed``.

A draw reads 16 bytes: the upper half of the first word chooses a strip, the lower half is U's first bits; the second
word is a place and a sign. What is undecided reads 8 bytes at a time, and a draw that was rejected 16 bytes again.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

import numpy as np

from hushsum.noise import DiscreteGaussian
from hushsum.noise.exp_thresholds import ProbabilityThreshold
from hushsum.noise.gaussian_envelope import strips

ALL = 2**32  # choices, and first values of U
NEGATIVE = 1 << 63  # of a second word


class Rejected(Exception):  # noqa: N818 -- an outcome, no error
    """The sampler asked for the words of another round."""


class Script:
    """Entropy for one round of one draw: its words, then what follows them, then only zeros or only ones."""

    def __init__(self, choice: int, u: int, place: int, *further: int, zeros: bool = False) -> None:
        self.first: bytes | None = ((choice << 32) | u).to_bytes(8, "little") + place.to_bytes(8, "little")
        self.further = list(further)
        self.rest = 0 if zeros else 2**64 - 1
        self.read_on = False  # behind the words of the round

    def read(self, size: int) -> bytes:
        if size == 16:
            if self.first is None:
                raise Rejected
            first, self.first = self.first, None
            return first
        assert size == 8
        assert self.first is None
        self.read_on = True
        return (self.further.pop(0) if self.further else self.rest).to_bytes(8, "little")


def draw(sampler: DiscreteGaussian, choice: int, u: int, place: int = 0, *further: int) -> int | None:
    """The value of one draw whose U ends in zeros, or None where it is rejected."""
    try:
        return int(sampler.sample(1, Script(choice, u, place, *further, zeros=True))[0])
    except Rejected:
        return None


def count(limit: int, holds: Callable[[int], bool], guess: int = -1) -> int:
    """How many integers below ``limit`` hold, given that these come first; a good guess saves time."""
    if 0 <= guess <= limit and (guess == 0 or holds(guess - 1)) and (guess == limit or not holds(guess)):
        return guess
    low, high = 0, limit
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


class Observed:
    """One sampler under observation: which choices lead where, and with what probability a value is kept."""

    def __init__(self, sampler: DiscreteGaussian) -> None:
        self.sampler = sampler
        self.table = strips(sampler.scale)  # guesses for bisections are taken from it, nothing else

    @cached_property
    def width(self) -> int:
        """w: as many places as there are within a strip."""
        return 1 + self.value_of(0, NEGATIVE - 1)

    @cached_property
    def tail_from(self) -> int:
        """The first choice of the tail: from there on a draw reads more, or is rejected."""
        return count(ALL, lambda choice: self._ends(choice) == "kept", int(self.table.ends[-3]))

    @cached_property
    def tail_until(self) -> int:
        """One past the last choice of the tail."""
        return count(ALL, lambda choice: self._ends(choice) != "rejected", int(self.table.ends[-2]))

    @cached_property
    def tail_start(self) -> int:
        """T."""
        assert self.tail_from < self.tail_until, "no choice leads to the tail"
        return self.value_of(self.tail_from, 0, 0, 0)

    @cached_property
    def tail_width(self) -> int:
        """w_t, from the last place of piece 0; the places are uniform if they are the lowest bits of a word."""
        return 1 + self.tail_place(0, 2**64 - 1) - self.tail_start

    def tail_place(self, piece: int, place: int) -> int:
        """|x| of a place of a piece: so many coins that come up 1, then a 0, then the word of a place."""
        return self.value_of(self.tail_from, 0, (1 << piece) - 1, place)

    def value_of(self, choice: int, place: int, *further: int) -> int:
        """What a draw is whose U begins with zeros."""
        value = draw(self.sampler, choice, 0, place, *further)
        assert value is not None
        return value

    def strip_end(self, strip: int) -> int:
        """How many choices lead to a strip up to this one."""
        guess = int(self.table.ends[strip])
        return count(self.tail_from, lambda choice: self.value_of(choice, 0) <= strip * self.width, guess)

    def weight(self, strip: int) -> int:
        """How many choices lead to this strip."""
        return self.strip_end(strip) - (self.strip_end(strip - 1) if strip else 0)

    def kept(self, x: int, choice: int, place: int, *further: int, ties: int = 2) -> int:
        """The first 32 + 64·ties binary digits of the probability that a draw is kept; a 1 and zeros if it is 1.

        Args:
            x: Its value: a guess needs it.
            choice: What chooses a strip, or the tail.
            place: Its second word.
            further: What the tail reads before it compares.
            ties: How deep to look.
        """

        def passes(*u: int) -> bool:
            script = Script(choice, u[0], place, *further, *u[1:])
            try:
                self.sampler.sample(1, script)
            except Rejected:
                return False
            return True

        guess = self._threshold(abs(x), *further)
        found = [count(ALL, passes, guess.prefix(32))]
        if found[0] == ALL:
            return 1 << 32 + 64 * ties
        for level in range(1, ties + 1):
            found.append(count(2**64, lambda u: passes(*found, u), guess.prefix(32 + 64 * level) % 2**64))
        digits = found[0]
        for word in found[1:]:
            digits = digits << 64 | word
        return digits

    def mass(self, x: int, *, ties: int = 2, check: bool = True) -> tuple[Fraction, Fraction]:
        """Bounds of the probability that one round gives x, of its sign, and keeps it.

        Without a check a value of the tail may have any chance, down to e^(−thousands), and is not drawn once.
        """
        place = NEGATIVE if x < 0 else 0
        if abs(x) >= self.tail_start:
            piece, within = divmod(abs(x) - self.tail_start, self.tail_width)
            assert not check or self.tail_place(piece, within) == abs(x)
            kept = self.kept(x, self.tail_from, place, (1 << piece) - 1, within, ties=ties)
            chance = Fraction(self.tail_until - self.tail_from, ALL * self.tail_width * 2 ** (piece + 1))
        else:
            strip, within = divmod(abs(x), self.width)
            choice = self.strip_end(strip) - 1
            value = draw(self.sampler, choice, 0, place | within)
            if value is None:  # minus zero
                assert x == 0
                return Fraction(0), Fraction(0)
            assert abs(value) == abs(x)
            kept = self.kept(x, choice, place | within, ties=ties)
            chance = Fraction(self.weight(strip), ALL * self.width)
        one = 1 << 32 + 64 * ties
        return chance * Fraction(kept, 2 * one), chance * Fraction(min(kept + 1, one), 2 * one)

    def _threshold(self, x: int, *further: int) -> ProbabilityThreshold:
        if further:
            return self.table.tail_acceptance(further[0].bit_length(), x)
        return self.table.acceptance(x // self.width, x)

    def _ends(self, choice: int) -> str:
        script = Script(choice, 0, 0, zeros=True)
        try:
            self.sampler.sample(1, script)
        except Rejected:
            return "read on" if script.read_on else "rejected"
        return "read on" if script.read_on else "kept"


def zero(observed: Observed, *, ties: int = 2) -> tuple[Fraction, Fraction]:
    """Bounds of the probability that one round gives zero, from both signs together."""
    choice = observed.strip_end(0) - 1
    low = high = Fraction(0)
    one = 1 << 32 + 64 * ties
    for place in (0, NEGATIVE):
        if draw(observed.sampler, choice, 0, place) is not None:
            kept = observed.kept(0, choice, place, ties=ties)
            chance = Fraction(observed.weight(0), 2 * ALL * observed.width)
            low, high = low + chance * Fraction(kept, one), high + chance * Fraction(min(kept + 1, one), one)
    return low, high


def pmf(sampler: DiscreteGaussian, reach: int, *, ties: int = 2) -> dict[int, tuple[Fraction, Fraction]]:
    """See ``observed.pmf``. What lies beyond 30 pieces of the tail is bounded: less than 2^-60 of all."""
    observed = Observed(sampler)
    assert observed.width == 1, "a strip holds several values: this would take hours"
    far = max(reach, observed.tail_start + 30 * observed.tail_width)
    masses = {x: observed.mass(x, ties=ties, check=abs(x) <= reach) for x in range(-far, far + 1) if x}
    masses[0] = zero(observed, ties=ties)
    pieces = (far - observed.tail_start) // observed.tail_width  # complete ones; what follows has twice its chance
    beyond = Fraction(observed.tail_until - observed.tail_from, ALL * 2**pieces)
    low, high = (sum((mass[end] for mass in masses.values()), Fraction(0)) for end in (0, 1))
    return {x: (masses[x][0] / (high + beyond), masses[x][1] / low) for x in range(-reach, reach + 1)}


def check_places(observed: Observed, rng: np.random.Generator) -> None:
    """A strip's places are the lowest bits of the second word, its sign the highest; nothing else decides a value."""
    for _ in range(20):
        choice = int(rng.integers(observed.tail_from))
        place = int(rng.integers(2**63))
        start = observed.value_of(choice, 0)
        value = start + place % observed.width
        assert observed.value_of(choice, place) == value
        if value:
            assert observed.value_of(choice, place | NEGATIVE) == -value
