"""What `import hushsum` and `import edge_client` load: a change that loads more is seen here, not by its users."""

import subprocess
import sys

import pytest

import hushsum as hs

#: By import, the packages outside the standard library that it loads.
PACKAGES = {
    "hushsum": {"hushsum", "numpy"},
    "edge_client": {"edge_client", "hushsum", "hushsum_proto", "numpy"},
    "hushsum_cli": {"hushsum_cli"},
}
#: By import, what it must leave to those who use it: of the standard library, and of our own.
LEFT_OUT = {
    "hushsum": {
        "asyncio", "difflib", "random", "socket", "sqlite3", "ssl", "statistics", "subprocess", "tomllib",
        "hushsum.advice", "hushsum.choosing", "hushsum.families.hashed", "hushsum.families.hermite", "hushsum.fitting",
        "hushsum.estimators", "hushsum.local", "hushsum.panels", "hushsum.plot_pages", "hushsum.plots",
        "hushsum.proposal",
        "hushsum.privacy.ledger", "hushsum.release_format", "hushsum.releases", "hushsum.secure_sum",
        "hushsum.statistics", "hushsum.synthetic", "hushsum.zstd_frame",
    },
    "edge_client": {
        "difflib", "random", "statistics", "tomllib",
        "edge_client.participation", "edge_client.session", "edge_client.transport",
        "hushsum.advice", "hushsum.choosing", "hushsum.families.hashed", "hushsum.families.hermite", "hushsum.fitting",
        "hushsum.estimators", "hushsum.local", "hushsum.panels", "hushsum.plot_pages", "hushsum.plots",
        "hushsum.privacy.ledger", "hushsum.proposal",
        "hushsum.release_format", "hushsum.releases", "hushsum.secure_sum", "hushsum.statistics", "hushsum.synthetic",
        "hushsum.zstd_frame",
        "hushsum_proto.certificates", "hushsum_proto.v1.wire_pb2",
    },
    "hushsum_cli": {"aggregator", "edge_client", "hushsum"},
}  # fmt: skip


MADE = """
from edge_client import EdgeClient, Policy
EdgeClient("localhost:7443", spool="never-made.db", policy=Policy(max_epsilon=1.0))
"""


def loaded_by(code: str) -> set[str]:
    """The modules that some code loads, beside those of the interpreter's start."""
    code = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return set(ended.stdout.split())


def packages_of(modules: set[str]) -> set[str]:
    """Their packages outside the standard library."""
    return {module.partition(".")[0] for module in modules} - sys.stdlib_module_names


@pytest.mark.parametrize("name", PACKAGES)
def test_an_import_loads_only_the_packages_of_the_list(name: str) -> None:
    assert packages_of(loaded_by(f"import {name}")) == PACKAGES[name]


def test_a_client_is_made_without_more_packages() -> None:
    assert packages_of(loaded_by(MADE)) == PACKAGES["edge_client"]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_an_import_leaves_out_what_only_some_features_need(name: str) -> None:
    assert not loaded_by(f"import {name}") & LEFT_OUT[name]


def test_every_public_name_is_there_whenever_it_is_loaded() -> None:
    assert set(hs.__all__) <= set(dir(hs))
    for name in hs.__all__:
        assert getattr(hs, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'hushsum' has no attribute 'Relese'"):
        _ = hs.Relese  # type: ignore[attr-defined]  # misspelt on purpose, which a type checker reports too
