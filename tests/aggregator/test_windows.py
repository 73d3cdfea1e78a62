import pytest

from aggregator.errors import WindowOrderError
from aggregator.windows import MOVES, WindowBook, WindowState, accepted_windows, due_ms
from hushsum.schedule import Schedule

HOUR = 3_600_000
SCHEDULE = Schedule(length_ms=HOUR, epoch_ms=0, lateness_ms=HOUR // 12)
OPEN, CLOSING, SEALED, RELEASED, WITHHELD, SKIPPED = WindowState


def accepted(now_ms: int, skew_ms: int = 60_000, first: int = 0) -> list[int]:
    return list(accepted_windows(SCHEDULE, now_ms, skew_ms=skew_ms, first_window=first))


def test_in_mid_window_one_window_is_accepted() -> None:
    assert accepted(10 * HOUR + HOUR // 2) == [10]


def test_the_last_window_is_accepted_to_the_last_millisecond_of_its_lateness() -> None:
    assert accepted(11 * HOUR + SCHEDULE.lateness_ms - 1) == [10, 11]
    assert accepted(11 * HOUR + SCHEDULE.lateness_ms) == [11]


def test_the_next_window_is_accepted_from_the_stated_skew_before_it_begins() -> None:
    assert accepted(11 * HOUR - 60_001) == [10]
    assert accepted(11 * HOUR - 60_000) == [10, 11]


def test_nothing_before_the_first_window_is_accepted() -> None:
    assert accepted(11 * HOUR + 1, first=11) == [11]
    assert accepted(11 * HOUR + 1, first=13) == []


@pytest.mark.parametrize("now_ms", [10 * HOUR, 11 * HOUR + SCHEDULE.lateness_ms - 1, 11 * HOUR + SCHEDULE.lateness_ms])
def test_a_seal_is_due_exactly_when_no_gateway_accepts_any_more(now_ms: int) -> None:
    assert (10 in accepted(now_ms)) == (now_ms < due_ms(SCHEDULE, 10))


def test_the_oldest_unsealed_window_is_next_to_seal() -> None:
    assert WindowBook({3: SEALED, 5: OPEN, 6: OPEN}).next_to_seal() == 5
    assert WindowBook({3: SEALED}).next_to_seal() is None


def test_a_seal_waits_for_its_time_unless_it_was_begun() -> None:
    due = due_ms(SCHEDULE, 5)
    assert WindowBook({5: OPEN}).due_to_seal(SCHEDULE, due - 1) is None
    assert WindowBook({5: OPEN}).due_to_seal(SCHEDULE, due) == 5
    assert WindowBook({5: CLOSING}).due_to_seal(SCHEDULE, 0) == 5
    assert WindowBook({}).due_to_seal(SCHEDULE, due) is None


def test_a_window_that_is_not_over_says_until_when() -> None:
    due = due_ms(SCHEDULE, 5)
    for book in (WindowBook({5: OPEN}), WindowBook({5: CLOSING}), WindowBook({5: SEALED})):
        book.check_over(5, SCHEDULE, due)
    WindowBook({5: CLOSING}).check_over(5, SCHEDULE, due - 1)
    text = r"window 5 is not over: it ends at 1970-01-01 06:00:00 and accepts late deltas until 1970-01-01 06:05:00 "
    with pytest.raises(WindowOrderError, match=text):
        WindowBook({5: OPEN}).check_over(5, SCHEDULE, due - 1)


def test_outcomes_are_taken_in_order() -> None:
    assert WindowBook({3: SEALED, 4: SEALED, 5: OPEN}).next_outcome() == 3
    assert WindowBook({3: CLOSING, 4: SEALED}).next_outcome() is None
    assert WindowBook({2: RELEASED, 3: SKIPPED, 4: SEALED}).next_outcome() == 4
    assert WindowBook({2: RELEASED, 3: WITHHELD, 4: SEALED}).next_outcome() == 4
    assert WindowBook({2: RELEASED}).next_outcome() is None
    assert WindowBook({2: WITHHELD}).next_outcome() is None


@pytest.mark.parametrize(
    ("states", "window"), [({5: OPEN, 6: OPEN}, 6), ({5: CLOSING, 6: OPEN}, 6), ({5: OPEN}, 7), ({5: SKIPPED}, 5)]
)
def test_a_seal_out_of_order_is_refused(states: dict[int, WindowState], window: int) -> None:
    with pytest.raises(WindowOrderError):
        WindowBook(states).check_seal(window)


@pytest.mark.parametrize("state", [OPEN, CLOSING, SEALED, RELEASED, WITHHELD])
def test_the_seal_of_the_oldest_window_may_be_asked_for_again(state: WindowState) -> None:
    WindowBook({5: state, 6: OPEN}).check_seal(5)


@pytest.mark.parametrize(
    ("states", "window"),
    [({5: SEALED, 6: SEALED}, 6), ({5: OPEN, 6: SEALED}, 6), ({5: OPEN}, 5), ({}, 5), ({5: SKIPPED}, 5)],
)
def test_an_outcome_out_of_order_is_refused(states: dict[int, WindowState], window: int) -> None:
    with pytest.raises(WindowOrderError):
        WindowBook(states).check_outcome(window)


@pytest.mark.parametrize(
    "states", [{5: SEALED, 6: SEALED}, {4: SKIPPED, 5: SEALED}, {4: OPEN, 5: RELEASED}, {5: WITHHELD}]
)
def test_the_outcome_of_the_oldest_sealed_window_is_allowed(states: dict[int, WindowState]) -> None:
    WindowBook(states).check_outcome(5)


def test_no_window_ever_goes_back() -> None:
    order = {None: 0, OPEN: 1, CLOSING: 2, SEALED: 3, RELEASED: 4, WITHHELD: 4}
    for state, nexts in MOVES.items():
        for following in nexts - {SKIPPED}:
            assert order[following] == order[state] + 1
    assert set(MOVES) == {None, *WindowState}


@pytest.mark.parametrize("state", [RELEASED, WITHHELD, SKIPPED])
def test_what_a_window_has_come_to_is_final(state: WindowState) -> None:
    assert MOVES[state] == frozenset()
