"""The reference of plans: every key with its type, range, default and unit, and what it changes."""

import re
from collections.abc import Iterator
from typing import Final

from build_tools.docs_site.plan_probes import REQUIRED, STATED, accepted
from hushsum.plan_keys import KEYS, TABLE, Key

_OTHERS: Final = 4  # samples that are named; more are "otherwise"
_TITLES: Final = {"": "The top of a plan"}


def plan_keys() -> str:
    """Markdown: a section for each table, and for each of its keys."""
    return "\n".join(line for table in KEYS for line in _table(table))


def _table(table: str) -> Iterator[str]:
    title = _TITLES.get(table) or f"`[{table}]`"
    yield f"## {title}\n"
    if table in {"sketch.groups", "sketch.transforms"}:
        yield f"A list of tables: each begins with `[[{table}]]`.\n"
    for key, stated in KEYS[table].items():
        values, default = described(table, key)
        yield f"### `{table}.{key}`\n" if table else f"### `{key}`\n"
        yield f"{stated.meaning}\n"
        yield "| type and range | default | unit |\n|---|---|---|"
        yield f"| {values} | {default} | {stated.unit or '–'} |\n"
        yield from _changes(stated)
        yield ""


def _changes(stated: Key) -> Iterator[str]:
    """What a key changes, and what it does not; nothing of a table, whose keys say it."""
    if stated.privacy == stated.accuracy == TABLE:
        return
    changes = {"Privacy": stated.privacy, "Accuracy": stated.accuracy, "Bytes": stated.size}
    yield from (f"- **{what}**: {text}" for what, text in changes.items() if text)
    if unchanged := [what for what, text in changes.items() if not text]:
        yield f"- No change: {', '.join(unchanged).lower()}."


def described(table: str, key: str) -> tuple[str, str]:
    """Type and range of a key, and its default, in Markdown; where samples differ, by sample."""
    ranges: dict[str, list[str]] = {}
    defaults: dict[str, list[str]] = {}
    for each in accepted(table, key):
        ranges.setdefault(_plain(each.expected), []).append(each.sample.label)
        if each.default is not None:
            defaults.setdefault(_default(table, key, each.default), []).append(each.sample.label)
    stated = KEYS[table][key]
    return stated.values or _by_sample(ranges), _by_sample(defaults) or stated.default or "none"


def _by_sample(texts: dict[str, list[str]]) -> str:
    if len(texts) <= 1:
        return "".join(texts)
    named = sorted(texts.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{text} ({_some(labels)})" for text, labels in named)


def _some(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= _OTHERS else "otherwise"


def _default(table: str, key: str, value: object) -> str:
    if value is STATED:
        return KEYS[table][key].default
    if value is REQUIRED:
        return REQUIRED
    return f"`{value}`" if value not in ("", []) else "empty"


def _plain(expected: str) -> str:
    """What a refusal expects, with its literal values as code."""
    return re.sub(r"'([^']*)'", r"`\1`", expected).replace("|", "\\|")
