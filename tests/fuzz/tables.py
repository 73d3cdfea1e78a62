"""Mutations of nested tables, as canonical JSON: keys, values and types change, and the text stays good.

Now and then the text itself is broken: a key twice, deep nesting, numbers that are none, lone surrogates.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tests.fuzz import octets
from tests.fuzz.numbers import some_number
from tests.fuzz.pieces import Inner

_NAMES: Final = ("", "x", "format", "window", "events", "epsilon", "__class__", "é", "e\u0301", "\u0000", "a" * 2000)
_TEXTS: Final = (
    "", " ", "0", "1", "-1", "-0", "00", "0.0", "1.50", ".5", "1e400", "1e-400", "1E5", "1/3", "3/1", "2/4",
    "1/0", "0/1",
    "-1/3", "9" * 64, "9" * 65, "0." + "0" * 60 + "1", "1/" + "9" * 62, "0." + "9" * 62, "nan", "NaN", "inf", "-inf",
    "null", "true", "\u0661", "\u212b", "A\u030a", "\U0010ffff", "\ud800", "\udfff", "\u0000", "\u200b", "a" * 128,
    "a" * 129, "a" * 1025, "\U0001f600" * 40, "../../etc/passwd", "%s%n", "0x10", "1_000", "99999999999999999999",
    "0" * 64, "f" * 64, "F" * 64, "record", "client", "central", "secure", "local", "add/remove", "zero-out", "replace",
    "1d", "1s", "0s", "999999999999h", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0000-00-00",
)  # fmt: skip
_SOUP: Final = (
    "NaN", "Infinity", "-Infinity", "1e999", "-0", "-0.0", "1.0", "1E2", "01", "0x1", "null", "true", "[]", "{}", '""',
    '"\\ud800"', '"\\u0000"', '"\\u0041"', "9" * 5000, "1" * 400, "1." + "0" * 5000, "[" * 2000, "[" * 100_000,
    '{"a":' * 2000, "[" * 12 + "]" * 12, "[" * 20 + "]" * 20, '"' + "a" * 70_000 + '"', "'", '"', "\\",
    "\ud800", "\u0000",
    ",", ":", "}", "]", "{", "\n", " ", "\t", "\ufeff", "#",
)  # fmt: skip
Path = tuple[str | int, ...]


def walk(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value inside."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _number_like(rng: random.Random, text: str) -> str:
    """A number in text, changed a little."""
    head, dot, tail = text.partition(".")
    if rng.random() < 0.3:
        return f"{some_number(rng, 10)}/{max(1, some_number(rng, 10))}"
    digits = str(some_number(rng, int(head))) if rng.random() < 0.5 else head
    return digits + (dot + str(some_number(rng, int(tail or 0))).rstrip("0") if dot or rng.random() < 0.2 else "")


def some_value(rng: random.Random, old: Any) -> Any:  # noqa: PLR0911  one for each type of value
    """A value in place of another: mostly of its type."""
    if rng.random() < 0.15:
        return rng.choice((None, True, 1.5, [], {}, [[]], {"a": 1}, "", 0, -1, [1, "a"], [{}] * 3))
    if isinstance(old, bool) or old is None:
        return rng.choice((True, False, None, 0, 1))
    if isinstance(old, int):
        number = some_number(rng, abs(old))
        return -number if rng.random() < 0.2 else number
    if isinstance(old, str):
        plain = old.replace(".", "", 1)
        if plain.isascii() and plain.isdigit() and len(old) < 40 and rng.random() < 0.6:
            return _number_like(rng, old)
        choice = rng.random()
        if choice < 0.6:
            return rng.choice(_TEXTS)
        at = rng.randint(0, len(old))
        return old[:at] + rng.choice((rng.choice(_TEXTS), chr(rng.randrange(32, 127)))) + old[at + rng.randint(0, 2) :]
    if isinstance(old, dict):
        return rng.choice(({}, {**old, "x": 1}, [old]))
    if isinstance(old, list):
        return rng.choice((old * 2, old[:-1], old[::-1], old[1:], [*old, 0], old * 40, []))
    return str(old)


def change(rng: random.Random, value: Any, donor: Any) -> Any:
    """Changes nested tables in place, in one place; returns the new top."""
    paths = list(walk(value))
    path = rng.choice(paths)
    if not path:
        return value if rng.random() < 0.8 else some_value(rng, value)
    above, last = _at(value, path[:-1]), path[-1]
    choice = rng.random()
    if choice < 0.62:
        above[last] = some_value(rng, above[last])
    elif choice < 0.72:
        del above[last]
    elif choice < 0.80 and isinstance(above, dict):
        above[rng.choice((*_NAMES, str(last) + "x"))] = above[last]
    elif choice < 0.84 and isinstance(above, dict):
        above[rng.choice(_NAMES)] = above.pop(last)
    elif choice < 0.88 and isinstance(above, list) and isinstance(last, int):
        above.insert(last, above[last])
    else:
        found = _found(donor, path)
        above[last] = above[last] if found is None else found
    return value


def _found(donor: Any, path: Path) -> Any:
    """A copy of what stands at the same path, or None."""
    try:
        return json.loads(json.dumps(_at(donor, path)))
    except (KeyError, IndexError, TypeError):
        return None


def canonical_text(value: Any) -> bytes:
    """As the canonical encoding writes it, whatever the values are."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def read(data: bytes) -> Any:
    """The value of JSON.

    Raises:
        ValueError: It is none.
    """
    return json.loads(data.decode("utf-8", "strict"))


def broken(rng: random.Random, data: bytes, soup: Sequence[str]) -> bytes:
    """The text with something in it that does not belong there."""
    choice = rng.random()
    if choice < 0.2 and b":" in data:  # a key twice
        parts = data.split(b",")
        at = rng.randrange(len(parts))
        parts.insert(at, parts[rng.randrange(len(parts))])
        return b",".join(parts)
    places = [at for at, octet in enumerate(data[:4000]) if octet in b',:"[]{}=\n'] or [0]
    at = rng.choice(places) + rng.randint(0, 1)
    piece = rng.choice(soup).encode("utf-8", "surrogatepass")
    return data[:at] + piece + data[at + rng.choice((0, 0, 1, 3)) :]


def json_mutator(finish: Callable[[Any], Any] = lambda value: value) -> Inner:
    """Changes canonical JSON.

    Args:
        finish: Whatever follows from the other values, such as a checksum.
    """

    def change_json(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> bytes:
        choice = rng.random()
        if choice < 0.06:
            return octets.mutated(rng, data, donors)
        if choice < 0.14:
            return broken(rng, data, _SOUP)
        try:
            value, donor = read(data), read(rng.choice(donors))
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                value = change(rng, value, donor)
            return canonical_text(finish(value))
        except (ValueError, RecursionError):
            return octets.mutated(rng, data, donors)

    return change_json
