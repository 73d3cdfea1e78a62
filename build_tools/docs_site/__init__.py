"""The Sphinx extension of docs/conf.py: pages that the code writes, formulas as MathML, and diagrams in their page.

A page of docs/ that has a line ``<!-- generated: NAME -->`` gets the text of that name there. Formulas need no script:
the converter of docutils makes MathML of them. An SVG stands in the page itself, not in an ``img``, so that its
``currentColor`` is that of the page's text, in the light and in the dark theme. Terms of the glossary have anchors.
"""

import re
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

from build_tools.docs_site import code_pages, kernels_page, plan_page, service_pages

#: Text of generated parts, by the name that pages have.
GENERATED: Final = {
    "plan keys": plan_page.plan_keys,
    "kernels": kernels_page.kernel_pages,
    "interface": code_pages.interface,
    "commands": code_pages.commands,
    "errors": code_pages.errors,
    "settings": service_pages.settings,
    "metrics": service_pages.metrics,
    "alerts": service_pages.alerts,
}
_MARK: Final = re.compile(r"^<!-- generated: (.*) -->$", re.MULTILINE)
#: The sentence about what is generated, whose link is text already: it is for readers of the repository.
_IN_A_CLONE: Final = re.compile(r"^`make docs` writes .*?\n\n", re.MULTILINE | re.DOTALL)
_OUTWARDS: Final = re.compile(r"\[([^\]]*)\]\((\.\./[^)#]*)(?:#[^)]*)?\)")
_COLON: Final = "\N{RATIO}\N{NO-BREAK SPACE}"  # stands for one that Napoleon must not see


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers all of it with Sphinx."""
    app.connect("source-read", lambda app, page, source: leave_the_site(Path(app.srcdir).resolve(), page, source))
    app.connect("source-read", _generate, priority=600)
    app.connect("autodoc-process-docstring", _hide_colon, priority=400)  # Napoleon has 500
    app.connect("autodoc-process-docstring", _show_colon, priority=600)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _by_last_name)
    app.connect("doctree-read", _put_diagrams_in_the_page)
    app.connect("doctree-read", _know_anchors_of_terms)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _generate(_app: Sphinx, _page: str, source: list[str]) -> None:
    if _MARK.search(source[0]):
        source[0] = _MARK.sub(lambda mark: GENERATED[mark[1]](), _IN_A_CLONE.sub("", source[0]))


def leave_the_site(pages: Path, page: str, source: list[str]) -> None:
    """Leaves of links to files of the repository, which are no pages, the text alone.

    Args:
        pages: The folder of all pages, absolute.
        page: The name of this one.
        source: Its text, which is changed in place.

    Raises:
        ValueError: A file is not there.
    """

    def text(link: re.Match[str]) -> str:
        target = (pages / page).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(pages):
            return link[0]
        if not target.exists():
            raise ValueError(f"{page}: dead link to {link[2]}")
        return link[1]

    source[0] = _OUTWARDS.sub(text, source[0])


def _hide_colon(_app: Sphinx, what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Napoleon would take the words before a colon for the type of a property."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(": ", _COLON)


def _show_colon(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace(_COLON, ": ") for line in lines]


def _skip(*event: Any) -> bool | None:
    """Fields of named tuples are described by their class, methods of scikit-learn by its own pages."""
    _app, _what, _name, found, _is_skipped, _options = event
    is_foreign = str(getattr(found, "__module__", "")).startswith("sklearn.")
    return True if is_foreign or type(found).__name__ == "_tuplegetter" else None


def _by_last_name(app: Sphinx, env: Any, node: Any, shown: Any) -> Any:
    """A class or an error that a docstring names without its module: the one of that name that has a description."""
    if node.get("reftype") not in {"class", "exc"}:
        return None
    objects = env.domains.python_domain.objects
    found = [name for name in objects if name.rpartition(".")[2] == node["reftarget"].rpartition(".")[2]]
    if not found or "." in node["reftarget"]:
        return None
    target = objects[min(found, key=len)]
    return make_refnode(app.builder, node["refdoc"], target.docname, target.node_id, shown)


def _put_diagrams_in_the_page(app: Sphinx, doctree: nodes.document) -> None:
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg"):
            path = Path(app.srcdir, image["uri"])
            app.env.note_dependency(str(path))
            drawn = f'<div class="diagram">{path.read_text(encoding="utf-8")}</div>'
            image.replace_self(nodes.raw("", drawn, format="html"))


def anchors_of(term: str) -> list[str]:
    """The anchors that a line of the glossary has before its term."""
    return re.findall(r'<a id="([a-z-]+)"></a>', term)


def _know_anchors_of_terms(app: Sphinx, doctree: nodes.document) -> None:
    """So that ``glossary.md#sketch-delta`` is the line of that term; MyST knows the anchors of headings alone."""
    if app.env.current_document.docname != "glossary":
        return
    known = app.env.metadata["glossary"].setdefault("myst_slugs", {})
    for table in doctree.findall(nodes.tbody):
        for row in table.findall(nodes.row):
            term = row[0].astext()
            for anchor in anchors_of(term):
                known[anchor] = (row.line or 0, anchor, term)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
