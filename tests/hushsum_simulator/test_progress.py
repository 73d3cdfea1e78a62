"""Who is in which step, as a table of bars and as lines."""

import io
from collections import Counter

import pytest
from rich.console import Console

from hushsum_simulator.progress import Lines, ProgressRow, Quiet, Stage, table

UNDER_WAY = ProgressRow("cohort 1", Counter({Stage.SHARES: 50, Stage.UPLOAD: 2, Stage.DONE: 40, Stage.DROPPED: 8}))
SETTLED = ProgressRow("cohort 1", Counter({Stage.DONE: 92, Stage.DROPPED: 8}))


def test_a_line_names_the_steps_that_somebody_is_in() -> None:
    assert str(UNDER_WAY) == "cohort 1: 50 shares, 2 upload, 40 done, 8 dropped"
    assert (UNDER_WAY.settled, SETTLED.settled) == (False, True)


def test_a_bar_is_as_long_as_all_clients_and_ends_with_those_that_vanished() -> None:
    drawn = table([UNDER_WAY, SETTLED], width=200)
    bars = list(drawn.columns[1].cells)
    assert [str(bar) for bar in bars] == ["█" * 46 + "░" * 4] * 2
    assert [str(cell) for cell in drawn.columns[-1].cells] == ["8", "8"]
    assert "adding" not in [str(column.header) for column in drawn.columns]


@pytest.mark.parametrize("width", (80, 100, 130))
def test_every_step_has_its_whole_name_on_a_terminal_of_this_width(width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    console.print(table([UNDER_WAY], width=width))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert all(stage.name.lower() in shown for stage in Stage if stage is not Stage.ADDING)
    assert "…" not in shown


def test_plain_lines_come_now_and_then_and_the_last_one_always(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("hushsum_simulator.progress.time.monotonic", lambda: now)
    show = Lines().board()
    show([UNDER_WAY])
    now = 101.0
    show([ProgressRow("cohort 1", Counter({Stage.REVEAL: 92, Stage.DROPPED: 8}))])  # too soon
    show([SETTLED])
    show([SETTLED])  # nothing new
    assert capsys.readouterr().err.splitlines() == [f"  {UNDER_WAY}", f"  {SETTLED}"]


def test_quiet_shows_no_board(capsys: pytest.CaptureFixture[str]) -> None:
    Quiet().board()([SETTLED])
    assert capsys.readouterr() == ("", "")
