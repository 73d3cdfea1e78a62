"""Progress of a run: bars on a terminal; elsewhere nothing, or plain lines.

In secure mode a board shows how many clients of each cohort are at which step.
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
    """A client's step, in the order of a round."""

    ADDING = 0  # its records are not all in its spool yet
    WAITING = 1  # for a cohort
    KEYS = 2  # sent its keys, and waits for the roster
    GRAPH = 3  # opened its contribution to the graph, and waits for the others
    SHARES = 4  # sent the shares of its secrets
    UPLOAD = 5  # its window is spent; it sends the masked vector
    CONSENT = 6  # signed the set of survivors
    REVEAL = 7  # sent the shares that unmask the sum
    DONE = 8  # knows the result, or that it cannot take part
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
    """One cohort, or the clients in no cohort: its name, and how many clients are in each stage."""

    name: str
    clients: Counter[Stage]

    @property
    def settled(self) -> bool:
        """Whether no client of it will move again."""
        return self.clients.total() == self.clients[Stage.DONE] + self.clients[Stage.DROPPED]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{self.clients[at]} {at.name.lower()}" for at in Stage if self.clients[at])


def table(rows: Sequence[ProgressRow], *, width: int) -> "Table":
    """The rows with their bars, and a legend of the colours, for a terminal of ``width`` cells."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = [at for at in Stage if at is not Stage.ADDING or any(row.clients[at] for row in rows)]
    cells = min(width - _BESIDE, _BAR_MAX)
    bars = cells >= _BAR_MIN  # else only the numbers
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
    """Cells in proportion, the last stage first, and dropped clients at the end."""
    from rich.text import Text

    total, bar, before, drawn = row.clients.total(), Text(), 0, 0
    order = [*reversed([at for at in Stage if at is not Stage.DROPPED]), Stage.DROPPED]
    for at in order:
        before += row.clients[at]
        upto = round(cells * before / total) if total else 0
        bar.append(("░" if at is Stage.DROPPED else "█") * (upto - drawn), style=_COLOURS[at])
        drawn = upto
    return bar


#: Takes how much is done.
Bar = Callable[[int], None]
Board = Callable[[Sequence[ProgressRow]], None]
_LINES_S: Final = 3.0


class Progress(Protocol):
    """Shows the steps of a run."""

    def step(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def bar(self, what: str, total: int | None) -> Bar:
        """A new bar; without a total it shows activity until 1 is done."""
        ...

    def board(self) -> Board:
        """The one board of a run, below its bars."""
        ...


class Quiet:
    """Shows only warnings, on standard error."""

    def step(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        sys.stderr.write(f"hushsum: {text}\n")

    def bar(self, what: str, total: int | None) -> Bar:  # noqa: ARG002  the protocol names them
        return lambda _: None

    def board(self) -> Board:
        return lambda _: None


class Lines(Quiet):
    """Plain lines on standard error: every step, and the board as it changes, but not more often than can be read."""

    def step(self, text: str) -> None:
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
    """Steps, warnings, bars and board on standard error, a terminal."""

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
        self._live.console.print(f"  {text}", highlight=False)

    def warn(self, text: str) -> None:
        self._live.console.print(f"[yellow]  {text}[/yellow]", highlight=False)

    def bar(self, what: str, total: int | None) -> Bar:
        task = self._progress.add_task(what, total=total)

        def at(done: int) -> None:
            self._progress.update(task, completed=done, total=done if total is None else total)

        return at

    def board(self) -> Board:
        def show(rows: Sequence[ProgressRow]) -> None:
            self._rows = tuple(rows)

        return show

    def _drawn(self) -> "RenderableType":
        from rich.console import Group

        return (
            Group(self._progress, table(self._rows, width=self._live.console.width)) if self._rows else self._progress
        )
