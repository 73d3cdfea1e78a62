"""Axes of pictures: round ticks inside the range, and colours in order."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hushsum_page.axes import COLOURS, ColourScale, ticks, time_ticks

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@given(FINITE, st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_lie_in_the_range_in_ascending_order(low: float, width: float, number: int) -> None:
    high = low + width
    found = ticks(low, high, number)
    places = [tick.at for tick in found]
    assert 1 <= len(found) <= 4 * number + 1
    assert places == sorted(places)
    rounding = 1e-6 * width + 4 * math.ulp(max(abs(low), abs(high)))
    assert min(places) >= low - rounding
    assert max(places) <= high + rounding


def test_ticks_are_round_and_say_so() -> None:
    assert [tick.text for tick in ticks(0, 10)] == ["0", "2", "4", "6", "8", "10"]
    assert [tick.text for tick in ticks(0, 0.9, 4)] == ["0", "0.5"]
    assert [tick.text for tick in ticks(0, 10_000, 5)] == ["0", "2,500", "5,000", "7,500", "10,000"]
    assert [tick.text for tick in ticks(-0.05, 0.05, 5)] == ["-0.050", "-0.025", "0", "0.025", "0.050"]
    assert [tick.text for tick in ticks(3.0, 3.0)] == ["3"]
    assert ticks(float("nan"), 1.0) == []


@given(st.integers(0, 4 * 10**12), st.integers(1, 10**12))
def test_ticks_of_time_are_few_and_different(low: int, width: int) -> None:
    found = time_ticks(float(low), float(low + width))
    assert len(found) <= 10
    assert len({tick.text for tick in found}) == len(found)


def test_colours_follow_values() -> None:
    scale = ColourScale(0.0, 4.0, is_root=True)
    assert scale.level(np.array([0.0, 1.0, 4.0, np.nan, 9.0])).tolist() == [
        0,
        COLOURS // 2,
        COLOURS - 1,
        -1,
        COLOURS - 1,
    ]
    assert (scale.colour(0), scale.colour(COLOURS - 1)) == ("#440154", "#fde725")
    assert ColourScale(1.0, 1.0).level(np.array([1.0])).tolist() == [COLOURS // 2]
