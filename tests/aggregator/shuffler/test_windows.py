"""When windows are closed, and what is said of them."""

import pytest

from aggregator.shuffler.reports_file import (
    ClosedState,
    ForwardResult,
    check_plan,
    close_ms,
    is_over,
    newest_due,
    result_for,
    status_after_close,
    taken_windows,
)
from hushsum.delta import DeltaId
from hushsum.errors import PlanError
from hushsum_proto.answers import Answer, Status
from tests.aggregator.shuffler.shuffled import BUSY, LATE, LEAST, PLAN, UNKNOWN_KEY, shuffled_plan
from tests.plans import small_plan

SCHEDULE = PLAN.window  # 10 s, lateness 10 s


def test_a_window_is_cut_at_its_end_plus_half_the_lateness() -> None:
    assert close_ms(SCHEDULE, 0) == 15_000
    assert newest_due(SCHEDULE, 14_999) == -1
    assert newest_due(SCHEDULE, 15_000) == 0


def test_what_is_taken_follows_the_cut_and_no_clock_that_is_set_back_opens_a_window_again() -> None:
    assert taken_windows(SCHEDULE, 15_000, skew_ms=0, closed_through=None) == range(1, 2)
    assert taken_windows(SCHEDULE, 14_999, skew_ms=0, closed_through=None) == range(2)
    assert taken_windows(SCHEDULE, 14_999, skew_ms=0, closed_through=0) == range(1, 2)
    assert taken_windows(SCHEDULE, 15_000, skew_ms=5_000, closed_through=None) == range(1, 3)
    assert len(taken_windows(SCHEDULE, 0, skew_ms=0, closed_through=9)) == 0


def test_a_window_is_over_when_the_aggregator_has_sealed_it() -> None:
    assert not is_over(SCHEDULE, 0, 19_999)
    assert is_over(SCHEDULE, 0, 20_000)


@pytest.mark.parametrize(
    ("state", "known", "over", "said"),
    [
        (None, True, False, Status.ACKNOWLEDGED),
        (None, False, False, Status.LATE),
        (None, False, True, Status.UNKNOWN),
        (ClosedState.FORWARDING, True, False, Status.ACKNOWLEDGED),
        (ClosedState.FORWARDING, False, True, Status.LATE),
        (ClosedState.FORWARDED, True, False, Status.COUNTED),
        (ClosedState.FORWARDED, False, False, Status.LATE),
        (ClosedState.LOST, True, True, Status.UNKNOWN),
        (ClosedState.LOST, False, True, Status.LATE),
        (ClosedState.DROPPED, False, False, Status.UNKNOWN),
    ],
)
def test_what_a_sender_is_told_of_a_window_that_was_cut(
    state: ClosedState | None, known: bool, over: bool, said: Status
) -> None:
    assert status_after_close(state, known=known, over=over) is said


@pytest.mark.parametrize(
    ("answer", "over", "result"),
    [
        (Answer(DeltaId(1, 0), Status.ACKNOWLEDGED), False, ForwardResult.DELIVERED),
        (Answer(DeltaId(1, 0), Status.COUNTED), True, ForwardResult.DELIVERED),
        (LATE, True, ForwardResult.LOST),
        (Answer(DeltaId(1, 0), Status.UNKNOWN), True, ForwardResult.LOST),
        (BUSY, False, ForwardResult.AGAIN),
        (BUSY, True, ForwardResult.AGAIN),
        (UNKNOWN_KEY, False, ForwardResult.AGAIN),
        (UNKNOWN_KEY, True, ForwardResult.LOST),
    ],
)
def test_what_an_answer_means_for_a_batch(answer: Answer, over: bool, result: ForwardResult) -> None:
    assert result_for(answer, over=over) is result


def test_a_plan_without_a_shuffler_or_with_no_time_for_one_is_refused_by_its_key() -> None:
    assert check_plan(PLAN) == LEAST
    with pytest.raises(PlanError, match=r"^privacy\.local\.shuffle_min: got 0"):
        check_plan(small_plan())
    with pytest.raises(PlanError, match=r"^window\.lateness: got '3s'.*at least '4s'"):
        check_plan(shuffled_plan(window={"lateness": "3s"}))
    assert check_plan(shuffled_plan(window={"lateness": "4s"})) == LEAST
