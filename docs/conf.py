"""Sphinx: how `make docs` builds the site."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]  # the extension, and the code that it describes

project = "Hushsum"
author = "the Hushsum project"
project_copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "build_tools.docs_site"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
# Types of other projects are not linked: their pages are elsewhere, and a build asks no network. Nor are
# modules that are no part of the interface, which docstrings name for readers of the code.
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|npt|numbers|collections|typing|os|asyncio|fractions|decimal|datetime|concurrent)\..*"),
    (r"py:mod", r".*"),
    (r"py:class", r"Account|.*\._.*"),
    (r"py:.*", r"hushsum\.(?!estimators|statistics|comparison|parameters|errors)[a-z_]+\..*"),
    (r"py:.*", r"edge_client\.(?!blocking|errors)[a-z_]+\..*"),
]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autoclass_content = "both"
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False
napoleon_preprocess_types = False

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["myst.strikethrough"]

html_theme = "furo"
html_title = "Hushsum"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["hushsum.css"]
html_search_scorer = str(Path(__file__).with_name("static") / "search_scorer.js")
html_last_updated_fmt = None
