"""Lists every text that a user meets, with its place and kind: `python -m build_tools.texts [--kind KIND]`.

The kinds: `help` (commands and options, from click), `error`, `warning`, `log` (events with their keys), `metric`,
`docstring` (first lines, of the public names of `hushsum` and `edge_client`), and `text`: every other string of more
than one word, such as what a command prints, or a part of an error that is put together elsewhere.
"""

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = (
    "hushsum",
    "hushsum_cli",
    "hushsum_page",
    "edge_client",
    "aggregator",
    "hushsum_simulator",
    "proto/hushsum_proto",
)
KINDS: Final = ("help", "error", "warning", "log", "metric", "docstring", "text")
PUBLIC: Final = ("hushsum", "edge_client")
_LOGS: Final = {"debug", "info", "warning", "error", "exception", "failed", "worked"}
_HELP: Final = {"option", "argument", "command", "group", "examples"}  # click's, which are listed from its tree
_REFUSALS: Final = {"Refusal.of", "refused", "unavailable", "overloaded", "share_taken"}
_CODE: Final = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|ALTER|DROP|BEGIN|WITH|LOCK|ON CONFLICT)\b")


@dataclass(frozen=True, order=True)
class Text:
    """One text; ``line`` begins at 1."""

    file: str
    line: int
    kind: str
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.words}"


def texts() -> list[Text]:
    """All of them, sorted by file and line."""
    found = {*_help(), *_docstrings()}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in path.name:
                found |= set(strings(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))))
    return sorted(found)


def strings(source: str, file: str) -> list[Text]:
    """The texts in a module's strings, each with the kind of the nearest call or statement around it."""
    reader = _Reader(file)
    reader.visit(ast.parse(source))
    return reader.found


@dataclass
class _Reader(ast.NodeVisitor):
    file: str
    found: list[Text] = field(default_factory=list)
    kind: str = "text"

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a string that is a statement is a docstring
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._within("error", node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if name in _HELP:
            return
        first = next((each.value for each in node.args if isinstance(each, ast.Constant)), None)
        if name in _LOGS and isinstance(node.func, ast.Attribute) and isinstance(first, str):
            keys = " ".join(each.arg or "**" for each in node.keywords)
            self._add("log", node, f"{first} [{keys}]" if keys else first)
        elif isinstance(first, str) and first.startswith("hushsum_"):
            self._within("metric", node)
        elif name == "warn" or name.endswith("Warning"):
            self._within("warning", node)
        elif name.endswith(("Error", "Exception", "BadParameter")) or called in _REFUSALS:
            self._within("error", node)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(self.kind, node, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else ast.unparse(ast.JoinedStr([part]))[2:-1]
            for part in node.values
        ]
        self._add(self.kind, node, "".join(parts))
        for part in node.values:  # a text within braces
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _within(self, kind: str, node: ast.AST) -> None:
        outer, self.kind = self.kind, kind
        self.generic_visit(node)
        self.kind = outer

    def _add(self, kind: str, node: ast.expr, words: str) -> None:
        line = " ".join(words.split())
        if kind == "log" or (re.search(r"[A-Za-z]{2,}.* ", line) and not _CODE.match(line)):
            self.found.append(Text(self.file, node.lineno, kind, line))


def _help() -> Iterator[Text]:
    """Help of each command, argument and option of `hushsum`."""
    from hushsum_cli.main import cli

    def walk(command: click.Command, name: str) -> Iterator[Text]:
        callback = inspect.unwrap(command.callback or walk)
        file, start = inspect.getsourcefile(callback) or "", inspect.getsourcelines(callback)[1]
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        place = str(Path(file).resolve().relative_to(ROOT))
        for kind, words in (("", command.help), (" (short)", command.short_help), (" (epilog)", command.epilog)):
            if words:
                yield Text(place, start, "help", f"{name}{kind}: {' '.join(words.split())}")
        for each in command.params:
            option = each.opts[-1]
            line = next((at for at, text in enumerate(lines[start - 1 :], start) if f'"{option}"' in text), start)
            words = " ".join((getattr(each, "help", None) or "(no help)").split())
            shown = each.make_metavar(click.Context(command)) if not getattr(each, "is_flag", False) else ""
            yield Text(place, line, "help", f"{name} {option} {shown}: {words}".replace("  ", " "))
        for inner, sub in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
            yield from walk(sub, f"{name} {inner}")

    yield from walk(cli, "hushsum")


def _docstrings() -> Iterator[Text]:
    """First lines of the docstrings of public names, and of their public methods, inherited ones too."""
    for package in map(importlib.import_module, PUBLIC):
        for name in package.__all__:
            public = getattr(package, name)
            bases = reversed(public.__mro__) if inspect.isclass(public) else ()
            members = {inner: value for base in bases for inner, value in vars(base).items()}
            for at, each in [(name, public), *((f"{name}.{inner}", value) for inner, value in members.items())]:
                target = getattr(each, "fget", None) or getattr(each, "__func__", each)
                if at.rpartition(".")[2].startswith("_") or not (inspect.isroutine(target) or inspect.isclass(target)):
                    continue
                try:
                    file, line = inspect.getsourcefile(target) or "", inspect.getsourcelines(target)[1]
                except (OSError, TypeError):  # made by a library, or written in C
                    continue
                words = (inspect.getdoc(target) or "(none)").splitlines()[0]
                if Path(file).resolve().is_relative_to(ROOT):
                    yield Text(str(Path(file).resolve().relative_to(ROOT)), line, "docstring", f"{at}: {words}")


def main() -> None:
    """Prints the list."""
    parser = argparse.ArgumentParser(description="List every text that a user meets.")
    parser.add_argument("--kind", choices=KINDS, help="Only texts of this kind.")
    kind = parser.parse_args().kind
    for text in texts():
        if kind in {None, text.kind}:
            print(text)


if __name__ == "__main__":
    main()
