"""When a client takes part: once a window, after its end, again while nothing is spent, and never by its records."""

import numpy as np
import pytest

from edge_client.config import Config
from edge_client.participation.scheduler import WindowSchedule, windows_at
from hushsum.entropy import OsEntropy, ReplayableEntropy
from tests.edge_client.clocks import HOUR, MINUTE
from tests.edge_client.secure_plans import secure_plan

SCHEDULE = secure_plan().window
WAIT_MS = MINUTE
CONFIG = Config(backoff_first_s=0.25, backoff_longest_s=30.0)
END = 8 * HOUR  # of window 7
OVER = END + SCHEDULE.lateness_ms


def participation(seed: bytes | None = None) -> WindowSchedule:
    entropy = OsEntropy() if seed is None else ReplayableEntropy(seed)
    return WindowSchedule(SCHEDULE, WAIT_MS, CONFIG, entropy)


def first_due(part: WindowSchedule, now_ms: int) -> int:
    part.keep([7], now_ms)
    due_ms = part.next_ms()
    assert due_ms is not None
    return due_ms


def test_a_window_is_due_soon_after_its_end_at_moments_that_are_spread_out() -> None:
    due = [first_due(participation(), END - 30 * MINUTE) for _ in range(200)]
    spread_ms = (SCHEDULE.lateness_ms - WAIT_MS) // 4
    assert min(due) >= END
    assert max(due) <= END + spread_ms < OVER - WAIT_MS
    # 200 uniform draws miss a given quarter with probability 0.75**200 < 1e-24.
    assert {4 * (moment - END) // (spread_ms + 1) for moment in due} == {0, 1, 2, 3}


@pytest.mark.parametrize("left_ms", [SCHEDULE.lateness_ms, 5 * MINUTE, WAIT_MS, 1000, 0])
def test_a_client_that_starts_late_leaves_a_cohort_the_time_to_fill_where_there_is_any(left_ms: int) -> None:
    now_ms = OVER - left_ms
    for _ in range(50):
        assert now_ms <= first_due(participation(), now_ms) <= max(now_ms, OVER - WAIT_MS)


def test_a_window_is_due_once_and_is_under_way_until_its_attempt_has_ended() -> None:
    part = participation()
    due_ms = first_due(part, END)
    assert part.due(due_ms - 1) == []
    assert part.due(due_ms) == [7]
    assert part.due(OVER) == []
    assert part.next_ms() is None
    assert part.takes_part(7)
    part.failed(7, due_ms)
    assert part.due(due_ms + 250) == [7]


def test_the_moment_does_not_change_when_it_is_looked_again() -> None:
    part = participation()
    due_ms = first_due(part, END - HOUR)
    for now_ms in range(END - HOUR, END, 10 * MINUTE):
        part.keep([6, 7], now_ms)
    part.keep([7], END)
    assert part.next_ms() == due_ms


def test_what_fails_without_a_cost_is_tried_again_ever_later_and_not_before_it_was_asked_to() -> None:
    part, waits = participation(), []
    now_ms = first_due(part, END)
    for failures in range(12):
        assert part.due(now_ms) == [7]
        part.failed(7, now_ms)
        due_ms = part.next_ms()
        assert due_ms is not None
        assert 0 <= due_ms - now_ms <= 1000 * min(30.0, 0.25 * 2**failures)
        waits.append(due_ms - now_ms)
        now_ms = due_ms
    assert max(waits) > 1000  # all of the last six below a second: (1/16)(1/30)^5 < 1e-8
    assert part.due(now_ms) == [7]
    part.failed(7, now_ms, least_ms=5000)
    assert part.due(now_ms + 4999) == []
    assert part.due(now_ms + 5000 + 30_000) == [7]
    part.failed(7, now_ms, least_ms=2**32)  # nobody holds a client for longer than an hour
    assert part.due(now_ms + HOUR + 30_000) == [7]


def test_a_window_that_was_left_is_not_taken_up_again() -> None:
    part = participation()
    part.keep([7, 8], END - 1)
    part.leave(7)
    part.keep([7, 8], END)
    assert not part.takes_part(7)
    assert part.takes_part(8)
    assert part.due(OVER) == []
    part.failed(7, END)  # an attempt that ended afterwards
    assert part.due(OVER) == []


def test_a_window_that_is_over_is_forgotten_unless_an_attempt_is_under_way() -> None:
    part = participation()
    part.keep([6, 7], OVER)
    assert part.due(OVER + HOUR) == [6, 7]
    part.failed(6, OVER)
    assert part.keep([8], OVER) == [6]
    assert part.keep([8], OVER) == []
    assert not part.takes_part(6)
    assert part.takes_part(7)


def test_who_flushes_is_due_now_and_a_second_flush_does_not_shorten_a_back_off() -> None:
    part = participation()
    part.keep([7, 8], END - 30 * MINUTE)
    part.expedite(7, END - 30 * MINUTE)
    assert part.due(END - 30 * MINUTE) == [7]
    part.failed(7, END - 30 * MINUTE, least_ms=MINUTE)
    part.expedite(7, END - 30 * MINUTE)
    assert part.due(END - 30 * MINUTE) == []


def test_the_same_clock_and_the_same_fates_give_the_same_moments(rng: np.random.Generator) -> None:
    results = rng.integers(0, 3, 60).tolist()

    def life() -> list[tuple[int, int]]:
        part, begun = participation(b"public"), []
        for step, result in enumerate(results):
            now_ms = END + step * MINUTE
            part.keep(windows_at(SCHEDULE, now_ms), now_ms)
            for window in part.due(now_ms):
                begun.append((now_ms, window))
                if result:
                    part.failed(window, now_ms)
                else:
                    part.leave(window)
        return begun

    assert life() == life()
    assert len(life()) >= 2
