"""Who is in which step: one line a cohort, as a table of bars on a terminal, as plain lines elsewhere."""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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
class Row:
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


def table(rows: Sequence[Row], *, width: int) -> "Table":
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


def _bar(row: Row, cells: int) -> "Text":
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
