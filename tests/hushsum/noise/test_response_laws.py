"""The exact law of what the running randomisers answer: over all words that decide it, and of planted mistakes."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hushsum.compiled import VARIABLE
from hushsum.noise import (
    KRR,
    OneBit,
    Projective,
    Randomiser,
    one_bit,
    projective_geometry,
    random_words,
    randomized_response,
)

Int64 = npt.NDArray[np.int64]

RATIO = Fraction(5, 2)
CHOICES: list[Randomiser] = [
    KRR(RATIO, 2),
    KRR(RATIO, 7),
    KRR(Fraction(41, 20), 3),  # a weight of which 5 % is more than an integer
    *(
        Projective(RATIO, inputs, field)
        for inputs, field in ((3, 2), (7, 2), (9, 2), (4, 3), (13, 3), (14, 3), (31, 5))
    ),
]


class Counting:
    """Entropy whose words are 0, 1, 2, …: read to a total, each number below it comes once."""

    def __init__(self) -> None:
        self._next = 0

    def read(self, size: int) -> bytes:
        words = np.arange(self._next, self._next + size // 8, dtype="<u8")
        self._next += len(words)
        return words.tobytes()


def total_of(choice: Any) -> int:
    """Of the integers that decide a draw."""
    return int(choice.outputs * choice._total)


def drawn_law(choice: Randomiser, value: int) -> list[Fraction]:
    total = total_of(choice)
    drawn = choice.randomise(np.full(total, value), Counting())
    return [Fraction(count, total) for count in np.bincount(drawn, minlength=choice.outputs).tolist()]


def stated_law(choice: Randomiser, value: int) -> list[Fraction]:
    return [choice.probability(value, output) for output in range(choice.outputs)]


def name_of(choice: Any) -> str:
    return f"{type(choice).__name__}-{choice.inputs}-{getattr(choice, 'field', '')}"


@pytest.mark.parametrize("kernels", ["plain", "fast"])
@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_all_integers_together_are_answered_with_the_stated_law(
    choice: Randomiser, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In NumPy as in compiled loops: a device need not have numba."""
    monkeypatch.setenv(VARIABLE, kernels)
    for value in (-1, *range(choice.inputs)):
        assert drawn_law(choice, value) == stated_law(choice, value)


@pytest.mark.parametrize("peak", (1, 2, 7))
def test_all_integers_together_give_bits_of_the_stated_law(peak: int) -> None:
    response = OneBit(RATIO, peak)
    total = 2 * response._half
    for number in range(-peak, peak + 1):
        ones = int(response.randomise(np.full(total, number), Counting()).sum())
        assert Fraction(ones, total) == response.probability(number, 1)
    nothing = response.randomise(np.full(total, peak), Counting(), np.full(total, fill_value=True))
    assert Fraction(int(nothing.sum()), total) == Fraction(1, 2)


# ------------------------------------------------------------------------------------------------- planted mistakes

Mistake = Callable[[pytest.MonkeyPatch], None]


def keep_too_often(patch: pytest.MonkeyPatch) -> None:
    """The value is kept 5 % more often than it may be."""

    def respond(self: KRR, values: Int64, draws: Int64) -> None:
        honest(KRR(self.ratio * Fraction(21, 20), self.inputs), values, draws)

    honest = KRR._respond
    patch.setattr(KRR, "_respond", respond)


def also_among_the_others(patch: pytest.MonkeyPatch) -> None:
    """The others are not numbered past the value itself."""

    def respond(self: KRR, values: Int64, draws: Int64) -> None:
        stand_in = draws // self._total
        named = draws - stand_in * self._total - self.ratio.numerator
        draws[:] = np.where(values < 0, stand_in, np.where(named < 0, values, named // self.ratio.denominator))

    patch.setattr(KRR, "_respond", respond)


def answer_nothing_with_a_constant(patch: pytest.MonkeyPatch) -> None:
    """An unusable record is answered as if its value were 0."""

    def respond(self: KRR, values: Int64, draws: Int64) -> None:
        honest(self, np.maximum(values, 0), draws)

    honest = KRR._respond
    patch.setattr(KRR, "_respond", respond)


def take_the_last_coordinate_for_one(patch: pytest.MonkeyPatch) -> None:
    """The last coordinate of v is taken to be 1, so that its hyperplane is another one."""
    honest = projective_geometry._coordinates

    def coordinates(inputs: int, field: int, dimension: int) -> Any:
        tables = honest(inputs, field, dimension)
        return tables._replace(inverse=np.ones_like(tables.inverse))

    patch.setattr(projective_geometry, "_coordinates", coordinates)


@pytest.mark.parametrize("mistake", [keep_too_often, also_among_the_others, answer_nothing_with_a_constant])
def test_a_mistake_in_k_ary_response_changes_the_law(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    choice = KRR(RATIO, 7)
    assert any(drawn_law(choice, value) != stated_law(choice, value) for value in range(-1, 7))


def test_a_mistake_in_projective_response_changes_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_last_coordinate_for_one(monkeypatch)
    choice = Projective(RATIO, 13, 3)
    assert any(drawn_law(choice, value) != stated_law(choice, value) for value in range(13))


# ------------------------------------------------------------------------------------------------ the words they take


def test_the_modules_draw_with_the_one_sampler_of_integers() -> None:
    """What :mod:`tests.hushsum.noise.test_random_words` shows of it holds for them."""
    drawn_with = {vars(module)["uniform"] for module in (randomized_response, projective_geometry, one_bit)}
    assert drawn_with == {random_words.uniform}
