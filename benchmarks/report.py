"""Figures as a table and as JSON: numbers alone, no names of machines or folders."""

import json
from collections.abc import Sequence
from pathlib import Path

Row = dict[str, str | int | float | bool]


def print_table(title: str, rows: Sequence[Row]) -> None:
    """One line a row, columns in the order of their first appearance; a missing figure is left empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(len, [column, *(line[i] for line in cells)])) for i, column in enumerate(columns)]
    print(f"\n{title}")
    for line in [columns, *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def write_json(path: Path, title: str, rows: Sequence[Row], *, is_dense: bool = False) -> None:
    """Writes the rows, rounded to four digits; one line a row if dense."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = [{key: _rounded(value) for key, value in row.items()} for row in rows]
    text = json.dumps({"title": title, "rows": rounded}, indent=1, ensure_ascii=False)
    if is_dense:
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rounded)
        text = f'{{\n "title": {json.dumps(title, ensure_ascii=False)},\n "rows": [\n{lines}\n ]\n}}'
    path.write_text(text + "\n", "utf-8")


def _text(value: str | float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _rounded(value: str | float) -> str | float:
    return float(f"{value:.4g}") if isinstance(value, float) else value
