"""How a run shows that it moves on: bars on a terminal; elsewhere nothing, or plain lines."""

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from simulator import board
from simulator.board import Row

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Tells a bar how much is done.
Bar = Callable[[int], None]
#: Tells a board where everybody is.
Board = Callable[[Sequence[Row]], None]
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

        def show(rows: Sequence[Row]) -> None:
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

        self._rows: Sequence[Row] = ()
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

        def show(rows: Sequence[Row]) -> None:
            self._rows = tuple(rows)

        return show

    def _drawn(self) -> "RenderableType":
        from rich.console import Group

        return (
            Group(self._progress, board.table(self._rows, width=self._live.console.width))
            if self._rows
            else self._progress
        )
