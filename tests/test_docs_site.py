"""The documentation site: its references say what the code does, it builds strictly, and asks no other address."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.config import Config
from build_tools.docs_site import (
    anchors_of,
    code_pages,
    kernels_page,
    leave_the_site,
    plan_page,
    plan_probes,
    service_pages,
)
from build_tools.docs_site.plan_probes import REQUIRED, SAMPLES, STATED, Sample
from hushsum.errors import PlanError
from hushsum.families.limits import FAMILIES_OF, KERNELS_OF_SETS
from hushsum.plan_keys import KEYS
from hushsum_cli.serve import serve
from tests.hushsum_cli.calling import Hushsum
from tests.test_monitoring import exported

ROOT = Path(__file__).resolve().parents[1]
ALL_KEYS = [(table, key) for table, keys in KEYS.items() for key in keys]


# ------------------------------------------------------------------------------------------------- keys of a plan


def test_every_key_is_described_and_read_by_a_sample() -> None:
    for table, key in ALL_KEYS:
        values, default = plan_page.described(table, key)
        assert values, f"{table}.{key}: a plan of no sample has this key"
        assert default, f"{table}.{key}"
        assert KEYS[table][key].meaning.endswith("."), f"{table}.{key}"


def default_value(sample: Sample, table: str, key: str, stated: object) -> Any:
    """The value that the reference states as the default of a key."""
    if stated is not STATED:
        return stated
    fields = sample.plan(sample.with_value(table, key, ...)).to_fields()
    holder: Any = plan_probes.holder_of(fields, table)
    if key in holder:
        return holder[key]  # stated as "calibrated" or "every key at its default"
    text = KEYS[table][key].default
    return int(text) if text.isdecimal() else text


def test_a_plan_with_the_stated_default_is_the_plan_without_the_key() -> None:
    for table, key in ALL_KEYS:
        for each in plan_probes.accepted(table, key):
            if each.default is None or each.default is REQUIRED:
                continue
            value = default_value(each.sample, table, key, each.default)
            if isinstance(value, str) and value.startswith("none"):
                assert key not in plan_probes.holder_of(
                    each.sample.plan(each.sample.with_value(table, key, ...)).to_fields(), table
                )
                continue
            without = each.sample.plan(each.sample.with_value(table, key, ...))
            written = each.sample.plan(each.sample.with_value(table, key, value))
            assert written.id == without.id, (table, key, each.sample.label)


def test_a_key_that_is_required_is_refused_by_its_name_where_it_is_missing() -> None:
    required = 0
    for table, key in ALL_KEYS:
        for each in plan_probes.accepted(table, key):
            if each.default is REQUIRED:
                required += 1
                with pytest.raises(PlanError, match=f"{key}: is missing"):
                    each.sample.plan(each.sample.with_value(table, key, ...))
    assert required > 100


INTEGERS = re.compile(r"an integer from (\d+) to (\d+)")
REALS = {
    "a number above 0": (0, -1),
    "a number above 0 and below 1": (0, 1),
    "a number from 0 to below 1": (-0.001, 1),
    "a number from 0 to below 0.5": (-0.001, 0.5),
    "a number from 1 to 2": (0.999, 2.001),
    "a number from 1 to 8": (0.999, 8.001),
    "an exact rational above 0": (0, -1),
}


def outside(expected: str) -> Iterator[object]:
    """Values just outside a range that the reference states."""
    if found := INTEGERS.fullmatch(expected):
        yield from (int(found[1]) - 1, int(found[2]) + 1, "1")
    elif expected.startswith(("a number", "an exact rational")):
        yield from (*REALS[expected], "much")
    elif expected.startswith("one of"):
        yield from ("no such value", 3)
    elif expected.startswith("a duration"):
        yield from ("1h30m", "4000d", "-1s", "0ms" if "from 1 ms" in expected else "90")
    elif expected.startswith("a UTC time"):
        yield from ("yesterday", "1969-12-31T23:59:59Z", "2026-01-01T00:00:00.5Z")
    else:
        yield 3.5


def test_a_value_outside_of_the_stated_range_is_refused_by_the_name_of_its_key() -> None:
    for table, key in ALL_KEYS:
        for each in plan_probes.accepted(table, key):
            for value in outside(each.expected):
                assert plan_probes.refusal(each.sample, table, key, value), (table, key, each, value)


def test_the_ends_of_a_stated_range_are_within_it() -> None:
    """They may be refused for another reason, such as memory, or because of other keys."""
    for table, key in ALL_KEYS:
        for each in plan_probes.accepted(table, key):
            found = INTEGERS.fullmatch(each.expected)
            ends = [int(end) for end in found.groups()] if found else re.findall(r"'([^']*)'", each.expected)
            for value in ends if found or each.expected.startswith("one of") else ():
                assert plan_probes.refusal(each.sample, table, key, value) != each.expected, (table, key, each, value)


DIM = 3
#: Of keys whose range the table of keys states, because it depends on others: values that are refused, and where.
OUTSIDE: dict[tuple[str, str], tuple[str, tuple[object, ...]]] = {
    ("record", "lower"): ("`hashed`", ([0] * 2, [0] * 4, [-(2**65)] * DIM)),
    ("record", "upper"): ("`hashed`", ([9] * 2, [9] * 4, [2**65] * DIM, [0] * DIM)),
    ("record", "classes"): ("`hashed`", (["one"], ["a", "a"], [f"{n}" for n in range(1025)])),
    ("record", "names"): ("`hashed`", (["a", "b"], ["a", "a", "b"])),
    ("record", "units"): ("`hashed`", (["a", "b"],)),
    ("sketch", "transforms"): ("`hashed`", ([{"kind": "unit-norm"}] * 17,)),
    ("sketch", "radius"): ("`paired`", (0, "1e-20", 2**65)),
    ("sketch", "norm_bound"): ("`paired`", (0, 1, 2**65)),
    ("sketch.groups", "columns"): ("`hashed`, groups", ([0, 3], [2, 1], [])),
    ("sketch.transforms", "factor"): ("`transforms`, kind `scale`", ([1, 1], ["1e-20"] * DIM, [2**65] * DIM)),
    ("sketch.transforms", "lower"): ("`transforms`, kind `clip`", ([0, 0], [-(2**65)] * DIM)),
    ("sketch.transforms", "upper"): ("`transforms`, kind `clip`", ([9, 9], [2**65] * DIM, [0] * DIM)),
    ("privacy.mechanism", "field"): ("compiled", (2, 2**31 + 1)),
    ("privacy.mechanism", "clients_scale"): ("compiled", (0,)),
    ("privacy.secure", "corrupt_clients"): ("mode `secure`, with a pool", (-1, ...)),
    ("privacy.secure", "pool"): ("mode `secure`, with a pool", (100, 1_000_001, ...)),
    ("window", "windows_per_client"): ("cumulative, unit `client`", (0, 101, ...)),
    ("privacy.local", "randomiser"): ("mode `local`, reports of `fourier`", ("k-rr", "projective")),
}


def test_ranges_that_the_table_of_keys_states_are_refused_beyond() -> None:
    assert set(OUTSIDE) == {(table, key) for table, key in ALL_KEYS if KEYS[table][key].values}
    samples = {sample.label: sample for sample in SAMPLES}
    for (table, key), (label, values) in OUTSIDE.items():
        for value in values:
            assert plan_probes.refusal(samples[label], table, key, value), (table, key, value)


def test_the_page_of_a_plan_has_a_section_for_every_key() -> None:
    page = plan_page.plan_keys()
    assert all(f"### `{table}.{key}`\n" in page for table, key in ALL_KEYS if table)
    rows = page.partition("### `sketch.rows`")[2].partition("###")[0]
    assert "an integer from 1 to 131072 (`paired`); an integer from 1 to 1048576 (otherwise) | required | rows" in rows
    assert "No change: bytes" not in rows


# --------------------------------------------------------------------------------------------------------- kernels


def test_every_kernel_has_a_formula_a_curve_and_its_sensitivity() -> None:
    assert set(kernels_page.KERNELS) == {*FAMILIES_OF, *KERNELS_OF_SETS}
    page = kernels_page.kernel_pages()
    assert page.count("<svg") == page.count("<polyline") == len(kernels_page.KERNELS)
    assert kernels_page.sensitivity("hashed", "laplacian").l1 == 512


@pytest.mark.parametrize(
    ("name", "at", "value"),
    (
        ("euclidean", 1, 0.369),
        ("laplacian", 1, 0.368),
        ("gaussian", 1, 0.368),
        ("cauchy", 1, 0.5),
        ("exponential-p", 1, 0.368),
    ),
)
def test_a_kernel_is_what_the_page_says_at_one_bandwidth(name: str, at: float, value: float) -> None:
    curve = kernels_page.KERNELS[name].curve(np.array([0.0, at]))
    assert curve.tolist() == pytest.approx([1, value], abs=1e-3)


# ---------------------------------------------------------------------------------------------- code and service


def test_every_public_name_is_on_the_page_of_the_interface() -> None:
    pages = code_pages.interface() + code_pages.errors()
    for module in ("hushsum", "hushsum.estimators", "edge_client"):
        for name in code_pages.public_names(module):
            assert f"{module}.{name}\n" in pages or f".{name}\n" in pages, f"{module}.{name}"


def test_a_public_name_without_a_docstring_is_found() -> None:
    class Planted:
        """It has one."""

        def method(self) -> None: ...

        @property
        def value(self) -> int:
            return 0

    assert list(code_pages.missing(Planted)) == ["Planted.method", "Planted.value"]


def test_the_page_of_commands_has_the_help_of_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "".join(code_pages.commands().split())
    for command in (("plan", "advise"), ("admin", "tokens", "add"), ("serve",)):
        shown = Hushsum(monkeypatch, capsys)(*command, "--help").out
        assert f"##`hushsum{''.join(command)}`" in page
        assert "".join(shown.split()) in page, "whatever the width of lines"


def test_every_setting_has_one_meaning_and_its_bounds() -> None:
    page = service_pages.settings()
    assert all(f"| `{name}` |" in page for name in Config.model_fields)
    assert "| `partitions` | integer, at least 1, at most 1,024 | `1` |" in page
    assert "| `skew_s` | number, at least 0, at most 86,400 | `300` |" in page
    assert "| `memory_max` | integer, at least 67,108,864 | – |" in page


def test_a_setting_with_two_meanings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config.model_fields["listen"], "description", "Something else.")
    with pytest.raises(ValueError, match="listen has both a description in Config and an option"):
        service_pages.settings()


def test_the_help_of_an_option_states_the_default_of_its_setting() -> None:
    stated = {
        each.name: found[1].partition(",")[0]
        for each in serve.params
        if (found := re.search(r"\[default: (.*)\]", getattr(each, "help", None) or ""))
    }
    assert len(stated) > 12
    for name, text in stated.items():
        default = Config.model_fields["log" if name == "log_kind" else name or ""].default
        if default not in (None, ""):
            assert text in {
                str(default),
                f"{default:g}" if isinstance(default, float) else "",
                str(default).removesuffix(".0"),
            }


def test_every_metric_and_every_alert_has_its_line() -> None:
    page = service_pages.metrics()
    for name in exported():
        base = re.sub(r"_(bucket|count|sum|created|total)$", "", name)
        lines = (f"| `{each}` |" in page for each in (name, base, f"{base}_total"))
        assert any(lines) or not name.startswith("hushsum_"), name
    assert "| `hushsum_folded_total` | counter | `partition`, `verdict` |" in page
    alerts = service_pages.alerts()
    assert all(f"### {rule['alert']}\n" in alerts for rule in service_pages.rules())


# ----------------------------------------------------------------------------------------------------------- a build


def build(source: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    options = ["--quiet", "--fresh-env", "--fail-on-warning", "--keep-going", "--builder", "html"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


#: What makes a browser ask for something: an attribute, a style, or a script.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed|object|input)\b[^>]*\b(?:src|srcset|data)\s*=\s*["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?(?:canonical|search|next|prev|author))[^>]*\bhref\s*=\s*["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(\s*["']?(?:https?:)?//"""
    r"""|(?:fetch|import|importScripts|open)\(\s*(?:["'][A-Z]+["'],\s*)?["'`](?:https?:)?//"""
    r"""|\.(?:src|href)\s*=\s*["'`](?:https?:)?//""",
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    "line",
    (
        '<script async src="https://cdn.example/a.js">',
        '<img alt="x" src=//example.org/a.png>',
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<link href="http://example.org/f.woff" rel="preload">',
        "@import 'https://example.org/a.css';",
        "a { background: url(https://example.org/a.png) }",
        "@font-face { src: url('//example.org/f.woff') }",
        'fetch("https://example.org/x")',
        "request.open('GET', 'https://example.org')",
        'image.src = "https://example.org/a.png"',
    ),
)
def test_a_load_from_another_address_is_found(line: str) -> None:
    assert LOADS.search(line)


@pytest.mark.parametrize(
    "line",
    (
        '<a href="https://example.org">',
        '<script src="_static/a.js">',
        '<svg xmlns="http://www.w3.org/2000/svg">',
        "url(data:image/svg+xml;charset=utf-8,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22)",
        'fetch("searchindex.js")',
    ),
)
def test_a_link_is_no_load(line: str) -> None:
    assert not LOADS.search(line)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole site, built strictly."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = build(ROOT / "docs", folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_no_page_asks_another_address(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in {".html", ".css", ".js", ".svg"}]
    assert len(pages) > 30
    asking = {
        f"{path.name}: {found[0][:120]}" for path in pages if (found := LOADS.search(path.read_text(encoding="utf-8")))
    }
    assert not asking
    kernels = (site / "reference" / "kernels.html").read_text(encoding="utf-8")
    assert kernels.count("<math") == len(kernels_page.KERNELS)
    assert not re.search("<script[^>]*mathjax", kernels, re.IGNORECASE)
    assert "min_clients" in (site / "searchindex.js").read_text(encoding="utf-8")
    plan = (site / "reference" / "plan.html").read_text(encoding="utf-8")
    assert 'id="sketch-rows"' in plan
    assert "in a clone" not in plan, "on the site nothing is missing"
    flow = (site / "explanation" / "flow.html").read_text(encoding="utf-8")
    assert '<desc id="flow-text">' in flow, "the diagram stands in the page, whose colour its lines have"
    assert "<math" in (site / "explanation" / "proofs" / "laplace.html").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    ("query", "first"),
    (
        ("trust mode", "explanation/trust-modes.html"),
        ("rotate token", "how-to/keys.html"),
        ("min_clients", "reference/plan.html"),
        ("restore", "how-to/backups.html"),
    ),
)
def test_the_search_works_from_files_without_a_network(site: Path, tmp_path: Path, query: str, first: str) -> None:
    address = f"{(site / 'search.html').as_uri()}?q={query.replace(' ', '+')}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000"]
    network = "--host-resolver-rules=MAP * ~NOTFOUND"  # no name has an address
    command = ["chromium", *options, network, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", address]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    results = shown.partition('id="search-results"')[2]
    found = re.search(r'<li[^>]*><a href="([^"#?]*)', results)
    assert found, shown[-2000:]
    assert found[1] == first


def test_a_dead_link_and_an_undocumented_name_fail_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    shutil.copytree(ROOT / "docs" / "static", source / "static")
    shutil.copy(ROOT / "docs" / "conf.py", source)
    shutil.copy(ROOT / "docs" / "glossary.md", source)
    links = "[there](nowhere.md) [here](#no-heading) [a](glossary.md#sketch-delta) [b](glossary.md#no-term)"
    planted = f"{links}\n\n```{{eval-rst}}\n:class:`hushsum.Nothing`\n```\n\n```{{toctree}}\nglossary\n```\n"
    (source / "index.md").write_text(f"# A page\n\n{planted}", encoding="utf-8")
    built = build(source, tmp_path / "site")
    assert built.returncode != 0
    for why in ("nowhere.md", "no-heading", "hushsum.Nothing", "no-term"):
        assert why in built.stderr
    assert "sketch-delta" not in built.stderr
    assert len(built.stderr.strip().splitlines()) == 4, built.stderr
    assert 'id="sketch-delta"' in (tmp_path / "site" / "glossary.html").read_text(encoding="utf-8")


def test_each_term_of_the_glossary_has_an_anchor_of_its_own() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    terms = {re.sub("<.*?>", "", cell): anchors_of(cell) for cell in cells}
    assert terms["rows, buckets"] == ["rows", "buckets"]
    assert terms["δ (delta)"] == ["delta"]
    for term, anchors in terms.items():
        written_out = re.search(r"\((\w+)\)", term)
        names = [written_out[1]] if written_out else term.split(", ")
        assert anchors == [name.replace(" ", "-") for name in names], term
    every = [anchor for anchors in terms.values() for anchor in anchors]
    assert len(every) == len(set(every)) > 80


def test_links_to_terms_are_right_in_the_sources_too_where_a_forge_shows_them() -> None:
    known = set(anchors_of((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))
    asked = {
        anchor
        for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md")
        for anchor in re.findall(r"glossary\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 10
    assert asked <= known, asked - known


def test_a_link_out_of_the_site_is_text_and_a_dead_one_is_refused() -> None:
    operations, architecture = ["[compose](../compose/README.md) [here](glossary.md)"], ["[x](../nowhere.md)"]
    leave_the_site(ROOT / "docs", "operations", operations)
    assert operations == ["compose [here](glossary.md)"]
    with pytest.raises(ValueError, match=r"architecture: dead link to \.\./nowhere\.md"):
        leave_the_site(ROOT / "docs", "architecture", architecture)


def test_the_site_is_built_into_a_folder_that_git_ignores_and_clean_removes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "html docs build/site" in makefile
    assert "/build/" in (ROOT / ".gitignore").read_text().splitlines()
    assert re.search(r"^clean:.*\n\t@rm -rf build ", makefile, re.MULTILINE)
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert {"sphinx", "furo", "myst-parser"} <= {re.split("[>=<]", name)[0] for name in dev}


def test_late_deltas_are_dropped_unless_a_plan_says_otherwise() -> None:
    assert plan_page.described("window", "late")[1] == "drop"


# ------------------------------------------------------------------------------------------------------- short cells

CELL_WORDS_MAX = 20
READ_IN_SEQUENCE = ("explanation", "how-to", "tutorials")


def long_cells(page: str) -> list[str]:
    """The cells of a page's tables that have too many words; a piece of code or a formula is one word."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    rows = (line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|"))
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`|\$[^$]*\$", "code", row))]
    return [cell for cell in cells if len(re.sub(r"\]\([^)]*\)", "]", cell).split()) > CELL_WORDS_MAX]


def test_a_long_cell_is_found() -> None:
    words = " ".join(["word"] * CELL_WORDS_MAX)
    assert not long_cells(f"| a | b |\n|---|---|\n| {words} | `{words} code` |\n\n{words} no table")
    assert long_cells(f"| a | b |\n|---|---|\n| {words} more | b |") == [f" {words} more "]
    assert long_cells(f"- In a list:\n\n  | a |\n  |---|\n  | {words} more |")


@pytest.mark.parametrize("folder", READ_IN_SEQUENCE)
def test_cells_of_tables_that_are_read_are_short(folder: str) -> None:
    pages = sorted((ROOT / "docs" / folder).rglob("*.md"))
    assert pages
    found = {path.name: cells for path in pages if (cells := long_cells(path.read_text(encoding="utf-8")))}
    assert not found


def test_a_diagram_stands_in_its_page_and_says_what_it_shows() -> None:
    pages = sorted((ROOT / "docs" / "explanation").rglob("*.md"))
    shown = {name for path in pages for name in re.findall(r"!\[[^\]]+\]\((\S+\.svg)\)", path.read_text("utf-8"))}
    drawn = sorted((ROOT / "docs" / "explanation" / "diagrams").glob("*.svg"))
    assert {f"diagrams/{path.name}" for path in drawn} == shown
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        assert "<title " in text, path.name
        assert "<desc " in text, path.name
        assert 'stroke="currentColor"' in text, path.name


PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


def test_pages_that_code_names_are_there() -> None:
    folders = ("hushsum", "edge_client", "aggregator", "hushsum_cli", "hushsum_simulator", "proto", "benchmarks")
    sources = [path for folder in (*folders, "tests") for path in (ROOT / folder).rglob("*.py")]
    named = {(name, path.name) for path in sources for name in PAGE.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert not {(name, source) for name, source in named if not (ROOT / name).is_file()}
