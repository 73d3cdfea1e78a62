"""Reads the keys of a plan one by one: each is typed, bounded, and refused by name when it is wrong.

A :class:`Table` wraps one table of a plan (``[record]``, ``[sketch]``, …). Whoever owns the table reads every key that
it knows and then calls :meth:`Table.finish`, which refuses what nobody asked for.

TOML is read from files of the user alone; data from a peer is never TOML.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from hushsum.canonical import INTEGER_LIMIT, check_text, real
from hushsum.errors import CanonicalError, Missing, NotBuiltError, PlanError

_TEXT_MAX: Final = 128
# Controls, formats, private use, breaks, spaces but the plain one: two different names would look the same.
_HIDDEN: Final = {"Cc", "Cf", "Co", "Zl", "Zp", "Zs"}


class Table:
    """One table of a plan while it is read.

    Args:
        values: What came: keys to values, as TOML, JSON or Python gave them.
        path: The table's full name, such as ``sketch``; empty for the top of a plan.
    """

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise PlanError(path or "plan", values, "a table of keys")
        self._values: dict[object, object] = dict(values)
        self._path = path
        self._asked: set[str] = set()

    def name(self, key: str) -> str:
        """The key's full name, for errors."""
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        """Whether the key was written."""
        return key in self._values

    def replaced(self, **values: object) -> "Table":
        """The same table with other values, nothing of it read yet."""
        return Table(self._values | values, self._path)

    def value(self, key: str) -> object:
        """Whatever stands under a key that must be there."""
        return self._take(key, Missing.MISSING, "a value")

    def table(self, key: str) -> "Table":
        """The table under a key that must be there."""
        return Table(self._take(key, Missing.MISSING, "a table of keys"), self.name(key))

    def optional_table(self, key: str) -> "Table | None":
        """The table under a key, or None where it is left out."""
        return self.table(key) if self.has(key) else None

    def tables(self, key: str) -> "tuple[Table, ...]":
        """The list of tables under a key; none where it is left out."""
        value = self._take(key, (), "")
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise PlanError(self.name(key), value, "a list of tables")
        return tuple(Table(item, self.name(f"{key}[{index}]")) for index, item in enumerate(value))

    def integers(self, key: str, *, low: int, high: int, rising: bool = True) -> tuple[int, ...]:
        """A list of at least one integer within [low, high], rising unless told otherwise."""
        expected = f"a list of {'rising ' if rising else ''}integers from {low} to {high}"
        value = self._take(key, Missing.MISSING, expected)
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise PlanError(self.name(key), value, expected)
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int | np.integer) or not low <= item <= high:
                raise PlanError(self.name(key), value, expected)
        if rising and any(after <= before for before, after in pairwise(value)):
            raise PlanError(self.name(key), value, expected)
        return tuple(int(item) for item in value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string of at most 128 visible characters, in Unicode normal form C; spaces only between others."""
        value = self._take(key, _or_required(default), "a string")
        if not isinstance(value, str):
            raise PlanError(self.name(key), value, "a string")
        return self._clean(key, value)

    def integer(self, key: str, *, low: int, high: int = INTEGER_LIMIT, default: int | None = None) -> int:
        """An integer within [low, high]."""
        expected = f"an integer from {low} to {high}"
        value = self._take(key, _or_required(default), expected)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise PlanError(self.name(key), value, expected)
        return int(value)

    def real(self, key: str, *, expected: str, above: int | None = None, default: str | None = None) -> Fraction:
        """A real number, exactly as written; strictly ``above`` a bound where there is one."""
        came = self._take(key, _or_required(default), expected)
        value = self._exact(key, came, expected)
        if above is not None and value <= above:
            raise PlanError(self.name(key), came, expected)
        return value

    def reals(self, key: str, *, length: int) -> tuple[Fraction, ...]:
        """A list of ``length`` real numbers."""
        expected = f"a list of {length} numbers"
        value = self._take(key, Missing.MISSING, expected)
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != length:
            raise PlanError(self.name(key), value, expected)
        return tuple(self._exact(f"{key}[{index}]", item, "a number") for index, item in enumerate(value))

    def texts(self, key: str, *, lengths: tuple[int, ...] | None = None, distinct: bool = True) -> tuple[str, ...]:
        """A list of strings, empty by default, of one of the given lengths where they are given."""
        value = self._take(key, (), "")
        expected = f"a list of {' or '.join(map(str, lengths))} strings" if lengths else "a list of strings"
        if isinstance(value, str) or not isinstance(value, Sequence) or (lengths and len(value) not in lengths):
            raise PlanError(self.name(key), value, expected)
        if not all(isinstance(item, str) for item in value):
            raise PlanError(self.name(key), value, expected)
        if distinct and len(set(value)) != len(value):
            raise PlanError(self.name(key), value, expected + ", all different")
        return tuple(self._clean(key, item) for item in value)

    def choice(self, key: str, *, built: Sequence[str], known: Sequence[str] = (), default: str | None = None) -> str:
        """One of the values that are built; one that the design knows beside them is refused by name."""
        expected = "one of " + ", ".join(map(repr, built))
        value = self._take(key, _or_required(default), expected)
        if isinstance(value, str) and value in known:
            raise NotBuiltError(self.name(key), value, " or ".join(map(repr, built)))
        if not isinstance(value, str) or value not in built:
            raise PlanError(self.name(key), value, expected)
        return str(value)

    def finish(self) -> None:
        """Refuses the first key that nobody asked for.

        Raises:
            PlanError: With the nearest known key where there is one.
        """
        self._refuse_others(self._asked)

    def _refuse_others(self, known: Collection[str]) -> None:
        for key in self._values:
            if key not in known:
                from difflib import get_close_matches

                near = get_close_matches(str(key), sorted(known), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(sorted(known))}"
                raise PlanError(self.name(str(key)), self._values[key], f"a known key; {hint}")

    def refuse_unknown(self, keys: Mapping[str, Collection[str]]) -> None:
        """Refuses the first key of this table, and of the tables in it, that is unknown whatever else is written.

        It is called before anything is read, so that a misspelt key is named, and not the one that is missing for it.

        Args:
            keys: By the full name of a table (of a list of tables without its index), the keys that it may have.

        Raises:
            PlanError: With the nearest known key where there is one.
        """
        self._refuse_others(keys[self._path.split("[")[0]])
        for key, value in self._values.items():
            path = self.name(str(key))
            if path not in keys:
                continue
            if isinstance(value, Mapping):
                Table(value, path).refuse_unknown(keys)
            elif isinstance(value, Sequence):
                for index, item in enumerate(value):
                    if isinstance(item, Mapping):
                        Table(item, f"{path}[{index}]").refuse_unknown(keys)

    def _take(self, key: str, default: object, expected: str) -> object:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is Missing.MISSING:
            raise PlanError(self.name(key), value, expected)
        return value

    def _exact(self, key: str, value: object, expected: str) -> Fraction:
        try:
            return real(value)
        except CanonicalError as error:
            raise PlanError(self.name(key), value, f"{expected} ({error})") from error

    def _clean(self, key: str, value: str) -> str:
        try:
            check_text(value)
        except CanonicalError as error:
            raise PlanError(self.name(key), value, f"a valid string ({error})") from error
        hidden = any(unicodedata.ucd_3_2_0.category(char) in _HIDDEN for char in value.replace(" ", ""))
        if hidden or len(value) > _TEXT_MAX or value != value.strip():
            expected = f"at most {_TEXT_MAX} visible characters, with spaces only between others"
            raise PlanError(self.name(key), value, expected)
        return value


def _or_required(default: object) -> object:
    return Missing.MISSING if default is None else default


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a TOML text, its floats as Decimal.

    Raises:
        ValueError: It is no TOML, nested too deeply, or holds a number within range.
    """
    import tomllib  # a device reads none: its plan comes in canonical bytes

    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number within range") from error
