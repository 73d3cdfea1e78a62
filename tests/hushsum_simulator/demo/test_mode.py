"""What a run refuses because of the time at which it would start."""

import pytest

from hushsum_simulator.demo.mode import require_one_window
from hushsum_simulator.errors import JourneyError
from tests.plans import small_plan

MINUTE = 60_000
HOUR = 60 * MINUTE
AT = 498_704 * HOUR


@pytest.mark.parametrize("minutes", (6, 54))
def test_within_one_window_a_run_may_start(minutes: int) -> None:
    require_one_window(small_plan(window={"length": "1h", "lateness": "5m"}), AT + minutes * MINUTE)


@pytest.mark.parametrize("minutes", (0, 4, 56, 59))
def test_where_clients_would_take_part_in_two_windows_no_run_starts(minutes: int) -> None:
    with pytest.raises(JourneyError, match="a plan with longer windows"):
        require_one_window(small_plan(window={"length": "1h", "lateness": "5m"}), AT + minutes * MINUTE)
