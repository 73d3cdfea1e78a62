"""Who is online when, and who adds what when."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from hushsum_simulator.deployment.fleet import ADDING, Stay, moments, stays

GROUPS = [[f"a{number}" for number in range(10)], [f"b{number}" for number in range(15)]]


def online_at(all_stays: Sequence[Stay], at: float) -> bool:
    return any(stay.start <= at < stay.end for stay in all_stays)


def test_a_share_of_each_group_is_away_at_a_time_and_nobody_at_the_end() -> None:
    online = stays(GROUPS, churn=0.2, windows=4, seed=1)
    for half in range(8):
        for group in GROUPS:
            away = [name for name in group if not online_at(online[name], half / 2 + 0.25)]
            assert len(away) == (0 if half == 7 else round(0.2 * len(group)))


def test_nobody_is_away_for_a_whole_window_and_stays_do_not_touch() -> None:
    for each in stays(GROUPS, churn=0.5, windows=6, seed=2).values():
        assert all(online_at(each, window) or online_at(each, window + 0.5) for window in range(6))
        assert all(earlier.end < later.start for earlier, later in pairwise(each))


def test_without_churn_there_is_one_stay() -> None:
    assert set(map(tuple, stays(GROUPS, churn=0, windows=3, seed=3).values())) == {(Stay(0, 3),)}


def test_the_seed_decides() -> None:
    assert stays(GROUPS, churn=0.2, windows=4, seed=4) == stays(GROUPS, churn=0.2, windows=4, seed=4)
    assert stays(GROUPS, churn=0.2, windows=4, seed=4) != stays(GROUPS, churn=0.2, windows=4, seed=5)


@pytest.mark.parametrize("batches", [1, 3, 100])
def test_batches_are_added_in_order_and_none_at_a_windows_end(batches: int) -> None:
    at = moments(batches, windows=4)
    assert len(at) == batches
    assert at == sorted(at)
    assert all(0 <= each < 4 and each - int(each) < ADDING for each in at)
