"""How objects show in a notebook: small HTML tables of text, escaped, that load nothing."""

from collections.abc import Iterable, Sequence
from typing import Final

ROWS_MAX: Final = 20
_TABLE: Final = "border-collapse:collapse;font-size:90%"
_CAPTION: Final = "text-align:left;font-weight:bold;padding:2px 8px 2px 0"
_CELL: Final = "padding:2px 8px 2px 0;border-top:1px solid #ccc;vertical-align:top"


def pairs_html(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, one pair a row; pairs without a value are left out."""
    rows = ((name, value) for name, value in pairs if value)
    return _table(title, (_row(row, "left") for row in rows))


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, total: int | None = None) -> str:
    """A table of numbers, whose first :data:`ROWS_MAX` rows are shown, and how many more there are.

    Args:
        title: Above it.
        columns: Their names.
        rows: At least those that are shown.
        total: How many there are in all; None: those given.
    """
    more = (len(rows) if total is None else total) - ROWS_MAX
    lines = [_row(columns, "right", "th"), *(_row(row, "right") for row in rows[:ROWS_MAX])]
    if more > 0:
        lines.append(f'<tr><td style="{_CELL}" colspan="{len(columns)}">{more:,} more</td></tr>')
    return _table(title, lines)


def _table(title: str, rows: Iterable[str]) -> str:
    caption = f'<caption style="{_CAPTION}">{_escaped(title)}</caption>'
    return f'<table style="{_TABLE}">{caption}{"".join(rows)}</table>'


def _row(cells: Sequence[str], align: str, tag: str = "td") -> str:
    style = f"{_CELL};text-align:{align}"
    return "<tr>" + "".join(f'<{tag} style="{style}">{_escaped(cell)}</{tag}>' for cell in cells) + "</tr>"


def _escaped(text: str) -> str:
    from html import escape  # here, for a device shows nothing

    return escape(text, quote=True)
