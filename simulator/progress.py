"""How a run shows that it moves on: bars on a terminal, nothing elsewhere."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

#: Tells a bar how much is done.
Bar = Callable[[int], None]


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


class Bars:
    """Bars and steps on the terminal that standard error is."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(f"  {text}", highlight=False)

    def warn(self, text: str) -> None:
        """A coloured line above the bars."""
        self._progress.console.print(f"[yellow]  {text}[/yellow]", highlight=False)

    def bar(self, what: str, total: int | None) -> Bar:
        """A bar below the others."""
        task = self._progress.add_task(what, total=total)

        def at(done: int) -> None:
            self._progress.update(task, completed=done, total=done if total is None else total)

        return at
