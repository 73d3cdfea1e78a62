"""Public decoders that stand in the tree, by their names: each must be one that a target names, or be left out here."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("hushsum", "proto/hushsum_proto", "aggregator", "edge_client", "hushsum_cli")
NAMES: Final = re.compile(
    r"(\w*_)?from_(bytes|toml|text|pem|line|lines|fields|json|wire|metadata|der)|"
    r"(unpack|decode|parse|load|loads)(_\w+)?|read_\w+|count_packed|renumbered|opened|flags_of|round_of|flaw_of|"
    r"id_in|is_seal|(batch|single|delta)_entries"
)
_COMPILED: Final = re.compile(r"^from hushsum\.compiled import .*\b(compiled|inlined)\b", re.MULTILINE)
#: Those that no stranger's bytes reach, or that are called by others which targets name. A name stands for all below.
LEFT_OUT: Final[dict[str, str]] = {
    "hushsum.plan.Plan.from_toml": "the user's own file",
    "hushsum.signing.Directory.from_toml": "the user's own file",
    "hushsum.proposal.read_bounds": "arguments of this process",
    "hushsum.estimators.classifier.read_labels": "arguments of this process",
    "aggregator.shuffler.app.read_plan": "reads the operator's own file for Plan.from_bytes",
    "hushsum.signing.SigningKey.load": "reads a file for from_pem",
    "hushsum.releases.released.load": "reads a file for Release.from_bytes",
    "hushsum.families.fourier": "arrays and counters of this process",
    "hushsum.families.hashed": "keys of a plan's table, read by Plan.from_bytes",
    "hushsum.families.lsh": "keys of a plan's table, read by Plan.from_bytes",
    "hushsum.families.paired": "keys of a plan's table, read by Plan.from_bytes",
    "hushsum.families.limits.read_kernel": "keys of a plan's table, read by Plan.from_bytes",
    "hushsum.families.vectors": "records and queries of this process",
    "hushsum.tables": "records and queries of this process, and the user's own files",
    "hushsum.cumulative": "the state of a sequence, in the operator's own database",
    "aggregator.ingest.window_tracker": "this process's own state",
    "aggregator.store.plans": "this process's own database; its plans are read by Plan.from_bytes",
    "aggregator.store.store": "this process's own database",
    "aggregator.audit": "this process's own file, read by lines: tests/aggregator/test_audit.py",
    "aggregator.auth.tokens": "reads a file for TokenTable.from_bytes",
    "aggregator.config": "the operator's own settings",
    "aggregator.shuffler.reports_file": "this process's own file",
    "edge_client.spool.spool": "this device's own file",
    "edge_client.plan_fetch.read_plan": "calls Plan.from_bytes, and nothing else",
}


def decoders_in(source: str, module: str) -> Iterator[str]:
    """The qualified names of the public decoders of a module."""
    if any(part.startswith("_") for part in module.split(".")):
        return
    yield from _named(ast.parse(source).body, module)


def _named(body: list[ast.stmt], above: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _named(node.body, f"{above}.{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NAMES.fullmatch(node.name):
            yield f"{above}.{node.name}"


@cache
def decoders() -> list[str]:
    """All of the tree's."""
    return [name for module, source in _sources() for name in decoders_in(source, module)]


def compiled_modules() -> list[str]:
    """Those with loops that numba compiles: it reads their bytecode, so that nothing may be added to it."""
    return [module for module, source in _sources() if _COMPILED.search(source)]


def _sources() -> Iterator[tuple[str, str]]:
    """Each module's name, and its text; but what is generated."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            parts = path.relative_to(ROOT / "proto" if package.startswith("proto") else ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text(encoding="utf-8")


def stands_in(name: str, names: object) -> bool:
    """Whether a name, or what it is below, is among some."""
    assert isinstance(names, set | dict)
    parts = name.split(".")
    return any(".".join(parts[:end]) in names for end in range(1, len(parts) + 1))
