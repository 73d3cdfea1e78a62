"""How a run shows that it moves on: bars on a terminal; elsewhere nothing, or plain lines.

In secure mode a board shows how many clients of each cohort are in which step.
"""

import enum
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


class Stage(enum.IntEnum):
    """Where a client stands, in the order of a round."""

    ADDING = 0  # its records are not all in its spool yet
    WAITING = 1  # for a cohort
    KEYS = 2  # advertised; the roster is not there yet
    GRAPH = 3  # opened its contribution; the others have not all
    SHARES = 4  # sent the shares of its secrets
    UPLOAD = 5  # its window is spent; the masked vector is on its way
    CONSENT = 6  # signed the set of survivors
    REVEAL = 7  # sent what unmasks the sum
    DONE = 8  # was told what became of it, or that it cannot take part
    DROPPED = 9  # vanished


_BESIDE: Final = 80  # cells of everything but the bar
_BAR_MIN: Final = 10
_BAR_MAX: Final = 50
_COLOURS: Final = {
    Stage.ADDING: "bright_black",
    Stage.WAITING: "white",
    Stage.KEYS: "magenta",
    Stage.GRAPH: "blue",
    Stage.SHARES: "cyan",
    Stage.UPLOAD: "yellow",
    Stage.CONSENT: "bright_yellow",
    Stage.REVEAL: "bright_green",
    Stage.DONE: "green",
    Stage.DROPPED: "red",
}


@dataclass(frozen=True)
class ProgressRow:
    """One cohort, or those that are in none.

    Attributes:
        name: For people.
        clients: How many are in each stage.
    """

    name: str
    clients: Counter[Stage]

    @property
    def settled(self) -> bool:
        """Whether nobody in it will move again."""
        return self.clients.total() == self.clients[Stage.DONE] + self.clients[Stage.DROPPED]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{self.clients[at]} {at.name.lower()}" for at in Stage if self.clients[at])


def table(rows: Sequence[ProgressRow], *, width: int) -> "Table":
    """The rows with their bars, and what the colours are, on a terminal of so many cells."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = [at for at in Stage if at is not Stage.ADDING or any(row.clients[at] for row in rows)]
    cells = min(width - _BESIDE, _BAR_MAX)
    bars = cells >= _BAR_MIN  # else the numbers alone
    board = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    board.add_column("", no_wrap=True)
    if bars:
        board.add_column("", no_wrap=True, width=cells)
    for at in shown:
        board.add_column(Text(at.name.lower(), style=_COLOURS[at]), justify="right", no_wrap=True)
    for row in rows:
        board.add_row(row.name, *([_bar(row, cells)] if bars else []), *(str(row.clients[at] or "·") for at in shown))
    return board


def _bar(row: ProgressRow, cells: int) -> "Text":
    """Cells in proportion, the furthest stage first; those that vanished at the end."""
    from rich.text import Text

    total, bar, before, drawn = row.clients.total(), Text(), 0, 0
    order = [*reversed([at for at in Stage if at is not Stage.DROPPED]), Stage.DROPPED]
    for at in order:
        before += row.clients[at]
        upto = round(cells * before / total) if total else 0
        bar.append(("░" if at is Stage.DROPPED else "█") * (upto - drawn), style=_COLOURS[at])
        drawn = upto
    return bar


#: Tells a bar how much is done.
Bar = Callable[[int], None]
#: Tells a board where everybody is.
Board = Callable[[Sequence[ProgressRow]], None]
_LINES_S: Final = 3.0


class Progress(Protocol):
    """What a run tells of itself."""

    def step(self, text: str) -> None:
        """Something that has happened, in one line."""
        ...

    def warn(self, text: str) -> None:
        """Something that must not be overlooked."""
        ...

    def bar(self, what: str, total: int | None) -> Bar:
        """A new bar; without a total it only shows that something goes on until it is told that 1 is done."""
        ...

    def board(self) -> Board:
        """The one board of a run, below its bars."""
        ...


class Quiet:
    """Shows warnings alone."""

    def step(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """A line on standard error."""
        sys.stderr.write(f"hushsum: {text}\n")

    def bar(self, what: str, total: int | None) -> Bar:  # noqa: ARG002  the protocol names them
        """A bar that nobody sees."""
        return lambda _: None

    def board(self) -> Board:
        """A board that nobody sees."""
        return lambda _: None


class Lines(Quiet):
    """Plain lines on standard error: every step, and the board as it changes, but not more often than can be read."""

    def step(self, text: str) -> None:
        """A line."""
        sys.stderr.write(f"  {text}\n")

    def board(self) -> Board:
        """A line for each row that has changed, every three seconds."""
        written: dict[str, str] = {}
        at = time.monotonic() - _LINES_S

        def show(rows: Sequence[ProgressRow]) -> None:
            nonlocal at
            done = all(row.settled for row in rows)
            if not done and time.monotonic() - at < _LINES_S:
                return
            at = time.monotonic()
            for row in rows:
                if written.get(row.name) != str(row):
                    written[row.name] = str(row)
                    sys.stderr.write(f"  {row}\n")

        return show


class Bars:
    """Bars and steps on the terminal that standard error is."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._rows: Sequence[ProgressRow] = ()
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._live = Live(get_renderable=self._drawn, console=Console(stderr=True), refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def step(self, text: str) -> None:
        """A line above the bars."""
        self._live.console.print(f"  {text}", highlight=False)

    def warn(self, text: str) -> None:
        """A coloured line above the bars."""
        self._live.console.print(f"[yellow]  {text}[/yellow]", highlight=False)

    def bar(self, what: str, total: int | None) -> Bar:
        """A bar below the others."""
        task = self._progress.add_task(what, total=total)

        def at(done: int) -> None:
            self._progress.update(task, completed=done, total=done if total is None else total)

        return at

    def board(self) -> Board:
        """The table below the bars."""

        def show(rows: Sequence[ProgressRow]) -> None:
            self._rows = tuple(rows)

        return show

    def _drawn(self) -> "RenderableType":
        from rich.console import Group

        return (
            Group(self._progress, table(self._rows, width=self._live.console.width)) if self._rows else self._progress
        )
