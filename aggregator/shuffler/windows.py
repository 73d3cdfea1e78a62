"""Which windows a shuffler takes reports for, when it forwards them, and what it says of them afterwards: pure.

    taken ──▶ forwarding ──▶ forwarded        every batch was taken by the aggregator
          │              └─▶ lost             it took none of them any more, or not all
          └─▶ dropped                         fewer reports than the plan asks for, or found when the window was over,
                                              or in a file from before its cut: nothing of it leaves, or nothing more

A window is cut at its end plus half the plan's lateness: devices have the one half, forwarding has the other. What is
known of a window is erased at its end plus the whole lateness, if every batch has its answer by then; that it is over
is kept as one number, the newest window that was cut.
"""

import enum
from typing import Final

from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.schedule import Schedule, duration_text
from hushsum_proto.answers import Answer, Status

HALF_MS_MIN: Final = 2000  # for a commit, a connection and an answer, on both sides of the cut


class WindowState(enum.StrEnum):
    """What became of a window that was cut; stored under these names."""

    FORWARDING = "forwarding"
    FORWARDED = "forwarded"
    LOST = "lost"
    DROPPED = "dropped"


class Fate(enum.Enum):
    """What an answer of the aggregator means for a batch."""

    DELIVERED = "delivered"
    LOST = "lost"
    AGAIN = "again"


def check_plan(plan: Plan) -> int:
    """The least number of reports in a batch, of a plan that has a shuffler.

    Raises:
        PlanError: It has none, or too little time for one.
    """
    least = plan.privacy.shuffle_min
    if least < 1:
        expected = "at least 1: the devices of this plan send to the aggregator itself, and it takes nothing else"
        raise PlanError("privacy.local.shuffle_min", least, expected)
    lateness_ms = plan.window.lateness_ms
    if lateness_ms // 2 < HALF_MS_MIN:
        shortest = duration_text(2 * HALF_MS_MIN)
        expected = f"at least '{shortest}' with a shuffler: half of it is for devices, half for what it forwards"
        raise PlanError("window.lateness", duration_text(lateness_ms), expected)
    return least


def cut_ms(schedule: Schedule, window: int) -> int:
    """When a window is cut: nothing is taken for it from then on."""
    return schedule.end_ms(window) + schedule.lateness_ms // 2


def newest_cut(schedule: Schedule, now_ms: int) -> int:
    """The newest window whose cut has come."""
    return schedule.index_at(now_ms - schedule.lateness_ms // 2) - 1


def taken_windows(schedule: Schedule, now_ms: int, *, skew_ms: int, closed_through: int | None) -> range:
    """The windows that reports are taken for.

    Args:
        schedule: The plan's windows.
        now_ms: The shuffler's clock.
        skew_ms: How far a device's clock may run ahead.
        closed_through: The newest window that was cut, ever: a clock that is set back opens none again.
    """
    oldest = newest_cut(schedule, now_ms) + 1
    if closed_through is not None:
        oldest = max(oldest, closed_through + 1)
    return range(oldest, max(schedule.index_at(now_ms + skew_ms), oldest - 1) + 1)


def is_over(schedule: Schedule, window: int, now_ms: int) -> bool:
    """Whether the aggregator takes nothing for it any more, by this clock."""
    return now_ms >= schedule.end_ms(window) + schedule.lateness_ms


def word(state: WindowState | None, *, known: bool, over: bool) -> Status:
    """What a sender is told about a batch of a window that was cut.

    Args:
        state: Of the window; None: it is still being cut, had no reports, or is erased.
        known: Whether the batch was taken in its time, as far as that is remembered.
        over: :func:`is_over`.
    """
    if state is WindowState.DROPPED or (state is None and over):
        return Status.UNKNOWN  # which batches were taken is forgotten
    if not known:
        return Status.LATE
    if state is WindowState.LOST:
        return Status.UNKNOWN  # its reports may be in what the aggregator took, and may be in what it did not
    return Status.COUNTED if state is WindowState.FORWARDED else Status.ACKNOWLEDGED


def fate_of(answer: Answer, *, over: bool) -> Fate:
    """What an answer means for a batch.

    A refusal that says nothing of trying again may still be an operator's to put right (a directory without this
    shuffler's key): the same bytes are sent again as long as the window is open.

    Args:
        answer: The aggregator's.
        over: :func:`is_over`.
    """
    if answer.status in {Status.ACKNOWLEDGED, Status.COUNTED}:
        return Fate.DELIVERED
    if answer.refusal is None:  # late, or the aggregator has forgotten the window
        return Fate.LOST
    return Fate.AGAIN if answer.refusal.retry or not over else Fate.LOST
