"""What a run in secure mode refuses before it starts anything.

Who vanishes, and when.
"""

from collections import Counter

import pytest

from hushsum_simulator.demo.cohort_fleet import draw_dropouts
from hushsum_simulator.demo.mode import require_one_window
from hushsum_simulator.errors import JourneyError
from hushsum_simulator.progress import Stage
from tests.plans import small_plan

MINUTE = 60_000
HOUR = 60 * MINUTE
AT = 498_704 * HOUR


@pytest.mark.parametrize("minutes", (6, 54))
def test_within_one_window_a_run_may_start(minutes: int) -> None:
    require_one_window(small_plan(window={"length": "1h", "lateness": "5m"}), AT + minutes * MINUTE)


@pytest.mark.parametrize("minutes", (0, 4, 56, 59))
def test_where_clients_would_take_part_in_two_windows_no_run_starts(minutes: int) -> None:
    with pytest.raises(JourneyError, match="a plan of longer windows"):
        require_one_window(small_plan(window={"length": "1h", "lateness": "5m"}), AT + minutes * MINUTE)


CLIENTS = [f"client-{number}" for number in range(200)]


def test_the_rate_says_how_many_vanish_half_of_them_before_their_vector() -> None:
    chosen = draw_dropouts(CLIENTS, 0.1, seed=3)
    spent = Counter(stage >= Stage.UPLOAD for stage in chosen.values())
    assert (len(chosen), spent[True], spent[False]) == (20, 10, 10)
    assert chosen.keys() <= set(CLIENTS)
    assert not {Stage.ADDING, Stage.DONE, Stage.DROPPED} & set(chosen.values())
    assert draw_dropouts(CLIENTS, 0.0, seed=3) == {}


def test_the_seed_decides_who_it_is() -> None:
    assert draw_dropouts(CLIENTS, 0.1, seed=3) == draw_dropouts(CLIENTS, 0.1, seed=3)
    assert draw_dropouts(CLIENTS, 0.1, seed=3) != draw_dropouts(CLIENTS, 0.1, seed=4)
