"""How subcommands print: tables for people, JSON for machines."""

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
#: The option of every command that prints intervals.
confidence_option = click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Confidence level of the intervals.",
)

#: The option of every command that looks for changes.
level_option = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="The probability that there is any false change is at most this.",
)


class ExactNumber(click.ParamType):  # type: ignore[type-arg]  # older versions of click take no argument
    """A number above 0, kept exactly as it was written.

    Args:
        zero: Whether 0 is one, too.
    """

    name = "number"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """The value of text such as ``0.5`` or ``1/3``."""
        try:
            number = Fraction(str(value))
        except (ValueError, ZeroDivisionError):
            number = Fraction(-1)
        if number < 0 or (number == 0 and not self._zero):
            least = "of at least 0" if self._zero else "above 0"
            self.fail(f"got {value!r}, expected a number {least}, such as 0.5 or 1/3", param, ctx)
        return number


def examples(*lines: str) -> str:
    """The end of a help text: examples that stay as they are."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n  ".join(("\b\n" + title, *lines))


def bytes_text(number: int) -> str:
    """A number of bytes as people read it, such as ``12.5 KiB``."""
    if number >= 2**20:
        return f"{number / 2**20:,.1f} MiB"
    return f"{number / 2**10:,.1f} KiB" if number >= 2**10 else f"{number} bytes"


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table on standard output; numbers, which all columns but the first hold, stand right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    plain_console().print(table)


def print_pairs(pairs: Iterable[tuple[str, str]], *, title: str | None = None) -> None:
    """Names and values, one pair a line, on standard output."""
    console = plain_console()
    if title:
        console.print(title, style="bold")
    console.print(pairs_table(pairs))


def pairs_table(pairs: Iterable[tuple[str, str]]) -> "Table":
    """Names and values, one pair a line."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in pairs:
        table.add_row(name, value)
    return table


def plain_console() -> "Console":
    """Standard output, where text is what it is: nothing in it is markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def utc_text(time_ms: int) -> str:
    """A time in milliseconds since 1970 as people read it, to the second, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
