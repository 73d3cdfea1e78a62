"""TOML from a file or a peer, read in time that grows no faster than the text does."""

import re
import tomllib
from decimal import Decimal
from typing import Any, Final

#: Parts of a dotted key: the parser's work grows with their square, and no key here has more than three.
_DOTS_MAX: Final = 128
_BETWEEN: Final = re.compile(r"[,=\[\]{}]")


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a TOML text, its floats as Decimal.

    Raises:
        ValueError: It is no TOML, nested too deeply, or holds a number or a dotted key that is far too long.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _DOTS_MAX and not line.lstrip().startswith("#"):
            dots = max(part.count(".") for part in _BETWEEN.split(line))
            if dots > _DOTS_MAX:
                raise ValueError(f"line {number}: {dots} dots in a row, expected a key of fewer parts")
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number that no decimal holds") from error
