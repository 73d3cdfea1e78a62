"""TOML of the user's own files. What comes from a peer is never TOML."""

import tomllib
from decimal import Decimal
from typing import Any


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a TOML text, its floats as Decimal.

    Raises:
        ValueError: It is no TOML, nested too deeply, or holds a number that no decimal holds.
    """
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number that no decimal holds") from error
