"""The rules of the code's shape: each looks at one source file and yields what breaks it, for tests/test_tidy.py."""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple


class Finding(NamedTuple):
    """One breach of a rule: where, and what is wrong there."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Reference(NamedTuple):
    """A use of something imported, by its full dotted name, whatever it is called locally."""

    line: int
    name: str

    def within(self, *roots: str) -> bool:
        """Whether the name is one of these, or stands below one."""
        return any(self.name == root or self.name.startswith(f"{root}.") for root in roots)


@dataclass(frozen=True)
class Source:
    """A Python file: its path from the top of the repository, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def module(self) -> str:
        """The dotted name that it is imported by."""
        parts = PurePosixPath(self.path.removeprefix("proto/")).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def found(self, line: int, what: str) -> Finding:
        return Finding(self.path, line, what)

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Every import, and every later use of what was imported, in the order of the lines."""
        local = {alias: name for node in ast.walk(self.tree) for alias, name in self._bound_by(node)}
        found = {Reference(line, name) for node in ast.walk(self.tree) for line, name in self._named_by(node, local)}
        return tuple(sorted(found))

    def imported_by(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """(local name or "", full name) of what an import statement names; nothing for other nodes."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or "", alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = self.module.split(".") + ([""] if self.path.endswith("__init__.py") else [])
                base = ".".join(filter(None, [*above[: -node.level], base]))
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"

    def _bound_by(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        for alias, name in self.imported_by(node):
            top = name.partition(".")[0]
            yield (alias, name) if alias else (top, top)

    def _named_by(self, node: ast.AST, local: Mapping[str, str]) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for _, name in self.imported_by(node))
        elif isinstance(node, ast.Attribute | ast.Name):
            dotted = _dotted(node)
            root, dot, rest = dotted.partition(".")
            if root in local:
                yield node.lineno, local[root] + dot + rest


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


Rule = Callable[[Source], Iterator[Finding]]

CLOCKS = ("time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today")
TASKS = {"create_task", "ensure_future", "run_in_executor", "to_thread"}
OS_RANDOMNESS = ("os.urandom", "os.getrandom", "secrets", "uuid.uuid1", "uuid.uuid4")
OPEN_RANDOMNESS = ("random", "numpy.random")
HEAVY = ("altair", "dp_accounting", "matplotlib", "numba", "pandas", "scipy", "sklearn", "vl_convert")
STRAY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}
SHELLS = {"aggregator", "edge_client"}
PRODUCT = {"hushsum", "hushsum_proto", "hushsum_cli", "hushsum_page", "edge_client", "aggregator", "hushsum_simulator"}
# The translator, and the edges that speak gRPC: a module of that name, with a suffix, or in a room of that name.
STUB_USERS = (
    "hushsum_proto.convert",
    "aggregator.ingest.gateway",
    "aggregator.api",
    "aggregator.shuffler.intake",
    "aggregator.shuffler.forwarder",
    "edge_client.transport.grpc",
    "hushsum_simulator.console",
    "hushsum_simulator.deployment.senders",
)


def the_core_reads_no_clock(source: Source) -> Iterator[Finding]:
    """Time enters hushsum as a field of an entry."""
    if source.package == "hushsum":
        for use in source.references:
            if use.within(*CLOCKS):
                yield source.found(use.line, f"{use.name}: the core reads no clock")


def the_core_has_one_database(source: Source) -> Iterator[Finding]:
    """hs.Ledger, the ledger of a notebook, is an SQLite file; nothing else in hushsum opens one."""
    if source.package == "hushsum" and source.module != "hushsum.privacy.ledger":
        for use in source.references:
            if use.within("sqlite3"):
                yield source.found(use.line, f"{use.name}: only the ledger opens a database")


def the_shell_takes_time_and_tasks_from_its_ports(source: Source) -> Iterator[Finding]:
    """What makes it possible to run the whole service and SDK in virtual time."""
    if source.package not in SHELLS or source.module == f"{source.package}.runtime":
        return
    for use in source.references:
        if use.within(*CLOCKS, "asyncio.sleep", *OS_RANDOMNESS):
            yield source.found(use.line, f"{use.name}: take it from the Runtime of runtime.py")
    for node in ast.walk(source.tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in TASKS:
            yield source.found(getattr(node, "lineno", 0), f"{name}: take it from the Runtime of runtime.py")


def heavy_packages_are_loaded_by_the_function_that_needs_them(source: Source) -> Iterator[Finding]:
    """A device has none of them, and `import hushsum` must stay quick."""
    parts = source.module.split(".")
    if source.package not in {"hushsum", "hushsum_proto", "edge_client"} or parts[1:2] in (["plots"], ["estimators"]):
        return
    for node in _run_at_import(source.tree.body):
        for _, name in source.imported_by(node):
            if name.partition(".")[0] in HEAVY:
                yield source.found(getattr(node, "lineno", 0), f"{name}: import it inside the function that needs it")


def _run_at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        for block in ("body", "orelse", "finalbody"):
            yield from _run_at_import(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _run_at_import(handler.body)


def private_randomness_is_the_operating_systems(source: Source) -> Iterator[Finding]:
    """A generator that can be replayed protects nobody: it is for tests, the simulator and benchmarks."""
    if source.package not in PRODUCT - {"hushsum_simulator"}:
        return
    for use in source.references:
        if use.within(*OPEN_RANDOMNESS) or use.name.endswith(".ReplayableEntropy"):
            yield source.found(use.line, f"{use.name}: what is private is drawn from OsEntropy")
        if use.name.endswith(".KeyedEntropy") and source.module not in {
            "aggregator.release.releaser",
            "hushsum.cumulative",  # whose state has a key for each node in use, and drops it when the node leaves
            "hushsum.entropy",
        }:
            yield source.found(use.line, f"{use.name}: only the releaser stores a key with its charge, and erases it")
        if source.package == "hushsum" and source.module != "hushsum.entropy" and use.within(*OS_RANDOMNESS):
            yield source.found(use.line, f"{use.name}: only hushsum.entropy asks the operating system")


def generated_stubs_stay_at_the_edges(source: Source) -> Iterator[Finding]:
    """Everything else speaks in the core's own types."""
    is_edge = any(f"{source.module}_".startswith((f"{user}_", f"{user}.")) for user in STUB_USERS)
    if source.package not in PRODUCT or is_edge:
        return
    for use in source.references:
        if use.within("hushsum_proto.v1", "google.protobuf"):
            yield source.found(use.line, f"{use.name}: only hushsum_proto.convert and the gRPC edges see protobuf")


def nobody_imports_the_estimators(source: Source) -> Iterator[Finding]:
    """They need scikit-learn; an analyst imports them by name."""
    if source.package in PRODUCT and not f"{source.module}.".startswith("hushsum.estimators."):
        for use in source.references:
            if use.within("hushsum.estimators"):
                yield source.found(use.line, f"{use.name}: nothing but an analyst's code imports the estimators")


def modules_are_named_after_ideas(source: Source) -> Iterator[Finding]:
    """A drawer for everything fills up with everything."""
    stray = STRAY_NAMES.intersection(PurePosixPath(source.path).with_suffix("").parts)
    if stray:
        yield source.found(1, f"{stray.pop()}: name it after what it is about")


def events_and_effects_are_no_tuples(source: Source) -> Iterator[Finding]:
    """Two kinds of tuples with the same fields are equal, and a test that expects the one passes with the other."""
    if "NamedTuple" not in source.text:
        return  # parsing every test takes seconds
    tuples = {
        node.name: node.lineno
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and any(_dotted(base).endswith("NamedTuple") for base in node.bases)
    }
    for node in source.tree.body:
        if isinstance(node, ast.Assign) and any(_dotted(target) in {"Event", "Effect"} for target in node.targets):
            kinds = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            for name in sorted(kinds & tuples.keys()):
                yield source.found(tuples[name], f"{name}: make it a frozen dataclass, which equals its own kind alone")


_CODES = r"[A-Z]+[0-9]+(?:,? *[A-Z]+[0-9]+)*"
_NOQA = re.compile(rf"#\s*(?:ruff:\s*)?noqa(?::\s*(?P<codes>{_CODES}))?(?P<reason>.*)", re.IGNORECASE)
_TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?:\[(?P<codes>[\w, -]+)\])?(?P<reason>.*)")
_WHOLE_FILE = re.compile(r"#\s*mypy:|#\s*pyright:|#\s*fmt:\s*off")
_ANY_OF_THEM = re.compile(r"#.*noqa|#\s*(?:type|mypy|pyright|fmt):", re.IGNORECASE)


def suppressions_name_their_rule_and_their_reason(source: Source) -> Iterator[Finding]:
    """`# noqa: CODE  why`, `# type: ignore[code]  # why`: at least three words of why."""
    if not _ANY_OF_THEM.search(source.text):
        return  # reading the tokens of every file takes seconds
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if _WHOLE_FILE.match(token.string):
            yield source.found(line, "switches a checker off for a whole region; suppress the one line instead")
        for pattern in (_NOQA, _TYPE_IGNORE):
            match = pattern.search(token.string)
            if match and not match["codes"]:
                yield source.found(line, "names no rule")
            elif match and len(re.findall(r"[^\W\d_]{2,}", match["reason"])) < 3:
                yield source.found(line, "does not say why")


RULES: tuple[Rule, ...] = (
    the_core_reads_no_clock,
    the_core_has_one_database,
    the_shell_takes_time_and_tasks_from_its_ports,
    heavy_packages_are_loaded_by_the_function_that_needs_them,
    private_randomness_is_the_operating_systems,
    generated_stubs_stay_at_the_edges,
    nobody_imports_the_estimators,
    modules_are_named_after_ideas,
    events_and_effects_are_no_tuples,
    suppressions_name_their_rule_and_their_reason,
)
