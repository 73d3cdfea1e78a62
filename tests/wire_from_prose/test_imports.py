"""The modules of this folder import the standard library and each other alone: nothing of the product."""

import ast
import sys
from pathlib import Path

import pytest

MODULES = {path.stem: path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith(("test_", "_"))}


def foreign_imports(text: str) -> set[str]:
    """Return what a module imports besides the standard library and the modules of this folder."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.partition(".")[0] not in sys.stdlib_module_names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            sibling = node.level == 1 and module in MODULES
            standard = node.level == 0 and module.partition(".")[0] in sys.stdlib_module_names
            found |= set() if sibling or standard else {"." * node.level + module}
        elif isinstance(node, ast.Name) and node.id == "__import__":
            found.add("__import__")
    return found | ({"importlib"} if "importlib" in text else set())


def test_there_are_modules() -> None:
    assert set(MODULES) >= {"bits", "canonical_json", "codes", "delta", "hush_file", "plan", "public_random"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_the_standard_library_and_its_siblings_alone(name: str) -> None:
    assert foreign_imports(MODULES[name].read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import numpy as np\n", {"numpy"}),
        ("def f():\n    from hushsum.delta import Delta\n", {"hushsum.delta"}),
        ("from ..plans import plan\n", {"..plans"}),
        ("from . import bits\n", {"."}),
        ("__import__('hushsum')\n", {"__import__"}),
        ("import importlib\n", {"importlib"}),
    ],
)
def test_a_planted_import_is_found(text: str, found: set[str]) -> None:
    assert foreign_imports(text) == found
