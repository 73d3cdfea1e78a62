"""What `--columns` says: which columns of a file are taken."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hushsum.tables import Columns


def chosen_columns(text: str | None) -> "Columns | None":
    """What ``--columns`` says: names with commas, or PLAN=FILE pairs; None where it is left out.

    Raises:
        BadParameter: Some of it is a pair, and some is not; or a name stands twice.
    """
    if text is None:
        return None
    parts = text.split(",")
    pairs = [part.partition("=")[::2] for part in parts if "=" in part]
    if pairs and len(pairs) < len(parts):
        raise click.BadParameter(
            f"{text!r}: expected column names, or a PLAN=FILE pair for each column", param_hint="--columns"
        )
    if len({name for name, _ in pairs}) < len(pairs):
        raise click.BadParameter(f"{text!r}: a column of the plan is given twice", param_hint="--columns")
    return dict(pairs) if pairs else tuple(parts)
